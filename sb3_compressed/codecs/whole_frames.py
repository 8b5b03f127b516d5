"""Payloads of frames that are stored without references: raw, or as blocks of LZ4 with a dictionary.

A payload is one header byte and the bytes of the frame in C order, or a block in LZ4's format
(https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md). Both are decoded at about the speed of copying.
"""

from __future__ import annotations

from itertools import pairwise

import lz4.block
import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import LZ4_BLOCK, RAW
from sb3_compressed.codecs.lz4_library import MAX_DICTIONARY_NBYTES, loaded_stream, lz4_functions
from sb3_compressed.codecs.reference_frames import delta_kernels

__all__ = ["HEADER_LZ4", "HEADER_RAW", "Lz4Blocks", "raw_payloads"]

HEADER_LZ4, HEADER_RAW = bytes([LZ4_BLOCK]), bytes([RAW])


def raw_payloads(rows: NDArray[np.uint8]) -> list[bytes]:
    """Return the payloads of frames ``(n, frame_nbytes)``, C-contiguous, without compression."""
    if not rows.size:
        return [b""] * len(rows)
    return [b"".join((HEADER_RAW, row.data)) for row in rows]


class Lz4Blocks:
    """LZ4 with a dictionary, for frames that are not empty; immutable.

    :param dictionary: bytes that frames have in common
    """

    def __init__(self, dictionary: bytes) -> None:
        self.dictionary = dictionary[-MAX_DICTIONARY_NBYTES:]
        # An empty one and one that has loaded the dictionary, or none.
        self._streams: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None

    def encode(self, rows: NDArray[np.uint8]) -> list[bytes]:
        """Compress frames ``(n, frame_nbytes)``; the payload of one that does not become smaller is empty."""
        functions = lz4_functions()
        if functions is None:
            return self._encode_in_python(rows)
        streams = self._streams
        if streams is None:
            self._streams = streams = loaded_stream(b""), loaded_stream(self.dictionary)
        empty, loaded = streams
        stream = empty.copy()  # other threads have their own
        payloads, ends = np.empty(rows.size, np.uint8), np.empty(len(rows), np.int64)
        addresses = np.array(functions, dtype=np.int64)
        n_bytes = delta_kernels().encode_blocks(
            rows, addresses, loaded.ctypes.data if self.dictionary else 0, stream.ctypes.data, payloads, ends
        )
        data = payloads[:n_bytes].tobytes()
        bounds = [0, *ends.tolist()]
        return [data[start:end] for start, end in pairwise(bounds)]

    def _encode_in_python(self, rows: NDArray[np.uint8]) -> list[bytes]:
        blocks = [lz4.block.compress(row, store_size=False, dict=self.dictionary) for row in rows]
        return [HEADER_LZ4 + block if 1 + len(block) < rows.shape[1] else b"" for block in blocks]

    def release_encoder(self) -> None:
        """Free what only encoding needs; it is created again when needed."""
        self._streams = None
