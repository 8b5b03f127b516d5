"""Items are encoded to slots, and decoded from the payloads of slots of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.slot_store import Slot
from sb3_compressed.codecs import get_codec
from sb3_compressed.errors import CorruptPayload

ITEMS = np.arange(3 * 4 * 6, dtype=np.int16).reshape(3, 4, 6)

LAYOUTS = [None, FrameLayout((4, 6), 0, 4), FrameLayout((4, 6), 0, 2), FrameLayout((4, 6), -1, 3)]


def encoder(layout: FrameLayout | None, codec: str = "none") -> FrameEncoder:
    return FrameEncoder((4, 6), np.dtype(np.int16), get_codec(codec), layout)


def decoded(slots: list[Slot], layout: FrameLayout | None, codec: str = "none") -> NDArray[np.int16]:
    store = MemorySlotStore(get_codec(codec))
    out = np.full((len(slots), 4, 6), 99, np.int16)
    decode(store.gather(store.write(slots), 1 if layout is None else layout.n_frames), layout, out)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["none", "rle", "zstd"])
@pytest.mark.parametrize("items", [ITEMS, ITEMS[:0], np.asfortranarray(ITEMS), ITEMS[::-1]])
def test_slots_are_decoded_to_their_items(layout: FrameLayout | None, codec: str, items: Any) -> None:
    slots = encoder(layout, codec).encode(items)
    np.testing.assert_array_equal(decoded(slots, layout, codec), items)


def test_slots_of_all_kinds_are_decoded_side_by_side() -> None:
    layout = FrameLayout((4, 6), 0, 2)
    [whole, _, _], [_, stack, other] = encoder(None).encode(ITEMS), encoder(layout).encode(ITEMS)
    zeros = np.zeros((4, 6))
    expected = [zeros, ITEMS[1], ITEMS[0], zeros, ITEMS[2], ITEMS[1]]
    np.testing.assert_array_equal(decoded([None, stack, whole, None, other, stack], layout), expected)


@pytest.mark.parametrize("n_items", [1, 3])
def test_out_has_to_fit_the_batch(n_items: int) -> None:
    store = MemorySlotStore(get_codec("none"))
    for slots in (encoder(None).encode(ITEMS[:2]), [None, None]):
        batch = store.gather(store.write(slots), 1)
        with pytest.raises(ValueError, match=f"room for {n_items} items, got 2"):
            decode(batch, None, np.empty((n_items, 4, 6), np.int16))
    with pytest.raises(ValueError, match="must be C-contiguous"):
        decode(store.gather(store.write(encoder(None).encode(ITEMS)), 1), None, np.empty((6, 4, 6), np.int16)[::2])


@pytest.mark.parametrize("damaged", range(6))
@pytest.mark.parametrize("frame", [0, 1])
def test_the_index_of_a_corrupt_payload_is_that_of_its_slot(damaged: int, frame: int) -> None:
    layout = FrameLayout((4, 6), 0, 2)
    wholes, stacks = encoder(None).encode(ITEMS), encoder(layout).encode(ITEMS)
    slots = [slot for pair in zip(wholes, stacks, strict=True) for slot in pair]
    slot = slots[damaged]
    slots[damaged] = b"!" if isinstance(slot, bytes) else tuple(b"!" if i == frame else b"\0" * 24 for i in range(2))
    with pytest.raises(CorruptPayload) as caught:
        decoded([None, *slots], layout)
    assert caught.value.index == damaged + 1
