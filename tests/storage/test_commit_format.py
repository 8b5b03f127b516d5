"""Patches of arrays: rows of every dtype and shape round-trip, and malformed patches raise."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import numpy as np
import pytest
import zstandard
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.storage import commit_format
from sb3_compressed.storage.commit_format import (
    RING,
    apply_patches,
    pack_patch,
    pack_ring_row,
    snapshot_patches,
    split_commit,
)

RELAXED = examples(150)

SHAPES = ((7,), (1,), (0,), (5, 3), (4, 1, 2), (3, 0), (0, 4), (600, 4), (2, 3000))


def content(*patches: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(patches), np.uint8)


def any_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> NDArray[Any]:
    """Return an array of arbitrary bits, including NaN and -0.0."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 256, nbytes, np.uint8)
    data[: nbytes // 2] = 1  # partly compressible
    return data.view(dtype).reshape(shape)


# -- there and back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_nbytes", [1, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_snapshot_contains_every_row_once(
    shape: tuple[int, ...], chunk_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_format, "CHUNK_NBYTES", chunk_nbytes)
    for dtype, is_zero in itertools.product(("?", "u1", "<f4", ">i8"), (False, True)):
        array = np.zeros(shape, dtype) if is_zero else any_bits(shape, dtype)
        found, counts = any_bits(shape, dtype, seed=2), np.zeros(len(array), int)
        for patch in snapshot_patches(0, array):
            covered = [np.zeros(len(array), np.bool_)]
            assert apply_patches(content(patch), [found], (), covered) is None
            counts += covered[0]
        assert found.tobytes() == array.tobytes()
        if array.nbytes:
            assert (counts == 1).all()


# -- rows of the ring ----------------------------------------------------------------------------------------


def ring_arrays(seed: int = 0) -> list[NDArray[Any]]:
    """Return arrays; all but 1 have a row for each step."""
    specs = [((6, 2), "<f4"), ((9,), "u1"), ((6,), "?"), ((6, 2, 1), ">i8"), ((6, 0), "<f8")]
    return [any_bits(shape, dtype, seed + k) for k, (shape, dtype) in enumerate(specs)]


RING_NUMBERS = [0, 2, 3, 4]


@RELAXED
@given(data=st.data())
def test_ring_rows_and_patches_apply_in_order(data: st.DataObject) -> None:
    expected, found = ring_arrays(), ring_arrays()
    covered, is_covered = ([np.zeros(len(array), np.bool_) for array in expected] for _ in range(2))
    for step in range(data.draw(st.integers(0, 12))):
        patches = []
        for k in range(data.draw(st.integers(0, 4))):
            source = ring_arrays(seed=20 * step + k)
            if data.draw(st.booleans()):
                row = data.draw(st.integers(0, 5))
                patches.append(pack_ring_row([source[number] for number in RING_NUMBERS], row, 6 * step + row))
                for number in RING_NUMBERS:
                    expected[number][row] = source[number][row]
                    covered[number][row] = True
                continue
            number = data.draw(st.integers(0, 4))
            first, last = sorted(data.draw(st.integers(0, len(source[number]))) for _ in range(2))
            if data.draw(st.booleans()):
                source[number][first:last] = 0
                patches.append(struct.pack("<HHIQQ", number, 2, 8, first, last - first))
                covered[number][first:last] = True
            else:
                patches.append(pack_patch(number, source[number], first, last))
                covered[number][first:last] |= source[number].nbytes > 0
            expected[number][first:last] = source[number][first:last]
        apply_patches(content(*patches), found, RING_NUMBERS, is_covered)
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]
    assert [rows.tolist() for rows in is_covered] == [rows.tolist() for rows in covered]


# -- invalid data -------------------------------------------------------------------------------------


def arrays_to_patch() -> list[NDArray[Any]]:
    return [
        any_bits(shape, dtype) for shape, dtype in [((20, 3), "<f4"), ((700,), "u1"), ((0,), "u1"), ((4, 0), "<i8")]
    ]


def apply_or_refuse(data: bytes) -> bool:
    """Apply patches that may be invalid; return whether they were rejected."""
    arrays = arrays_to_patch()
    specs = [(array.shape, array.dtype) for array in arrays]
    try:
        apply_patches(content(data), arrays, ring=[0, 1])
    except CorruptStorage:
        return True
    finally:
        assert [(array.shape, array.dtype) for array in arrays] == specs
    return False


