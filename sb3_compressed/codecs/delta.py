"""``delta``: frames as their differences from reference frames, or by ``zstd-dict`` where that is much smaller.

Frames of one game are mostly its background. A few reference frames are learned; of a frame, only the runs of bytes are
kept in which it differs from the reference nearest to it. Where a picture moves as a whole, nothing is at its place: so
what a frame has in common with the references may be taken from anywhere in them, and from what is above in the frame
itself or has another colour, as in LZ77 (Ziv and Lempel 1977). Decoding is copying, faster than any general codec.

A payload begins with one byte ``h``:

- ``h`` < 2: the rest is a payload of ``zstd-dict``, with its header byte ``h``;
- else: the frame piece by piece. The *source* begins at the first byte of reference ``h - 2`` and goes along with the
  frame. A piece is a number, how many bytes equal the source, and a second number:

  - ``n`` > 0: as many literal bytes, which follow, stand where the source has others;
  - 0: the source is another from here on. One byte ``k`` < 4 means the ``k``-th of those left last, counted from 0, at
    the distance to the frame that it had (a source that is taken up again is not one of those left any more; at the
    beginning all are the first one). Else three bytes say where it begins: ``k - 4``, the highest, then the lowest,
    then the middle byte of a position. Positions count the bytes of all references; those of the frame itself follow,
    of which a source has to be 32 back at least.

  The last piece is the one number after which the frame is complete. Numbers below 255 are one byte; others are 255 and
  two bytes, little-endian. Where more bytes than that are equal, some are told as literals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.base import Levels, TrainableCodec, decode_some, frame_bytes, output_bytes
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Delta"]

#: A delta of smaller frames than this is no smaller than they are. With larger ones, references take memory that is
#: better spent on payloads, and a lesson has too few frames to choose from.
MIN_FRAME_NBYTES, MAX_FRAME_NBYTES = 16, 1 << 20
#: As many as header bytes are left for.
MAX_REFERENCES = 254


@cache
def delta_kernels() -> ModuleType:
    """Import the kernels when they are first needed, since numba takes long."""
    from sb3_compressed.codecs import delta_kernels

    return delta_kernels


@dataclass(frozen=True)
class References:
    """Reference frames, as bytes ``(n_references, frame_nbytes)`` that never change.

    :param content: the bytes of the frames
    :param frame_nbytes: bytes of one of them
    """

    content: bytes = field(default=b"", repr=False)
    frame_nbytes: int = 0

    def __len__(self) -> int:
        return len(self.content) // self.frame_nbytes if self.frame_nbytes else 0

    @property
    def rows(self) -> NDArray[np.uint8]:
        """The frames as an array."""
        return np.frombuffer(self.content, dtype=np.uint8).reshape(len(self), self.frame_nbytes)


@dataclass(frozen=True)
class Delta(TrainableCodec):
    """Differences from learned reference frames, or ``zstd-dict``, whichever serves a frame better.

    :param compresslevel: of Zstandard, for the frames that it encodes: 1 (fast) to 22 (smallest), or -1 (faster) to
        -100 (fastest)
    :param dictionary: what it has learned for those
    :param references: the reference frames it has learned
    :param tries_zstd: whether frames of which a delta is large are given to zstd too, to take the better one
    """

    name: ClassVar[str] = "delta"
    levels: ClassVar[Levels] = ZstdDict.levels
    typical_ratio: ClassVar[float] = 0.04
    is_parallel: ClassVar[bool] = True

    #: Reference frames to learn. More make payloads smaller and encoding slower.
    N_REFERENCES: ClassVar[int] = 16
    #: A delta of at most this part of a frame is taken without a look at what zstd would make of it.
    SMALL: ClassVar[float] = 0.125
    #: zstd has to be so much smaller than a delta to be taken: it takes ten times as long to decode.
    GAIN: ClassVar[float] = 0.4
    #: zstd has to be taken for this part of the frames of a lesson, or it is not tried until the next one: a try takes
    #: as long as the delta.
    WORTH_TRYING: ClassVar[float] = 1 / 32

    compresslevel: int = levels.default
    dictionary: bytes = field(default=b"", repr=False)
    references: References = field(default=References(), repr=False)
    tries_zstd: bool = field(default=True, repr=False)

    _zstd: ZstdDict = field(init=False, repr=False, compare=False)
    _encoder: list[tuple[Callable[..., int], NDArray[np.uint8], NDArray[np.int32]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    _place: NDArray[np.int64] = field(init=False, repr=False, compare=False)

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
        # Kernels read the references where they are; the codec, which every slot refers to, keeps them alive.
        place = [[references.rows.ctypes.data, len(references.content), references.frame_nbytes]]
        object.__setattr__(self, "_place", np.array(place, dtype=np.int64))

    def prepare(self) -> None:
        """Import and compile now; see :meth:`Codec.prepare`."""
        delta_kernels()  # which a codec without references does not use
        super().prepare()

    def train(self, frames: NDArray[Any]) -> Delta:
        """Return a codec with a dictionary and references from these frames; see :meth:`TrainableCodec.train`."""
        rows = frame_bytes(frames)
        references = self.references
        if len(rows) and MIN_FRAME_NBYTES <= rows.shape[1] <= MAX_FRAME_NBYTES:
            chosen = rows[choose_references(rows, self.N_REFERENCES)]
            references = References(chosen.tobytes(), rows.shape[1])
        dictionary = self._zstd.train(frames).dictionary
        learned = replace(self, dictionary=dictionary, references=references, tries_zstd=True)
        if references is not self.references:
            by_zstd = sum(payload[0] < delta_kernels().FIRST_REFERENCE for payload in learned.encode(frames))
            learned = replace(learned, tries_zstd=by_zstd >= self.WORTH_TRYING * len(rows))
        return self if learned == self else learned

    @property
    def nbytes(self) -> int:
        """The bytes of its dictionary and its references."""
        return len(self.dictionary) + len(self.references.content)

    def release_encoder(self) -> None:
        """Let go of what only encoding needs; see :meth:`TrainableCodec.release_encoder`."""
        self._zstd.release_encoder()
        self._encoder.clear()

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        if not (len(rows) and self.references.content) or rows.shape[1] != self.references.frame_nbytes:
            return self._zstd.encode(frames)
        kept = self._encoder[:1]  # one step, for the sake of other threads
        encode_deltas, bank, table = kept[0] if kept else self._new_encoder()
        deltas = np.empty(len(rows) * (rows.shape[1] // 4), dtype=np.uint8)
        ends = np.empty(len(rows), dtype=np.int64)
        n_bytes = encode_deltas(rows, bank, table, *_line_and_plane_nbytes(frames), deltas, ends)
        data = deltas[:n_bytes].tobytes()
        small = self.SMALL * rows.shape[1]
        start = 0
        payloads: list[bytes] = []
        for index, end in enumerate(ends.tolist()):
            payload = data[start:end]
            if not payload or (self.tries_zstd and len(payload) > small):
                [other] = self._zstd.encode(rows[index : index + 1])
                if not payload or len(other) < self.GAIN * len(payload):
                    payload = other
            payloads.append(payload)
            start = end
        return payloads

    def _new_encoder(self) -> tuple[Callable[..., int], NDArray[np.uint8], NDArray[np.int32]]:
        """Return the kernel, the references as one vector, and where in it each word is."""
        kernels = delta_kernels()
        bank, table = self.references.rows.reshape(-1), np.empty(1 << kernels.TABLE_BITS, dtype=np.int32)
        kernels.index_words(bank, table)
        encoder = kernels.encode_deltas, bank, table
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
        """Decode payloads of different references; see :meth:`TrainableCodec.decode_batch`."""
        kernels = delta_kernels()
        codecs = cast("Sequence[Delta]", codecs)
        rows = output_bytes(out, len(payloads))
        banks = codecs[0]._place if len(codecs) == 1 else np.concatenate([codec._place for codec in codecs])
        status = np.zeros(len(rows), dtype=np.uint8) if done is None else done
        if len(status) != len(rows):  # which the kernel reads for every row
            raise ValueError(f"done must say it of {len(rows)} payloads, got {len(status)}")
        if not kernels.decode_deltas(payloads.places, banks, rows, status):
            return
        left = np.flatnonzero(status != kernels.DONE).tolist()
        corrupt = [index for index in left if status[index] != kernels.NOT_A_DELTA]
        if corrupt:
            raise CorruptPayload("it is no delta to a reference of its codec", corrupt[0])
        writers = payloads.writers
        decode_some([codecs[writers[index]]._zstd for index in left], payloads, rows, left)


def _line_and_plane_nbytes(frames: NDArray[Any]) -> tuple[int, int]:
    """Return the bytes of a line of pixels of frames ``(n, *frame_shape)``, and of all lines of one colour.

    :return: the latter is 0 for frames of one colour, and where channels come last
    """
    line: int = frames.shape[-1] * frames.itemsize
    if frames.ndim <= 3:
        return line, 0
    if frames.shape[-1] < frames.shape[1]:  # channels come last
        return line * frames.shape[-2], 0
    return line, line * frames.shape[-2] * (frames.shape[-3] > 1)


def choose_references(rows: NDArray[np.uint8], n_references: int) -> NDArray[np.intp]:
    """Return which frames are best to tell all of them by.

    Greedily, one after the other, the frame that makes the sum of differences to the nearest reference smallest
    (k-medoids, seeded as in Kaufman and Rousseeuw, Finding Groups in Data, 1990, chapter 2).

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :return: at most ``n_references`` indices
    """
    differences = np.empty((len(rows), len(rows)), dtype=np.int64)
    delta_kernels().word_differences(rows, differences)
    nearest = np.full(len(rows), rows.shape[1] + 1)
    chosen: list[int] = []
    for _ in range(min(n_references, len(rows))):
        totals = np.minimum(nearest, differences).sum(axis=1)  # [candidates]
        best = int(totals.argmin())
        if chosen and totals[best] == nearest.sum():  # nothing more to gain
            break
        chosen.append(best)
        nearest = np.minimum(nearest, differences[best])
    return np.array(chosen, dtype=np.intp)
