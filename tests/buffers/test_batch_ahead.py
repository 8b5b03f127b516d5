"""Batches of rollouts are decoded ahead, and are those of SB3 in any case; replay buffers: ``test_next_batch.py``."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import ROLLOUT_PAIRS
from gymnasium import spaces
from interrupts import bytecodes, evenly, interrupt
from numbered import DICTS, IMAGES, stack
from programs import run
from stable_baselines3.common.buffers import RolloutBuffer
from support import assert_same_batch, run_in_fork, same_draws

from sb3_compressed import CompressedRolloutBuffer, CorruptPayload, buffer_statistics
from sb3_compressed.arrays.batch_pool import ALIGNMENT, REFERENCES_ARE_COUNTED
from sb3_compressed.buffers import batch_ahead
from sb3_compressed.common.threads import PoolTask

ACTIONS = spaces.Discrete(5)
KINDS = ["plain", "dict", "maskable", "maskable-dict"]
pytestmark = pytest.mark.usefixtures("two_cores")


def fill(buffer: Any, first: int = 0) -> Any:
    """Fill a buffer with steps from a number on, which determines their content; return the buffer."""
    n_envs = buffer.n_envs
    rng = np.random.default_rng(first)
    for step in range(first, first + buffer.buffer_size):
        obs: Any = np.concatenate([stack(step + 50 * env) for env in range(n_envs)])
        if isinstance(buffer.observation_space, spaces.Dict):
            obs = {"image": obs, "vector": np.full((n_envs, 3), step, np.float32)}
        extra = {"action_masks": rng.integers(0, 2, (n_envs, 5))} if hasattr(buffer, "action_masks") else {}
        numbers = th.from_numpy(rng.random((2, n_envs), np.float32))
        buffer.add(obs, rng.integers(0, 5, (n_envs, 1)), rng.random(n_envs), np.zeros(n_envs), *numbers, **extra)
    buffer.compute_returns_and_advantage(th.ones(n_envs), np.zeros(n_envs))
    return buffer


def pair(kind: str = "plain", n_steps: int = 24, n_envs: int = 2, **options: Any) -> tuple[Any, Any]:
    """Return our buffer and SB3's, both filled."""
    space = DICTS if kind.endswith("dict") else IMAGES
    arguments = n_steps, space, ACTIONS, "cpu", 0.95, 0.9, n_envs
    ours, theirs = ROLLOUT_PAIRS[kind]
    return fill(ours(*arguments, num_threads=2, **options)), fill(theirs(*arguments))


def new_buffer(**options: Any) -> Any:
    return pair(**options)[0]


def assert_same_batches(ours: Any, theirs: Any) -> None:
    """Assert that two lists of batches are equal."""
    assert len(ours) == len(theirs) > 0
    for batch, expected in zip(ours, theirs, strict=True):
        assert_same_batch(batch, expected)


def assert_trainable(buffer: Any) -> None:
    """Assert that a buffer with one rollout, or a part of it read, returns the batches of SB3's from now on."""
    theirs = fill(RolloutBuffer(buffer.buffer_size, IMAGES, ACTIONS, "cpu", 0.95, 0.9, buffer.n_envs))
    epochs = [lambda each=each: [*each.get(7), *each.get(20)] for each in (buffer, theirs)]
    assert_same_batches(*same_draws(*epochs, seed=5))


def permutation(seed: int) -> Any:
    """Return the order of the 24 steps with a seed."""
    return np.random.RandomState(seed).permutation(24)  # what SB3 draws from


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_all_batches_but_the_first_are_ready_and_equal_those_of_sb3(
    kind: str, seed: int, n_ready: Callable[[], int]
) -> None:
    rng = np.random.default_rng(seed)
    n_steps, n_envs = (int(each) for each in rng.integers((1, 1), (30, 4)))
    sizes = [int(each) for each in rng.integers(1, n_steps * n_envs + 3, 3)]
    ours, theirs = pair(kind, n_steps, n_envs)
    n_expected = 0
    for rollout in range(2):
        for size in (*sizes, None):
            before = n_ready()
            epochs = [lambda each=each: [*each.get(size)] for each in (ours, theirs)]  # noqa: B023
            batches = same_draws(*epochs, seed=rollout)
            assert_same_batches(*batches)
            assert n_ready() - before == len(batches[0]) - 1
            n_expected += len(batches[0]) - 1
        for buffer in (ours, theirs):
            buffer.reset()
            fill(buffer, 100 * rollout)
    assert n_expected > 0


def test_what_a_user_does_between_batches_is_as_with_sb3(n_ready: Callable[[], int]) -> None:
    """Random numbers, writes to any array, and other reads."""

    def epoch(buffer: Any) -> list[Any]:
        batches = []
        for number, batch in enumerate(buffer.get(8)):
            batches += [batch, np.random.rand(3)]  # noqa: NPY002  # what SB3 draws from
            batches.append(buffer._get_samples(np.array([number, 3])))
            buffer.observations[number : 3 * number] = 7 * number
            buffer.advantages[:] += 1
        return [each for each in batches if not isinstance(each, np.ndarray)]

    ours, theirs = pair()
    for seed in range(3):
        assert_same_batches(*same_draws(lambda: epoch(ours), lambda: epoch(theirs), seed=seed))
    assert n_ready() > 5


