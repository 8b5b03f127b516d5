"""Attributes that a subclass stores elsewhere, such as in memory that processes share, by properties."""

from __future__ import annotations

import copy
import mmap
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS, SB3_OPTIMIZED
from drawn_examples import FACTOR
from interrupts import bytecodes, evenly, interrupt
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from support import Transition, add_all, assert_same_batch, new_buffer, recorded, same_draws

from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer
from sb3_compressed.buffers.resize import resize

STREAMS = {"replay": "atari-single", "n-step": "atari-single", "dict": "console", "her": "goal-bits"}


class SharedPosition:
    """Stores the position in memory that a forked process would share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._shared = np.frombuffer(mmap.mmap(-1, 16), np.int64)
        super().__init__(*args, **kwargs)

    @property
    def pos(self) -> Any:
        """The row that is written next."""
        return self._shared[0]

    @pos.setter
    def pos(self, value: int) -> None:
        self._shared[0] = value

    @property
    def full(self) -> Any:
        """Whether all rows are written."""
        return np.bool_(self._shared[1])

    @full.setter
    def full(self, value: bool) -> None:
        self._shared[1] = value


def sharing(cls: type[Any]) -> Any:
    return type(f"Sharing{cls.__name__}", (SharedPosition, cls), {})


def contents(buffer: Any) -> dict[str, Any]:
    """Return copies of the arrays, the position, and the episodes."""
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")
    values = {name: getattr(buffer, name) for name in names if hasattr(buffer, name)}
    found = {"pos": np.array(buffer.pos), "full": np.array(buffer.full)}
    for name, value in values.items():
        parts = value if isinstance(value, dict) else {"": value}
        found.update({f"{name}{key}": np.array(part) for key, part in parts.items()})
    return found


def assert_same_contents(ours: Any, theirs: Any) -> None:
    expected = contents(theirs)
    for name, value in contents(ours).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": "prioritized"}, {"storage": "folder"}, {"storage": "folder", "sampler": "prioritized"}],
    ids=repr,
)
@pytest.mark.parametrize("kind", REPLAY_PAIRS)
def test_positions_of_replay_buffers(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    compressed, parent = REPLAY_PAIRS[kind]
    stream = recorded(STREAMS[kind])
    if "storage" in options:
        options = {**options, "storage": tmp_path / "folder"}
    ours, theirs = new_buffer(sharing(compressed), stream, 30, **options), new_buffer(sharing(parent), stream, 30)
    for step, transition in enumerate(stream[-1][:70]):
        add_all([transition], ours, theirs)
        assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
        if step % 10 == 9 and (kind != "her" or theirs.ep_length.any()):
            if "sampler" in options:
                ours.sample(8)
            else:
                assert_same_batch(*same_draws(*[partial(each.sample, 8) for each in (ours, theirs)], seed=step))
    assert_same_contents(ours, theirs)
    if "storage" in options:
        ours.close()
        env = {"env": theirs.env} if kind == "her" else {}
        loaded = type(ours).from_checkpoint(tmp_path / "folder", device="cpu", **env)
        assert_same_contents(loaded, theirs)


@pytest.mark.parametrize("options", [{}, SB3_OPTIMIZED, {"optimize_memory_usage": True}], ids=repr)
def test_positions_in_everything_else(options: dict[str, Any], tmp_path: Path) -> None:
    stream = recorded("atari-single")
    transitions = stream[-1]
    ours = new_buffer(sharing(CompressedReplayBuffer), stream, 30, **options)
    plain = new_buffer(CompressedReplayBuffer, stream, 30, **options)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    for buffer in (ours, plain):
        for part in (transitions[:20], transitions[20:75]):
            buffer.extend(*[[getattr(each, name) for each in part] for name in names])
    assert_same_contents(ours, plain)
    ours.save_checkpoint(tmp_path / "saved")
    loaded = type(ours).from_checkpoint(tmp_path / "saved", device="cpu")
    for restored in (loaded, pickle_copy(ours), copy.deepcopy(ours)):
        add_all(transitions[75:80], restored)
        assert (restored.pos, restored.full) == (20, True)
        add_all(transitions[80:100], restored)
        assert (restored.pos, restored.full) == (10, True)
    assert ours.pos == 15
    assert_same_batch(*same_draws(*[partial(each.sample, 8) for each in (ours, plain)], seed=0))
    mixed = MixedReplayBuffer.from_buffers([ours, plain], weights=[1, 1])
    add_all(transitions[75:78], mixed, plain)
    assert_same_contents(ours, plain)
    if options is not SB3_OPTIMIZED:
        for buffer in (ours, plain):
            resize(buffer, 50)
    assert_same_contents(ours, plain)
    add_all(transitions[100:130], ours, plain)
    assert_same_contents(ours, plain)
    other = new_buffer(CompressedReplayBuffer, stream, 30, **options)
    add_all(transitions[:7], other)
    ours.take_over(other)
    assert (ours.pos, ours.full) == (7, False)
    ours.reset()
    assert (ours.pos, ours.full, ours.size()) == (0, False, 0)


def pickle_copy(buffer: Any) -> Any:
    """Return a copy by pickling the attributes, since the class is not in a module."""
    new = object.__new__(type(buffer))
    new.__setstate__(pickle.loads(pickle.dumps(buffer.__getstate__())))
    return new


@pytest.mark.parametrize("kind", ROLLOUT_PAIRS)
def test_positions_of_rollout_buffers(kind: str) -> None:
    stream = recorded("console" if "dict" in kind else "atari-single")
    space, actions, n_envs, transitions = stream
    shape = {"hidden_state_shape": (10, 1, n_envs, 4)} if "recurrent" in kind else {}
    extra: dict[str, Any] = {}
    if shape:
        extra["lstm_states"] = RNNStates(*[(th.ones(1, n_envs, 4), th.ones(1, n_envs, 4))] * 2)
    ours, theirs = [
        sharing(cls)(10, space, actions, device="cpu", n_envs=n_envs, **shape) for cls in ROLLOUT_PAIRS[kind]
    ]
    for start in (0, 10):
        for buffer in (ours, theirs):
            buffer.reset()
            rng = np.random.default_rng(start)
            for number, transition in enumerate(transitions[start : start + 10]):
                assert (buffer.pos, buffer.full) == (number, False)
                transition.add_to_rollout(buffer, transition.done, rng, **extra)
            assert (buffer.pos, buffer.full) == (10, True)
            buffer.compute_returns_and_advantage(th.zeros(n_envs), np.zeros(n_envs))
        for _ in range(2):
            for each, expected in zip(
                *same_draws(*[lambda b=b: [*b.get(4)] for b in (ours, theirs)], seed=0), strict=True
            ):
                assert_same_batch(each, expected)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "in memory": ("replay", {}),
    "optimized": ("replay", {"optimize_memory_usage": True}),
    "prioritized": ("replay", {"sampler": "prioritized"}),
    "prioritized and optimized": ("replay", {"sampler": "prioritized", "optimize_memory_usage": True}),
    "in a folder": ("replay", {"storage": "folder", "sampler": "prioritized"}),
    "Dict": ("dict", {}),
    "hindsight": ("her", {}),
    "hindsight, prioritized": ("her", {"sampler": "prioritized"}),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("case", OPTIONS)
def test_an_interrupted_write_can_be_repeated(case: str, shared: bool, tmp_path: Path) -> None:
    """Ctrl-C at any bytecode that writes the last row loses no other row, whatever is done in between."""
    kind, options = OPTIONS[case]
    stream = recorded(STREAMS[kind])
    cls = REPLAY_PAIRS[kind][0]
    cls = sharing(cls) if shared else cls
    transitions: list[Transition] = stream[-1]
    n_rows = next(end + 1 for end in range(20, 60) if kind != "her" or transitions[end].done.any())

    def before_the_last_row(folder: str = "folder") -> Any:
        where = {"storage": tmp_path / folder, "storage_mode": "overwrite"} if "storage" in options else {}
        buffer = new_buffer(cls, stream, n_rows, **{**options, **where})
        add_all(transitions[: n_rows - 1], buffer)
        return buffer

    last, following = transitions[n_rows - 1], transitions[n_rows : n_rows + 5]
    expected = before_the_last_row("expected")
    found = bytecodes(lambda: last.add_to(expected))
    names = ("add", "_add", "_write_steps", "_write_episode_steps", "write_encoded", "add_rows", "commit_row")
    writing = [at for at in found if at[0].co_name in names]
    assert len(writing) > 100
    after = []
    for at in evenly(writing, 40 if FACTOR is None else len(writing)):
        buffer = before_the_last_row()
        interrupt(lambda: last.add_to(buffer), at)  # noqa: B023  # it is called at once
        if kind != "her" or buffer.ep_length.any():
            buffer.sample(8)
        if buffer.pos == n_rows - 1:
            last.add_to(buffer)
        after.append(buffer.full)
        assert_same_contents(buffer, expected)
        if "sampler" in options:
            assert np.array_equal(buffer.sampler.is_valid, expected.sampler.is_valid)
        add_all(following, buffer)
        assert buffer.pos == 5
        buffer.close()
    expected.close()
    assert all(after)


def test_observations_stay_where_they_are() -> None:
    def observations(self: Any) -> Any:
        return self._own

    def set_observations(self: Any, value: Any) -> None:
        self._own = value

    for name in ("observations", "next_observations"):
        with pytest.raises(TypeError, match=name):
            type("Own", (CompressedReplayBuffer,), {name: property(observations, set_observations)})


def test_arrays_of_properties_are_saved(tmp_path: Path) -> None:
    class Shared(CompressedReplayBuffer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._own: dict[str, Any] = {}
            super().__init__(*args, **kwargs)

    def attribute(name: str) -> property:
        def read(self: Any) -> Any:
            return self._own[name]

        def write(self: Any, value: Any) -> None:
            self._own[name] = value

        return property(read, write)

    for name in ("rewards", "dones", "timeouts", "buffer_size", "n_envs"):
        setattr(Shared, name, attribute(name))
    stream = recorded("atari-single")
    theirs = new_buffer(CompressedReplayBuffer, stream, 30)
    add_all(stream[-1][:40], theirs)
    folders: list[dict[str, Any]] = [{}, {"storage": tmp_path / "folder"}]
    for options in folders:
        ours = new_buffer(Shared, stream, 30, **options)
        add_all(stream[-1][:40], ours)
        assert_same_contents(ours, theirs)
        assert_same_batch(*same_draws(*[partial(each.sample, 8) for each in (ours, theirs)], seed=0))
        if options:
            ours.close()
        else:
            ours.save_checkpoint(tmp_path / "saved")
    for folder in ("folder", "saved"):
        assert_same_contents(Shared.from_checkpoint(tmp_path / folder, device="cpu"), theirs)
