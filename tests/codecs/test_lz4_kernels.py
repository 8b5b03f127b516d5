"""The decoder of LZ4 blocks: right, as strict as the format, and never outside its memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import lz4.block
import numpy as np
import pytest
from crafted_payloads import MALFORMED_BLOCKS, MUTATIONS, VALID_BLOCK, Mutation, composed, sequence
from numba import types
from numpy.typing import NDArray

from sb3_compressed.codecs.lz4_kernels import decode_block
from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import kernel

DAMAGES = int(os.environ.get("SB3_COMPRESSED_DAMAGES", "50"))
N_PAGES = 20


@kernel(types.boolean, INT, INT, INT, INT)
def decode_at(payload: int, nbytes: int, frame: int, size: int) -> bool:
    return decode_block(payload, nbytes, frame, frame, size)


class Memory:
    """Memory between two pages that cannot be accessed; whatever reads or writes there ends the process."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, (N_PAGES + 2) * mmap.PAGESIZE)
        whole = np.frombuffer(self._map, np.uint8)
        self._bytes = whole[mmap.PAGESIZE : -mmap.PAGESIZE]
        if sys.platform == "linux":
            protect = ctypes.CDLL(None).mprotect
            for page in (0, N_PAGES + 1):
                assert protect(ctypes.c_void_p(whole.ctypes.data + page * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0

    def part(self, nbytes: int, *, is_last: bool) -> NDArray[np.uint8]:
        """Return the first or the last bytes of it."""
        return self._bytes[len(self._bytes) - nbytes :] if is_last else self._bytes[:nbytes]


MEMORIES = Memory(), Memory()


def decoded(payload: bytes, size: int) -> bytes | None:
    """Decode a block; return ``None`` if it is not valid."""
    found: list[bytes | None] = []
    for is_last in (False, True):
        contents = payload, b"\xa5" * size
        parts = [memory.part(len(each), is_last=is_last) for memory, each in zip(MEMORIES, contents, strict=True)]
        for part, content in zip(parts, contents, strict=True):
            part[:] = np.frombuffer(content, np.uint8)
        arguments = [number for part in parts for number in (part.ctypes.data, part.size)]
        found.append(parts[1].tobytes() if decode_at(*arguments) else None)
        assert parts[0].tobytes() == payload
    assert found[0] == found[1]
    return found[0]


def decoded_by_library(payload: bytes, size: int) -> bytes | None:
    try:
        raw: bytes = lz4.block.decompress(payload, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError):
        return None
    return raw if len(raw) == size else None


MODES = [
    {},
    {"mode": "fast", "acceleration": 20},
    {"mode": "high_compression", "compression": 4},
    {"mode": "high_compression", "compression": 12},
]


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_all_that_the_library_encodes_is_decoded(mode: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    for size in [*range(1, 120), 300, 7056, 12_288, 70_000]:
        frame = composed(rng, size)
        payload = lz4.block.compress(frame, store_size=False, **mode)
        assert decoded(payload, size) == frame
        assert decoded(payload, size + 1) is None
        assert decoded(payload, size - 1) is None


@pytest.mark.parametrize("length", [4, 5, 7, 8, 18, 19, 31, 64, 273, 274, 700])
def test_matches_may_run_into_themselves(length: int) -> None:
    for offset in range(1, 41):
        assert_matches_are_decoded(offset, length)


def assert_matches_are_decoded(offset: int, length: int) -> None:
    literals = bytes(range(100, 141))
    repeated = (literals[-offset:] * (length // offset + 1))[:length]
    for n_last in (8, 9, 50):
        last = bytes(range(n_last))
        payload = sequence(literals, offset, length) + sequence(last)
        assert decoded(payload, 41 + length + n_last) == literals + repeated + last


@pytest.mark.parametrize(("payload", "size"), MALFORMED_BLOCKS.values(), ids=MALFORMED_BLOCKS)
def test_malformed_blocks_are_not_decoded(payload: bytes, size: int) -> None:
    assert decoded(VALID_BLOCK, 48) == b"abc" * 14 + b"a12345"
    assert decoded(payload, size) is None


N_MORE = 33  # bytes of a frame


def random_sequence(rng: np.random.Generator, payload: bytes) -> bytes:
    """Return short literals and a match, most of which start before the frame or overlap, then the payload."""
    return sequence(rng.bytes(N_MORE - 30), int(rng.integers(1, 30)), 30) + payload


@pytest.mark.parametrize("mutated", [*MUTATIONS, random_sequence])
def test_damaged_blocks_are_decoded_as_by_the_library_or_not_at_all(mutated: Mutation) -> None:
    rng = np.random.default_rng(0)
    n_accepted = n_stricter = 0
    for _ in range(40 * DAMAGES):
        size = int(rng.choice([20, 60, 400]))
        payload = lz4.block.compress(composed(rng, size), store_size=False)
        size += N_MORE if mutated is random_sequence else int(rng.choice([0, 0, 0, -1, 1]))
        damaged = mutated(rng, payload)
        found, expected = decoded(damaged, size), decoded_by_library(damaged, size)
        assert found is None or found == expected
        n_accepted += found is not None
        n_stricter += expected != found
    # The library accepts the offset 0, and some matches in the last bytes.
    assert n_stricter <= n_accepted / 20
