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
from numpy.typing import NDArray

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CorruptPayload, get_codec
from sb3_compressed.arrays.codec_handle import codec_of, handle_of
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore, gather_in_python
from sb3_compressed.arrays.slot_store import Slot, accepted_codec
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd_dict import ZstdDict

SHAPE = (4, 16, 16)
LAYOUT = FrameLayout(SHAPE, 0, 4)
ITEMS = np.random.default_rng(0).integers(0, 2, (8, *SHAPE)).astype(np.uint8)
#: Slots of trainable codecs contain handles of the codecs.
CODECS = ["delta", "zstd-dict", "none"]


def encoder_of(codec: str, layout: FrameLayout | None = LAYOUT) -> FrameEncoder:
    return FrameEncoder(SHAPE, np.dtype(np.uint8), get_codec(codec), layout)


def decoded(slots: list[Slot], encoder: FrameEncoder) -> NDArray[np.uint8]:
    store, out = MemorySlotStore(encoder.codec), np.empty((len(slots), *SHAPE), np.uint8)
    decode(store.gather(store.write(slots), encoder.n_frames), encoder.layout, out)
    return out


def changed(slot: Any, change: str) -> Any:
    """Return a slot that is not one of a stack of four frames."""
    codecs, payloads = [part for part in slot if type(part) is not bytes], [p for p in slot if type(p) is bytes]
    return {
        "one fewer": (*codecs, *payloads[:-1]),
        "one more": (*codecs, *payloads, payloads[-1]),
        "two": (*codecs, *payloads[:2]),
        "none": tuple(codecs),
        "empty": (),
        "list": [*slot],
        "payload first": (payloads[0], *codecs, *payloads[1:]) if codecs else (*payloads, handle_of(Delta())),
        "another codec": (
            handle_of(ZstdDict() if codecs and isinstance(codec_of(codecs[0]), Delta) else Delta()),
            *payloads,
        ),
        "another kind": (OTHER_CODEC, *payloads),
    }[change]


OTHER_CODEC = get_codec("zstd3")
CHANGES = ["one fewer", "one more", "two", "none", "empty", "list", "payload first", "another codec", "another kind"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("place", "many"), [("alone", False), ("last", True), ("among unwritten ones", True)])
def test_slots_that_do_not_fit_the_layout_are_corrupt(place: str, many: bool, codec: str) -> None:
    for change in CHANGES:
        assert_corrupt(place, many, codec, change)


def assert_corrupt(place: str, many: bool, codec: str, change: str) -> None:
    encoder = encoder_of(codec)
    good: list[Any] = [*encoder.encode(ITEMS)]
    wrong = changed(good[0], change)
    slots, index = {
        "alone": ([wrong], 0),
        "last": ([*good, wrong], len(good)),
        "among unwritten ones": ([None, good[1], wrong, None, good[2]], 2),
    }[place]
    if many:  # as many as make the number of all payloads right
        slots += [(*good[0], good[0][-1])] * 3 if change == "one fewer" else [wrong] * 3
    with pytest.raises(CorruptPayload) as caught:
        decoded(slots, encoder)
    assert caught.value.index == index
    with pytest.raises(CorruptPayload) as caught:
        gather_in_python(MemorySlotStore(encoder.codec).write(slots), accepted_codec(encoder.codec), encoder.n_frames)
    assert caught.value.index == index


@pytest.mark.parametrize("codec", CODECS)
def test_frames_are_corrupt_where_items_are_not_divided(codec: str) -> None:
    slots = encoder_of(codec).encode(ITEMS)
    with pytest.raises(CorruptPayload, match="4 payloads, and items have 1 frames"):
        decoded(slots, encoder_of(codec, None))


def damage(array: CompressedArray) -> None:
    """Write slots with three payloads where the layout has four frames, with right checksums where there are some."""
    slots = array.slots_at(slice(10, 30))
    short = np.empty(slots.shape, dtype=object)
    for index, slot in np.ndenumerate(slots):
        short[index] = slot[:-1]
    array.put_slots(slice(10, 30), short)


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
