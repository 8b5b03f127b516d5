"""``extend`` adds the same transitions as a loop of ``add``, in every class, in memory and in folders."""

from __future__ import annotations

import copy
import functools
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from buffer_pairs import REPLAY_PAIRS, SB3_OPTIMIZED
from drawn_examples import FACTOR
from gymnasium import spaces
from interrupts import bytecodes, evenly, interrupt
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from support import Transition, add_all, assert_same_batch, new_buffer, recorded, same_draws

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    load_checkpoint,
)
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.errors import CodecError, StorageError
from sb3_compressed.samplers import PrioritizedSampler

STREAMS = ("atari", "atari-single", "atari-channel-last", "cart", "discrete", "multi-binary", "multi-discrete")
SPACE, BUTTONS = spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(9)


def stacked(transitions: Any) -> dict[str, Any]:
    """Return the arguments of ``extend`` for transitions of a stream."""

    def join(name: str) -> Any:
        values = [getattr(transition, name) for transition in transitions]
        if isinstance(values[0], dict):
            return {key: np.stack([each[key] for each in values]) for key in values[0]}
        return np.stack(values)

    names = {"obs": "obs", "next_obs": "next_obs", "action": "action", "reward": "reward", "done": "done"}
    return {**{name: join(field) for name, field in names.items()}, "infos": [each.infos for each in transitions]}


def extend_all(buffer: Any, transitions: Any, lengths: tuple[int, ...] = (1, 2, 40, 3, 100)) -> None:
    """Extend a buffer by transitions in pieces of these lengths, then by the rest at once."""
    first = 0
    for length in (*lengths, len(transitions)):
        if part := transitions[first : first + length]:
            buffer.extend(**stacked(part))
        first += length


def steps(n: int, n_envs: int = 1, start: int = 0) -> dict[str, Any]:
    """Return the arguments of ``extend`` for stacks of frames that are numbered in their pixels."""
    frames = np.arange(start, start + n + 4)[:, np.newaxis] + 50 * np.arange(n_envs)
    frames = (frames % 251).astype(np.uint8)
    frames = np.broadcast_to(frames[..., np.newaxis, np.newaxis], (n + 4, n_envs, 36, 36))
    stacks = np.stack([frames[each : n + 1 + each] for each in range(4)], axis=2)
    numbers = np.arange(start, start + n, dtype=np.float32)
    rewards = np.repeat(numbers[:, np.newaxis], n_envs, axis=1)
    return {
        "obs": stacks[:-1], "next_obs": stacks[1:], "action": rewards % 9, "reward": rewards,
        "done": rewards % 7 == 6, "timeouts": rewards % 14 == 13,
    }  # fmt: skip


def add_step(buffer: Any, given: dict[str, Any], step: int) -> None:
    """Add one of the steps by ``add``."""
    infos = [{"TimeLimit.truncated": bool(each)} for each in given["timeouts"][step]]
    buffer.add(*[given[name][step] for name in ("obs", "next_obs", "action", "reward", "done")], infos)


def contents(buffer: Any) -> dict[str, NDArray[Any]]:
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    return {name: np.array(getattr(buffer, name)) for name in names if hasattr(buffer, name)}


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        *[("replay", name, {}) for name in STREAMS],
        *[("replay", name, SB3_OPTIMIZED) for name in STREAMS],
        ("replay", "atari", {"compression_method": "zstd3"}),
        ("n-step", "atari", {}),
        ("n-step", "cart", {}),
        ("dict", "console", {}),
        ("dict", "console", {"compression_method": "zstd3"}),
        ("her", "bits", {}),
        ("her", "goal-bits", {}),
    ],
)
def test_batches_equal_sb3s(kind: str, name: str, options: dict[str, Any]) -> None:
    compressed, parent = REPLAY_PAIRS[kind]
    stream = recorded(name)
    theirs = options if options is SB3_OPTIMIZED else {}
    ours, expected = new_buffer(compressed, stream, 70, **options), new_buffer(parent, stream, 70, **theirs)
    extend_all(ours, stream[-1])
    add_all(stream[-1], expected)
    assert (ours.pos, ours.full, ours.size()) == (expected.pos, expected.full, expected.size())
    for seed in range(5):
        assert_same_batch(*same_draws(*[partial(each.sample, 64) for each in (ours, expected)], seed=seed))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 5)])
