"""``prefetch=n``: the batches of samplers are drawn n calls earlier; when they are decoded never matters."""

from __future__ import annotations

import copy
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import SB3_OPTIMIZED
from gymnasium import spaces
from numbered import COUNTER, DICTS, IMAGES, add_steps, assert_true
from programs import run
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support import ImageEnv, assert_same_batch, atari_env, same_draws

from sb3_compressed import (
    BufferNotReady,
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    CorruptPayload,
)
from sb3_compressed.samplers import PrioritizedSampler

KINDS: dict[str, tuple[type[Any], spaces.Space[Any], dict[str, Any]]] = {
    "plain": (CompressedReplayBuffer, IMAGES, {}),
    "zstd": (CompressedReplayBuffer, IMAGES, {"compression_method": "zstd3"}),
    "optimized": (CompressedReplayBuffer, IMAGES, {"optimize_memory_usage": True}),
    "sb3-optimized": (CompressedReplayBuffer, IMAGES, SB3_OPTIMIZED),
    "n-step": (CompressedNStepReplayBuffer, IMAGES, {"n_steps": 3}),
    "dict": (CompressedDictReplayBuffer, DICTS, {}),
    "normalized": (CompressedReplayBuffer, IMAGES, {"normalize_images": True}),
    "dict-float": (CompressedDictReplayBuffer, DICTS, {"output_dtype": "float"}),
    "narrow": (CompressedReplayBuffer, spaces.Box(0, 255, (4, 36, 36), np.int16), {"dtypes": np.uint8}),
}  # fmt: skip


def new_buffer(kind: str = "plain", rows: int = 60, **options: Any) -> Any:
    cls, space, arguments = KINDS[kind]
    return cls(rows, space, COUNTER, "cpu", **{"sampler": "prioritized", **arguments, **options})


def draws(buffer: Any, n_batches: int = 6, batch_size: int = 20) -> list[Any]:
    np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
    return [buffer.sample(batch_size) for _ in range(n_batches)]


@pytest.mark.filterwarnings("ignore:values of dtype int16")
@pytest.mark.parametrize(("kind", "in_folder"), [*((kind, False) for kind in KINDS), ("plain", True), ("dict", True)])
def test_batches_of_an_unchanged_buffer_are_those_without_prefetching(
    kind: str, in_folder: bool, tmp_path: Path
) -> None:
    buffers = [new_buffer(kind, prefetch=n, storage=tmp_path / str(n) if in_folder else "memory") for n in (0, 1, 4)]
    for buffer in buffers:
        add_steps(buffer, range(150))
    expected, *others = [draws(buffer) for buffer in buffers]
    for batches in others:
        for batch, other in zip(batches, expected, strict=True):
            assert_same_batch(batch, other)


@pytest.mark.parametrize("n", [1, 3])
def test_batches_are_drawn_n_calls_earlier(n: int) -> None:
    buffer = new_buffer(rows=1000, prefetch=n)
    add_steps(buffer, range(10))
    newest = []
    for call in range(12):
        newest.append(int(buffer.sample(500).actions.max()))
        add_steps(buffer, range(10 + call, 11 + call))
    # The first n + 1 batches are drawn by the first call, when 10 transitions are in the buffer.
    assert newest == [9] * (n + 1) + list(range(10, 10 + 11 - n))


@pytest.mark.parametrize(("codec", "in_folder"), [("auto", False), ("delta", True), ("zstd3", False)])
def test_nothing_torn_is_returned_while_transitions_are_overwritten(
    codec: str, in_folder: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"storage": tmp_path / "buffer"} if in_folder else {}
    buffer = new_buffer(rows=25, compression_method=codec, frame_stack=4, prefetch=3, sampler="recent", **options)
    add_steps(buffer, range(10))
    held: list[Any] = []
    for begin in range(10, 400, 5):  # 16 laps
        batch = buffer.sample(16)
        add_steps(buffer, range(begin, begin + 5))
        assert_true(batch)
        held = [*held[-4:], batch]
        for earlier in held:  # whose memory was not reused
            assert_true(earlier)


def test_trainings_are_reproducible_and_draw_in_the_calling_thread() -> None:
    def train() -> th.Tensor:
        env = atari_env("Pong", 1)
        model = DQN(
            "CnnPolicy", env, buffer_size=300, learning_starts=50, batch_size=8, train_freq=2, seed=3,
            target_update_interval=40, policy_kwargs={"net_arch": [8]}, replay_buffer_class=CompressedReplayBuffer,
            replay_buffer_kwargs={"prefetch": 2, "sampler": "recent"},
        )  # fmt: skip
        model.learn(120)
        env.close()
        return th.cat([parameter.detach().ravel() for parameter in model.policy.parameters()])

    assert th.equal(train(), train())