def good_patches() -> list[bytes]:
    """Return patches of all kinds: short, compressed, empty, zero, and a row of the ring."""
    arrays: list[Any] = [
        np.ones((20, 3), np.float32),
        np.arange(700).astype(np.uint8),
        np.zeros(0, np.uint8),
        np.zeros((4, 0)),
    ]
    patches = [pack_patch(k, array, 0, len(array)) for k, array in enumerate(arrays)]
    packed = zstandard.ZstdCompressor().compress(arrays[0].tobytes())
    return [
        *patches,
        pack_patch(0, arrays[0], 5, 7),
        struct.pack("<HHIQ", 0, 1, len(packed), 0) + packed,
        *snapshot_patches(1, np.zeros(700, np.uint8)),
        pack_ring_row(arrays[:2], 19, 39),
    ]


@pytest.mark.parametrize("index", range(8))
def test_truncated_patch_is_rejected(index: int) -> None:
    before, patch = b"".join(good_patches()), good_patches()[index]
    for cut in range(1, len(patch)):
        assert apply_or_refuse(patch[:cut])
        if cut % 50 < 20:
            assert apply_or_refuse(before + patch[:cut])


OUTSIDE = {  # number of the array, flag, and then bytes and the first row of each patch
    (0, 0): [(12, 20), (24, 19), (12, 21), (0, 21), (12, 2**64 - 1), (12, 2**63), (252, 0), (2**32 - 1, 0)],
    (1, 0): [(701, 0), (2, 699)],
    (2, 0): [(1, 0)],
    (3, 0): [(8, 0)],
    (RING, 0): [(13, 2**63), (13, 2**64 - 1)],
}
MALFORMED = {
    (4, 0): [(12, 0)],
    (0xFFFF, 0): [(12, 0)],
    (0, 2): [(12, 0)],
    (0, 0xFFFF): [(12, 0)],
    (0, 0): [(13, 0), (11, 0)],
    (0, 1): [(0, 0), (12, 0)],
    (RING, 0): [(12, 0), (14, 0), (0, 0)],
    (RING, 1): [(13, 0)],
    (RING, 2): [(13, 0), (8, 0)],
}


@pytest.mark.parametrize("patches", [OUTSIDE, MALFORMED], ids=["outside", "malformed"])
def test_invalid_patches_are_rejected(patches: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    for (number, flag), of_array in patches.items():
        for nbytes, first in of_array:
            patch = struct.pack("<HHIQ", number, flag, nbytes, first) + bytes(min(nbytes, 1000))
            assert apply_or_refuse(patch), (number, flag, nbytes, first)


def test_invalid_zero_patches_are_rejected() -> None:
    numbers = [(0, 0, 21), (0, 20, 1), (0, 21, 0), (0, 5, 16), (0, 0, 2**64 - 1), (0, 2**63, 1), (2, 0, 1), (4, 0, 1)]
    for number, first, n_rows in numbers:
        patch = struct.pack("<HHIQQ", number, 2, 8, first, n_rows)
        assert apply_or_refuse(patch), (number, first, n_rows)
        assert apply_or_refuse(patch[:-1])
    for data in (struct.pack("<HHIQ", 0, 2, 9, 0) + bytes(9), struct.pack("<HHIQ", 0, 2, 0, 0)):
        assert apply_or_refuse(data)


@pytest.mark.parametrize(
    "packed",
    {
        "larger than the array": zstandard.ZstdCompressor().compress(bytes(244)),
        "partial rows": zstandard.ZstdCompressor().compress(bytes(13)),
        "a bomb": zstandard.ZstdCompressor().compress(bytes(50_000_000)),
        "of unknown size": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(12)),
        "of a size that is not so": b"\x28\xb5\x2f\xfd\x20\x0c" + zstandard.ZstdCompressor().compress(bytes(24))[6:],
        "of a huge size": b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + bytes(10),
        "with a checksum that is wrong": zstandard.ZstdCompressor(write_checksum=True).compress(bytes(12))[:-1] + b"!",
        "no frame": b"no frame of zstd at all",
    }.items(),
    ids=lambda item: item[0],
)
def test_compressed_patches_outside_an_array_are_rejected(packed: tuple[str, bytes]) -> None:
    assert apply_or_refuse(struct.pack("<HHIQ", 0, 1, len(packed[1]), 0) + packed[1])


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\1\0\0",
        b"\2\0\0\0{",
        b"\xff\xff\xff\xff{}",
        b"\2\0\0\0[]",
        b"\4\0\0\0null",
        b"\1\0\0\x005",
        b"\4\0\0\0\xff\xff\xff\xff",
        *(
            struct.pack("<I", len(text)) + text
            for text in map(str.encode, map(json.dumps, [{"values": 5}, {"codecs": []}, {"values": None}, "text"]))
        ),
    ],
)
def test_invalid_commits_are_rejected(record: bytes) -> None:
    with pytest.raises(CorruptStorage, match="invalid commit"):
        split_commit(content(record))