def test_observations_without_elements(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 1, shape, np.uint8)
    buffer = CompressedReplayBuffer(20, space, BUTTONS, "cpu", n_envs=2, compression_method="zstd3")
    nothing = np.zeros((5, 2, *shape), np.uint8)
    rewards = np.arange(10.0).reshape(5, 2)
    buffer.extend(nothing, nothing, rewards % 9, rewards, rewards > 8, timeouts=rewards > 9)
    np.testing.assert_array_equal(buffer.rewards[:5], rewards)
    assert buffer.observations[:5].shape == nothing.shape


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True}, {"frame_stack": 4}, {"num_threads": 1}])
@pytest.mark.parametrize("size", [1, 2, 17, 64, 500])
def test_extend_equals_a_loop_of_add(n_envs: int, options: dict[str, Any], size: int) -> None:
    ours = CompressedReplayBuffer(size * n_envs, SPACE, BUTTONS, "cpu", n_envs=n_envs, **options)
    looped = CompressedReplayBuffer(size * n_envs, SPACE, BUTTONS, "cpu", n_envs=n_envs, **options)
    for start, n in ((0, 5), (5, 130), (135, 1), (136, 66)):
        given = steps(n, n_envs, start)
        ours.extend(**given)
        for step in range(n):
            add_step(looped, given, step)
        assert (ours.pos, ours.full) == (looped.pos, looped.full)
        for name, values in contents(looped).items():
            np.testing.assert_array_equal(contents(ours)[name], values, name)


def test_copies_and_other_memory_layouts_are_stored_alike() -> None:
    """Observations may share memory with the next ones, be copies, or be channel-last in memory."""
    given = steps(60, 2)
    layouts = [given, {**given, "next_obs": given["next_obs"].copy()}]
    last = {
        name: np.moveaxis(np.ascontiguousarray(np.moveaxis(given[name], 2, -1)), -1, 2) for name in ("obs", "next_obs")
    }
    layouts += [{**given, **last}, {**given, "next_obs": last["next_obs"]}]
    layouts += [{**given, "obs": np.repeat(given["obs"], 2, axis=-1)[..., ::2]}]
    buffers = [CompressedReplayBuffer(200, SPACE, BUTTONS, "cpu", n_envs=2) for _ in layouts]
    for buffer, arguments in zip(buffers, layouts, strict=True):
        for part in (slice(0, 20), slice(20, 60)):
            buffer.extend(**{name: values[part] for name, values in arguments.items()})
        np.testing.assert_array_equal(buffer.observations[:50], given["obs"][:50])
        np.testing.assert_array_equal(buffer.next_observations[:50], given["next_obs"][:50])
        assert buffer.observations_nbytes < 0.05 * buffer.raw_observations_nbytes


def test_sequences_are_accepted_as_by_sb3() -> None:
    given = steps(20)
    timeouts = given.pop("timeouts")
    infos = [[{"TimeLimit.truncated": each}] for each in timeouts[:, 0]]
    buffers = [cls(50, SPACE, BUTTONS, "cpu") for cls in (CompressedReplayBuffer, ReplayBuffer)]
    for buffer in buffers:
        buffer.extend(*[[*values] for values in given.values()], infos)
    for name, values in contents(buffers[1]).items():
        np.testing.assert_array_equal(contents(buffers[0])[name], values)


