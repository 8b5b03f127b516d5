"""Slots with more or fewer payloads than their layout has frames are errors that name the slot, on every path.

The checksums of a folder do not detect them: code that writes such a slot writes its checksum as well.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered import COUNTER, IMAGES, add_steps
from slot_objects import put_slots, slots_at

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CorruptPayload
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.errors import StorageError

SHAPE = (4, 16, 16)
LAYOUT = FrameLayout(SHAPE, 0, 4)
ITEMS = np.random.default_rng(0).integers(0, 2, (8, *SHAPE)).astype(np.uint8)
#: Slots of trainable codecs contain handles of the codecs.
CODECS = ["delta", "zstd-dict", "none"]


def filled(codec: str, frame_stack: int | None = 4) -> CompressedArray:
    array = CompressedArray((len(ITEMS), 1, *SHAPE), codec=codec, frame_stack=frame_stack)
    array[:, 0] = ITEMS
    return array


def changed(slot: Any, change: str) -> Any:
    """Return a slot that is not one of a stack of four frames."""
    codecs, payloads = [part for part in slot if type(part) is not bytes], [p for p in slot if type(p) is bytes]
    return {
        "one fewer": (*codecs, *payloads[:-1]),
        "one more": (*codecs, *payloads, payloads[-1]),
        "two": (*codecs, *payloads[:2]),
    }[change]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", ["one fewer", "one more", "two"])
def test_slots_that_do_not_fit_the_layout_are_corrupt(change: str, codec: str) -> None:
    array = filled(codec)
    slots = slots_at(array, slice(2, 3))
    slots[0, 0] = changed(slots[0, 0], change)
    put_slots(array, slice(2, 3), slots)
    np.testing.assert_array_equal(array[3:, 0], ITEMS[3:])
    for rows in (slice(2, 3), slice(None), [0, 1, 2]):
        with pytest.raises(CorruptPayload, match="payloads, and items have 4 frames") as caught:
            array[rows]
        assert caught.value.slot == (2, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_frames_are_corrupt_where_items_are_not_divided(codec: str) -> None:
    array = filled(codec, None)
    put_slots(array, slice(2, 3), slots_at(filled(codec), slice(2, 3)))
    with pytest.raises(CorruptPayload, match="4 payloads, and items have 1 frames"):
        array[2]


def test_items_with_another_number_of_frames_are_not_continued() -> None:
    """Else a slot could have frames of two layouts."""
    array = filled("delta")
    slots = slots_at(array, slice(2, 3))
    slots[0, 0] = changed(slots[0, 0], "one fewer")
    put_slots(array, slice(2, 3), slots)
    encoder = FrameEncoder(SHAPE, np.dtype(np.uint8), array.codec, LAYOUT)
    payloads = encoder.codec.encode_batch(ITEMS[3:4, 0])
    with pytest.raises(StorageError, match="items of 4 frames cannot continue items of another number"):
        array.stream.log.append(array.references[2], np.array([[1]]), payloads, encoder)
    np.testing.assert_array_equal(array[3:, 0], ITEMS[3:])


def damage(array: CompressedArray) -> None:
    """Write slots with three payloads where the layout has four frames, with right checksums where there are some."""
    slots = slots_at(array, slice(10, 30))
    short = np.empty(slots.shape, dtype=object)
    for index, slot in np.ndenumerate(slots):
        short[index] = slot[:-1]
    put_slots(array, slice(10, 30), short)


def error_of_sample(buffer: CompressedReplayBuffer) -> CorruptPayload | None:
    try:
        buffer.sample(1)
    except CorruptPayload as error:
        return error
    return None


def assert_damage_is_reported(buffer: CompressedReplayBuffer) -> None:
    """Assert that a batch is either right or an error that names one of the damaged slots."""
    errors = [error_of_sample(buffer) for _ in range(20)]
    found = [error for error in errors if error is not None]
    assert 0 < len(found) < len(errors)
    for error in found:
        assert error.slot is not None
        assert 10 <= error.slot[0] < 30
        assert "3 payloads" in error.reason
    for _ in range(3):
        with pytest.raises(CorruptPayload, match="3 payloads, and items have 4 frames"):
            buffer.sample(64)


@pytest.mark.parametrize("codec", CODECS)
def test_slots_with_missing_payloads_are_reported_despite_right_checksums(codec: str, tmp_path: Path) -> None:
    options: Any = {"compression_method": codec, "frame_stack": 4, "storage": tmp_path / "buffer"}
    buffer = CompressedReplayBuffer(40, IMAGES, COUNTER, "cpu", **options)
    add_steps(buffer, range(40))
    damage(buffer.observations)
    assert_damage_is_reported(pickle.loads(pickle.dumps(buffer)))
    add_steps(buffer, range(40, 41))  # which commits everything
    assert_damage_is_reported(buffer)
    buffer.close()
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path / "buffer", device="cpu")
    assert isinstance(loaded.observations.codec, TrainableCodec) == (codec in ("delta", "zstd-dict"))
    assert_damage_is_reported(loaded)


@pytest.mark.parametrize("codec", CODECS)
def test_references_need_not_be_contiguous(codec: str) -> None:
    array, out = filled(codec), np.empty((4, *SHAPE), np.uint8)
    for step in (2, -2):
        decode(array.stream.gather(array.references[::step, 0]), LAYOUT, out)
        np.testing.assert_array_equal(out, ITEMS[::step])
