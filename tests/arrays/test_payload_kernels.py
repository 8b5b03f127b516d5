"""The kernel locates the payloads that Python finds, in slots of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sb3_compressed.arrays import memory_slot_store, payload_kernels
from sb3_compressed.arrays.codec_handle import handle_of
from sb3_compressed.arrays.interleaving_kernels import interleave_frames
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore, gather_in_python
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_store import accepted_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload


def gathered_by_kernel(slots: np.ndarray[Any, Any], codec: Any, n_frames: int) -> PayloadBatch:
    """Return a batch, or raise ``AssertionError`` if Python has to gather it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_slot_store, "gather_in_python", gather_in_python_is_called)
        return MemorySlotStore(codec).gather(slots, n_frames)


def gather_in_python_is_called(*_: Any) -> None:
    raise AssertionError("Python has to gather these slots")


def object_array(values: list[Any]) -> np.ndarray[Any, Any]:
    return np.fromiter(values, dtype=object, count=len(values))


CODEC = Delta()
HANDLE = handle_of(CODEC)

needs_layout = pytest.mark.skipif(not payload_kernels.LAYOUT_IS_KNOWN, reason="Python reads slots: the probe failed")


@needs_layout
@pytest.mark.parametrize("n_frames", [1, 2, 4])
def test_kernel_and_python_gather_the_same_payloads(n_frames: int) -> None:
    rng = np.random.default_rng(n_frames)
    codecs = [Delta(level) for level in range(1, 20)]
    handles = [*map(handle_of, codecs)]
    made: list[Any] = []
    for _ in range(300):
        parts: list[Any] = [handles[rng.integers(len(codecs))]]
        for _ in range(n_frames):
            if len(parts) > 1 and rng.random() < 0.3:
                parts.append(handles[rng.integers(len(codecs))])
            parts.append(rng.bytes(int(rng.integers(0, 300))))
        made.append(tuple(parts))
        if rng.random() < 0.1:
            made += [None, (handles[0], b"whole")]
    array = object_array(made)
    found = gathered_by_kernel(array, codecs[0], n_frames)
    expected = gather_in_python(array, accepted_codec(codecs[0]), n_frames)
    assert list(found.payloads) == list(expected.payloads)
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert [found.codecs[i] for i in found.payloads.writers] == [expected.codecs[i] for i in expected.payloads.writers]
    assert list(found.payloads[5:9]) == list(expected.payloads[5:9])


@needs_layout
@pytest.mark.parametrize(
    "slot",
    [
        b"whole",
        (),
        (HANDLE,),
        (HANDLE, b"1", b"2", b"3"),
        (b"1", HANDLE, b"2"),
        (b"1", b"2"),
        (HANDLE, 7, b"2"),
        [HANDLE, b"1", b"2"],
        (CODEC, b"1", b"2"),
    ],
)
def test_invalid_slots_are_refused(slot: Any) -> None:
    good = (HANDLE, b"1", b"2")
    assert list(gathered_by_kernel(object_array([good, good]), CODEC, 2).payloads) == [b"1", b"2"] * 2
    for index, slots in enumerate(([slot, good], [good, slot])):
        with pytest.raises(CorruptPayload) as caught:
            MemorySlotStore(CODEC).gather(object_array(slots), 2)
        assert caught.value.index == index


def test_slots_are_gathered_in_python_if_the_probe_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_kernels, "LAYOUT_IS_KNOWN", False)
    array = object_array([(HANDLE, b"1"), (HANDLE, b"2")])
    with pytest.raises(AssertionError):
        gathered_by_kernel(array, CODEC, 1)
    assert list(MemorySlotStore(CODEC).gather(array, 1).payloads) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("n_frames", "piece", "n_pixels"), [*((4, piece, 9) for piece in (1, 2, 3, 4, 8, 50)), (1, 3, 9), (5, 1, 0)]
)
def test_interleaved_frames_equal_numpys(n_frames: int, piece: int, n_pixels: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, n_frames, n_pixels, piece), np.uint8)
    guarded = np.full((5, n_frames * n_pixels * piece), 77, np.uint8)
    rows = frames.reshape(3 * n_frames, n_pixels * piece)
    interleave_frames(rows, piece, guarded[1:4])
    np.testing.assert_array_equal(guarded[1:4], frames.swapaxes(1, 2).reshape(3, -1))
    assert (guarded[[0, 4]] == 77).all()
