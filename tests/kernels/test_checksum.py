"""The checksum is XXH64, for every bytes-like type and alignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_compressed.common.probes import FORCE_FALLBACKS
from sb3_compressed.kernels.checksum import checksum, xxh64_function
from sb3_compressed.kernels.checksum_kernels import xxh64_of

DATA = bytes(range(256)) * 40

# Number of bytes of DATA, seed, and the checksum by xxHash's own library.
REFERENCE = [
    (0, 0, 0xEF46DB3751D8E999),
    (1, 1, 0x771917C7F6EE2451),
    (2, 7, 0x068E4E065BCD7BE8),
    (3, 2**32 - 1, 0x4ABE5238789B95C9),
    (4, 2**63 + 5, 0x721D98070AC7FDD5),
    (5, 2**64 - 1, 0x0F3C50C2D6A349AE),
    (6, 0, 0x438E2507BF950423),
    (7, 1, 0xAF4C5311C47C77B7),
    (8, 7, 0x3072F8C5CBA43E9A),
    (9, 2**32 - 1, 0x4F5B6834AF24F97A),
    (11, 2**63 + 5, 0x694537E899569E29),
    (12, 2**64 - 1, 0x51FC0CE6A4DB3652),
    (13, 0, 0x13D17C4C779723A8),
    (15, 1, 0xC60AA95976ED0E4E),
    (16, 7, 0x506DF9181E2573E0),
    (17, 2**32 - 1, 0xCEEBA2EEE7933130),
    (20, 2**63 + 5, 0x5AEC64848CA2A1E4),
    (23, 2**64 - 1, 0x180AEA989C019C36),
    (24, 0, 0xDD14A0292632BE9B),
    (27, 1, 0x93D60A61EC733266),
    (28, 7, 0xB2D6A2C0760EFFCE),
    (31, 2**32 - 1, 0xEDE0CA117D1001CD),
    (32, 2**63 + 5, 0xE2D6F425E34E19DE),
    (33, 2**64 - 1, 0x5677D5193D356C20),
    (36, 0, 0xDDE0EF85E3AEF05C),
    (39, 1, 0xC628B5965EFAB20D),
    (40, 7, 0xFC9F7A1B24012CB5),
    (44, 2**32 - 1, 0x6A88AA6721C48EE3),
    (47, 2**63 + 5, 0x51DF8376BBAED1A7),
    (48, 2**64 - 1, 0x1CF99CD6CD0C94B3),
    (55, 0, 0x511CD496994EA839),
    (63, 1, 0x5264EC0719E10595),
    (64, 7, 0x3C65D1809A38A9BF),
    (65, 2**32 - 1, 0x1F8721452953CAD7),
    (71, 2**63 + 5, 0x82EB2B4AE1D504F3),
    (79, 2**64 - 1, 0xA2A426981181AEA2),
    (95, 0, 0x9AD76AC12BAD59A0),
    (96, 1, 0x912B7FF5B415012F),
    (97, 7, 0x6766B2C4C97287DB),
    (99, 2**32 - 1, 0x73665A9A4C4F2D8D),
    (100, 2**63 + 5, 0x8A80FBEAAE4385DF),
    (127, 2**64 - 1, 0x404C84672081DC7B),
    (255, 0, 0x0F7D97507CAAD693),
    (256, 1, 0xBEEC1EB06D6A56F7),
    (1000, 7, 0xD32EB2D2D41096DB),
    (4096, 2**32 - 1, 0xEA8447BAB4325171),
    (10000, 2**63 + 5, 0xF2D07AE887F1B392),
]

KINDS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "read-only array": lambda data: np.frombuffer(data, np.uint8),
    "writable array": lambda data: np.frombuffer(bytearray(data), np.uint8),
}


@pytest.mark.parametrize(("nbytes", "seed", "expected"), REFERENCE)
def test_checksum_matches_the_reference_implementation(nbytes: int, seed: int, expected: int) -> None:
    assert checksum(DATA[:nbytes], seed) == expected
    assert xxh64_of(np.frombuffer(DATA, np.uint8)[:nbytes], np.uint64(seed)) == expected, "the kernel"
    function = xxh64_function()
    assert (function is None) is FORCE_FALLBACKS
    if function is not None:
        assert function(DATA[:nbytes], nbytes, seed) == expected, "the function of the LZ4 library"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nbytes", "seed", "expected"), REFERENCE[::9])
def test_checksum_accepts_all_bytes_like_types(kind: str, nbytes: int, seed: int, expected: int) -> None:
    assert checksum(KINDS[kind](DATA[:nbytes]), seed) == expected


@pytest.mark.parametrize("shift", range(9))
def test_checksum_is_independent_of_alignment_and_surrounding_bytes(shift: int) -> None:
    for nbytes, seed, expected in REFERENCE:
        around = np.full(len(DATA) + 16, 0xA5, np.uint8)
        around[shift : shift + nbytes] = np.frombuffer(DATA, np.uint8)[:nbytes]
        assert checksum(around[shift : shift + nbytes], seed) == expected


@pytest.mark.parametrize("nbytes", [1, 3, 4, 7, 8, 31, 32, 45])
def test_checksum_depends_on_every_bit(nbytes: int) -> None:
    flipped = []
    for bit in range(8 * nbytes):
        data = bytearray(DATA[:nbytes])
        data[bit // 8] ^= 1 << bit % 8
        flipped.append(checksum(data))
    assert len({checksum(DATA[:nbytes]), *flipped}) == 1 + 8 * nbytes


def test_checksum_depends_on_seed_and_length() -> None:
    values = {checksum(bytes(nbytes), seed) for nbytes in range(70) for seed in (0, 1, 2**63, 2**64 - 1)}
    assert len(values) == 70 * 4