def test_several_generators_at_once_are_as_with_sb3() -> None:
    def interleaved(buffer: Any) -> list[Any]:
        first, second = buffer.get(5), buffer.get(11)
        return [next(generator) for generator in (first, second, first, first, second, second, first)]

    ours, theirs = pair()
    assert_same_batches(*same_draws(lambda: interleaved(ours), lambda: interleaved(theirs), seed=1))


class Reading(RolloutBuffer):
    """Reads batches as SB3 does, in a method of its own."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        batch = RolloutBuffer._get_samples(self, batch_inds[::2], env)
        return batch._replace(returns=batch.returns + 1)


class Calling(RolloutBuffer):
    """Calls the method of its parent several times."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        parts = [super(Calling, self)._get_samples(indices, env) for indices in (batch_inds, batch_inds[::-1])]
        return type(parts[0])(*map(th.cat, zip(*parts, strict=True)))


class Sorting(RolloutBuffer):
    """Changes its argument."""

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        batch_inds.sort()
        return super()._get_samples(batch_inds, env)


class Tensors(RolloutBuffer):
    """Changes arrays before they are tensors, and draws random numbers."""

    def to_torch(self, array: Any, copy: bool = True) -> Any:
        array += np.random.randint(3)  # noqa: NPY002
        return th.as_tensor(array)


class Getting(RolloutBuffer):
    """Returns every second batch."""

    def get(self, batch_size: int | None = None) -> Any:
        for number, batch in enumerate(super().get(batch_size)):
            if number % 2:
                yield batch


class Flattening(RolloutBuffer):
    """Orders steps in another way."""

    @staticmethod
    def swap_and_flatten(arr: Any) -> Any:
        return RolloutBuffer.swap_and_flatten(arr)[::-1]


@pytest.mark.parametrize("cls", [Reading, Calling, Sorting, Tensors, Getting, Flattening])
def test_methods_of_users_get_what_they_get_with_sb3(cls: Any, n_ready: Callable[[], int]) -> None:
    both = type("Both", (cls, CompressedRolloutBuffer), {})
    arguments = 24, IMAGES, ACTIONS, "cpu", 0.95, 0.9, 2
    ours, theirs = fill(both(*arguments, num_threads=2)), fill(cls(*arguments))
    for seed in range(2):
        epochs = [lambda each=each: [*each.get(8)] for each in (ours, theirs)]
        assert_same_batches(*same_draws(*epochs, seed=seed))
    assert (n_ready() == 0) == (cls in (Reading, Sorting))  # which read other steps, or in another order


