"""``rle`` and ``rle-jit``: run-length encoding with one wire format, in vectorized NumPy and in numba.

A payload is one header byte ``r``, followed by

- ``r == 0``: the frame's bytes, for frames whose runs would not be smaller; or
- ``r`` in 1, 2, 4, 8: ``n`` run lengths of ``r`` bytes each (unsigned, little-endian, never 0), then the ``n``
  repeated elements as their bytes in memory. Elements are compared by their bits, so NaN and -0.0 survive.

A run that is too long for the run type is written as several, the longest possible ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_compressed.codecs.codec import Codec, frame_bytes, new_status, output_bytes
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Rle", "RleJit", "smallest_runs_type"]

RUN_TYPES = tuple(np.dtype(name) for name in ("<u1", "<u2", "<u4", "<u8"))
RAW_HEADER = b"\x00"


def smallest_runs_type(n_elems: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for the length of a run of ``n_elems`` elements."""
    return next(dtype for dtype in RUN_TYPES if n_elems <= np.iinfo(dtype).max)


@dataclass(frozen=True)
class Rle(Codec):
    """Run-length encoding in vectorized NumPy.

    :param runs_type: unsigned dtype of the run lengths; by default the smallest that fits a run of a whole frame
    """

    name: ClassVar[str] = "rle"
    typical_ratio: ClassVar[float] = 0.5

    runs_type: DTypeLike | None = None

    def __post_init__(self) -> None:
        if self.runs_type is not None:
            dtype = np.dtype(self.runs_type).newbyteorder("<")
            if dtype not in RUN_TYPES:
                raise CodecError(f"runs_type must be one of {', '.join(map(str, RUN_TYPES))}, got {dtype}")
            object.__setattr__(self, "runs_type", dtype)

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        rows = frame_bytes(frames)
        elem_size = frames.dtype.itemsize
        runs_type = self._runs_type_for(rows.shape[1] // elem_size)
        return [self._encode_runs(row, elem_size, runs_type) or RAW_HEADER + row.tobytes() for row in rows]

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        rows = output_bytes(out, len(payloads))
        self._decode_some(payloads, range(len(payloads)), out.dtype.itemsize, rows)

    def _decode_some(
        self, payloads: Sequence[bytes], indices: Sequence[int], elem_size: int, rows: NDArray[np.uint8]
    ) -> None:
        """Decode the payloads at the given indices into the rows at the same indices."""
        for index in indices:
            if (reason := self._decode(payloads[index], elem_size, rows[index])) is not None:
                raise CorruptPayload(reason, index)

    def _runs_type_for(self, n_elems: int) -> np.dtype[Any]:
        return smallest_runs_type(n_elems) if self.runs_type is None else np.dtype(self.runs_type)

    def _encode_runs(self, row: NDArray[np.uint8], elem_size: int, runs_type: np.dtype[Any]) -> bytes | None:
        """Return the payload of one frame, or ``None`` if its runs would not be smaller than the frame."""
        elems = row.reshape(-1, elem_size)
        # Find the last element of every run. One-byte elements, the common case, need no reduction over bytes.
        changes = row[1:] != row[:-1] if elem_size == 1 else (elems[1:] != elems[:-1]).any(axis=1)
        ends = np.flatnonzero(np.append(changes, True)[: len(elems)])
        runs = np.diff(ends, prepend=-1)
        max_run = min(int(np.iinfo(runs_type).max), np.iinfo(np.int64).max)
        pieces = -(-runs // max_run)
        if (n_runs := int(pieces.sum())) * (runs_type.itemsize + elem_size) >= row.size:
            return None
        if n_runs > len(runs):
            last = np.cumsum(pieces) - 1  # index of the last piece of each run, after the full ones
            remainders = runs - (pieces - 1) * max_run
            runs = np.full(n_runs, max_run)
            runs[last] = remainders
            ends = np.repeat(ends, pieces)
        return b"".join((bytes([runs_type.itemsize]), runs.astype(runs_type).tobytes(), elems[ends].tobytes()))

    def _decode(self, payload: bytes, elem_size: int, row: NDArray[np.uint8]) -> str | None:
        """Decode one payload into ``row``; return the reason if it is corrupt, else ``None``."""
        if not payload:
            return "it is empty"
        run_size = payload[0]
        if run_size == 0:
            if len(payload) - 1 != row.size:
                return f"it has {len(payload) - 1} raw bytes, but a frame has {row.size}"
            row[:] = np.frombuffer(payload, dtype=np.uint8, offset=1)
            return None
        if run_size not in (1, 2, 4, 8):
            return f"its header byte is {run_size}, not 0, 1, 2, 4 or 8"
        if (len(payload) - 1) % (run_size + elem_size) or len(payload) > row.size:
            return f"its {len(payload)} bytes are not whole runs that are smaller than a frame of {row.size} bytes"
        if not self._decode_runs(payload, elem_size, run_size, row):
            return f"its runs do not add up to the {row.size // elem_size} elements of a frame"
        return None

    def _decode_runs(self, payload: bytes, elem_size: int, run_size: int, row: NDArray[np.uint8]) -> bool:
        """Decode the runs of a payload of valid length; return whether they fill ``row`` exactly."""
        n_runs = (len(payload) - 1) // (run_size + elem_size)
        runs = np.frombuffer(payload, dtype=f"<u{run_size}", count=n_runs, offset=1)
        n_elems = row.size // elem_size
        # Check each run before adding them up: the sum of huge ones would overflow.
        if n_runs == 0 or runs.min() == 0 or runs.max() > n_elems or int(runs.sum(dtype=np.uint64)) != n_elems:
            return False
        elems = np.frombuffer(payload, dtype=f"V{elem_size}", offset=1 + n_runs * run_size)
        row.view(f"V{elem_size}")[:] = np.repeat(elems, runs.astype(np.int64))
        return True


@dataclass(frozen=True)
class RleJit(Rle):
    """Run-length encoding compiled with numba; it writes the same bytes as :class:`Rle`.

    :param runs_type: unsigned dtype of the run lengths; by default the smallest that fits a run of a whole frame
    """

    name: ClassVar[str] = "rle-jit"
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 18
    skips_decoded: ClassVar[bool] = True

    def _encode_runs(self, row: NDArray[np.uint8], elem_size: int, runs_type: np.dtype[Any]) -> bytes | None:
        from sb3_compressed.codecs.rle_kernels import encode_runs

        max_run = min(int(np.iinfo(runs_type).max), np.iinfo(np.int64).max)
        scratch = np.empty(1 + row.size, dtype=np.uint8)
        length = encode_runs(row, elem_size, runs_type.itemsize, max_run, scratch)
        return None if length < 0 else scratch[:length].tobytes()

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        from sb3_compressed.codecs.rle_kernels import decode_frames

        payloads = Payloads.of(payloads)
        rows = output_bytes(out, len(payloads))
        done = new_status(payloads.done, len(rows))
        if rows.size:
            decode_frames(payloads.places, out.dtype.itemsize, rows, done)
        self._decode_some(payloads, np.flatnonzero(done == 0).tolist(), out.dtype.itemsize, rows)  # finds errors
