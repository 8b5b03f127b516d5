"""Payloads of frames that are stored without references: raw, or as blocks of LZ4 with a dictionary.

A payload is one header byte and the bytes of the frame in C order, or a block in LZ4's format
(https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md). Both are decoded at about the speed of copying.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import ClassVar, NamedTuple

import lz4.block
import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import LZ4_BLOCK, RAW
from sb3_compressed.codecs.lz4_library import MAX_DICTIONARY_NBYTES, loaded_stream, lz4_functions

__all__ = ["HEADER_LZ4", "HEADER_RAW", "Lz4Blocks", "raw_payloads"]

HEADER_LZ4, HEADER_RAW = bytes([LZ4_BLOCK]), bytes([RAW])
#: More frames than this have no memory of their own between two calls.
MAX_SCRATCH_NBYTES = 1 << 22


def raw_payloads(rows: NDArray[np.uint8]) -> list[bytes]:
    """Return the payloads of frames ``(n, frame_nbytes)`` without compression."""
    if not rows.size:
        return [b""] * len(rows)
    try:
        scratch = _scratch.pop()  # atomic: no other thread uses it meanwhile
    except IndexError:
        scratch = _new_scratch(rows.shape)
    if scratch.frames.shape != rows.shape:
        scratch = _new_scratch(rows.shape)
    scratch.frames[...] = rows
    payloads: list[bytes] = scratch.payloads.tolist()
    if rows.size <= MAX_SCRATCH_NBYTES:
        _scratch.append(scratch)
    return payloads


class Scratch(NamedTuple):
    """Memory for raw payloads of some frames.

    :param payloads: the payloads, ``(n,)``, whose header bytes are written already; its elements are bytes objects
    :param frames: a view of the frames in them, ``(n, frame_nbytes)``
    """

    payloads: NDArray[np.void]
    frames: NDArray[np.uint8]


#: One for each thread that has encoded at the same time, of the last calls: consecutive steps have as many frames.
_scratch: list[Scratch] = []


def _new_scratch(shape: tuple[int, ...]) -> Scratch:
    n_frames, frame_nbytes = shape
    memory = np.empty((n_frames, len(HEADER_RAW) + frame_nbytes), dtype=np.uint8)
    memory[:, 0] = RAW
    return Scratch(memory.view(f"V{memory.shape[1]}")[:, 0], memory[:, len(HEADER_RAW) :])


class Lz4Blocks:
    """LZ4 with a dictionary; immutable.

    :param dictionary: bytes that frames have in common
    """

    name: ClassVar[str] = "lz4"
    library_errors: ClassVar[tuple[type[Exception], ...]] = (lz4.block.LZ4BlockError, ValueError)

    def __init__(self, dictionary: bytes) -> None:
        self.dictionary = dictionary[-MAX_DICTIONARY_NBYTES:]
        self._streams: list[NDArray[np.uint8]] = []  # an empty one, and one that has loaded the dictionary
        self._idle_streams: list[NDArray[np.uint8]] = []  # copies of the empty one

    def encode(self, rows: NDArray[np.uint8], kernels: ModuleType) -> list[bytes]:
        """Compress frames ``(n, frame_nbytes)``; the payload of one that does not become smaller is empty."""
        functions = lz4_functions()
        if functions is None or not rows.size:
            return [self._compress(row) for row in rows]
        streams = self._streams[:2]  # a copy: another thread may clear the list
        empty, loaded = streams or self._new_streams()
        try:
            stream = self._idle_streams.pop()  # atomic: no other thread uses it meanwhile
        except IndexError:
            stream = empty.copy()
        payloads, ends = np.empty(rows.size, np.uint8), np.empty(len(rows), np.int64)
        addresses = np.array(functions, dtype=np.int64)
        n_bytes = kernels.encode_blocks(rows, addresses, loaded.ctypes.data, stream.ctypes.data, payloads, ends)
        self._idle_streams.append(stream)
        data = payloads[:n_bytes].tobytes()
        bounds = [0, *ends.tolist()]
        return [data[start:end] for start, end in pairwise(bounds)]

    def release_encoder(self) -> None:
        """Free what only encoding needs; it is created again when needed."""
        self._idle_streams.clear()
        self._streams.clear()

    def _new_streams(self) -> list[NDArray[np.uint8]]:
        streams = [loaded_stream(b""), loaded_stream(self.dictionary)]
        self._streams[:] = streams
        return streams

    def _compress(self, row: NDArray[np.uint8]) -> bytes:
        block: bytes = lz4.block.compress(row, store_size=False, dict=self.dictionary)
        return HEADER_LZ4 + block if 1 + len(block) < row.size else b""

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload of ``nbytes`` bytes."""
        raw: bytes = lz4.block.decompress(payload[1:], uncompressed_size=nbytes, dict=self.dictionary)
        return raw
