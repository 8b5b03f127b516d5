"""``Codec``: the base classes and contract of all codecs."""

from __future__ import annotations

import copyreg
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.config import abbreviate, arguments_from_json, to_json
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload, LevelOutOfRange

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["UINT8", "BytesCodec", "Codec", "Levels", "TrainableCodec"]

#: Comparing with a dtype takes a fraction of comparing with a type.
UINT8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class Levels:
    """The compression levels of a codec: one or more ranges of integers, and the default.

    :param ranges: ``(lowest, highest)`` pairs, both ends included
    :param default: the level if none is given
    """

    ranges: tuple[tuple[int, int], ...]
    default: int

    def __contains__(self, level: object) -> bool:
        is_integer = isinstance(level, int | np.integer) and not isinstance(level, bool)
        return is_integer and any(low <= level <= high for low, high in self.ranges)  # type: ignore[operator]

    def __str__(self) -> str:
        return " and ".join(f"{low}..{high}" for low, high in self.ranges)


class Codec(ABC):
    """A lossless codec: it encodes batches of frames as payloads, and decodes them.

    The contract:

    - ``decode_into(encode(frames), out)`` leaves exactly the bits of ``frames`` in ``out``, for every dtype without
      Python objects, every shape (zero-size ones too) and every memory layout of ``frames``.
    - A payload is self-contained given its codec's state, and is an exact-size :class:`bytes`. Compressors
      return objects that were shrunk in place, whose unused memory is not returned: kept in a list, payloads would take
      about three times their length. :meth:`encode` therefore returns copies.
    - A payload that :meth:`encode` cannot have written for such a frame (truncated, too long, malformed, of
      another size) raises :class:`~sb3_compressed.CorruptPayload`, and no payload makes the decoder read or write
      outside its buffers. The content of ``out`` is undefined after an error.
    - Both methods are thread-safe. A codec is picklable and immutable.
    - Two codecs may share a ``name`` only if each can decode what the other wrote.

    Write a codec as a frozen dataclass: its fields are its keyword arguments, and equality, ``repr``, hash, pickling
    and :meth:`get_config` all follow from them. Declare state that must not be compared or stored as a field with
    ``init=False, repr=False, compare=False``.

    :cvar name: the name in the registry, without a level
    :cvar levels: the supported levels; ``None`` if it has none and no field ``compresslevel``
    :cvar typical_ratio: the typical size of a payload of game frames relative to the raw frame, for memory estimates
    :cvar is_parallel: whether several threads decode parts of a batch faster than one: true if decoding consists of few
        long calls that release the GIL
    :cvar chunk_nbytes: bytes of frames whose decoding takes about 0.1 ms: less is not worth waking up a thread
    """

    name: ClassVar[str]
    levels: ClassVar[Levels | None] = None
    typical_ratio: ClassVar[float] = 0.1
    is_parallel: ClassVar[bool] = False
    chunk_nbytes: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:  # of dataclasses
        if self.levels is not None and (level := self.compresslevel) not in self.levels:  # type: ignore[attr-defined]
            raise LevelOutOfRange(f"codec {self.name!r} supports the levels {self.levels}, got {level!r}")

    @abstractmethod
    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch.

        :param frames: array of shape ``(n, *frame_shape)``, any dtype without objects, any memory layout
        :return: ``n`` payloads
        """

    @abstractmethod
    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch into the caller's memory.

        :param payloads: ``n`` payloads
        :param out: C-contiguous array of shape ``(n, *frame_shape)`` with the dtype of the frames
        :raises CorruptPayload: if :meth:`encode` cannot have written a payload; ``index`` is its position
        :raises ValueError: if ``out`` is not C-contiguous or not of length ``n``
        """

    def encode_batch(self, frames: NDArray[Any]) -> Payloads:
        """Compress a batch as :meth:`encode` does, without a Python object for each payload.

        By default, these are copies of the payloads of :meth:`encode`.

        :raises TypeError: if the codec breaks its contract, instead of storing payloads that cannot be decoded
        """
        payloads = self.encode(frames)
        if len(payloads) != len(frames) or [*map(type, payloads)].count(bytes) < len(payloads):
            kinds = sorted({type(payload).__name__ for payload in payloads})
            raise TypeError(
                f"{self!r} must encode {len(frames)} frames to as many bytes objects, "
                f"got {len(payloads)} of {' and '.join(kinds)}"
            )
        return Payloads.of(payloads)

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Self], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; otherwise like :meth:`decode_into`.

        By default, :meth:`decode_into` of the first codec decodes them all: it can decode what the others wrote.

        :param codecs: the codecs
        :param payloads: ``n`` payloads, each with the index of its codec
        :param out: C-contiguous array of shape ``(n, *frame_shape)``
        :param done: for each payload 1 if its frame is in ``out`` already, else 0, ``(n,)``; it may be written to
        """
        if done is None or not done.any():
            codecs[0].decode_into(list(payloads), out)
            return
        left = np.flatnonzero(done == 0)
        part = np.empty((len(left), *out.shape[1:]), dtype=out.dtype)
        try:
            codecs[0].decode_into(list(payloads[left]), part)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, int(left[error.index])) from error
        out[left] = part

    def prepare(self) -> None:
        """Import libraries and compile kernels now rather than at the first use, e.g. before workers are forked."""
        payloads = self.encode(np.zeros((1, 1), dtype=np.uint8))
        self.decode_into(payloads, np.empty((len(payloads), 1), dtype=np.uint8))

    @property
    def shorthand(self) -> str:
        """The name and level, which :func:`~sb3_compressed.get_codec` accepts, e.g. ``"zstd/-5"``.

        It does not include other arguments.
        """
        return self.name if self.levels is None else f"{self.name}/{self.compresslevel}"  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        """Return the codec, including what it learned in training, as data that JSON can store.

        >>> from sb3_compressed import get_codec
        >>> get_codec("zstd-5").get_config()
        {'name': 'zstd', 'fields': {'compresslevel': -5}}

        :raises CodecError: if it is not a dataclass of numbers, strings, bytes, dtypes, and dataclasses of these
        """
        if not is_dataclass(self):
            raise CodecError(f"{self!r} cannot be stored: only a codec that is a dataclass can be written to disk")
        return {"name": self.name, "fields": to_json(self)}

    @classmethod
    def from_config(cls, config: Any) -> Codec:
        """Return the codec of this class that a config from :meth:`get_config` describes.

        Configs may come from untrusted files: arguments are validated against the types of the fields.
        :func:`.codec_from_config` looks up the class as well.

        :raises CodecError: if the config is malformed or of another codec, or an argument is invalid
        """
        try:
            if config["name"] != cls.name:
                raise CodecError(f"this is not a config of codec {cls.name!r}: {abbreviate(config)}")
            return cls(**arguments_from_json(cls, config["fields"]))
        except CodecError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise CodecError(f"cannot create a codec from {abbreviate(config)}: {error}") from error

    def __copy__(self) -> Codec:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Codec:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle through the constructor: it validates the arguments, and creates per-thread contexts and other state.
        if not is_dataclass(self):
            return copyreg.__newobj__, (type(self),), dict(self.__dict__)  # type: ignore[attr-defined]
        names = [field.name for field in fields(self) if field.init]
        return _rebuild, (type(self), {name: getattr(self, name) for name in names})


class TrainableCodec(Codec):
    """A codec that compresses better after training on frames.

    It is immutable: training returns a new codec. Whatever stores payloads stores a reference to the codec of each, so
    that they stay readable, and the state of a codec is freed with the last payload that needs it.
    """

    @abstractmethod
    def train(self, frames: NDArray[Any]) -> TrainableCodec:
        """Return a codec trained on a batch of frames ``(n, *frame_shape)``; this one if it learned nothing new."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that the trained state takes, in bytes."""

    def release_encoder(self) -> None:
        """Free what only encoding needs; called once another codec has replaced this one.

        Encoding still works, and allocates it again.
        """

    @classmethod
    @abstractmethod
    def decode_batch(
        cls, codecs: Sequence[Self], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`.

        :raises IndexError: if the codec index of a payload is out of range
        """

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)


def _rebuild(cls: type[Codec], arguments: dict[str, Any]) -> Codec:  # pickles contain this name
    return cls(**arguments)


def frame_bytes(frames: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a batch ``(n, *frame_shape)`` as bytes ``(n, frame_nbytes)``; a view if it is C-contiguous."""
    n = len(frames)
    shape = n, frames.size // n if n else math.prod(frames.shape[1:])
    if frames.dtype == UINT8 and frames.flags.c_contiguous:
        return frames.reshape(shape)
    if frames.dtype.hasobject:
        raise CodecError(f"cannot compress arrays of Python objects, got dtype {frames.dtype}")
    return np.ascontiguousarray(frames).reshape(shape).view(UINT8)


def output_rows(
    out: NDArray[Any], n_payloads: int, done: NDArray[np.uint8] | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return what kernels decode payloads into: bytes ``(n, frame_nbytes)``, and which frames are there already.

    :param out: as for :meth:`Codec.decode_batch`
    :param done: likewise; ``None`` for zeros
    :raises ValueError: if ``out`` is not C-contiguous, or one of them not of that length
    """
    if not out.flags.c_contiguous:
        raise ValueError("out must be C-contiguous, so that payloads can be decoded in place")
    if len(out) != n_payloads:
        raise ValueError(f"out has room for {len(out)} frames, got {n_payloads} payloads")
    if out.dtype.hasobject:
        raise CodecError(f"cannot decode arrays of Python objects, got dtype {out.dtype}")
    if done is None:
        done = np.zeros(n_payloads, dtype=np.uint8)
    elif len(done) != n_payloads:
        raise ValueError(f"done must have one element for each of {n_payloads} payloads, got {len(done)}")
    return out.reshape(n_payloads, math.prod(out.shape[1:])).view(np.uint8), done


def decompress_bounded(decompressor: Any, payload: bytes, nbytes: int) -> bytes:
    """Decompress a payload without allocating much more than ``nbytes``.

    :param decompressor: a fresh object with the interface of ``zlib.decompressobj``
    :raises CorruptPayload: if the compressed stream and the payload do not end at the same byte
    """
    raw: bytes = decompressor.decompress(payload, nbytes + 1)  # one byte more, to detect content that is too long
    if len(raw) <= nbytes and not decompressor.eof:
        raise CorruptPayload("it is truncated")
    if decompressor.unused_data:
        raise CorruptPayload(f"{len(decompressor.unused_data)} bytes follow its end")
    return raw


def raise_if_out_of_memory(error: Exception) -> None:
    """Raise ``MemoryError`` if this error of a compression library means that it got no memory."""
    if "allocation" in str(error).lower():
        raise MemoryError(str(error)) from error


class BytesCodec(Codec):
    """A codec that compresses the bytes of each frame with a compression library.

    A subclass compresses and decompresses one frame; this class adds batches, copies and size checks. The payload of a
    frame of zero bytes is empty and never reaches the library. A subclass may also decode many payloads at once with a
    kernel, see :meth:`decode_rows`.

    :cvar library_errors: what the library raises on malformed input
    """

    library_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def depth(name: str) -> int:
            return next(n for n, each in enumerate(cls.__mro__) if name in vars(each))

        # Methods for batches are for another format where the method for a frame is that of a subclass or mixin.
        if depth("decompress_frame") < depth("decode_rows"):
            cls.decode_rows = BytesCodec.decode_rows  # type: ignore[method-assign]
        if depth("encode") < depth("encode_batch"):
            cls.encode_batch = Codec.encode_batch  # type: ignore[method-assign]

    @abstractmethod
    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame, given as a contiguous byte vector of shape ``(frame_nbytes,)``."""

    @abstractmethod
    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload that should contain ``nbytes`` bytes.

        It must not allocate much more than ``nbytes``, whatever the payload claims; use :func:`decompress_bounded`
        with libraries that decompress in steps.

        :raises Exception: any of :attr:`library_errors`, or :class:`~sb3_compressed.CorruptPayload`
        """

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        if rows.shape[1] == 0:
            return [b""] * len(rows)
        try:
            return [bytes(memoryview(self.compress_frame(row))) for row in rows]  # exact-size copies; see Codec
        except self.library_errors as error:
            raise_if_out_of_memory(error)
            raise

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Self], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`."""
        rows, done = output_rows(out, len(payloads.places), done)
        if rows.size:
            cls.decode_rows(codecs, payloads.places, rows, done)
        if not done.all():
            cls._decompress_rest(codecs, payloads, rows, done)

    @classmethod
    def _decompress_rest(
        cls, codecs: Sequence[Self], payloads: Payloads, rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decompress the payloads that are not done, one after the other."""
        size = rows.shape[1]
        memory = rows.reshape(-1).data  # writing to it takes a fraction of writing to a row
        indices = np.flatnonzero(done == 0)
        left = payloads[indices]
        for index, writer, payload in zip(indices.tolist(), left.writers.tolist(), left, strict=True):
            try:
                raw = codecs[writer].decompress_frame(payload, size) if size else payload
            except CorruptPayload as error:
                raise CorruptPayload(error.reason, index) from None
            except cls.library_errors as error:
                raise_if_out_of_memory(error)
                raise CorruptPayload(f"{cls.name} cannot decode it ({error})", index) from error
            if len(raw) != size:
                raise CorruptPayload(f"it decodes to {len(raw)} bytes, but a frame has {size}", index)
            memory[index * size : (index + 1) * size] = raw

    @classmethod
    def decode_rows(
        cls, codecs: Sequence[Self], places: NDArray[np.int64], rows: NDArray[np.uint8], done: NDArray[np.uint8]
    ) -> None:
        """Decode what a kernel can decode; :meth:`decompress_frame` decodes the rest, and finds errors.

        A subclass that overrides only :meth:`decompress_frame` does not inherit this method from its parent.

        :param codecs: the codecs
        :param places: for each payload its address, its size in bytes, and the index of its codec, ``(n, 3)``
        :param rows: output, bytes of frames that are not empty, ``(n, frame_nbytes)``
        :param done: for each payload 1 if its frame is in ``rows`` already, else 0, ``(n,)``; set to 1 for each that
            this method decodes
        """
