"""``delta``: frames as their differences from reference frames, or by ``zstd-dict`` where that is much smaller.

Frames of one game are mostly its background. A few reference frames are learned; of a frame, only the runs of bytes are
kept in which it differs from the reference nearest to it. Decoding copies the reference and the runs, several times
faster than any general codec. Where the whole picture moves nothing is at its place, and a learned dictionary does
better: the choice is made for every frame.

A payload begins with one byte ``h``:

- ``h`` < 2: the rest is a payload of ``zstd-dict``, with its header byte ``h``;
- else: the runs in which the frame differs from reference ``h - 2``, in order. A run is the number of equal bytes
  before it, the number of its bytes, and these bytes. Numbers below 255 are one byte; others are 255 and two bytes,
  little-endian. What follows the last run equals the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.base import LearningCodec, Levels, decode_each, frame_bytes, output_bytes, share_of_each
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Delta"]

#: A delta of smaller frames than this is no smaller than they are, and the numbers in it have two bytes at most.
MIN_FRAME_NBYTES, MAX_FRAME_NBYTES = 16, 0xFFFF
#: As many as header bytes are left for.
MAX_REFERENCES = 254


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
class Delta(LearningCodec):
    """Differences from learned reference frames, or ``zstd-dict``, whichever serves a frame better.

    :param compresslevel: of Zstandard, for the frames that it encodes: 1 (fast) to 22 (smallest), or -1 (faster) to
        -100 (fastest)
    :param dictionary: what it has learned for those
    :param references: the reference frames it has learned
    """

    name: ClassVar[str] = "delta"
    levels: ClassVar[Levels] = ZstdDict.levels
    typical_ratio: ClassVar[float] = 0.04

    #: Reference frames to learn. More make payloads smaller and encoding slower.
    N_REFERENCES: ClassVar[int] = 16
    #: A delta of at most so many bytes is taken without a look at what zstd would make of the frame.
    SMALL: ClassVar[int] = 512
    #: zstd has to be so much smaller than a delta to be taken: it takes ten times as long to decode.
    GAIN: ClassVar[float] = 0.4

    compresslevel: int = levels.default
    dictionary: bytes = field(default=b"", repr=False)
    references: References = field(default=References(), repr=False)

    _zstd: ZstdDict = field(init=False, repr=False, compare=False)
    _address: int = field(init=False, repr=False, compare=False)
    _n_references: int = field(init=False, repr=False, compare=False)

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
        object.__setattr__(self, "_address", self.references.rows.ctypes.data)
        object.__setattr__(self, "_n_references", len(self.references))

    def learn(self, frames: NDArray[Any]) -> Delta:
        """Return a codec with a dictionary and references from these frames; see :meth:`LearningCodec.learn`."""
        rows = frame_bytes(frames)
        references = self.references
        if len(rows) and MIN_FRAME_NBYTES <= rows.shape[1] <= MAX_FRAME_NBYTES:
            chosen = rows[choose_references(rows, self.N_REFERENCES)]
            references = References(chosen.tobytes(), rows.shape[1])
        learned = replace(self, dictionary=self._zstd.learn(frames).dictionary, references=references)
        return self if learned == self else learned

    @property
    def nbytes(self) -> int:
        """The bytes of its dictionary and its references."""
        return len(self.dictionary) + len(self.references.content)

    def retire(self) -> None:
        """Let go of what only encoding needs; see :meth:`LearningCodec.retire`."""
        self._zstd.retire()

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        if not self._n_references or rows.shape[1] != self.references.frame_nbytes:
            return self._zstd.encode(frames)
        from sb3_compressed.codecs.delta_kernels import encode_deltas

        deltas = np.empty((len(rows), rows.shape[1] // 4), dtype=np.uint8)
        lengths = np.empty(len(rows), dtype=np.int64)
        encode_deltas(rows, self.references.rows, deltas, lengths)
        payloads: list[bytes] = []
        for row, delta, length in zip(rows, deltas, lengths.tolist(), strict=True):
            if not 0 <= length <= self.SMALL:
                [payload] = self._zstd.encode(row[np.newaxis])
                if length < 0 or len(payload) < self.GAIN * length:
                    payloads.append(payload)
                    continue
            payloads.append(delta[:length].tobytes())
        return payloads

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], payloads, out)

    @classmethod
    def decode_batch(cls, codecs: Sequence[LearningCodec], payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decode payloads of different references; see :meth:`LearningCodec.decode_batch`."""
        from sb3_compressed.codecs.delta_kernels import NOT_A_DELTA, decode_deltas

        codecs = cast("Sequence[Delta]", codecs)
        rows = output_bytes(out, len(payloads))
        n_payloads, frame_nbytes = rows.shape
        share = share_of_each(codecs, payloads)
        starts = np.zeros(n_payloads + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, payloads), dtype=np.int64, count=n_payloads), out=starts[1:])
        data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        addresses = np.array([codec._address for codec in codecs], dtype=np.int64).repeat(share)
        usable = [codec._n_references if codec.references.frame_nbytes == frame_nbytes else 0 for codec in codecs]
        n_references = np.array(usable, dtype=np.int64).repeat(share)
        status = np.empty(n_payloads, dtype=np.uint8)
        if not decode_deltas(data, starts, addresses, n_references, rows, status):
            return
        others = np.flatnonzero(status == NOT_A_DELTA).tolist()
        if len(others) < np.count_nonzero(status):
            corrupt = next(index for index in np.flatnonzero(status).tolist() if status[index] != NOT_A_DELTA)
            raise CorruptPayload("it is no delta to a reference of its codec", corrupt)
        writers = [codecs[index // share]._zstd for index in others]
        try:
            decode_each(writers, [payloads[index] for index in others], [rows[index] for index in others])
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, others[error.index]) from error


def choose_references(rows: NDArray[np.uint8], n_references: int) -> NDArray[np.intp]:
    """Return which frames are best to tell all of them by.

    Greedily, one after the other, the frame that makes the sum of differences to the nearest reference smallest
    (k-medoids, seeded as in Kaufman and Rousseeuw, Finding Groups in Data, 1990, chapter 2).

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    :return: at most ``n_references`` indices
    """
    from sb3_compressed.codecs.delta_kernels import pairwise_differences

    differences = np.empty((len(rows), len(rows)), dtype=np.int64)
    pairwise_differences(rows, differences)
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