def test_a_damaged_payload_is_an_error_of_the_batch_that_contains_it() -> None:
    buffer = new_buffer(n_envs=1, compression_method="zstd3", frame_stack=4)
    [*buffer.get()]  # makes one axis of steps and environments
    slots = buffer.observations.slots
    whole = slots[5]
    slots[5] = (*whole[:-1], b"!")
    for seed in range(4):
        position = int(np.flatnonzero(permutation(seed) == 5)[0])
        np.random.seed(seed)  # noqa: NPY002
        generator = buffer.get(4)
        assert len([*islice(generator, position // 4)]) == position // 4
        with pytest.raises(CorruptPayload) as caught:
            next(generator)
        assert caught.value.slot == (5,)
        assert [*generator] == []
    slots[5] = whole
    assert_trainable(buffer)


def test_what_is_repaired_in_time_is_no_error() -> None:
    buffer = new_buffer(n_envs=1, compression_method="zstd3", frame_stack=4)
    [*buffer.get()]
    slots = buffer.observations.slots
    whole = slots[5]
    seed = next(seed for seed in range(100) if 5 in permutation(seed)[12:])
    np.random.seed(seed)  # noqa: NPY002
    generator = buffer.get(12)
    slots[5] = (*whole[:-1], b"!")
    next(generator)
    slots[5] = whole
    next(generator)
    assert_trainable(buffer)


def test_a_generator_that_is_not_continued_leaves_nothing(n_ready: Callable[[], int]) -> None:
    """As where PPO stops early."""
    buffer = new_buffer()
    gc.disable()
    try:
        for _ in buffer.get(8):
            break
        slots = weakref.ref(buffer.observations)
        buffer.reset()
        assert slots() is None
        fill(buffer)
        generator = buffer.get(8)
        next(generator)
        slots = weakref.ref(buffer.observations)
        buffer.reset()
        assert slots() is None  # although the generator still exists
        del generator
        fill(buffer)
        assert_trainable(buffer)
        reference = weakref.ref(buffer)
        generator = buffer.get(8)
        next(generator)
        del buffer, generator
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_reset_in_the_middle_is_as_with_sb3(n_envs: int) -> None:
    def reset(buffer: Any, is_filled: bool) -> list[Any]:
        generator = buffer.get(8)
        batches = [next(generator), next(generator)]
        buffer.reset()
        if is_filled:
            fill(buffer, 500)
            batches.append(next(buffer.get(8)))
        try:
            batches += [*generator]
        except IndexError:  # SB3's generator reads steps where there are fewer rows
            assert n_envs > 1
            assert not is_filled
        return batches

    for is_filled in (False, True):
        outcomes = [lambda each=each: reset(each, is_filled) for each in pair(n_envs=n_envs)]  # noqa: B023
        assert_same_batches(*same_draws(*outcomes, seed=3))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_in_the_middle_return_their_own_batches(copied: Callable[[Any], Any]) -> None:
    buffer = new_buffer()
    generator = buffer.get(8)
    next(generator)
    other = copied(buffer)
    assert_trainable(other)
    next(generator)
    assert_trainable(buffer)


def test_a_generator_and_later_epochs_continue_in_a_forked_child() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    buffer = new_buffer()
    expected = same_draws(lambda: [*buffer.get(4)], seed=0)[0]
    np.random.seed(0)  # noqa: NPY002
    generator = buffer.get(4)
    for number, each in enumerate(expected):
        assert_same_batch(next(generator), each)

        def continue_in_child(number: int = number) -> None:
            for batch, rest in zip(generator, expected[number + 1 :], strict=True):
                assert_same_batch(batch, rest)
            assert_trainable(buffer)

        run_in_fork(continue_in_child)


def test_the_interpreter_exits_in_the_middle() -> None:
    code = """
import numpy as np, torch as th
from numbered import IMAGES, stack
from gymnasium import spaces
from sb3_compressed import CompressedRolloutBuffer
from sb3_compressed.buffers import batch_ahead
batch_ahead.default_num_threads = lambda: 2
buffer = CompressedRolloutBuffer(64, IMAGES, spaces.Discrete(3), "cpu", num_threads=2)
for step in range(64):
    buffer.add(stack(step), np.zeros((1, 1)), np.zeros(1), np.zeros(1), th.zeros(1), th.zeros(1))
generator = buffer.get(16)
next(generator)
print("end")
"""
    assert run(code) == "end\n"


@pytest.mark.parametrize("is_busy", [False, True])
def test_ctrl_c_at_any_time_stops_nothing_but_the_epoch(is_busy: bool, occupy_pool: Callable[[], None]) -> None:
    """Also while all threads of the pool do something else."""
    buffer = new_buffer()

    def epoch() -> None:
        generator = buffer.get(8)
        for _ in range(4):  # the rest is not read
            next(generator)
        generator.close()  # rather than when it is deleted, where Python ignores interrupts

    if is_busy:
        occupy_pool()
    epoch()
    # Python handles no signals between the end of a with block and the release of its lock.
    found = [at for at in bytecodes(epoch) if at[0].co_name != "_claim"]
    assert len(found) > 250
    interrupts = []
    for at in evenly(found, 20):
        interrupts.append(interrupt(epoch, at))
        thread = threading.Thread(target=epoch, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert sum(each is not None for each in interrupts) > 15
    assert_trainable(buffer)


def test_ctrl_c_at_the_beginning_of_an_epoch_leaves_the_rollout_as_it_was() -> None:
    """Where SB3 has changed some of the arrays, and changes them again."""

    def begin(buffer: Any) -> None:
        generator = buffer.get(8)
        next(generator)
        generator.close()

    buffer = new_buffer()
    found = [at for at in bytecodes(lambda: begin(buffer)) if at[0].co_name in ("_flatten", "_batches")]
    assert len(found) > 40
    for at in evenly(found, 10):
        buffer = new_buffer()
        interrupt(partial(begin, buffer), at)
        assert_trainable(buffer)


@pytest.mark.parametrize("why", ["one thread", "one core", "vectors", "one batch"])
def test_nothing_is_decoded_ahead_where_it_cannot_be(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(task: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(PoolTask, "start", start)
    if why == "one core":
        monkeypatch.setattr(batch_ahead, "default_num_threads", lambda: 1)
    space = spaces.Box(-1, 1, (3,)) if why == "vectors" else IMAGES
    buffer = CompressedRolloutBuffer(24, space, ACTIONS, "cpu", num_threads=1 if why == "one thread" else 2)
    for step in range(24):
        obs = np.full((1, 3), step / 24, np.float32) if why == "vectors" else stack(step)
        buffer.add(obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), th.zeros(1), th.zeros(1))
    assert len([*buffer.get(None if why == "one batch" else 5)]) == (1 if why == "one batch" else 5)


@pytest.mark.skipif(not REFERENCES_ARE_COUNTED, reason="no memory is reused: the probe failed")
def test_they_take_the_memory_of_one_batch_more(n_ready: Callable[[], int]) -> None:
    buffer = new_buffer(n_steps=160)
    nbytes = 0
    for _ in range(3):
        for batch in buffer.get(32):
            nbytes = batch.observations.nbytes
    assert n_ready() == 27
    buffer.reset()
    assert nbytes <= buffer_statistics(buffer).batch_memory_nbytes <= 3 * (nbytes + ALIGNMENT)