@pytest.mark.parametrize("kind", ["plain", "n-step", "dict"])
def test_samplers_draw_ahead_and_weights_and_indices_are_those_of_the_batch(kind: str) -> None:
    """Priorities that are updated meanwhile count for later batches; of overwritten transitions, they are skipped."""
    buffer = new_buffer(kind, prefetch=2, sampler=PrioritizedSampler(alpha=1.0, beta=1.0))
    add_steps(buffer, range(60))
    n_skipped = 0
    for begin in range(60, 600, 10):
        batch = buffer.sample(16)
        steps = batch.actions[:, 0].numpy()
        np.testing.assert_array_equal(batch.indices, steps)  # with one environment
        assert batch.weights.max() == 1
        n_skipped += buffer.update_priorities(batch.indices, 1 + steps % 3)
        add_steps(buffer, range(begin, begin + 10))
    assert buffer.n_skipped_updates == n_skipped > 0


@pytest.mark.parametrize("change", ["batch_size", "reset", "discard"])
def test_queue_is_discarded_where_it_does_not_fit_any_more(change: str) -> None:
    buffer = new_buffer(rows=1000, prefetch=2)
    add_steps(buffer, range(10))
    buffer.sample(300)
    if change == "reset":
        buffer.reset()
        with pytest.raises(BufferNotReady):
            buffer.sample(300)
    add_steps(buffer, range(10, 400))
    if change == "discard":
        buffer.discard_prefetched()
    batch = buffer.sample(301 if change == "batch_size" else 300)
    assert len(batch.actions) == (301 if change == "batch_size" else 300)
    assert batch.actions.max() > 10
    assert_true(batch)


def test_wrong_batch_size_raises_and_the_next_call_works() -> None:
    buffer = new_buffer(prefetch=2)
    add_steps(buffer, range(10))
    for wrong, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            buffer.sample(wrong)
    assert len(buffer.sample(0).actions) == 0
    assert_true(buffer.sample(7))


def test_damaged_payload_raises_for_the_batch_that_contains_it() -> None:
    buffer = new_buffer("zstd", prefetch=2, sampler="recent")
    add_steps(buffer, range(50))
    whole = [*buffer.observations.slots[:, 0]]
    buffer.sample(40)  # draws three
    for row in range(50):
        slot = whole[row]
        buffer.observations.slots[row, 0] = b"damaged" if type(slot) is bytes else (b"damaged",) * len(slot)
    buffer.sample(40)
    buffer.sample(40)
    for row in range(50):
        buffer.observations.slots[row, 0] = whole[row]
    for _ in range(2):
        with pytest.raises(CorruptPayload):
            buffer.sample(40)
    assert_true(buffer.sample(40))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_and_pickles_prefetch_with_an_empty_queue(copied: Any) -> None:
    buffer = new_buffer(rows=1000, prefetch=2)
    add_steps(buffer, range(10))
    buffer.sample(300)
    add_steps(buffer, range(10, 400))
    other = copied(buffer)
    assert other.prefetch == 2
    assert other.sample(300).actions.max() >= 10
    assert buffer.sample(300).actions.max() < 10
    assert_true(buffer.sample(300))


def test_pickles_and_folders_without_prefetching_are_as_before(tmp_path: Path) -> None:
    plain, prefetching = new_buffer(), new_buffer(prefetch=2)
    assert "_prefetcher" not in vars(plain)
    assert b"refetch" not in pickle.dumps(plain)
    add_steps(prefetching, range(70))
    prefetching.sample(3)
    prefetching.save_checkpoint(tmp_path)
    assert not any(b"prefetch" in path.read_bytes() for path in tmp_path.iterdir())
    assert CompressedReplayBuffer.from_checkpoint(tmp_path).prefetch == 0
    loaded = CompressedReplayBuffer.from_checkpoint(tmp_path, prefetch=3)
    assert loaded.prefetch == 3
    assert_true(loaded.sample(30))


def test_buffers_in_folders_can_be_sampled_after_they_were_closed(tmp_path: Path) -> None:
    buffer = new_buffer(prefetch=2, storage=tmp_path / "buffer")
    add_steps(buffer, range(100))
    buffer.sample(20)
    buffer.close()
    assert_true(buffer.sample(20))
    resumed = new_buffer(prefetch=2, storage=tmp_path / "buffer", resume=True)
    assert_true(resumed.sample(20))


def test_batches_of_several_sizes_in_use_keep_their_memory() -> None:
    buffer = new_buffer(prefetch=4, sampler="recent")
    add_steps(buffer, range(60))
    batches = [buffer.sample(size) for size in (64, 64, 64, 200, 64, 64, 200, 200, 64, 64, 64, 64)]
    for batch in batches:
        assert_true(batch)


