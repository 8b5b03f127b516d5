"""The next batch is decoded ahead if SB3's draws can be predicted; a batch is that of SB3 in any case."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import stable_baselines3.common.buffers
from buffer_pairs import SB3_OPTIMIZED
from gymnasium import spaces
from interrupts import bytecodes, interrupt
from numbered import COUNTER, DICTS, IMAGES, add_steps, assert_true
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, assert_same_batch, run_in_fork, same_draws

import sb3_compressed
from sb3_compressed import CompressedHerReplayBuffer, CompressedReplayBuffer, CorruptPayload, buffer_statistics
from sb3_compressed.buffers import batch_ahead, predicted_batch
from sb3_compressed.buffers.resize import resize
from sb3_compressed.common.random_words import STATE_IS_READABLE

random: Any = np.random  # whose stubs lack functions
pytestmark = [
    pytest.mark.usefixtures("two_cores"),
    pytest.mark.skipif(not STATE_IS_READABLE, reason="fallbacks are forced"),
]

KINDS: dict[str, tuple[str, spaces.Space[Any], dict[str, Any]]] = {
    "plain": ("ReplayBuffer", IMAGES, {}),
    "optimized": ("ReplayBuffer", IMAGES, SB3_OPTIMIZED),
    "n-step": ("NStepReplayBuffer", IMAGES, {"n_steps": 3}),
    "dict": ("DictReplayBuffer", DICTS, {}),
}


def new_buffer(kind: str = "plain", rows: int = 60, **options: Any) -> Any:
    name, space, arguments = KINDS[kind]
    cls = getattr(sb3_compressed, f"Compressed{name}")
    return cls(rows, space, COUNTER, "cpu", **arguments, num_threads=2, **options)


def counterpart(kind: str, rows: int = 60) -> Any:
    name, space, arguments = KINDS[kind]
    return getattr(stable_baselines3.common.buffers, name)(rows, space, COUNTER, "cpu", **arguments)


def assert_same_batches(train: Callable[[Any], list[Any]], ours: Any, theirs: Any) -> None:
    """Assert that a function returns the same batches of both buffers."""
    for batch, expected in zip(*same_draws(partial(train, ours), partial(train, theirs), seed=1), strict=True):
        assert_same_batch(batch, expected)


def trained(
    ours: Any,
    theirs: Any,
    n_steps: int,
    n_gradient_steps: int = 1,
    between: Callable[[Any, int], object] | None = None,
) -> None:
    """Add to both and sample from both as a training does, and assert that batches are equal."""

    def train(buffer: Any) -> list[Any]:
        batches = []
        for step in range(n_steps):
            np.random.rand()  # noqa: NPY002  # whether to explore
            add_steps(buffer, range(step, step + 1))
            if step % 4 == 3:
                batches += [copy.deepcopy(buffer.sample(8)) for _ in range(n_gradient_steps)]
                if between is not None:
                    between(buffer, step)
        return batches

    assert_same_batches(train, ours, theirs)


@pytest.mark.parametrize("n_gradient_steps", [1, 4])
@pytest.mark.parametrize(("kind", "in_folder"), [*((kind, False) for kind in KINDS), ("plain", True)])
def test_batches_of_a_training_are_ready_and_equal_those_of_sb3(
    kind: str,
    in_folder: bool,
    n_gradient_steps: int,
    tmp_path: Path,
    n_ready: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_ahead, "LOCK_TIMEOUT_S", 60)  # an add to a folder may take long
    ours = new_buffer(kind, storage=tmp_path / "buffer" if in_folder else "memory")
    trained(ours, counterpart(kind), 200, n_gradient_steps)
    assert n_ready() >= (48 if n_gradient_steps == 1 else 185)
    statistics = buffer_statistics(ours)
    assert (statistics.batches, statistics.batches_decoded_ahead) == (50 * n_gradient_steps, n_ready())
    assert statistics.decoded_ahead == n_ready() / (50 * n_gradient_steps)
    ours.close()


def test_rewards_and_normalization_are_those_of_the_call(n_ready: Callable[[], int]) -> None:
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(spaces.Box(0, 255, (4, 36, 36), np.uint8), COUNTER)]))

    def change(buffer: Any, step: int) -> None:
        buffer.rewards[: step % 60] += 1
        env.obs_rms.update(np.full((1, 4, 36, 36), step))
        env.ret_rms.update(np.full(1, float(step)))

    trained(new_buffer(), counterpart("plain"), 100, between=lambda buffer, step: buffer.rewards.__iadd__(step))
    assert n_ready() > 20
    buffer = new_buffer(rows=30)
    add_steps(buffer, range(30))
    for _ in range(5):
        buffer.sample(8, env=env)
        change(buffer, 3)
        state = np.random.get_state()  # noqa: NPY002
        batch = buffer.sample(8, env=env)
        np.random.set_state(state)  # noqa: NPY002
        assert_same_batch(batch, buffer._get_samples(buffer._draw_rows(8, np.random, 0, is_full=True), env=env))


def test_what_a_user_writes_meanwhile_is_in_the_batch(n_ready: Callable[[], int]) -> None:
    def write(buffer: Any, step: int) -> None:
        buffer.observations[: step % 50] = step % 256
        buffer.next_observations[step % 50] = 1

    trained(new_buffer(), counterpart("plain"), 240, between=write)
    assert n_ready() > 50


@pytest.mark.parametrize(
    "surprise",
    [
        lambda step: np.random.rand(step % 5),  # noqa: NPY002
        lambda step: np.random.seed(step),  # noqa: NPY002
        lambda step: random.set_bit_generator(np.random.PCG64(step)),
    ],
    ids=["varying draws", "seeds", "another generator"],
)
def test_random_numbers_of_others_change_nothing_but_the_time(surprise: Callable[[int], object]) -> None:
    before = random.get_bit_generator()
    try:
        batches: list[list[Any]] = []
        for buffer in (new_buffer(), counterpart("plain")):
            random.set_bit_generator(np.random.MT19937(0))
            batches.append([])
            for step in range(100):
                add_steps(buffer, range(step, step + 1))
                surprise(step)
                batches[-1].append(copy.deepcopy(buffer.sample(4)))
    finally:
        random.set_bit_generator(before)
    for batch, expected in zip(*batches, strict=True):
        assert_same_batch(batch, expected)


def test_what_happens_once_costs_one_batch(n_ready: Callable[[], int]) -> None:
    def evaluate(buffer: Any, step: int) -> None:
        if step % 80 == 79:
            np.random.rand(step)  # noqa: NPY002

    trained(new_buffer(), counterpart("plain"), 320, between=evaluate)
    assert n_ready() >= 80 - 3 - 2, "3 of 80 batches follow an evaluation, and the first ones cannot be predicted"


def test_failing_predictions_are_given_up_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, n_ready: Callable[[], int]
) -> None:
    monkeypatch.setattr(predicted_batch, "N_JUDGED", 16)
    monkeypatch.setattr(predicted_batch, "SHORTEST_REST", 32)
    buffer = new_buffer()
    add_steps(buffer, range(60))
    rng = np.random.default_rng(0)
    predicted = []
    for n in range(400):
        buffer.sample(4)
        predicted.append(buffer._predicted_batch._task is not None)
        np.random.rand(int(rng.integers(1000)) if n < 300 else 1)  # noqa: NPY002
    assert sum(predicted[:16]) >= 14
    assert not any(predicted[16:48])
    assert 0 < sum(predicted[48:300]) < 100
    before = n_ready()
    for _ in range(2000):
        buffer.sample(4)
        np.random.rand()  # noqa: NPY002
    assert n_ready() - before > 800


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_damaged_payload_is_an_error_of_the_batch_that_contains_it(is_changed: bool) -> None:
    buffer = new_buffer(compression_method="zstd3", frame_stack=4, rows=20)
    add_steps(buffer, range(20))
    for _ in range(4):
        buffer.sample(32)
    slots = buffer.observations.slots
    slots[5, 0] = (*slots[5, 0][:-1], b"!")
    buffer._predicted_batch.discard()
    for _ in range(3):
        with pytest.raises(CorruptPayload) as caught:
            buffer.sample(200)
        assert caught.value.slot == (5, 0)
        buffer.sample(0)
    slots[5, 0] = slots[6, 0]
    buffer.sample(200)
    if is_changed:
        slots[7, 0] = (*slots[7, 0][:-1], b"!")
        with pytest.raises(CorruptPayload) as caught:
            buffer.sample(200)
        assert caught.value.slot == (7, 0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_predict_their_own_batches(copied: Callable[[Any], Any], n_ready: Callable[[], int]) -> None:
    buffer = new_buffer()
    add_steps(buffer, range(60))
    for _ in range(3):
        buffer.sample(8)
    other = copied(buffer)
    assert other._predicted_batch is not buffer._predicted_batch
    assert other._predicted_batch._task is None
    assert buffer_statistics(other).batches == 0
    for _ in range(6):
        assert_true(other.sample(8))
    assert n_ready() >= 4


def test_a_forked_child_samples() -> None:
    buffer = new_buffer()
    add_steps(buffer, range(60))

    def sample() -> None:
        for _ in range(3):
            assert_true(buffer.sample(8))

    for _ in range(5):
        buffer.sample(8)
        run_in_fork(sample)


def test_reset_and_close_discard_the_batch() -> None:
    buffer = new_buffer()
    add_steps(buffer, range(60))
    buffer.sample(8)
    buffer.sample(8)
    assert buffer._predicted_batch._task is not None
    buffer.reset()
    assert buffer._predicted_batch._task is None
    add_steps(buffer, range(100, 110))
    for _ in range(3):
        batch = buffer.sample(8)
        assert_true(batch)
        assert batch.actions.min() >= 100
    buffer.close()
    assert buffer._predicted_batch._task is None


def test_nothing_is_predicted_where_it_cannot_be() -> None:
    assert CompressedReplayBuffer(10, IMAGES, COUNTER, "cpu", num_threads=1)._predicted_batch is None
    vectors = CompressedReplayBuffer(10, spaces.Box(-1, 1, (3,)), COUNTER, "cpu", num_threads=2)
    assert vectors._predicted_batch is None
    assert buffer_statistics(vectors).decoded_ahead == 0
    goals = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), IMAGES))
    assert CompressedHerReplayBuffer(10, goals, COUNTER, None, "cpu", num_threads=2)._predicted_batch is None


def test_a_class_that_draws_other_rows_is_served() -> None:
    class Newest(CompressedReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            return super()._get_samples((self.pos - 1 - np.arange(len(batch_inds))) % self.buffer_size, env)

    buffer = Newest(40, IMAGES, COUNTER, "cpu", num_threads=2)
    for step in range(40, 400, 4):
        add_steps(buffer, range(step, step + 4))
        batch = buffer.sample(3)
        assert batch.actions.ravel().tolist() == [step + 3, step + 2, step + 1]
        assert_true(batch)


@pytest.mark.parametrize("kind", ["plain", "n-step"])
def test_methods_of_users_run_in_the_calling_thread(kind: str, n_ready: Callable[[], int]) -> None:
    """They may draw random numbers, for example."""

    def noisy(rewards: Any, env: Any = None) -> Any:
        return (rewards + np.random.normal(size=rewards.shape)).astype(np.float32)  # noqa: NPY002

    ours, theirs = new_buffer(kind), counterpart(kind)
    for buffer in (ours, theirs):
        buffer._normalize_reward = noisy
        add_steps(buffer, range(60))
    assert_same_batches(lambda buffer: [copy.deepcopy(buffer.sample(8)) for _ in range(20)], ours, theirs)
    assert n_ready() > 10


def test_other_arrays_are_read_from_their_first_batch_on(n_ready: Callable[[], int]) -> None:
    first, second = new_buffer(), new_buffer()
    add_steps(first, range(60))
    add_steps(second, range(100, 160))
    for _ in range(4):
        first.sample(8)
    first.observations, first.next_observations = second.observations, second.next_observations
    first.actions, first.rewards = second.actions, second.rewards
    batch = first.sample(8)
    assert batch.actions.min() >= 100
    assert_true(batch)
    assert n_ready() > 0


def test_a_buffer_that_is_resized_returns_batches_of_sb3(n_ready: Callable[[], int]) -> None:
    ours, theirs = new_buffer(rows=100), counterpart("plain", rows=100)
    trained(ours, theirs, 80, between=lambda buffer, step: resize(ours, 200) if buffer is ours and step == 43 else None)
    assert n_ready() > 10


def test_a_deleted_buffer_is_freed_at_once(n_ready: Callable[[], int]) -> None:
    buffer = new_buffer()
    add_steps(buffer, range(60))
    gc.disable()
    try:
        for _ in range(4):
            buffer.sample(8)
        reference = weakref.ref(buffer)
        del buffer
        deadline = time.monotonic() + 30  # another thread may still hold it
        while reference() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gc.enable()
    assert n_ready() > 0


def test_an_interrupt_while_a_task_is_queued_does_not_stop_later_batches(occupy_pool: Callable[[], None]) -> None:
    """At each bytecode of the wait for it, while all threads of the pool are busy."""
    buffer = new_buffer()
    add_steps(buffer, range(60))
    for _ in range(3):
        buffer.sample(8)
    occupy_pool()
    buffer.sample(8)
    found = [at for at in bytecodes(lambda: buffer.sample(8)) if at[0].co_name == "end"]
    assert len(found) > 5
    for at in found:
        interrupt(lambda: buffer.sample(8), at)
        sampling = Thread(target=buffer.sample, args=(8,), daemon=True)
        sampling.start()
        sampling.join(30)
        assert not sampling.is_alive()


@pytest.mark.parametrize("is_comparing", [False, True])
def test_the_training_waits_for_all_batches_where_none_is_decoded_ahead(is_comparing: bool) -> None:
    buffer = new_buffer()
    add_steps(buffer, range(60))
    alternation = buffer._predicted_batch.alternation
    alternation.is_on, alternation._is_comparing, alternation._n_left = False, is_comparing, 10**9
    for _ in range(5):
        buffer.sample(8)
    timing = buffer._loop_timing
    assert (timing._waited, timing._ahead) == ((0, 40) if is_comparing else (40, 0))
