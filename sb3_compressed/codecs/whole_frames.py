"""Payloads of frames that are stored without references: raw, blocks of LZ4, or packed differences.

A payload is one header byte and the bytes of the frame in C order, or a block in LZ4's format
(https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md), both decoded at about the speed of copying, or a payload
of :mod:`sb3_compressed.codecs.packed`.
"""

from __future__ import annotations

import lz4.block
import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_format import LZ4_BLOCK, PACKED, RAW
from sb3_compressed.codecs.packed import pack_rows
from sb3_compressed.codecs.picture_layout import PictureLayout

__all__ = ["HEADER_LZ4", "HEADER_RAW", "lz4_payloads", "packed_payloads", "raw_payloads"]

HEADER_LZ4, HEADER_PACKED, HEADER_RAW = bytes([LZ4_BLOCK]), bytes([PACKED]), bytes([RAW])


def raw_payloads(rows: NDArray[np.uint8]) -> list[bytes]:
    """Return the payloads of frames ``(n, frame_nbytes)``, C-contiguous, without compression."""
    if not rows.size:
        return [b""] * len(rows)
    return [b"".join((HEADER_RAW, row.data)) for row in rows]


def packed_payloads(rows: NDArray[np.uint8], layout: PictureLayout, *, is_channel_last: bool) -> list[bytes]:
    """Return frames as packed differences; the payload of one that does not become smaller is empty.

    :param rows: bytes of frames that are not empty, ``(n, frame_nbytes)``
    :param layout: the layout of the frames
    :param is_channel_last: whether ``rows`` have the bytes of a pixel together
    """
    packed, size = pack_rows(rows, layout, is_channel_last=is_channel_last), rows.shape[1]
    return [HEADER_PACKED + payload if 0 < len(payload) < size else b"" for payload in packed]


def lz4_payloads(rows: NDArray[np.uint8]) -> list[bytes]:
    """Return frames that are not empty as blocks of LZ4; the payload of one that does not become smaller is empty.

    :param rows: bytes of frames, ``(n, frame_nbytes)``
    """
    blocks = [lz4.block.compress(row, store_size=False) for row in rows]
    return [HEADER_LZ4 + block if 1 + len(block) < rows.shape[1] else b"" for block in blocks]
