"""``delta``: frames as differences from reference frames, or by ``zstd-dict`` where that is much smaller.

Most of a game's frame is background. Training selects a few reference frames; a payload has only the runs of bytes
that differ from the nearest of them. In a scrolling game nothing stays in its place, so equal bytes may also be copied
from anywhere in the references, from the line above in the frame itself, or from another color plane, as in LZ77 (Ziv
and Lempel 1977). Decoding is copying, which is faster than any general-purpose codec.

A payload begins with one byte ``h``:

- ``h`` < 2: the rest is a payload of ``zstd-dict``, with its header byte ``h``;
- otherwise: a sequence of pieces. The *source* starts at the first byte of reference ``h - 2`` and advances with the
  frame. A piece is a number, how many bytes to copy from the source, and a second number:

  - ``n`` > 0: ``n`` literal bytes follow, which replace as many of the source;
  - 0: the source changes here. One byte ``k`` < 4 resumes the ``k``-th most recently left source, counted from 0, at
    the offset from the frame that it had. (It is then no longer among those left; at the beginning all of them are the
    first source.) Otherwise ``k`` and two more bytes are the position where a new source starts: ``k - 4`` is the
    highest byte of the position, then come the lowest and the middle one. Positions count the bytes of all references,
    followed by those of the frame itself, where a source must start at least 32 bytes back.

  The last piece is the one number that completes the frame. A number below 255 is one byte; a larger one is the byte
  255 and two bytes, little-endian. In longer runs of equal bytes, some are written as literals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import Levels, TrainableCodec, decode_selected, frame_bytes, output_bytes
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Delta", "ReferenceFrames"]

#: Deltas of smaller frames save nothing. With larger ones, references take memory that is better spent on payloads,
#: and a training sample has too few frames to choose from.
MIN_FRAME_NBYTES, MAX_FRAME_NBYTES = 16, 1 << 20
#: The number of header bytes that are left for references.
MAX_REFERENCES = 254

LOCATION = attrgetter("_location")


@cache
def delta_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.codecs import delta_kernels

    return delta_kernels


@dataclass(frozen=True)
class ReferenceFrames:
    """Immutable reference frames.

    :param content: the bytes of the frames, one after the other
    :param frame_nbytes: bytes of one frame
    """

    content: bytes = field(default=b"", repr=False)
    frame_nbytes: int = 0

    def __len__(self) -> int:
        return len(self.content) // self.frame_nbytes if self.frame_nbytes else 0

    @property
    def rows(self) -> NDArray[np.uint8]:
        """The frames as an array ``(n_references, frame_nbytes)``."""
        return np.frombuffer(self.content, dtype=np.uint8).reshape(len(self), self.frame_nbytes)


References = ReferenceFrames  # pickles of earlier versions contain this name


@dataclass(frozen=True)
class Delta(TrainableCodec):
    """Differences from trained reference frames, or ``zstd-dict``, whichever suits a frame better.

    :param compresslevel: level of Zstandard for frames that it encodes: 1 (fast) to 22 (smallest), or -1 (faster) to
        -100 (fastest)
    :param dictionary: the trained dictionary for those frames
    :param references: the trained reference frames
    :param tries_zstd: whether frames with a large delta are also compressed with zstd, to store the better of both
    """

    name: ClassVar[str] = "delta"
    levels: ClassVar[Levels] = ZstdDict.levels
    typical_ratio: ClassVar[float] = 0.04
    is_parallel: ClassVar[bool] = True

    #: The number of references that training selects. More make payloads smaller and encoding slower.
    N_REFERENCES: ClassVar[int] = 16
    #: A delta of at most this fraction of its frame is stored without trying zstd.
    SMALL_DELTA: ClassVar[float] = 0.125
    #: A zstd payload is stored if it is smaller than this fraction of the delta: it takes ten times as long to decode.
    MAX_ZSTD_RATIO: ClassVar[float] = 0.4
    #: If zstd is better for less than this fraction of the training frames, it is not tried until the next training:
    #: a try takes as long as the delta.
    MIN_ZSTD_SHARE: ClassVar[float] = 1 / 32

    compresslevel: int = levels.default
    dictionary: bytes = field(default=b"", repr=False)
    references: ReferenceFrames = field(default=ReferenceFrames(), repr=False)
    tries_zstd: bool = field(default=True, repr=False)

    _zstd: ZstdDict = field(init=False, repr=False, compare=False)
    _encoder: list[tuple[Any, ...]] = field(default_factory=list, init=False, repr=False, compare=False)
    _location: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        references = self.references
        if (
            len(references) > MAX_REFERENCES
            or references.frame_nbytes > MAX_FRAME_NBYTES
            or (len(references) * references.frame_nbytes != len(references.content))
        ):
            raise CodecError(
                f"references must be at most {MAX_REFERENCES} whole frames of at most {MAX_FRAME_NBYTES} bytes, "
                f"got {len(references.content)} bytes for frames of {references.frame_nbytes}"
            )
        object.__setattr__(self, "_zstd", ZstdDict(self.compresslevel, self.dictionary))
        # Kernels read the references by address; the codec, which every slot refers to, keeps them alive.
        location = [[references.rows.ctypes.data, len(references.content), references.frame_nbytes]]
        object.__setattr__(self, "_location", np.array(location, dtype=np.int64))

    def prepare(self) -> None:
        """Import and compile now; see :meth:`Codec.prepare`."""
        delta_kernels()  # a codec without references would not import them
        super().prepare()

    def train(self, frames: NDArray[Any]) -> Delta:
        """Return a codec with a dictionary and references from these frames; see :meth:`TrainableCodec.train`."""
        rows = frame_bytes(frames)
        references = self.references
        if len(rows) and MIN_FRAME_NBYTES <= rows.shape[1] <= MAX_FRAME_NBYTES:
            medoids = rows[select_medoids(rows, self.N_REFERENCES)]
            references = ReferenceFrames(medoids.tobytes(), rows.shape[1])
        dictionary = self._zstd.train(frames).dictionary
        trained = replace(self, dictionary=dictionary, references=references, tries_zstd=True)
        if references is not self.references:
            n_zstd = sum(payload[0] < delta_kernels().FIRST_REFERENCE for payload in trained.encode(frames))
            trained = replace(trained, tries_zstd=n_zstd >= self.MIN_ZSTD_SHARE * len(rows))
        return self if trained == self else trained

    @property
    def nbytes(self) -> int:
        """The size of the dictionary and the references in bytes."""
        return len(self.dictionary) + len(self.references.content)

    def release_encoder(self) -> None:
        """Free the encoder's tables; see :meth:`TrainableCodec.release_encoder`."""
        self._zstd.release_encoder()
        self._encoder.clear()

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        if not (len(rows) and self.references.content) or rows.shape[1] != self.references.frame_nbytes:
            return self._zstd.encode(frames)
        cached = self._encoder[:1]  # atomic: another thread may clear the list
        frame_shape, encode_deltas, *arguments = cached[0] if cached else self._new_encoder(frames)
        if frame_shape != frames.shape[1:]:
            _, encode_deltas, *arguments = self._new_encoder(frames)
        deltas = np.empty(len(rows) * (rows.shape[1] // 4), dtype=np.uint8)
        ends = np.empty(len(rows), dtype=np.int64)
        n_bytes = encode_deltas(rows, *arguments, deltas, ends)
        data = deltas[:n_bytes].tobytes()
        small = self.SMALL_DELTA * rows.shape[1]
        start = 0
        payloads: list[bytes] = []
        for index, end in enumerate(ends.tolist()):
            payload = data[start:end]
            if not payload or (self.tries_zstd and len(payload) > small):
                [by_zstd] = self._zstd.encode(rows[index : index + 1])
                if not payload or len(by_zstd) < self.MAX_ZSTD_RATIO * len(payload):
                    payload = by_zstd
            payloads.append(payload)
            start = end
        return payloads

    def _new_encoder(self, frames: NDArray[Any]) -> tuple[Any, ...]:
        """Return the shape of a frame, the kernel for it, and the kernel's arguments between frames and results.

        These are the references as one vector, the hash table of the words in it, and the bytes of a line and a plane.
        """
        kernels = delta_kernels()
        references, table = self.references.rows.reshape(-1), np.empty(1 << kernels.TABLE_BITS, dtype=np.int32)
        kernels.index_words(references, table)
        encoder = frames.shape[1:], kernels.encode_deltas, references, table, *_line_and_plane_nbytes(frames)
        self._encoder[:] = [encoder]
        return encoder

    @classmethod
    def decode_batch(
        cls,
        codecs: Sequence[TrainableCodec],
        payloads: Payloads,
        out: NDArray[Any],
        done: NDArray[np.uint8] | None = None,
    ) -> None:
        """Decode payloads with different references; see :meth:`TrainableCodec.decode_batch`."""
        kernels = delta_kernels()
        codecs = cast("Sequence[Delta]", codecs)
        rows = output_bytes(out, len(payloads.places))
        locations = codecs[0]._location if len(codecs) == 1 else np.concatenate([*map(LOCATION, codecs)])
        status = np.zeros(len(rows), dtype=np.uint8) if done is None else done
        if len(status) != len(rows):  # the kernel reads it for every row
            raise ValueError(f"done must have one element for each of {len(rows)} payloads, got {len(status)}")
        if not kernels.decode_deltas(payloads.places, locations, rows, status):
            return
        left = np.flatnonzero(status != kernels.DONE).tolist()
        corrupt = [index for index in left if status[index] != kernels.NOT_A_DELTA]
        if corrupt:
            raise CorruptPayload("it is not a valid delta for the references of its codec", corrupt[0])
        writers = payloads.writers
        decode_selected([codecs[writers[index]]._zstd for index in left], payloads, rows, left)


def _line_and_plane_nbytes(frames: NDArray[Any]) -> tuple[int, int]:
    """Return the bytes of a line of pixels and of a color plane in frames ``(n, *frame_shape)``.

    :return: the latter is 0 for frames of one color, and for channel-last ones
    """
    line: int = frames.shape[-1] * frames.itemsize
    if frames.ndim <= 3:
        return line, 0
    if frames.shape[-1] < frames.shape[1]:  # channel-last
        return line * frames.shape[-2], 0
    return line, line * frames.shape[-2] * (frames.shape[-3] > 1)


def select_medoids(rows: NDArray[np.uint8], n_medoids: int) -> NDArray[np.intp]:
    """Return the indices of the frames that represent all of them best.

    Greedily, each next frame is the one that minimizes the sum of differences to the nearest selected frame (the
    seeding of k-medoids, Kaufman and Rousseeuw, Finding Groups in Data, 1990, chapter 2).

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :return: at most ``n_medoids`` indices
    """
    differences = np.empty((len(rows), len(rows)), dtype=np.int64)
    delta_kernels().word_differences(rows, differences)
    nearest = np.full(len(rows), rows.shape[1] + 1)
    selected: list[int] = []
    for _ in range(min(n_medoids, len(rows))):
        totals = np.minimum(nearest, differences).sum(axis=1)  # [candidates]
        best = int(totals.argmin())
        if selected and totals[best] == nearest.sum():  # another one gains nothing
            break
        selected.append(best)
        nearest = np.minimum(nearest, differences[best])
    return np.array(selected, dtype=np.intp)
