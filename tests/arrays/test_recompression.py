"""Tests of ``Recompressor``: payloads of older rows become smaller, and nothing else changes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import CompressedReplayBuffer, buffer_statistics, load_checkpoint, save_checkpoint
from sb3_compressed.arrays import choice_trigger, recompression, time_budget
from sb3_compressed.arrays.codec_choice import Candidate
from sb3_compressed.arrays.codec_handle import codec_of
from sb3_compressed.arrays.loop_timing import LoopTiming, Rates
from sb3_compressed.buffers.resize import resize
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.adaptive import Adaptive
from sb3_compressed.common import threads
from sb3_compressed.errors import CorruptPayload

US = 1e-6
#: Microseconds of encoding and decoding that are given to the choice, by coder and level.
TIMES = {("raw", 3): (1, 1), ("lz4", 3): (10, 5), ("zstd", 3): (145, 30), ("zstd", 12): (1_000, 30)}


def times_that_are_given(codecs: Sequence[TrainableCodec], frames: NDArray[Any]) -> list[Candidate]:
    """Return candidates of real payloads, whose times do not depend on the machine."""
    candidates = []
    for codec in codecs:
        assert isinstance(codec, Adaptive)
        encoding, decoding = TIMES.get((codec.coder, codec.compresslevel), (50_000, 30))
        nbytes = sum(map(len, codec.encode(frames))) / len(frames) + 48
        candidates.append(Candidate(codec, nbytes, encoding * US, decoding * US))
    return candidates


@pytest.fixture(autouse=True)
def _given_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_trigger, "measured", times_that_are_given)
    # These loops do nothing but add.
    monkeypatch.setattr(recompression, "MAX_BACKGROUND", 0.9)
    monkeypatch.setattr(recompression, "MAX_WAITING_SHARE", 10)
    # zstd-3 would take 3.2% of the training in ``add``, and takes 1.4% in another thread; LZ4 takes 0.2%.
    rates = Rates(added=220.0, waited=0.0, ahead=20.0, has_idle_core=True)
    monkeypatch.setattr(LoopTiming, "rates", property(lambda timing: rates))


needs_cores = pytest.mark.skipif(threads.default_num_threads() < 2, reason="another thread needs another core")
pytestmark = needs_cores


def pictures(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return smooth images ``(n, 3, 32, 32)`` with a little noise, which zstd makes much smaller than LZ4."""
    rng = np.random.default_rng(seed)
    large = np.cumsum(rng.normal(size=(3, 32, 32 + n)), axis=2) * 3 + 128
    frames = np.stack([large[:, :, start : start + 32] for start in range(n)])
    return (frames + rng.integers(0, 4, frames.shape)).clip(0, 255).astype(np.uint8) & np.uint8(0xFC)


def new_buffer(n_rows: int, shape: tuple[int, ...] = (3, 32, 32), **options: Any) -> Any:
    space = spaces.Box(0, 255, shape, np.uint8)
    return CompressedReplayBuffer(n_rows, space, spaces.Discrete(3), "cpu", **{"num_threads": 2, **options})


def adding(buffer: Any, frames: NDArray[Any], steps: Iterable[int]) -> Iterator[int]:
    """Add transitions, and yield the step after each.

    :param frames: observations ``(n, 1, *obs_shape)``, which are repeated
    """
    for step in steps:
        obs, next_obs = frames[step % (len(frames) - 1) :][:2]
        buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
        time.sleep(1e-4)  # a training leaves the interpreter to other threads much longer; without, they may starve
        yield step


def add(buffer: Any, frames: NDArray[Any], *steps: int) -> None:
    """Add transitions of a range of steps."""
    for _ in adding(buffer, frames, range(*steps)):
        pass


def add_until_recompressed(buffer: Any, frames: NDArray[Any], least: int = 200) -> int:
    """Add transitions until that many slots are encoded later; return how many were added."""
    for step in adding(buffer, frames, range(100_000)):
        np.asarray(buffer.observations[:30])  # which takes longer than adding, as a training does
        if step % 50 == 0 and n_recompressed(buffer) >= least:
            return step + 1
    raise AssertionError(f"nothing was encoded later: {buffer.observations.choice}")


