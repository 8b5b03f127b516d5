"""Slots: items cut into frames, encoded, decoded and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.slots import Slot, SlotCoder
from sb3_compressed.codecs import get_codec
from sb3_compressed.errors import CorruptPayload

ITEMS = np.arange(3 * 4 * 6, dtype=np.int16).reshape(3, 4, 6)

LAYOUTS = [None, FrameLayout((4, 6), 0, 4), FrameLayout((4, 6), 0, 2), FrameLayout((4, 6), -1, 3)]


def coder(layout: FrameLayout | None, codec: str = "none") -> SlotCoder:
    return SlotCoder((4, 6), np.dtype(np.int16), get_codec(codec), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["none", "rle", "zstd"])
@pytest.mark.parametrize("items", [ITEMS, ITEMS[:0], np.asfortranarray(ITEMS), ITEMS[::-1]])
def test_items_come_back_from_their_slots(layout: FrameLayout | None, codec: str, items: Any) -> None:
    slots = coder(layout, codec).encode(items)
    out = np.empty(items.shape, np.int16)
    coder(layout, codec).decode_into(slots, out)
    np.testing.assert_array_equal(out, items)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_stacks_slot_holds_one_payload_a_frame_the_oldest_first(layout: FrameLayout) -> None:
    [slot] = coder(layout).encode(ITEMS[:1])
    assert slot == tuple(frame.tobytes() for frame in layout.split(ITEMS)[0])


def test_without_a_layout_a_slot_is_the_items_payload() -> None:
    assert coder(None).encode(ITEMS) == [item.tobytes() for item in ITEMS]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splitting_gives_memory_of_its_own(layout: FrameLayout | None) -> None:
    frames = coder(layout).split(ITEMS)
    assert frames.flags.c_contiguous
    assert not np.shares_memory(frames, ITEMS)


@pytest.mark.parametrize("dtype", ["i2", "i8", "f4"])
def test_slots_of_all_kinds_are_decoded_side_by_side_into_any_dtype(dtype: str) -> None:
    layout = FrameLayout((4, 6), 0, 2)
    [whole, _, _], [_, stack, other] = coder(None).encode(ITEMS), coder(layout).encode(ITEMS)
    slots: list[Slot] = [None, stack, whole, None, other, stack]
    out = np.full((6, 4, 6), 99, dtype)
    coder(layout).decode_into(slots, out)
    zeros = np.zeros((4, 6))
    np.testing.assert_array_equal(out, [zeros, ITEMS[1], ITEMS[0], zeros, ITEMS[2], ITEMS[1]])


@pytest.mark.parametrize("damaged", range(6))
@pytest.mark.parametrize("frame", [0, 1])
def test_a_corrupt_payload_is_placed_among_slots_of_all_kinds(damaged: int, frame: int) -> None:
    layout = FrameLayout((4, 6), 0, 2)
    wholes, stacks = coder(None).encode(ITEMS), coder(layout).encode(ITEMS)
    slots = [slot for pair in zip(wholes, stacks, strict=True) for slot in pair]
    slot = slots[damaged]
    slots[damaged] = b"!" if isinstance(slot, bytes) else tuple(b"!" if i == frame else b"\0" * 24 for i in range(2))
    with pytest.raises(CorruptPayload) as caught:
        coder(layout).decode_into([None, *slots], np.empty((7, 4, 6), np.int16))
    assert caught.value.index == damaged + 1
