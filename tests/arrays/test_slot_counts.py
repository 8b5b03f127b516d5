"""Slots with more or fewer payloads than their layout has frames are errors that name the slot, on every path.

The checksums of a folder do not detect them: code that writes such a slot writes its checksum as well.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import CompressedArray, CompressedReplayBuffer, CorruptPayload, get_codec, save_checkpoint
from sb3_compressed.arrays.codec_handle import codec_of, handle_of
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore, gather_in_python
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_store import Slot, accepted_codec
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.adaptive import Adaptive
from sb3_compressed.codecs.zstd_dict import ZstdDict

SHAPE = (4, 16, 16)
LAYOUT = FrameLayout(SHAPE, 0, 4)
ITEMS = np.random.default_rng(0).integers(0, 2, (8, *SHAPE)).astype(np.uint8)
#: Slots of trainable codecs contain handles of the codecs.
CODECS = ["delta", "zstd-dict", "zstd3", "none", "rle-jit"]
N_ROWS = 40


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
        "payload first": (payloads[0], *codecs, *payloads[1:]) if codecs else (*payloads, handle_of(Adaptive())),
        "another codec": (
            handle_of(ZstdDict() if codecs and isinstance(codec_of(codecs[0]), Adaptive) else Adaptive()),
            *payloads,
        ),
        "another kind": (OTHER_CODEC, *payloads),
    }[change]


OTHER_CODEC = get_codec("zstd3")
CHANGES = ["one fewer", "one more", "two", "none", "empty", "list", "payload first", "another codec", "another kind"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("place", ["alone", "last", "among unwritten ones"])
def test_a_slot_that_does_not_fit_the_layout_is_corrupt(place: str, many: bool, codec: str, change: str) -> None:
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


@pytest.mark.parametrize("codec", CODECS)
def test_whole_items_stay_readable_among_frames(codec: str) -> None:
    encoder = encoder_of(codec)
    frames = encoder.encode(ITEMS)
    wholes = FrameEncoder(SHAPE, encoder.dtype, encoder.codec, None).encode(ITEMS)
    np.testing.assert_array_equal(decoded([*frames, *wholes], encoder), np.concatenate([ITEMS, ITEMS]))


@pytest.mark.parametrize("codec", CODECS)
def test_references_need_not_be_contiguous(codec: str) -> None:
    encoder = encoder_of(codec)
    store, out = MemorySlotStore(encoder.codec), np.empty((4, *SHAPE), np.uint8)
    references = store.write(encoder.encode(ITEMS))
    for step in (2, -2):
        decode(store.gather(references[::step], 4), LAYOUT, out)
        np.testing.assert_array_equal(out, ITEMS[::step])


def test_memory_to_decode_into_has_room_for_the_whole_batch() -> None:
    codec = Adaptive()
    slots = [(handle_of(codec), *codec.encode(ITEMS[0]))] * 2
    store = MemorySlotStore(codec)
    batch = store.gather(store.write(slots), 4)
    for n_items in (1, 3):
        with pytest.raises(ValueError, match=f"room for {n_items} items, got 2"):
            decode(batch, LAYOUT, np.empty((n_items, *SHAPE), np.uint8))
    with pytest.raises(ValueError, match="8 payloads are not items of 3"):
        PayloadBatch([codec], batch.payloads, 3)
    with pytest.raises(ValueError, match="8 payloads"):
        Adaptive.decode_batch([codec], batch.payloads, np.empty((8, 16, 16), np.uint8), np.zeros(7, np.uint8))


def filled(**options: Any) -> CompressedReplayBuffer:
    buffer = CompressedReplayBuffer(
        2 * N_ROWS, spaces.Box(0, 255, SHAPE, np.uint8), spaces.Discrete(2), n_envs=2, device="cpu", **options
    )
    rng, frames = np.random.default_rng(1), np.zeros((2, *SHAPE), np.uint8)
    for _ in range(N_ROWS):
        following = np.concatenate([frames[:, 1:], rng.integers(0, 2, (2, 1, 16, 16)).astype(np.uint8)], axis=1)
        buffer.add(frames, following, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
        frames = following
    return buffer


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
    errors = [error_of_sample(buffer) for _ in range(40)]
    found = [error for error in errors if error is not None]
    assert 0 < len(found) < len(errors)
    for error in found:
        assert error.slot is not None
        assert 10 <= error.slot[0] < 30
        assert "3 payloads" in error.reason
    for _ in range(10):
        with pytest.raises(CorruptPayload, match="3 payloads, and items have 4 frames"):
            buffer.sample(64)


@pytest.mark.parametrize("codec", CODECS)
def test_slots_with_missing_payloads_are_reported_in_memory_and_in_pickles(codec: str) -> None:
    buffer = filled(compression_method=codec, frame_stack=4)
    damage(buffer.observations)
    assert_damage_is_reported(buffer)
    assert_damage_is_reported(pickle.loads(pickle.dumps(buffer)))


@pytest.mark.parametrize("codec", CODECS)
def test_slots_with_missing_payloads_are_reported_despite_right_checksums(codec: str, tmp_path: Path) -> None:
    buffer = filled(compression_method=codec, frame_stack=4, storage=tmp_path / "buffer")
    damage(buffer.observations)
    frames = np.zeros((2, *SHAPE), np.uint8)
    buffer.add(frames, frames, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])  # which commits everything
    assert_damage_is_reported(buffer)
    buffer.close()
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path / "buffer", device="cpu")
    assert isinstance(loaded.observations.codec, TrainableCodec) == (codec in ("delta", "zstd-dict"))
    assert_damage_is_reported(loaded)


@pytest.mark.parametrize("codec", ["delta", "zstd3"])
def test_slots_with_missing_payloads_are_reported_in_a_checkpoint(codec: str, tmp_path: Path) -> None:
    buffer = filled(compression_method=codec, frame_stack=4)
    damage(buffer.observations)
    save_checkpoint(buffer, tmp_path / "checkpoint")
    assert_damage_is_reported(CompressedReplayBuffer.from_checkpoint(tmp_path / "checkpoint", device="cpu"))