def test_sequences_of_dicts_are_accepted_as_by_sb3() -> None:
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    buffers = [new_buffer(cls, "console", 30) for cls in REPLAY_PAIRS["dict"]]
    for buffer in buffers:
        transitions = copy.deepcopy(recorded("console")[-1][:20])  # SB3's Dict buffers write into the dicts
        buffer.extend(*[[getattr(transition, name) for transition in transitions] for name in names])
    assert_same_batch(*same_draws(*[partial(buffer.sample, 50) for buffer in buffers], seed=0))


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"reward": np.zeros((19, 1))}, ValueError, "same number of steps"),
        ({"obs": np.zeros((20, 1, 4, 36, 37), np.uint8)}, ValueError, "obs"),
        ({"next_obs": np.full((20, 1, 4, 36, 36), 0.5)}, ValueError, "next_obs"),
        ({"action": np.zeros((20, 2))}, ValueError, "action"),
        ({"reward": np.zeros((20, 2))}, ValueError, "reward"),
        ({"obs": {}}, TypeError, "obs"),
        ({"done": np.array([["no"]] * 20)}, TypeError, "done"),
        ({"timeouts": None}, ValueError, "timeouts"),
        ({"timeouts": np.array([["no"]] * 20)}, TypeError, "timeouts"),
        ({"timeouts": np.zeros((20, 2), np.bool_)}, ValueError, "timeouts"),
        ({"infos": [[{}]] * 20}, ValueError, "not both"),
        ({"timeouts": None, "infos": [[{}]] * 19}, ValueError, "same number of steps"),
        ({"timeouts": None, "infos": [[{}, {}]] * 20}, ValueError, "infos"),
    ],
)  # fmt: skip
def test_wrong_arguments_add_nothing(change: dict[str, Any], error: type[Exception], word: str, tmp_path: Path) -> None:
    all_options: list[dict[str, Any]] = [{}, {"storage": tmp_path / "buffer"}]
    for options in all_options:
        buffer = CompressedReplayBuffer(50, SPACE, BUTTONS, "cpu", **options)
        buffer.extend(**steps(5))
        before = contents(buffer)
        with pytest.raises(error, match=word):
            buffer.extend(**{**steps(20), **change})
        assert buffer.pos == 5
        for name, values in contents(buffer).items():
            np.testing.assert_array_equal(values, before[name])
        buffer.extend(**steps(20))
        assert buffer.pos == 25


def test_no_steps_add_nothing() -> None:
    buffer = CompressedReplayBuffer(50, SPACE, BUTTONS, "cpu")
    buffer.extend(**steps(0))
    buffer.extend([], [], [], [], [], [])
    assert buffer.size() == 0


def test_time_limits_are_needed_only_where_they_are_stored() -> None:
    given = steps(20)
    del given["timeouts"]
    buffer = CompressedReplayBuffer(50, SPACE, BUTTONS, "cpu", handle_timeout_termination=False)
    buffer.extend(**given)
    assert buffer.pos == 20
    with pytest.raises(ValueError, match="stores no time limits"):
        buffer.extend(**steps(20))
    assert buffer.pos == 20


def test_a_subclass_that_overrides_add_gets_every_step() -> None:
    class Scaled(CompressedReplayBuffer):
        def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
            super().add(obs, next_obs, action, 0.5 * reward, done, infos)

    buffer = Scaled(50, SPACE, BUTTONS, "cpu")
    buffer.extend(**steps(20))
    np.testing.assert_array_equal(buffer.rewards[:20, 0], 0.5 * np.arange(20))


def test_a_sampler_has_the_same_priorities_as_after_a_loop() -> None:
    buffers = [CompressedReplayBuffer(30, SPACE, BUTTONS, "cpu", sampler=PrioritizedSampler()) for _ in range(2)]
    for start in range(0, 60, 20):
        given = steps(20, start=start)
        buffers[0].extend(**given)
        for step in range(20):
            add_step(buffers[1], given, step)
        batches = same_draws(*[partial(buffer.sample, 16) for buffer in buffers], seed=start)
        assert_same_batch(*batches)
        for buffer, batch in zip(buffers, batches, strict=True):
            buffer.update_priorities(batch.indices, np.linspace(0.1, 3, 16))


