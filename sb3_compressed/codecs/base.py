"""``Codec``: the contract that every codec keeps."""

from __future__ import annotations

import copyreg
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload, LevelOutOfRange

__all__ = ["BytesCodec", "Codec", "Levels", "TrainableCodec"]


@dataclass(frozen=True)
class Levels:
    """The compression levels a codec takes: one or two ranges of integers, and the default.

    :param ranges: ``(lowest, highest)`` pairs, both ends included
    :param default: the level used where none is given
    """

    ranges: tuple[tuple[int, int], ...]
    default: int

    def __contains__(self, level: object) -> bool:
        is_integer = isinstance(level, int | np.integer) and not isinstance(level, bool)
        return is_integer and any(low <= level <= high for low, high in self.ranges)  # type: ignore[operator]

    def __str__(self) -> str:
        return " and ".join(f"{low}..{high}" for low, high in self.ranges)


class Codec(ABC):
    """A lossless translation between frames and payloads, one batch at a time.

    The contract:

    - ``decode_into(encode(frames), out)`` leaves in ``out`` the very bits of ``frames``, for every dtype without
      Python objects, every shape (zero-size ones too) and every memory layout of ``frames``.
    - A payload is self-contained given its codec's state, and is an exact-size :class:`bytes`. Compressors
      allocate a bound and shrink it in place; kept in slots, such objects leave holes that are never reused and
      cost three times their length in RSS. :meth:`encode` therefore returns fresh copies.
    - A payload that :meth:`encode` cannot have written for such a frame (truncated, too long, malformed, of
      another size) raises :class:`~sb3_compressed.CorruptPayload`, and no payload makes the decoder read or write
      outside its buffers. ``out`` may then hold anything.
    - Both methods may be called from several threads at once. A codec is picklable, and never changes.
    - Two codecs may share a ``name`` only if either can decode what the other wrote.

    Write a codec as a frozen dataclass: its fields are its keyword arguments, and equality, ``repr``, hash and
    pickling all follow from them. State that must not be compared or pickled is a field with ``init=False,
    repr=False, compare=False``.

    :cvar name: the name in the registry, without a level
    :cvar levels: the levels it takes, ``None`` if it has none; then the field ``compresslevel`` does not exist
    :cvar typical_ratio: what a payload of game frames is of the raw frame, for estimates of memory
    :cvar is_parallel: whether parts of a batch are decoded faster by several threads: if it is done in a few long calls
        that do not hold Python's lock
    """

    name: ClassVar[str]
    levels: ClassVar[Levels | None] = None
    typical_ratio: ClassVar[float] = 0.1
    is_parallel: ClassVar[bool] = False

    @abstractmethod
    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch.

        :param frames: array of shape ``(n, *frame_shape)``, any dtype without objects, any memory layout
        :return: ``n`` payloads
        """

    @abstractmethod
    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch into memory that the caller owns.

        :param payloads: ``n`` payloads
        :param out: C-contiguous array of shape ``(n, *frame_shape)`` with the dtype the frames had
        :raises CorruptPayload: if a payload cannot be what :meth:`encode` wrote; its ``index`` says which
        :raises ValueError: if ``out`` is not C-contiguous or not of length ``n``
        """

    def prepare(self) -> None:
        """Do now what the first use would do: import libraries, compile. For the time before workers are forked."""
        payloads = self.encode(np.zeros((1, 1), dtype=np.uint8))
        self.decode_into(payloads, np.empty((len(payloads), 1), dtype=np.uint8))

    @property
    def shorthand(self) -> str:
        """The text that :func:`~sb3_compressed.get_codec` turns into this codec, e.g. ``"zstd/-5"``.

        It tells name and level; other arguments are not part of it.
        """
        return self.name if self.levels is None else f"{self.name}/{self.compresslevel}"  # type: ignore[attr-defined]

    def _check_level(self, level: object) -> None:
        if self.levels is None or level not in self.levels:
            raise LevelOutOfRange(f"codec {self.name!r} has the levels {self.levels}, got {level!r}")

    def __copy__(self) -> Codec:
        return self  # it never changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Codec:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: per-thread contexts and other derived state are made anew, and checks run again.
        if not is_dataclass(self):
            return copyreg.__newobj__, (type(self),), dict(self.__dict__)  # type: ignore[attr-defined]
        names = [field.name for field in fields(self) if field.init]
        return _rebuild, (type(self), {name: getattr(self, name) for name in names})


