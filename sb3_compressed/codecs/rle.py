"""``rle`` and ``rle-jit``: two names for run-length encoding, compiled with numba.

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

from sb3_compressed.codecs.codec import Codec, frame_bytes, output_rows
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Rle", "RleJit", "smallest_runs_type"]

RUN_TYPES = tuple(np.dtype(name) for name in ("<u1", "<u2", "<u4", "<u8"))


def smallest_runs_type(n_elems: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for the length of a run of ``n_elems`` elements."""
    return next(dtype for dtype in RUN_TYPES if n_elems <= np.iinfo(dtype).max)


@dataclass(frozen=True)
class Rle(Codec):
    """Run-length encoding.

    :param runs_type: unsigned dtype of the run lengths; by default the smallest that fits a run of a whole frame
    """

    name: ClassVar[str] = "rle"
    typical_ratio: ClassVar[float] = 0.5
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 18

    runs_type: DTypeLike | None = None

    def __post_init__(self) -> None:
        if self.runs_type is not None:
            dtype = np.dtype(self.runs_type).newbyteorder("<")
            if dtype not in RUN_TYPES:
                raise CodecError(f"runs_type must be one of {', '.join(map(str, RUN_TYPES))}, got {dtype}")
            object.__setattr__(self, "runs_type", dtype)

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        from sb3_compressed.codecs.rle_kernels import encode_runs  # on first use, since importing numba takes long

        rows, elem_size = frame_bytes(frames), frames.dtype.itemsize
        n_elems = rows.shape[1] // elem_size
        run_size = smallest_runs_type(n_elems).itemsize if self.runs_type is None else np.dtype(self.runs_type).itemsize
        max_run = min(n_elems, (1 << 8 * run_size) - 1)
        payload = np.empty(1 + rows.shape[1], dtype=np.uint8)
        return [payload[: encode_runs(row, elem_size, run_size, max_run, payload)].tobytes() for row in rows]

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Rle], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`."""
        from sb3_compressed.codecs.rle_kernels import decode_frames

        (rows, done), elem_size = output_rows(out, len(payloads), done), out.dtype.itemsize
        decode_frames(payloads.places, elem_size, rows, done)
        if not done.all():
            index = int(done.argmin())
            [payload] = payloads[index : index + 1]
            raise CorruptPayload(_reason(payload, elem_size, rows.shape[1]), index)


@dataclass(frozen=True)
class RleJit(Rle):
    """Run-length encoding by its other name.

    :param runs_type: unsigned dtype of the run lengths; by default the smallest that fits a run of a whole frame
    """

    name: ClassVar[str] = "rle-jit"


def _reason(payload: bytes, elem_size: int, nbytes: int) -> str:
    """Return why a payload is none of a frame of ``nbytes`` bytes."""
    if not payload:
        return "it is empty"
    run_size = payload[0]
    if run_size == 0:
        return f"it has {len(payload) - 1} raw bytes, but a frame has {nbytes}"
    if run_size not in (1, 2, 4, 8):
        return f"its header byte is {run_size}, not 0, 1, 2, 4 or 8"
    if (len(payload) - 1) % (run_size + elem_size) or len(payload) > nbytes:
        return f"its {len(payload)} bytes are not whole runs that are smaller than a frame of {nbytes} bytes"
    return f"its runs do not add up to the {nbytes // elem_size} elements of a frame"