def test_a_mixed_buffer_extends_the_online_one() -> None:
    online, other = (CompressedReplayBuffer(50, SPACE, BUTTONS, "cpu") for _ in range(2))
    MixedReplayBuffer.from_buffers([online, other], weights=[1, 1]).extend(**steps(20))
    assert (online.pos, other.pos) == (20, 0)


def test_hindsight_replay_needs_the_info_dicts_that_it_copies() -> None:
    goals = recorded("bits")
    buffer = new_buffer(CompressedHerReplayBuffer, goals, 50, copy_info_dict=True)
    given = stacked(goals[-1][:10])
    infos = given.pop("infos")
    with pytest.raises(ValueError, match="infos"):
        buffer.extend(**given, timeouts=np.zeros((10, buffer.n_envs), np.bool_))
    buffer.extend(**given, infos=infos)
    assert buffer.pos == 10


@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_folder_contains_what_was_extended(size: int, tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(size, SPACE, BUTTONS, "cpu", storage=tmp_path / "buffer")
    expected = CompressedReplayBuffer(size, SPACE, BUTTONS, "cpu")
    for start in (0, 30):
        buffer.extend(**steps(30, start=start))
        expected.extend(**steps(30, start=start))
    buffer.extend(**steps(80, start=60))
    expected.extend(**steps(80, start=60))
    buffer.close()
    loaded = load_checkpoint(tmp_path / "buffer")
    assert (loaded.pos, loaded.full) == (expected.pos, expected.full)
    for name, values in contents(expected).items():
        np.testing.assert_array_equal(contents(loaded)[name], values)


def test_extend_in_a_joint_commit_belongs_to_it(tmp_path: Path) -> None:
    buffer = CompressedReplayBuffer(200, SPACE, BUTTONS, "cpu", storage=tmp_path / "buffer")
    with buffer.joint_commit(45):
        buffer.extend(**steps(20))
        buffer.extend(**steps(20, start=20))
        assert load_checkpoint(tmp_path / "buffer", follow=True).size() == 0
        with pytest.raises(StorageError, match="more steps"):
            buffer.extend(**steps(10, start=40))
        buffer.extend(**steps(5, start=40))
    buffer.close()
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "buffer").rewards[:45, 0], np.arange(45))


EXTENDING = """
import sys
from buffers.test_extend import BUTTONS, SPACE, steps
from sb3_compressed import CompressedReplayBuffer
buffer = CompressedReplayBuffer(1000, SPACE, BUTTONS, "cpu", storage=sys.argv[1])
print("ready", flush=True)
start = 0
while True:
    buffer.extend(**steps(97, start=start))
    start += 97
"""


def test_a_killed_process_leaves_all_steps_of_a_call_or_none(tmp_path: Path) -> None:
    with programs.start(EXTENDING, tmp_path / "buffer") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.03)
        process.kill()
    loaded = load_checkpoint(tmp_path / "buffer")
    if not loaded.full:
        assert loaded.pos % 97 == 0
    rewards = loaded.rewards[: loaded.size(), 0]
    for row, number in enumerate(rewards.tolist()):
        expected = steps(1, start=int(number))
        np.testing.assert_array_equal(loaded.observations[row], expected["obs"][0])
        np.testing.assert_array_equal(loaded.next_observations[row], expected["next_obs"][0])
    newest = np.roll(rewards, -loaded.pos) if loaded.full else rewards
    np.testing.assert_array_equal(np.diff(newest), 1)