def n_recompressed(buffer: Any) -> int:
    """Return the number of slots with payloads of zstd, which encodes no new frames here."""
    written = [codec_of(slot[0]) for slot in buffer.observations.slots.ravel() if slot is not None]
    return sum(codec.coder == "zstd" for codec in written)


def recompressed() -> tuple[Any, NDArray[Any]]:
    """Return a buffer of which many slots were encoded later, and the frames that were added."""
    buffer, frames = new_buffer(20_000), pictures(1_001)[:, np.newaxis]
    add_until_recompressed(buffer, frames)
    return buffer, frames


def test_older_rows_become_smaller_and_decode_to_the_same() -> None:
    frames = pictures(1_201)[:, np.newaxis]
    buffer = new_buffer(20_000)
    n_added = add_until_recompressed(buffer, frames, least=500)
    newest = (n_added - 1) % buffer.buffer_size
    sizes = [len(slot[1]) for slot in buffer.observations.slots[:, 0] if slot is not None]
    assert min(sizes) < 0.8 * len(buffer.observations.slots[newest, 0][1]), "the newest is as it was added"
    for row in range(min(n_added, 20_000)):
        step = n_added - 1 - (newest - row) % buffer.buffer_size
        np.testing.assert_array_equal(buffer.observations[row], frames[step % 1_200])
        np.testing.assert_array_equal(buffer.next_observations[row], frames[step % 1_200 + 1])


def test_memory_of_the_full_buffer_is_that_of_the_choice() -> None:
    frames = np.concatenate([pictures(1, seed) for seed in range(4_001)])[:, np.newaxis]  # all parts are alike
    buffer = new_buffer(20_000)
    add_until_recompressed(buffer, frames, least=100)
    choice = buffer.observations.choice
    assert choice.later is not None
    chosen = new_buffer(4_000, compression_method=choice.later.codec, num_threads=1)
    add(chosen, frames, 4_000)
    expected = 5 * buffer_statistics(chosen).memory_nbytes
    assert buffer_statistics(buffer).full_memory_nbytes == pytest.approx(expected, rel=0.1)


def test_stacked_frames_are_shared_as_before() -> None:
    frames = pictures(1_203)[:, np.newaxis].transpose(0, 1, 3, 4, 2)[..., :1]  # [n, n_envs, height, width, 1]
    stacks = np.concatenate([frames[start : start + 1_200] for start in range(4)], axis=-1)
    buffer = new_buffer(20_000, shape=(32, 32, 4), frame_stack=4)
    add_until_recompressed(buffer, stacks, least=300)
    arrays = [buffer.observations, buffer.next_observations]
    payloads = {id(part) for array in arrays for slot in array.slots.ravel() if slot for part in slot[1:]}
    kinds = [type(part) for array in arrays for slot in array.slots.ravel() if slot for part in slot]
    assert kinds.count(bytes) == 8 * buffer.size()
    assert len(payloads) < 1.3 * buffer.size(), "each frame is stored about once"


def test_a_ring_that_is_overwritten_meanwhile_loses_nothing() -> None:
    frames = pictures(401, seed=1)[:, np.newaxis]
    buffer = new_buffer(40)  # hardly longer than what is never encoded again
    for step in adding(buffer, frames, range(3_000)):
        if step % 97 == 0:
            row = step % 40
            np.testing.assert_array_equal(buffer.observations[row], frames[step % 400])
    for step in range(3_000 - 40, 3_000):
        np.testing.assert_array_equal(buffer.observations[step % 40], frames[step % 400])
        np.testing.assert_array_equal(buffer.next_observations[step % 40], frames[step % 400 + 1])


def test_what_is_written_by_index_stays() -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(20_000)
    for step in adding(buffer, frames, range(990)):
        if step >= 40:
            buffer.observations[step - 20] = 7
    for step in range(20, 960):
        assert (buffer.observations[step] == 7).all()