def test_vec_normalize_disables_prefetching() -> None:
    env = VecNormalize(DummyVecEnv([lambda: ImageEnv(IMAGES, COUNTER)]), norm_obs=False)
    buffer = new_buffer(rows=1000, prefetch=3)
    add_steps(buffer, range(10))
    buffer.sample(50)
    add_steps(buffer, range(10, 500))
    assert buffer.sample(50, env=env).actions.max() > 10


def growing(buffer: Any) -> list[Any]:
    """Add to a buffer and sample from it in turns; return the batches."""
    found = []
    for step in range(30):
        if buffer.observation_space == IMAGES:
            add_steps(buffer, range(step, step + 1))
        else:
            observation = np.full((1, 3), step, np.float32)
            buffer.add(observation, observation, np.array([[step]]), np.zeros(1), np.zeros(1), [{}])
        found.append(copy.deepcopy(buffer.sample(4)))
    return found


VECTORS = spaces.Box(-1, 1, (3,), np.float32)


def test_plain_arrays_are_sampled_as_without_prefetching() -> None:
    buffers = [CompressedReplayBuffer(20, VECTORS, COUNTER, "cpu", sampler="recent", prefetch=n) for n in (0, 3)]
    for pair in zip(*same_draws(*[partial(growing, buffer) for buffer in buffers], seed=0), strict=True):
        assert_same_batch(*pair)


class Subclass(CompressedReplayBuffer):
    """A user's class."""


def test_where_prefetching_is_impossible_the_constructor_raises() -> None:
    with pytest.raises(ValueError, match="outside"):
        Subclass(10, IMAGES, COUNTER, prefetch=1, sampler="recent")
    assert Subclass(10, IMAGES, COUNTER, prefetch=0).prefetch == 0
    with pytest.raises(ValueError, match="rewards"):
        CompressedHerReplayBuffer(10, DICTS, COUNTER, None, prefetch=1)
    with pytest.raises(ValueError, match="replay"):
        CompressedRolloutBuffer(10, IMAGES, COUNTER, prefetch=1)
    for wrong, error in ((-1, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="prefetch"):
            CompressedReplayBuffer(10, IMAGES, COUNTER, prefetch=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("space", "cls", "num_threads"), [(IMAGES, CompressedReplayBuffer, 2), (VECTORS, Subclass, 1)])
def test_without_a_sampler_it_warns_once_and_batches_are_those_of_sb3(space: Any, cls: Any, num_threads: int) -> None:
    with pytest.warns(UserWarning, match="prefetch=3 has no effect") as warned:
        ours = cls(20, space, COUNTER, "cpu", prefetch=3, num_threads=num_threads)
    assert [warning.filename for warning in warned] == [__file__]
    assert ours.prefetch == 0
    theirs = ReplayBuffer(20, space, COUNTER, "cpu")
    for pair in zip(*same_draws(lambda: growing(ours), lambda: growing(theirs), seed=0), strict=True):
        assert_same_batch(*pair)


def test_a_model_that_prefetches_without_a_sampler_warns_at_its_line() -> None:
    with pytest.warns(UserWarning, match="prefetch=2 has no effect") as warned:
        DQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"prefetch": 2}
        )
    assert [warning.filename for warning in warned] == [__file__]


SETUP = """
import atexit, os, pickle, threading
from numbered import COUNTER, IMAGES, add_steps, assert_true
from sb3_compressed import CompressedReplayBuffer
buffer = CompressedReplayBuffer(60, IMAGES, COUNTER, "cpu", prefetch=4, sampler="prioritized")
add_steps(buffer, range(60))
"""


def test_interpreter_exits_with_a_full_queue_and_samples_while_it_exits() -> None:
    code = """
pickle.dumps(buffer)
assert threading.active_count() == 1, threading.enumerate()
buffer.sample(300)
assert threading.active_count() > 1
def sample():
    for size in (300, 300, 300, 300, 300, 300, 20):
        assert_true(buffer.sample(size))
    print("sampled")
atexit.register(sample)
"""
    assert run(SETUP + code) == "sampled\n"


def test_forked_children_complete_the_queue_and_continue() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """
for _ in range(4):
    buffer.sample(400)
    child = os.fork()
    if child == 0:
        for _ in range(8):
            assert_true(buffer.sample(400))
        os._exit(0)
    assert_true(buffer.sample(400))
    assert os.waitpid(child, 0)[1] == 0
print("end")
"""
    assert run(SETUP + code, PYTHONWARNINGS="ignore::DeprecationWarning") == "end\n"