@pytest.mark.parametrize("method", ["add", "extend"])
def test_an_interrupt_leaves_whole_transitions(method: str) -> None:
    """Each row but those that were being written has the content of one transition, and the buffer can be used."""

    def with_some_rows() -> CompressedReplayBuffer:
        buffer = CompressedReplayBuffer(40, SPACE, BUTTONS, "cpu", frame_stack=4)
        buffer.extend(**steps(60))
        return buffer

    given = steps(30, start=60)

    def extend(buffer: CompressedReplayBuffer) -> None:
        if method == "extend":
            buffer.extend(**given)
            return
        for step in range(30):
            add_step(buffer, given, step)

    buffer = with_some_rows()
    found = bytecodes(lambda: extend(buffer))
    assert len(found) > 300
    for at in evenly(found, 40 if FACTOR is None else 150):
        buffer = with_some_rows()
        interrupt(lambda: extend(buffer), at)  # noqa: B023  # it is called at once
        for row, number in enumerate(buffer.rewards[:, 0].tolist()):
            if method == "add" and row == buffer.pos:
                continue
            expected = steps(1, start=int(number))
            np.testing.assert_array_equal(buffer.observations[row], expected["obs"][0])
            np.testing.assert_array_equal(buffer.next_observations[row], expected["next_obs"][0])
            assert buffer.actions[row, 0, 0] == number % 9
            assert buffer.timeouts[row, 0] == (number % 14 == 13)
        if method == "extend":
            assert buffer.pos in (20, 0, 10)  # before, at the end of the ring, and after 30 steps
        buffer.extend(**steps(30, start=200))


def test_an_interrupted_add_of_hindsight_replay_can_be_repeated() -> None:
    env = make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 20, "max_steps": 9})
    space, action_space, n_envs, transitions = recorded("goal-bits")
    # Of an episode that wraps around the ring of 30 rows.
    ends = [number for number, each in enumerate(transitions) if each.done.any() and number >= 40 and number % 30 < 5]

    def with_some_rows(n: int) -> CompressedHerReplayBuffer:
        buffer = CompressedHerReplayBuffer(30 * n_envs, space, action_space, env, device="cpu", n_envs=n_envs)
        for transition in transitions[:n]:
            transition.add_to(buffer)
        return buffer

    end, n_added = transitions[ends[0]], ends[0]
    after = with_some_rows(n_added + 1)
    for _ in range(2):  # the first call runs what no later one does, such as imports
        found = bytecodes(partial(end.add_to, with_some_rows(n_added)))
    writing = [at for at in found if at[0].co_name in ("_write_steps", "write_observations", "write_encoded")]
    assert len(writing) > 100
    for at in evenly(writing, 30 if FACTOR is None else 80):
        buffer = with_some_rows(n_added)
        interrupt(lambda: end.add_to(buffer), at)  # noqa: B023  # it is called at once
        if buffer.pos == n_added % 30:
            end.add_to(buffer)
        for name in ("pos", "ep_start", "ep_length", "_current_ep_start", "rewards", "dones", "actions"):
            np.testing.assert_array_equal(getattr(buffer, name), getattr(after, name), err_msg=f"{name} {at}")
        for key, array in after.observations.items():
            np.testing.assert_array_equal(buffer.observations[key], array)


def test_steps_before_an_error_of_a_codec_stay() -> None:
    from sb3_compressed.codecs.zstd import Zstd

    class Failing(Zstd):
        n_left = 110

        def encode(self, frames: NDArray[Any]) -> list[bytes]:
            if type(self).n_left < len(frames):
                raise CodecError("it fails")
            type(self).n_left -= len(frames)
            return super().encode(frames)

    buffer = CompressedReplayBuffer(500, SPACE, BUTTONS, "cpu", compression_method=Failing(3), frame_stack=4)
    with pytest.raises(CodecError, match="it fails"):
        buffer.extend(**steps(200))
    assert buffer.pos == 96
    np.testing.assert_array_equal(buffer.rewards[:96, 0], np.arange(96))
    np.testing.assert_array_equal(buffer.observations[:96], steps(96)["obs"])