def test_named_codecs_are_never_encoded_again() -> None:
    frames = pictures(301)[:, np.newaxis]
    buffer = new_buffer(300, compression_method="delta")
    before = [buffer.observations.slots[step, 0] for step in adding(buffer, frames, range(299))]
    assert buffer.observations.choice is None
    assert all(slot is old for slot, old in zip(buffer.observations.slots[:, 0], before, strict=False))


def test_a_replaced_payload_is_no_change_for_checkpoints(tmp_path: Any) -> None:
    frames = pictures(2_001)[:, np.newaxis]
    buffer = new_buffer(20_000)
    n_added = add_until_recompressed(buffer, frames, least=100)
    save_checkpoint(buffer, tmp_path / "checkpoint")
    flags = buffer.observations.track_changes()
    before, n_before = buffer.observations.slots.copy(), n_recompressed(buffer)
    step = n_added
    while n_recompressed(buffer) < n_before + 50:
        add(buffer, frames, step, step + 1)
        step += 1
    replaced = [row for row in range(n_added) if buffer.observations.slots[row, 0] is not before[row, 0]]
    assert replaced
    assert not flags[[row for row in replaced if row not in {new % 20_000 for new in range(n_added, step)}]].any()
    save_checkpoint(buffer, tmp_path / "checkpoint")
    loaded = load_checkpoint(tmp_path / "checkpoint")
    np.testing.assert_array_equal(loaded.observations[:step], np.asarray(buffer.observations[:step]))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_go_on(way: Any) -> None:
    buffer, frames = recompressed()
    copied = way(buffer)
    np.testing.assert_array_equal(np.asarray(copied.observations), np.asarray(buffer.observations))
    add_until_recompressed(copied, frames, least=300)


def test_a_damaged_payload_is_found_by_the_sample_that_needs_it() -> None:
    frames = pictures(1_201)[:, np.newaxis]
    buffer = new_buffer(30_000)
    add(buffer, frames, 100)
    slot = buffer.observations.slots[50, 0]
    buffer.observations.slots[50, 0] = (*slot[:-1], b"\x00damaged")
    add_until_recompressed(buffer, frames, least=500)
    with pytest.raises(CorruptPayload):
        buffer.observations[50]
    np.testing.assert_array_equal(buffer.observations[51], frames[51])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_goes_on() -> None:
    buffer, frames = recompressed()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            add(buffer, frames, 300)
            buffer.sample(32)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    add_until_recompressed(buffer, frames, least=300)


def test_a_deleted_buffer_is_freed_at_once() -> None:
    buffer, _ = recompressed()
    deleted = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert deleted() is None
    finally:
        gc.enable()


def test_frames_are_encoded_at_once_as_long_as_too_many_wait() -> None:
    buffer, frames = recompressed()
    buffer.observations.allow_encoding_later(is_allowed=False)
    for _ in adding(buffer, frames, range(100_000)):
        choice = buffer.observations.choice
        if choice.later is None:
            break
    assert choice.later is None
    assert choice.new.codec.coder == "lz4", "what the budget allows"


def test_folders_are_not_encoded_again(tmp_path: Any) -> None:
    frames = pictures(601)[:, np.newaxis]
    buffer = new_buffer(1_000, storage=tmp_path / "folder")
    for _ in adding(buffer, frames, range(3_000)):
        if buffer.observations.choice is not None:
            break
    choice = buffer.observations.choice
    assert choice is not None
    assert choice.later is None
    assert choice.new.codec.coder == "lz4"
    add(buffer, np.zeros_like(frames[:2]), 1)  # which takes less than what was chosen for
    references = buffer.observations.slots.nbytes + buffer.next_observations.slots.nbytes
    others = sum(getattr(buffer, name).nbytes for name in ("actions", "rewards", "dones", "timeouts"))
    assert buffer_statistics(buffer).full_memory_nbytes == references + others


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_training_that_is_resumed_begins_without_a_choice(tmp_path: Any, num_threads: int) -> None:
    buffer, frames = recompressed()
    assert buffer.observations.codec.coder == "raw"
    save_checkpoint(buffer, tmp_path / "checkpoint")
    copies = [
        load_checkpoint(tmp_path / "checkpoint", num_threads=num_threads),
        pickle.loads(pickle.dumps(buffer)),
        copy.deepcopy(buffer),
    ]
    for other in copies:
        assert other.observations.choice is None
        assert other.observations.codec.coder == "lz4"
        add(other, frames, 1)
        np.testing.assert_array_equal(other.observations[other.pos - 1], frames[0])
        np.testing.assert_array_equal(np.asarray(other.observations[:9]), np.asarray(buffer.observations[:9]))
    assert buffer.observations.codec.coder == "raw"