class TrainableCodec(Codec):
    """A codec that encodes better once it knows what frames look like.

    It never changes: learning returns another codec. Whoever keeps payloads keeps with each the codec that wrote it,
    so that they stay readable, and what a codec has learned is freed with the last payload that needs it.
    """

    @abstractmethod
    def train(self, frames: NDArray[Any]) -> TrainableCodec:
        """Return a codec that has learned from a batch of frames ``(n, *frame_shape)``, this one if nothing was."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that what it has learned takes, in bytes."""

    def release_encoder(self) -> None:
        """Free what only encoding needs; called when another codec has taken its place. It may still be used."""

    @classmethod
    @abstractmethod
    def decode_batch(
        cls,
        codecs: Sequence[TrainableCodec],
        payloads: Payloads,
        out: NDArray[Any],
        done: NDArray[np.uint8] | None = None,
    ) -> None:
        """Decode payloads that different codecs of this class wrote; else as :meth:`Codec.decode_into`.

        :param codecs: the codecs
        :param payloads: ``n`` payloads, whose ``writers`` are indices of the codecs
        :param out: C-contiguous array of shape ``(n, *frame_shape)``
        :param done: for each payload, 1 if its frame is in ``out`` already, else 0, ``(n,)``; it may be written to
        :raises IndexError: if a payload's writer is not among the codecs
        """

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)


def _rebuild(cls: type[Codec], config: dict[str, Any]) -> Codec:
    return cls(**config)


def frame_bytes(frames: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a batch ``(n, *frame_shape)`` as bytes ``(n, frame_nbytes)``; a view where it is C-contiguous."""
    if frames.dtype.hasobject:
        raise CodecError(f"cannot compress arrays of Python objects, got dtype {frames.dtype}")
    n, *frame_shape = frames.shape
    if frames.dtype == np.uint8 and frames.flags.c_contiguous:
        return frames.reshape(n, math.prod(frame_shape))
    return np.ascontiguousarray(frames).reshape(n, math.prod(frame_shape)).view(np.uint8)


def output_bytes(out: NDArray[Any], n_payloads: int) -> NDArray[np.uint8]:
    """Return the memory to decode ``n_payloads`` payloads into as bytes ``(n, frame_nbytes)``, after checks.

    :raises ValueError: if ``out`` is not C-contiguous, or not of that length
    """
    if not out.flags.c_contiguous:
        raise ValueError("out must be C-contiguous, so that payloads can be decoded in place")
    if len(out) != n_payloads:
        raise ValueError(f"out has room for {len(out)} frames, got {n_payloads} payloads")
    return frame_bytes(out)


def exact_bytes(payloads: Iterable[bytes]) -> list[bytes]:
    """Copy payloads into objects that are as large as their content; see :class:`Codec` for why."""
    return [bytes(memoryview(payload)) for payload in payloads]


def decompress_bounded(decompressor: Any, payload: bytes, nbytes: int) -> bytes:
    """Decompress with a fresh object of the kind of zlib's ``decompressobj``, never to much more than ``nbytes``.

    :raises CorruptPayload: if the compressed stream ends before or after the payload does
    """
    raw: bytes = decompressor.decompress(payload, nbytes + 1)  # one byte more shows that there is more
    if len(raw) <= nbytes and not decompressor.eof:
        raise CorruptPayload("it is truncated")
    if decompressor.unused_data:
        raise CorruptPayload(f"{len(decompressor.unused_data)} bytes follow its end")
    return raw


class BytesCodec(Codec):
    """A codec that treats every frame as plain bytes, by way of a compression library.

    A subclass says how one frame is compressed and decompressed; batches, copies and checks of size are here. A frame
    of no bytes has an empty payload, so libraries never meet one.

    :cvar library_errors: what the library raises on malformed input
    """

    library_errors: ClassVar[tuple[type[Exception], ...]] = ()

    @abstractmethod
    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame, given as a contiguous byte vector of shape ``(frame_nbytes,)``."""

    @abstractmethod
    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload that should give ``nbytes`` bytes.

        Never allocates much more than ``nbytes``, whatever the payload claims; :func:`decompress_bounded` sees to it
        for libraries that decompress in steps.

        :raises Exception: any of :attr:`library_errors`, or :class:`~sb3_compressed.CorruptPayload`
        """

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        return exact_bytes(self.compress_frame(row) for row in rows) if rows.shape[1] else [b""] * len(rows)

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        n = len(payloads)
        decode_some([self] * n, payloads, output_bytes(out, n), range(n))


def decode_some(
    codecs: Sequence[BytesCodec], payloads: Sequence[bytes], rows: NDArray[np.uint8], indices: Sequence[int]
) -> None:
    """Decode the payloads at some indices, each with its codec, into the rows of bytes there.

    :param codecs: a codec for each of the indices
    :raises CorruptPayload: with the position among all payloads as its ``index``
    """
    for codec, index in zip(codecs, indices, strict=True):
        payload, row = payloads[index], rows[index]
        try:
            raw = codec.decompress_frame(payload, row.size) if row.size else payload
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, index) from None
        except codec.library_errors as error:
            raise CorruptPayload(f"{codec.name} cannot decode it ({error})", index) from error
        if len(raw) != row.size:
            raise CorruptPayload(f"decodes to {len(raw)} bytes, a frame has {row.size}", index)
        row[:] = np.frombuffer(raw, dtype=np.uint8)
