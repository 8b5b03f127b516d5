"""Blocks are unpacked as they were packed, and no damaged or crafted one is read beyond its end."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distributed.emitted import SPACES, observations
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import (
    CHECKSUM_AT,
    HEADER,
    PayloadBatch,
    _checksum,
    codec_digest,
    pack_sections,
    unpack_sections,
)
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.distributed.block import CONTENT, MAX_PARTS, Block
from sb3_compressed.errors import CorruptPayload, MissingCodec

#: Examples of each fuzzer; thousands by hand.
N_ROWS = 140


@cache
def filled(codec: str, kind: str = "images") -> CompressedArray:
    """Return an array with whole items from before the layout was found, of which the last row is unwritten."""
    array = CompressedArray((N_ROWS, 2, *SPACES[kind].shape), np.uint8, codec, num_threads=1)  # type: ignore[misc]
    for row in range(N_ROWS - 1):
        array[row, :] = observations(kind, row, 2)
    return array


def items_of(array: CompressedArray, rows: Any) -> PayloadBatch:
    layout = array.layout
    return array.store.gather(array.slots[rows].reshape(-1).copy(), 1 if layout is None else layout.n_frames)


def mixed_block(codec: str = "auto") -> Block:
    """Return a block of all kinds of arrays and batches."""
    array = filled(codec)
    arrays: dict[str, NDArray[Any]] = {
        "rewards": np.arange(6, dtype=np.float32).reshape(3, 2),
        "flags": np.array([True, False, True]),
        "numbers": np.arange(5)[::2],
        "nothing": np.zeros((0, 3), np.int16),
        "scalar": np.array(2.5),
        "turned": np.arange(6).reshape(2, 3).T,
        "other order": np.arange(3, dtype=">f8"),
    }
    batches = {
        "stacks": items_of(array, slice(60, 70)),
        "whole": items_of(array, slice(0, 2)),
        "last": items_of(array, slice(130, N_ROWS)),
        "none": items_of(array, slice(0, 0)),
        "unwritten": items_of(array, [N_ROWS - 1]),
    }
    return Block({"rows": 3, "layouts": {"stacks": [0, 4]}, "text": "\0é", "none": None}, arrays, batches)


def codecs_of(block: Block) -> dict[bytes, Codec]:
    return {codec_digest(codec): codec for batch in block.batches.values() for codec in batch.codecs}


def assert_same(found: Block, expected: Block) -> None:
    assert found.values == expected.values
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found.arrays[name], array)
    assert found.batches.keys() == expected.batches.keys()
    for name, batch in expected.batches.items():
        other = found.batches[name]
        assert (other.n_items, other.n_frames, other.is_uniform) == (batch.n_items, batch.n_frames, batch.is_uniform)
        assert other.offsets.tolist() == batch.offsets.tolist()
        assert [*other.payloads] == [*batch.payloads]
        digests = [[codec_digest(each.codecs[writer]) for writer in each.payloads.writers] for each in (other, batch)]
        assert digests[0] == digests[1]


# -- round trips ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["auto", "zstd-dict", "zstd3", "none"])
def test_round_trip(codec: str) -> None:
    block = mixed_block(codec)
    assert len(block.batches["last"].codecs) > 0
    packed = block.pack()
    found = Block.unpack(packed, codecs_of(block))
    assert_same(found, block)
    assert found.pack().tobytes() == packed.tobytes()


def packed_sections(batch: PayloadBatch) -> dict[str, NDArray[np.uint8]]:
    return unpack_sections(pack_sections(batch.sections()))


def test_shared_payloads_are_packed_once() -> None:
    batch = items_of(filled("auto"), slice(60, 80))
    sections = batch.sections()
    assert len(sections["Lengths"]) == len({(address, writer) for address, _, writer in batch.payloads.places.tolist()})
    assert len(sections["Lengths"]) < len(batch.payloads) / 3
    assert len(pack_sections(batch.sections())) < sum(map(len, batch.payloads)) / 2
    other = PayloadBatch.from_sections(packed_sections(batch), {codec_digest(codec): codec for codec in batch.codecs})
    assert [*other.payloads] == [*batch.payloads]
    assert len(np.unique(other.payloads.places[:, 0])) == len(sections["Lengths"]), "and shared again"


def test_equal_payloads_of_two_codecs_are_both_packed() -> None:
    codecs = [get_codec("zstd-dict"), get_codec("zstd-dict", compresslevel=5)]
    shared = Payloads.of([b"same"])
    places = np.repeat(shared.places, 4, axis=0)
    places[:, 2] = [0, 1, 0, 1]
    batch = PayloadBatch(codecs, Payloads(places, shared), 1)
    other = PayloadBatch.from_sections(packed_sections(batch), {codec_digest(codec): codec for codec in codecs})
    assert [*other.payloads] == [b"same"] * 4
    assert other.payloads.writers.tolist() == [0, 1, 0, 1]


def test_arrays_and_payloads_are_in_the_memory_of_the_block() -> None:
    block = mixed_block()
    packed = block.pack()
    found = Block.unpack(packed, codecs_of(block))
    begin, end = packed.ctypes.data, packed.ctypes.data + packed.nbytes
    for array in found.arrays.values():
        assert begin <= array.ctypes.data <= end
    for batch in found.batches.values():
        assert_in_bounds(batch, packed)


@pytest.mark.parametrize(
    "parts", [[("stacks", 0, 20)], [("stacks", 3, 9), ("last", 5, 20)], [("whole", 0, 4), ("stacks", 1, 2)]]
)
def test_parts_are_joined_in_any_order(parts: list[tuple[str, int, int]]) -> None:
    block = mixed_block()
    batches = [block.batches[name].part(first, last) for name, first, last in parts]
    items = [
        [*batch.payloads[batch.offsets[item] : batch.offsets[item + 1]]]
        for batch in batches
        for item in range(batch.n_items)
    ]
    order = np.random.default_rng(0).permutation(len(items))
    joined = PayloadBatch.joined(batches, order)
    found = [[*joined.payloads[joined.offsets[item] : joined.offsets[item + 1]]] for item in range(joined.n_items)]
    assert found == [items[k] for k in order]
    some = PayloadBatch.joined(batches, order[:1])
    assert some.n_items == 1
    assert PayloadBatch.joined(batches).n_items == len(items)


def test_stacks_of_different_numbers_of_frames_cannot_be_joined() -> None:
    two, four = items_of(filled("auto", "rgb"), slice(60, 62)), items_of(filled("auto"), slice(60, 62))
    assert (two.n_frames, four.n_frames) == (2, 4)
    with pytest.raises(ValueError, match="batches of 2 and 4 frames an item cannot be joined"):
        PayloadBatch.joined([two, four])


# -- damage --------------------------------------------------------------------------------------------------


def assert_in_bounds(batch: PayloadBatch, packed: NDArray[np.uint8]) -> None:
    begin, end = packed.ctypes.data, packed.ctypes.data + packed.nbytes
    places = batch.payloads.places
    assert (places[:, 0] >= begin).all()
    assert (places[:, 1] >= 0).all()
    assert (places[:, 0] + places[:, 1] <= end).all()
    assert (places[:, 2] < max(len(batch.codecs), 1)).all()


LAYOUTS = [None, *(FrameLayout((4, 20, 20), axis, n) for axis in (0, -1) for n in (2, 4))]


def read(packed: NDArray[np.uint8], codecs: Mapping[bytes, Codec]) -> bool:
    """Unpack and decode a block; return whether it was valid."""
    try:
        block = Block.unpack(packed, codecs)
    except (CorruptPayload, MissingCodec):
        return False
    for array in block.arrays.values():
        assert packed.ctypes.data <= array.ctypes.data <= packed.ctypes.data + packed.nbytes - array.nbytes
    for batch in block.batches.values():
        assert_in_bounds(batch, packed)
        if batch.n_items > 5000:
            continue
        for layout in LAYOUTS:
            out = np.empty((batch.n_items, 4, 20, 20), np.uint8)
            guarded = np.full(out.nbytes + 128, 77, np.uint8)
            out = guarded[64:-64].reshape(out.shape)
            with contextlib.suppress(ValueError):  # which CorruptPayload is, too
                decode(batch, layout, out)
            assert (guarded[:64] == 77).all()
            assert (guarded[-64:] == 77).all()
    return True


def small_block() -> Block:
    array = filled("auto")
    return Block(
        {"rows": 2}, {"rewards": np.arange(4.0)},
        {"stacks": items_of(array, slice(62, 66)), "whole": items_of(array, slice(N_ROWS - 2, N_ROWS))},
    )  # fmt: skip


@cache
def packed_block() -> bytes:
    return small_block().pack().tobytes()


CODECS = cache(lambda: codecs_of(small_block()))


def crafted(**changes: Any) -> NDArray[np.uint8]:
    """Return the small block with other sections and a right checksum."""
    sections: dict[str, Any] = {**unpack_sections(packed_block()), **changes}
    return pack_sections({name: section for name, section in sections.items() if section is not None})


def content(**changes: Any) -> bytes:
    """Return the content of the small block with other entries."""
    return json.dumps({**json.loads(unpack_sections(packed_block())[CONTENT].tobytes()), **changes}).encode()


def test_the_uncrafted_block_is_valid() -> None:
    assert crafted().tobytes() == packed_block()
    assert read(crafted(), CODECS())
    assert "Indices.0" in unpack_sections(packed_block())


MOST = struct.pack("<I", (1 << 32) - 1)
CRAFTED: dict[str, Callable[[], dict[str, Any]]] = {
    "no content": lambda: {CONTENT: None},
    "content that is no JSON": lambda: {CONTENT: b"{"},
    "content of other bytes": lambda: {CONTENT: b"\xff\xfe"},
    "content that is a list": lambda: {CONTENT: b"[]"},
    "deep content": lambda: {CONTENT: b"[" * 100_000},
    "content with large numbers": lambda: {CONTENT: b"9" * 10_000},
    "no values": lambda: {CONTENT: content(values=None)},
    "values that are a list": lambda: {CONTENT: content(values=[])},
    "no arrays": lambda: {CONTENT: content(arrays=None)},
    "arrays that are a number": lambda: {CONTENT: content(arrays=3)},
    "arrays that are text": lambda: {CONTENT: content(arrays="abc")},
    "arrays without a shape": lambda: {CONTENT: content(arrays=[["rewards", "<f8"]])},
    "another array": lambda: {CONTENT: content(arrays=[["a", "<f8", [4]], ["b", "<f8", [4]]])},
    "very many arrays": lambda: {CONTENT: content(arrays=[["a", "<f8", [4]]] * (MAX_PARTS + 1))},
    "batches that are a number": lambda: {CONTENT: content(batches=2)},
    "fewer batches": lambda: {CONTENT: content(batches=["stacks"])},
    "more batches": lambda: {CONTENT: content(batches=["stacks", "whole", "more"])},
    "no batches": lambda: {CONTENT: content(batches=[])},
    "an array of objects": lambda: {CONTENT: content(arrays=[["rewards", "|O", [4]]])},
    "an array of text": lambda: {CONTENT: content(arrays=[["rewards", "<U2", [4]]])},
    "an array of nothing": lambda: {CONTENT: content(arrays=[["rewards", "|V0", [4]]])},
    "an array of another dtype": lambda: {CONTENT: content(arrays=[["rewards", "<f4", [4]]])},
    "an array of a list": lambda: {CONTENT: content(arrays=[["rewards", ["<f8"], [4]]])},
    "a longer array": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [5]]])},
    "a negative length": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [-1]]])},
    "two negative lengths": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [-2, -2]]])},
    "a length that is true": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [4, True]]])},
    "a length of text": lambda: {CONTENT: content(arrays=[["rewards", "<f8", ["4"]]])},
    "a shape that is a number": lambda: {CONTENT: content(arrays=[["rewards", "<f8", 4]])},
    "a very large length": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [1 << 70]]])},
    "lengths that overflow": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [1 << 62, 1 << 2, 4]]])},
    "many axes": lambda: {CONTENT: content(arrays=[["rewards", "<f8", [4] + [1] * 100]])},
    "part of an element": lambda: {"Array.0": bytes(31)},
    "no array": lambda: {"Array.0": None},
    "an array that is not declared": lambda: {"Array.1": bytes(8)},
    "a batch of no number": lambda: {"Codecs": b""},
    "a batch of another number": lambda: {"Codecs.2": b""},
    "a batch of a negative number": lambda: {"Codecs.-1": b""},
    "a batch of text": lambda: {"Codecs.x": b""},
    "a batch without indices": lambda: {"Indices.0": None},
    "indices beyond the payloads": lambda: {"Indices.0": MOST * (8 * 4)},
    "fewer indices": lambda: {"Indices.0": bytes(4 * (8 * 4 - 1))},
    "part of an index": lambda: {"Indices.0": bytes(7)},
    "indices of nothing": lambda: {
        "Indices.0": bytes(4), "Lengths.0": b"", "Writers.0": b"", "Payloads.0": b"",
        "Items.0": struct.pack("<2I", 4, 1),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", CRAFTED)
def test_crafted_blocks_are_refused(kind: str) -> None:
    with pytest.raises(CorruptPayload):
        Block.unpack(crafted(**CRAFTED[kind]()), CODECS())


def test_optional_sections_of_later_versions_are_skipped() -> None:
    assert read(crafted(**{"rewards.0": b"123"}), CODECS())


@pytest.mark.parametrize("indices", [bytes(4 * 32), struct.pack("<I", 3) * 32])
def test_other_indices_are_in_bounds(indices: bytes) -> None:
    assert read(crafted(**{"Indices.0": indices}), CODECS())


@examples(300)
@given(
    st.sampled_from(["Items", "Lengths", "Writers", "Indices", "Payloads", "Codecs"]),
    st.integers(0, 1),
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.sampled_from([0, 1, 2, 3, 4, 5, 127, 128, 255])), min_size=1, max_size=6
    ),
    st.integers(0, 3),
)
def test_crafted_numbers_never_lead_out_of_the_block(
    name: str, number: int, changes: list[tuple[int, int]], shared: int
) -> None:
    sections = unpack_sections(packed_block())
    if f"{name}.{number}" not in sections:
        number = 0
    section = bytearray(sections[f"{name}.{number}"].tobytes())
    for position, byte in changes:
        if section:
            section[position % len(section)] = byte
    changed = {f"{name}.{number}": bytes(section)}
    if shared == 1 and name == "Payloads":  # of another length
        changed[f"{name}.{number}"] += b"0"
    read(crafted(**changed), CODECS())


@examples(300)
@given(
    st.dictionaries(
        st.sampled_from([f"{name}.0" for name in ("Codecs", "Items", "Lengths", "Writers", "Payloads", "Indices")]),
        st.one_of(
            st.binary(max_size=24),
            st.lists(st.integers(0, 5), max_size=6).map(lambda v: struct.pack(f"<{len(v)}I", *v)),
        ),
    )
)
def test_any_sections_are_refused_or_in_bounds(changes: dict[str, bytes]) -> None:
    read(crafted(**changes), CODECS())


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_sections_that_are_not_aligned_are_read(shift: int) -> None:
    data = bytearray(packed_block())
    n_sections = struct.unpack_from("<I", data, 8)[0]
    shifted = data[: 28 + 32 * n_sections] + bytes(shift) + data[28 + 32 * n_sections :]
    struct.pack_into("<Q", shifted, 12, len(shifted))
    for k in range(n_sections):
        at = 28 + 32 * k + 16
        struct.pack_into("<Q", shifted, at, struct.unpack_from("<Q", shifted, at)[0] + shift)
    packed = np.frombuffer(shifted, np.uint8)
    shifted[CHECKSUM_AT : HEADER.size] = _checksum(packed)
    found = Block.unpack(packed, CODECS())
    assert_same(found, small_block())
    array = filled("auto")
    out = np.empty((8, 4, 20, 20), np.uint8)
    decode(found.batches["stacks"], array.layout, out)
    assert out.tobytes() == np.asarray(array[62:66]).tobytes()
    assert_same(Block.unpack(found.pack(), CODECS()), small_block())


@pytest.mark.parametrize("n_frames", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_items_of_another_number_of_frames_than_the_layout_are_refused(n_frames: int, layout: FrameLayout) -> None:
    codec = get_codec("none")
    nbytes = 1600 // n_frames
    batch = PayloadBatch([codec], Payloads.of(codec.encode(np.zeros((3 * n_frames, nbytes), np.uint8))), n_frames)
    out = np.empty((3, 4, 20, 20), np.uint8)
    if layout.n_frames == n_frames:
        decode(batch, layout, out)
        return
    with pytest.raises(ValueError, match=f"items of {n_frames} frames cannot have a layout of {layout.n_frames}"):
        decode(batch, layout, out)
