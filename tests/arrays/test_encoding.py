"""Items are encoded to slots, and decoded from the payloads of slots of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.slot_store import Slot
from sb3_compressed.codecs import get_codec

ITEMS = np.arange(3 * 4 * 6, dtype=np.int16).reshape(3, 4, 6)


def encoder(layout: FrameLayout | None) -> FrameEncoder:
    return FrameEncoder((4, 6), np.dtype(np.int16), get_codec("none"), layout)


def decoded(slots: list[Slot], layout: FrameLayout | None) -> NDArray[np.int16]:
    store = MemorySlotStore(get_codec("none"))
    out = np.full((len(slots), 4, 6), 99, np.int16)
    decode(store.gather(store.write(slots), 1 if layout is None else layout.n_frames), layout, out)
    return out


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
