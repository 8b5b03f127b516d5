"""Slots in memory: what is overwritten is freed, and nothing else."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray, CorruptPayload, StorageError
from sb3_compressed.arrays import memory_log
from sb3_compressed.arrays.memory_log import MemoryLog

SHAPE = 4, 20, 20


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_log, "MIN_NBYTES", 2_000)
    monkeypatch.setattr(memory_log, "MAX_UNUSED_NBYTES", 4_000)


def stacks(rng: np.random.Generator, n_steps: int, n_envs: int) -> NDArray[np.uint8]:
    """Return observations that follow each other, ``(n_steps, n_envs, *SHAPE)``, of noise."""
    frames = rng.integers(0, 256, (n_steps + 3, n_envs, 20, 20), np.uint8)
    return np.stack([frames[step : step + 4].swapaxes(0, 1) for step in range(n_steps)])


@pytest.mark.parametrize("codec", ["none", "delta", "zstd"])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_ring_frees_what_it_overwrites(codec: str, n_envs: int) -> None:
    rows = stacks(np.random.default_rng(0), 300, n_envs)
    array = CompressedArray((30, n_envs, *SHAPE), np.uint8, codec, frame_stack=4)
    following = array.new_sharing_frames()
    for step in range(299):
        for each, references in zip((array, following), array.stream.append(rows[step], rows[step + 1]), strict=True):
            each.write_encoded(step % 30, references)
        if step >= 29:
            newest = np.arange(step - 29, step + 1)
            if step % 10 == 0:
                np.testing.assert_array_equal(np.asarray(array)[newest % 30], rows[newest])
                np.testing.assert_array_equal(np.asarray(following)[newest % 30], rows[newest + 1])
            n_stored = 30 + 4 + 4 * 4 + 8  # a segment has at least 4 times the last row
            assert array.nbytes < n_stored * n_envs * (400 + 60) + 40_000 * (codec == "delta")


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_overwritten_in_any_order_are_moved_and_freed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    array = CompressedArray((200, 2, *SHAPE), np.uint8, "none", frame_stack=4)
    following = array.new_sharing_frames()
    expected = np.zeros((2, 200, 2, *SHAPE), np.uint8)
    for _ in range(60):
        which = int(rng.integers(2))
        index: Any = [
            int(rng.integers(200)),
            rng.choice(200, 30, replace=False),
            slice(int(rng.integers(150)), int(rng.integers(150, 200))),
            (slice(None, None, 7), int(rng.integers(2))),
        ][rng.integers(4)]
        values = rng.integers(0, 256, expected[which][index].shape, np.uint8)
        (array, following)[which][index] = expected[which][index] = values
        if rng.random() < 0.1:
            array, following = pickle.loads(pickle.dumps((array, following)))
    np.testing.assert_array_equal(array, expected[0])
    np.testing.assert_array_equal(following, expected[1])
    used = sum(int(each.any(axis=(2, 3, 4)).sum()) for each in expected) * 4 * 408
    assert array.nbytes < 2.2 * used + 20_000


def test_copies_share_segments_and_then_differ() -> None:
    rng = np.random.default_rng(0)
    rows = stacks(rng, 40, 1)
    array = CompressedArray((20, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    array[:] = rows[:20]
    twin = copy.deepcopy(array)
    assert isinstance(array.stream.log, MemoryLog)
    assert isinstance(twin.stream.log, MemoryLog)
    assert [*array.stream.log.segments.values()] == [*twin.stream.log.segments.values()]
    for row in range(20):
        array[row], twin[row] = rows[20 + row], rows[19 - row]
    np.testing.assert_array_equal(array, rows[20:])
    np.testing.assert_array_equal(twin, rows[19::-1])


def test_segments_hold_many_rows_however_large_these_are() -> None:
    """Each segment begins with a copy of the last row, which may be larger than a segment would be otherwise."""
    n_envs = 16
    rows = stacks(np.random.default_rng(0), 80, n_envs)
    array = CompressedArray((80, n_envs, *SHAPE), np.uint8, "none", frame_stack=4)
    for row in range(80):
        array[row] = rows[row]
    np.testing.assert_array_equal(array, rows)
    assert array.nbytes < 1.4 * 83 * n_envs * (400 + 8 + 20) + 2 * 80 * n_envs * 8


@pytest.mark.parametrize("n_repeated", [0, 1, 7, 8])
def test_of_the_last_row_a_segment_begins_with_what_is_continued(n_repeated: int) -> None:
    n_envs = 8
    items = np.random.default_rng(0).integers(0, 256, (60, n_envs, 300), np.uint8)
    items[1:, :n_repeated] = items[0, :n_repeated]
    array = CompressedArray((60, n_envs, 300), np.uint8, "none")
    for row in range(60):
        array[row] = items[row]
    np.testing.assert_array_equal(array, items)
    n_copied = n_repeated * 60  # at most: in each row, as if each had its own segment
    n_items = n_repeated + (n_envs - n_repeated) * 60
    assert isinstance(array.stream.log, MemoryLog)
    assert array.stream.log.nbytes <= (n_items + n_copied) * (300 + 8 + 8)


def test_views_and_results_keep_their_content() -> None:
    rows = stacks(np.random.default_rng(0), 60, 1)
    array = CompressedArray((10, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    array[:] = rows[:10]
    taken, flat = copy.copy(array), array.reshape(10, *SHAPE)
    for step in range(10, 60):
        array[step % 10] = rows[step]
    np.testing.assert_array_equal(flat, rows[50:, 0])
    np.testing.assert_array_equal(taken, rows[:10])


def test_a_reset_array_does_not_lose_the_row_that_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the segment would be freed if only tables of arrays kept it."""
    monkeypatch.setattr(memory_log, "MAX_UNUSED_NBYTES", 0)
    rows = stacks(np.random.default_rng(0), 30, 1)
    array = CompressedArray((10, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    for row in range(10):
        array[row] = rows[row]
    array = array.new_sharing_frames()
    noise = CompressedArray((10, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    noise[:] = rows[:10]
    for _ in range(5):
        array.stream.log.free_unused()
        array[0] = rows[9]  # it repeats the last row, so it needs no payload
        array[1] = rows[10]
        array[2] = rows[9]
        np.testing.assert_array_equal(array[:2], rows[9:11])


def test_moved_slots_stay_shared() -> None:
    rng = np.random.default_rng(0)
    rows = stacks(rng, 401, 1)
    array = CompressedArray((400, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    following = array.new_sharing_frames()
    for step in range(400):
        for each, references in zip((array, following), array.stream.append(rows[step], rows[step + 1]), strict=True):
            each.write_encoded(step, references)
    before = array.references.copy(), array.nbytes
    is_shared = (following.references[::20] == array.references[1::20]).ravel()  # not where a segment begins
    assert is_shared.mean() > 0.5
    is_kept = np.arange(400) % 20 < 2
    array[~is_kept] = following[~is_kept] = 0
    assert array.nbytes < 0.7 * before[1]
    assert (array.references[is_kept] != before[0][is_kept]).mean() > 0.5
    np.testing.assert_array_equal(np.asarray(array)[is_kept], rows[:400][is_kept])
    np.testing.assert_array_equal(np.asarray(following)[is_kept], rows[1:][is_kept])
    np.testing.assert_array_equal(following.references[::20][is_shared], array.references[1::20][is_shared])


def test_a_codec_is_freed_with_its_payloads() -> None:
    array = CompressedArray((40, 1, 1, 30, 30), np.uint8, "delta", frame_stack=None)
    rng = np.random.default_rng(0)
    background = rng.integers(0, 256, (1, 30, 30), np.uint8)
    seen = []
    for step in range(2_000):
        frame = background.copy()
        frame[0, step % 30, : 1 + step % 7] = step % 251
        array[step % 40] = frame
        if step % 100 == 0:
            seen.append(len([*array.stream.log.trained_codecs()]))
    assert seen[-1] == 1
    assert max(seen) > 1


def test_too_many_bytes_for_a_segment_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_log, "MAX_FULL_NBYTES", 5_000)
    monkeypatch.setattr(memory_log, "MAX_SEGMENT_NBYTES", 12_000)
    rows = stacks(np.random.default_rng(0), 3, 5)
    array = CompressedArray((3, 5, *SHAPE), np.uint8, "none", frame_stack=4)
    array[0] = rows[0]
    before = np.asarray(array)
    with pytest.raises(StorageError, match="too many"):
        array[1] = rows[2]  # after a copy of the row that it continues
    np.testing.assert_array_equal(array, before)
    array[1] = rows[1]
    np.testing.assert_array_equal(array[:2], rows[:2])


def test_rows_that_are_rewritten_at_once_are_freed() -> None:
    array = CompressedArray((60, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    rng = np.random.default_rng(0)
    for row in range(60):
        for _ in range(20):
            array[row] = rng.integers(0, 256, SHAPE, np.uint8)
    assert array.nbytes < 3 * 60 * 4 * 430 + 20_000


@pytest.mark.parametrize(("max_unused_nbytes", "is_moved"), [(5_000, False), (1_000, True)])
def test_between_rollouts_only_the_last_row_is_kept_if_that_is_worth_it(
    max_unused_nbytes: int, is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_log, "MAX_UNUSED_NBYTES", max_unused_nbytes)
    rows = stacks(np.random.default_rng(0), 11, 1)
    array = CompressedArray((10, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    for row in range(10):
        array[row] = rows[row]
    following = array.new_sharing_frames()
    del array
    following.stream.log.free_unused()
    assert (following.nbytes < 2_000) == is_moved
    following[0] = rows[10]
    np.testing.assert_array_equal(following[0], rows[10])
    assert (following.nbytes < 2_500) == is_moved  # one more frame, not four


def test_rows_without_environments() -> None:
    array = CompressedArray((5, 0, *SHAPE), np.uint8, "delta", frame_stack=4)
    array[0] = np.zeros((0, *SHAPE), np.uint8)
    assert array[0].shape == (0, *SHAPE)


def test_rows_that_are_encoded_but_not_yet_written_are_kept() -> None:
    """A handler of a signal that interrupts add may change other rows and ask for the memory of the buffer."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (9, 1, 1100, 1000), np.uint8)
    array = CompressedArray((8, 1, 1100, 1000), codec="zstd3")
    for row in range(8):
        array[row] = noise[row]
    [encoded] = array.stream.append(noise[8])
    for row in range(8):
        array[row] = 0
    nbytes = {array.nbytes for _ in range(3)}
    assert max(nbytes) < 2 * noise[0].nbytes
    array.write_encoded(0, encoded)
    np.testing.assert_array_equal(array[0], noise[8])
    np.testing.assert_array_equal(array[1:], np.zeros_like(noise[1:8]))


def test_bytes_count_not_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the rows was large, then overwritten with small ones: segments have many slots that are used."""
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    array = CompressedArray((3_600, 1, 4, 84, 84), np.uint8, "delta", frame_stack=4)
    is_large = np.arange(3_600) % 3 == 0
    for row in range(3_600):  # each segment has both
        array[row] = rng.integers(0, 256, (4, 84, 84), np.uint8) if is_large[row] else np.uint8(row % 50)
    kept = np.asarray(array)[~is_large]
    assert array.nbytes > 30e6
    array[is_large] = 7
    array[0] = 8
    assert sum(segment.next_offset for segment in memory_segments(array)) < 6e6  # without a call of nbytes
    np.testing.assert_array_equal(np.asarray(array)[~is_large], kept)
    np.testing.assert_array_equal(np.asarray(array)[is_large][1:], 7)


def memory_segments(array: CompressedArray) -> list[memory_log.MemorySegment]:
    assert isinstance(array.stream.log, MemoryLog)
    segments: list[memory_log.MemorySegment] = [*array.stream.log.segments.values()]
    return segments


def test_large_slots_are_moved_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than fit in a segment, since offsets have 32 bits: here in 1 MB."""
    monkeypatch.undo()
    monkeypatch.setattr(memory_log, "MAX_SEGMENT_NBYTES", 1 << 20)
    monkeypatch.setattr(memory_log, "MAX_FULL_NBYTES", 1 << 18)
    monkeypatch.setattr(memory_log, "MIN_NBYTES", 1 << 18)
    monkeypatch.setattr(memory_log, "MOVED_NBYTES", 1 << 18)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (60, 1, 40_000), np.uint8)
    array = CompressedArray(rows.shape, np.uint8, "none", frame_stack=None)
    for row in range(60):
        array[row] = rows[row]
    for row in range(60):
        if row % 5:
            array[row] = rows[row] = row  # equal bytes, which are stored whole, too
            array[row] = rows[row] = row + 1
    array[0] = rows[0] = 3
    np.testing.assert_array_equal(array, rows)
    assert array.nbytes < 2.2 * rows.nbytes + 1e6


def test_a_damaged_slot_stays_where_it_is() -> None:
    """In a pickle that was changed, say: what is written later is not lost, and reading the slot names it."""
    rows = stacks(np.random.default_rng(0), 60, 1)
    array = CompressedArray((60, 1, *SHAPE), np.uint8, "none", frame_stack=4)
    for row in range(60):
        array[row] = rows[row]
    segments = {segment.number: segment for segment in memory_segments(array)}
    address = int(array.references[10, 0])
    segments[address >> 32].bytes[address & 0xFFFFFFFF :][4:8] = 255  # where its first payload is
    for _ in range(3):
        for row in range(60):
            if row != 10:
                array[row] = rows[row] = row
    np.testing.assert_array_equal(np.asarray(array[11:]), rows[11:])
    with pytest.raises(CorruptPayload) as caught:
        array[8:12]
    assert caught.value.slot == (10, 0)