class Costs:
    """Takes a further argument for each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        buffer: Any = self
        self.costs = np.zeros((buffer.buffer_size, buffer.n_envs))

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any, cost: Any) -> None:
        buffer: Any = super()
        self.costs[self.pos] = cost  # type: ignore[attr-defined]
        buffer.add(obs, next_obs, action, reward, done, infos)


class NoInfos:
    """Takes no infos."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any) -> None:
        buffer: Any = super()
        buffer.add(obs, next_obs, action, reward, done, [{}] * len(done))


class WholeTransitions:
    """Takes one object for each step."""

    def add(self, transition: Any) -> None:
        buffer: Any = super()
        buffer.add(*vars(transition).values())


class ScaledObservations:
    """Takes observations that the buffer would refuse."""

    def add(self, obs: Any, next_obs: Any, *others: Any) -> None:
        buffer: Any = super()
        buffer.add(*[tree_map(lambda part: (2 * part).astype(part.dtype), each) for each in (obs, next_obs)], *others)


def columns_of(transitions: Any) -> list[list[Any]]:
    """Return the arguments of ``extend`` as lists of what ``add`` takes."""
    transitions = copy.deepcopy(transitions)  # SB3's Dict buffers write into the dicts
    return [[getattr(each, name) for each in transitions] for name in vars(transitions[0])]


CALLS: dict[str, tuple[Any, Callable[[list[Any]], list[Any]]]] = {
    "lists": (object, lambda columns: columns),
    "tuples": (object, lambda columns: [*map(tuple, columns)]),
    "iterators": (object, lambda columns: [*map(iter, columns)]),
    "generators": (object, lambda columns: [(each for each in column) for column in columns]),
    "one iterator": (object, lambda columns: [*columns[:3], iter(columns[3]), *columns[4:]]),
    "no arguments": (object, lambda columns: []),
    "no steps": (object, lambda columns: [[]] * 6),
    "a further argument": (Costs, lambda columns: [*columns, np.random.default_rng(0).random((len(columns[0]), 1))]),
    "no infos": (NoInfos, lambda columns: columns[:5]),
    "objects": (WholeTransitions, lambda columns: [[Transition(*each) for each in zip(*columns, strict=True)]]),
    "observations of another range": (ScaledObservations, lambda columns: columns),
    "iterators of an own add": (ScaledObservations, lambda columns: [*map(iter, columns)]),
}


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize(
    ("kind", "name"), [("replay", "atari"), ("n-step", "cart"), ("dict", "console"), ("her", "bits")]
)
def test_calls_are_those_of_sb3(kind: str, name: str, case: str, in_folder: bool, tmp_path: Path) -> None:
    """``for data in zip(*args): self.add(*data)``, with whatever arguments the ``add`` of a subclass takes."""
    mixin, arguments = CALLS[case]
    stream = recorded(name)
    buffers = []
    for cls in REPLAY_PAIRS[kind]:
        own: Any = cls if mixin is object else type("Own", (mixin, cls), {})
        options: dict[str, Any] = {"storage": tmp_path / "folder"} if in_folder and cls is REPLAY_PAIRS[kind][0] else {}
        buffers.append(new_buffer(own, stream, 40, **options))
        for part in (slice(0, 45), slice(45, 70)):
            buffers[-1].extend(*arguments(columns_of(stream[-1][part])))
    ours, theirs = buffers
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    np.testing.assert_array_equal(getattr(ours, "costs", 0), getattr(theirs, "costs", 0))
    if theirs.size() and (kind != "her" or theirs.ep_length.any()):
        assert_same_batch(*same_draws(*[partial(each.sample, 30) for each in buffers], seed=0))
    if in_folder:
        ours.close()


