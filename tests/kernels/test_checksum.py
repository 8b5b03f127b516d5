"""The checksum is XXH64, for every bytes-like type and alignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_compressed.kernels.checksum import checksum

DATA = bytes(range(256)) * 40

# Number of bytes of DATA, seed, and the checksum by xxHash's own library.
REFERENCE = [
    (0, 0, 0xEF46DB3751D8E999),
    (1, 1, 0x771917C7F6EE2451),
    (3, 2**32 - 1, 0x4ABE5238789B95C9),
    (4, 2**63 + 5, 0x721D98070AC7FDD5),
    (5, 2**64 - 1, 0x0F3C50C2D6A349AE),
    (7, 1, 0xAF4C5311C47C77B7),
    (8, 7, 0x3072F8C5CBA43E9A),
    (11, 2**63 + 5, 0x694537E899569E29),
    (12, 2**64 - 1, 0x51FC0CE6A4DB3652),
    (15, 1, 0xC60AA95976ED0E4E),
    (31, 2**32 - 1, 0xEDE0CA117D1001CD),
    (32, 2**63 + 5, 0xE2D6F425E34E19DE),
    (33, 2**64 - 1, 0x5677D5193D356C20),
    (36, 0, 0xDDE0EF85E3AEF05C),
    (39, 1, 0xC628B5965EFAB20D),
    (40, 7, 0xFC9F7A1B24012CB5),
    (63, 1, 0x5264EC0719E10595),
    (64, 7, 0x3C65D1809A38A9BF),
    (79, 2**64 - 1, 0xA2A426981181AEA2),
    (100, 2**63 + 5, 0x8A80FBEAAE4385DF),
    (10000, 2**63 + 5, 0xF2D07AE887F1B392),
]


KINDS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "read-only array": lambda data: np.frombuffer(data, np.uint8),
    "writable array": lambda data: np.frombuffer(bytearray(data), np.uint8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_checksum_matches_the_reference_implementation(kind: str) -> None:
    for nbytes, seed, expected in REFERENCE:
        assert checksum(KINDS[kind](DATA[:nbytes]), seed) == expected, (nbytes, seed)


@pytest.mark.parametrize("shift", range(9))
def test_checksum_is_independent_of_alignment_and_surrounding_bytes(shift: int) -> None:
    for nbytes, seed, expected in REFERENCE:
        around = np.full(len(DATA) + 16, 0xA5, np.uint8)
        around[shift : shift + nbytes] = np.frombuffer(DATA, np.uint8)[:nbytes]
        assert checksum(around[shift : shift + nbytes], seed) == expected
