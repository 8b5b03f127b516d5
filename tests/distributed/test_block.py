"""Blocks are unpacked as they were packed."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed.emitted import SPACES, observations
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch, codec_digest
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.distributed.block import Block

N_ROWS = 140


@cache
def filled(codec: str, kind: str = "images") -> CompressedArray:
    """Return an array with whole items from before the layout was found, of which the last row is unwritten."""
    array = CompressedArray((N_ROWS, 2, *SPACES[kind].shape), np.uint8, codec, num_threads=1)  # type: ignore[misc]
    for row in range(N_ROWS - 1):
        array[row, :] = observations(kind, row, 2)
    return array


def items_of(array: CompressedArray, rows: Any) -> PayloadBatch:
    return array.stream.gather(array.references[rows].reshape(-1).copy())


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
    sent = pickle.dumps(packed, protocol=5)
    found = Block.unpack(pickle.loads(sent), codecs_of(block))
    assert_same(found, block)
    assert_same(Block.unpack(found.pack(), codecs_of(block)), block)


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
    with pytest.raises(ValueError, match="2 and 4 frames"):
        PayloadBatch.joined([two, four])


@pytest.mark.parametrize("n_frames", [2, 4])
@pytest.mark.parametrize("layout", [FrameLayout((4, 20, 20), axis, n) for axis in (0, -1) for n in (2, 4)])
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
