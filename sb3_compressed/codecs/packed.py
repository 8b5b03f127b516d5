"""``packed``: packed differences, a fast codec for smooth pictures.

Neighboring pixels of camera, video and first-person pictures are similar but hardly ever equal. LZ4 and deltas find
little to copy, but differences are small and need few bits: less memory than with Zstandard, in a fraction of the time.
Blocks do not depend on each other and are coded without branches, so compilers use SIMD instructions, and devices can
decode in parallel.

A frame is divided into planes, see :class:`~sb3_compressed.codecs.picture_layout.PictureLayout`: one for each byte of
each channel. Its payload depends on neither the order of axes nor that in memory.

1. Of one-byte channels by threes, green is subtracted from red and blue, since the three vary together.
2. The value above is subtracted from each value but those of the first line, as the filter "Up" of PNG does
   (https://www.w3.org/TR/png-3/#9Filters). All differences are modulo 256.
3. Differences 0, -1, 1, -2, ... are numbered 0, 1, 2, 3, ... ("zigzag").
4. A *block* is eight of these values of a plane, in C order. The last one of each plane is filled up with zeros. The
   *width* of a block is the number of bits of its largest value. A block is stored as so many bytes, the bit planes of
   its values from the lowest one on: bit ``i`` of byte ``j`` is bit ``j`` of value ``i``.
5. Widths of eight consecutive blocks of all planes are a *group*, which is stored in the same way. The last one is
   filled up with zeros. The width of a group is at most 4.

A payload is one byte 0 and the frame's bytes in C order, for frames that would not be smaller packed, or

- one byte ``1 + n % 255``, where ``n`` is the number of bytes of the frame, which shows that the payload belongs to it;
- the widths of all groups, 4 bits each, the lower half of a byte first, filled up with 0;
- the bytes of all groups;
- the bytes of all blocks.

So sums of widths find each group and each block, and decoders need not go through the payload from its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import Codec, frame_bytes, output_rows
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.picture_layout import PictureLayout
from sb3_compressed.errors import CorruptPayload

__all__ = ["Packed", "pack_rows"]

#: The first byte of an uncompressed frame.
RAW = b"\0"


@dataclass(frozen=True)
class Packed(Codec):
    """Differences from the line above, packed with as many bits as they need."""

    name: ClassVar[str] = "packed"
    typical_ratio: ClassVar[float] = 0.4
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 18

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`.

        Frames that are channel-last in memory and seen through a transposed view, as those of SB3's environments are,
        are not copied.
        """
        layout = PictureLayout.of(frames.shape[1:], frames.itemsize)
        rows, is_channel_last = _rows(frames, layout)
        if not rows.size:
            return [RAW] * len(frames)
        packed = pack_rows(rows, layout, is_channel_last=is_channel_last)
        return [payload or RAW + frames[k : k + 1].tobytes() for k, payload in enumerate(packed)]

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        """Decompress a batch; see :meth:`Codec.decode_into`."""
        self.decode_batch([self], Payloads.of(payloads), out)

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Packed], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`."""
        from sb3_compressed.codecs.packed_decoder_kernels import unpack_frames

        rows, done = output_rows(out, len(payloads), done)
        layout = PictureLayout.of(out.shape[1:], out.itemsize)
        unpack_frames(payloads.places, layout.numbers, np.empty(layout.scratch_nbytes, np.uint8), rows, done)
        if not done.all():
            index = int(done.argmin())
            [payload] = payloads[index : index + 1]
            raise CorruptPayload(_reason(payload, out.shape[1:], out.dtype), index)


def pack_rows(rows: NDArray[np.uint8], layout: PictureLayout, *, is_channel_last: bool) -> list[bytes]:
    """Return frames as packed differences; the payload of one that would be larger than its frame is empty.

    :param rows: bytes of frames that are not empty, ``(n, frame_nbytes)``
    :param layout: the layout of the frames
    :param is_channel_last: whether ``rows`` have the bytes of a pixel together
    """
    from sb3_compressed.codecs.packed_kernels import pack_frames  # on first use, since importing numba takes long

    scratch, payloads = np.empty(layout.scratch_nbytes, np.uint8), np.empty(rows.size, np.uint8)
    ends = np.empty(len(rows), np.int64)
    numbers = layout.numbers if is_channel_last == layout.is_channel_last else layout.transposed_numbers
    data = payloads[: pack_frames(rows, numbers, scratch, payloads, ends)].tobytes()
    return [data[start:end] for start, end in pairwise([0, *ends.tolist()])]


def _reason(payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Return why a payload is none of a frame."""
    if not payload:
        return "it is empty"
    if payload[:1] == RAW:
        return f"it has {len(payload) - 1} raw bytes, but a frame has {math.prod(shape) * dtype.itemsize}"
    return f"its {len(payload)} bytes are not packed differences of a frame of shape {shape} and dtype {dtype}"


def _rows(frames: NDArray[Any], layout: PictureLayout) -> tuple[NDArray[np.uint8], bool]:
    """Return the bytes of frames ``(n, frame_nbytes)``, and whether they are channel-last, in memory or in a copy."""
    if frames.ndim > 3 and not frames.flags.c_contiguous:
        channels, other_end = (-1, -3) if layout.is_channel_last else (-3, -1)
        transposed = np.moveaxis(frames, channels, other_end)
        if transposed.flags.c_contiguous:
            return frame_bytes(transposed), not layout.is_channel_last
    return frame_bytes(frames), layout.is_channel_last
