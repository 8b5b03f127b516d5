"""Payloads that occur several times in a batch are decoded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload

METHODS = ["zstd3", "lz4-block", "igzip", "none", "zstd-dict"]


@pytest.mark.parametrize(("axis", "num_threads"), [(0, 1), (-1, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_overlapping_stacks_are_decoded(
    method: str, axis: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Codec, "chunk_nbytes", 1)
    codec = get_codec(method)
    monkeypatch.setattr(type(codec), "chunk_nbytes", 1)
    frames = np.random.default_rng(1).integers(0, 3, (40, 12, 12), np.uint8)
    array = CompressedArray((36, 1, 4, 12, 12) if axis == 0 else (36, 1, 12, 12, 4), np.uint8, codec, frame_stack=4)
    for row in range(36):
        stack = frames[row : row + 4]
        array[row] = (stack if axis == 0 else np.moveaxis(stack, 0, -1))[np.newaxis]
    rows = np.random.default_rng(2).integers(0, 36, 60)
    array.num_threads = num_threads
    expected = np.stack([frames[row : row + 4] for row in rows])
    np.testing.assert_array_equal(array[rows, 0], expected if axis == 0 else np.moveaxis(expected, 1, -1))


def damaged_batch() -> tuple[PayloadBatch, NDArray[Any]]:
    """Return stacks of two frames in which one damaged payload occurs twice, and room for them."""
    codec = get_codec("zstd3")
    frames = np.arange(6, dtype=np.uint8).repeat(64).reshape(6, 8, 8)
    payloads = codec.encode(frames)
    payloads[3] = payloads[3][:-1]
    places = Payloads.of(payloads)
    order = np.array([0, 1, 1, 2, 2, 3, 3, 4])
    return PayloadBatch([codec], Payloads(places.places[order], places), 2), np.empty((4, 2, 8, 8), np.uint8)


def test_index_of_a_repeated_damaged_payload_is_that_of_its_first_item() -> None:
    batch, out = damaged_batch()
    with pytest.raises(CorruptPayload) as caught:
        decode(batch, FrameLayout((2, 8, 8), 0, 2), out)
    assert caught.value.index == 2


def test_memory_and_layouts_that_do_not_fit_are_refused() -> None:
    batch, out = damaged_batch()
    for other, word in ((out[:3], "room"), (np.empty((8, 2, 8, 8), np.uint8)[::2], "contiguous")):
        with pytest.raises(ValueError, match=word):
            decode(batch, FrameLayout((2, 8, 8), 0, 2), other)
    with pytest.raises(ValueError, match="layout"):
        decode(batch, None, out)
