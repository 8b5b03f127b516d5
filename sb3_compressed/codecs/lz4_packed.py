"""``lz4-packed``: LZ4, packed differences or raw frames, whichever suits a batch; ``auto`` of rollout buffers.

Drawn pictures are for LZ4, smooth ones for packed differences. Both are so fast that frames which are stored for one
update, as in rollout buffers, are worth compressing. Payloads are those of frames without a delta of
:mod:`sb3_compressed.codecs.adaptive`: a header byte, then a block, packed differences or the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.adaptive import Adaptive, coder_of
from sb3_compressed.codecs.codec import Codec
from sb3_compressed.codecs.payloads import Payloads

__all__ = ["Lz4Packed"]


@dataclass(frozen=True)
class Lz4Packed(Codec):
    """Stores the first frame of a batch by the coder that makes it smallest, and the others by the same."""

    name: ClassVar[str] = "lz4-packed"
    typical_ratio: ClassVar[float] = 0.2
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 18  # blocks of LZ4 take longer than deltas

    def prepare(self) -> None:
        """Import and compile now; see :meth:`Codec.prepare`."""
        _whole_frames("").prepare()

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        first = _whole_frames("").encode(frames[:1])
        if len(frames) < 2:
            return first
        return first + _whole_frames(coder_of(first[0])).encode(frames[1:])

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Lz4Packed], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`."""
        Adaptive.decode_batch([_whole_frames("")] * len(codecs), payloads, out, done)


@cache
def _whole_frames(coder: str) -> Adaptive:
    """Return the codec of frames without deltas that tries one coder, or each for an empty name."""
    if coder in ("raw", "zstd"):  # the payload of an empty frame is empty, which has the number of Zstandard
        return Adaptive(coder="raw", tries_delta=False)
    return Adaptive(
        coder="lz4", tries_delta=False, tries_lz4=coder in ("", "lz4"), tries_packed=coder in ("", "packed")
    )