def test_the_choice_follows_a_buffer_of_another_size() -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(20_000)
    add(buffer, frames, 50)
    resize(buffer, 25_000)
    add_until_recompressed(buffer, frames)
    assert buffer.observations.shape[0] == 25_000


def test_a_shallow_copy_leaves_the_choice_to_its_original() -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(20_000)
    add(buffer, frames, 50)
    copied = copy.copy(buffer)
    add_until_recompressed(buffer, frames)
    assert copied.observations.choice is buffer.observations.choice


def test_rows_from_before_the_choice_are_encoded_again_after_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(50_000)
    known = LoopTiming.rates
    monkeypatch.setattr(LoopTiming, "rates", property(lambda timing: None))
    add(buffer, frames, 300)
    assert n_recompressed(buffer) == 0
    monkeypatch.setattr(LoopTiming, "rates", known)
    for step in adding(buffer, frames, range(300, 40_000)):
        np.asarray(buffer.observations[:60])  # which takes longer than adding, as a training does
        if step % 50 == 0:
            coders = [codec_of(slot[0]).coder for slot in buffer.observations.slots[:300, 0]]
            if coders.count("zstd") > 250:
                break
    assert coders.count("zstd") > 250
    np.testing.assert_array_equal(np.asarray(buffer.observations[:300]), frames[:300])


def test_what_was_chosen_is_shown_with_its_cost() -> None:
    frames = pictures(4_001)[:, np.newaxis]
    buffer = new_buffer(20_000)
    assert buffer_statistics(buffer).coder == ""
    add_until_recompressed(buffer, frames)
    found = buffer_statistics(buffer)
    assert found.coder.startswith("zstd/3, new frames raw: ")
    assert "lz4" in found.coder
    assert "zstd/12" in found.coder, "the neighbors on the ladder"
    assert found.coding_budget == pytest.approx(0.02)
    assert found.coding_share <= found.coding_budget
    assert found.coder in repr(buffer)


@pytest.mark.parametrize("way", ["checkpoint", "pickle"])
def test_what_a_loaded_buffer_contains_needs_no_further_memory(
    way: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(2_000)
    add(buffer, frames, 2_000)
    if way == "pickle":
        loaded = pickle.loads(pickle.dumps(buffer))
    else:
        save_checkpoint(buffer, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", num_threads=2)
    # Enough for each frame to become a little larger, but not for the whole buffer once more.
    monkeypatch.setattr(time_budget, "available_memory", lambda: 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_until_recompressed(loaded, frames, least=50)


def test_memory_goes_before_the_budget_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = pictures(1_001)[:, np.newaxis]
    buffer = new_buffer(100_000)
    monkeypatch.setattr(LoopTiming, "rates", property(lambda timing: None))
    monkeypatch.setattr(time_budget, "available_memory", lambda: 1_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in adding(buffer, frames, range(20_000)):
            assert step < 4_000, "a shortage is noticed soon"
            np.asarray(buffer.observations[:30])  # which takes longer than adding, as a training does
            if buffer.observations.choice is not None:
                break
        assert buffer.observations.choice.final.codec.coder == "zstd"
        add(buffer, frames, 2_000)
    assert [str(each.message).count("would not fit") for each in caught].count(1) == 1