def test_dicts_of_arrays_and_time_limits_for_an_own_add() -> None:
    stream = recorded("console")
    own: Any = type("Own", (Scaled, CompressedDictReplayBuffer), {})
    buffers = [new_buffer(cls, stream, 30) for cls in (CompressedDictReplayBuffer, own)]
    transitions = stream[-1][:20]
    given = stacked(transitions)
    infos = given.pop("infos")
    timeouts = np.array([[info.get("TimeLimit.truncated", False) for info in each] for each in infos])
    for buffer in buffers:
        buffer.extend(**given, timeouts=timeouts)
        with pytest.raises(ValueError, match="not both"):
            buffer.extend(**given, timeouts=timeouts, infos=infos)
    np.testing.assert_array_equal(buffers[1].rewards, 0.5 * buffers[0].rewards)
    buffers[1].rewards[:] *= 2
    assert_same_batch(*same_draws(*[partial(each.sample, 30) for each in buffers], seed=0))


class Scaled:
    """Changes rewards."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        buffer: Any = super()
        buffer.add(obs, next_obs, action, 0.5 * reward, done, infos)


def test_a_wrapper_of_add_gets_its_further_arguments() -> None:
    costs: list[Any] = []

    @functools.wraps(CompressedReplayBuffer.add)
    def add(self: Any, *args: Any) -> None:
        *transition, cost = args
        costs.append(cost)
        CompressedReplayBuffer.add(self, *transition)

    Own: Any = type("Own", (CompressedReplayBuffer,), {"add": add})
    stream = recorded("atari")
    buffer = new_buffer(Own, stream, 40)
    buffer.extend(*stacked(stream[-1][:5]).values(), range(5))
    assert costs == [*range(5)]
    assert buffer.size() == 5


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_method_of_one_buffer_gets_every_step(is_timed: bool) -> None:
    buffer: Any = CompressedReplayBuffer(50, SPACE, BUTTONS, "cpu")
    costs = []

    def add(*transition: Any) -> None:
        costs.append(transition[6])
        CompressedReplayBuffer.add(buffer, *transition[:6])

    buffer.add = add
    if is_timed:
        buffer.start_timers()
    given = steps(20)
    infos: Any = [[{}]] * 20
    buffer.extend(*[given[name] for name in ("obs", "next_obs", "action", "reward", "done")], infos, range(20))
    assert (buffer.pos, costs) == (20, [*range(20)])


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda columns: [*columns[:5], columns[5][:19]], ValueError, "length|shorter|number of steps"),
        (
            lambda columns: [iter(columns[0]), *columns[1:3], columns[3][:19], *columns[4:]],
            ValueError,
            "shorter|number of",
        ),
        (lambda columns: [*columns, columns[0]], TypeError, "7|8"),
        (lambda columns: columns[:2], TypeError, "missing"),
        (lambda columns: columns[:5], (TypeError, ValueError), "infos"),
    ],
)
def test_wrong_calls_raise_as_in_sb3(own: bool, change: Any, error: Any, word: str) -> None:
    stream = recorded("atari-single")
    cls: Any = type("Own", (Scaled, CompressedReplayBuffer), {}) if own else CompressedReplayBuffer
    buffer = new_buffer(cls, stream, 50)
    with pytest.raises(error, match=word):
        buffer.extend(*change(columns_of(stream[-1][:20])))
    assert own or buffer.size() == 0
    if own:
        assert buffer.size() in (0, 19)


def test_steps_of_a_generator_are_not_collected() -> None:
    """A data set may be larger than the memory."""
    n_alive, most = 0, 0

    class Tracked(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            nonlocal n_alive
            n_alive -= 1

    def frames() -> Any:
        nonlocal n_alive, most
        for number in range(500):
            frame = np.full((1, 4, 36, 36), number % 251, np.uint8).view(Tracked)
            n_alive += 1
            most = max(most, n_alive)
            yield frame

    buffer = CompressedReplayBuffer(100, SPACE, BUTTONS, "cpu")
    zeros = np.zeros((500, 1))
    buffer.extend(frames(), frames(), zeros, zeros, zeros == 1, timeouts=zeros == 1)
    assert (buffer.pos, buffer.full) == (0, True)
    assert most < 200
