"""The state of samplers is stored with the buffer: resumed sampling continues exactly."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest
from conftest import recorded
from small_samplers import WeightedSampler
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from support import assert_same_batch

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CorruptStorage,
    StorageError,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.buffers.description import describe
from sb3_compressed.buffers.loading import open_to_read
from sb3_compressed.samplers import PrioritizedSampler, Sampler, available_samplers
from sb3_compressed.storage import verify
from sb3_compressed.storage.commit_writer import CommitWriter

ROWS, BATCH = 50, 24
CLASSES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "replay": (CompressedReplayBuffer, "atari", {}),
    "vectors": (CompressedReplayBuffer, "cart", {}),
    "optimized": (
        CompressedReplayBuffer, "cart", {"optimize_memory_usage": True, "handle_timeout_termination": False},
    ),
    "n-step": (CompressedNStepReplayBuffer, "cart", {"n_steps": 3, "gamma": 0.9}),
    "dict": (CompressedDictReplayBuffer, "console", {}),
    "her": (CompressedHerReplayBuffer, "goal-bits", {}),
}  # fmt: skip
SAMPLERS = [name for name in available_samplers() if name != "uniform"]


def env_of(kind: str) -> dict[str, Any]:
    """Return the environment that a class needs to be constructed or loaded."""
    if kind != "her":
        return {}
    env = make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 20, "max_steps": 9})
    env.reset()
    return {"env": env}


def new(kind: str, sampler: Any, rows: int = ROWS, **options: Any) -> Any:
    cls, name, arguments = CLASSES[kind]
    space, action_space, n_envs, _ = recorded(name)
    options = {**arguments, **env_of(kind), "num_threads": 1, **options}
    return cls(rows * n_envs, space, action_space, device="cpu", n_envs=n_envs, sampler=sampler, **options)


def add(buffer: Any, kind: str, first: int, last: int) -> None:
    """Add steps of the recorded environment."""
    for transition in recorded(CLASSES[kind][1])[-1][first:last]:
        transition.add_to(buffer)


def train(buffer: Any, seed: int, n_batches: int = 3) -> list[Any]:
    """Draw batches and update their priorities, if the sampler has any; return the batches."""
    np.random.seed(seed)  # noqa: NPY002  # what SB3 draws from
    batches = []
    for _ in range(n_batches):
        batch = buffer.sample(BATCH)
        batches.append(batch)
        if hasattr(buffer.sampler, "priorities"):
            buffer.update_priorities(batch.indices, np.random.exponential(size=BATCH))  # noqa: NPY002
    return batches


def assert_same_training(ours: Any, theirs: Any, seed: int = 7) -> None:
    """Assert that two buffers draw the same batches from now on."""
    for our_batch, their_batch in zip(train(ours, seed), train(theirs, seed), strict=True):
        # NumPy's indices are compared apart.
        assert_same_batch(our_batch._replace(indices=None), their_batch._replace(indices=None))
        np.testing.assert_array_equal(our_batch.indices, their_batch.indices)


def through_pickle(buffer: Any, kind: str, folder: Path) -> Any:
    return with_env(pickle.loads(pickle.dumps(buffer)), kind)


def with_env(buffer: Any, kind: str) -> Any:
    """Return a copy of a buffer with an environment, which copies and pickles do not contain."""
    for env in env_of(kind).values():
        buffer.set_env(env)
    return buffer


def through_copy(buffer: Any, kind: str, folder: Path) -> Any:
    return with_env(copy.deepcopy(buffer), kind)


def through_checkpoint(buffer: Any, kind: str, folder: Path) -> Any:
    save_checkpoint(buffer, folder)
    return load_checkpoint(folder, device="cpu", **env_of(kind))


def through_copied_checkpoint(buffer: Any, kind: str, folder: Path) -> Any:
    save_checkpoint(buffer, folder)
    copied = folder.with_name(f"copy {buffer.pos}")
    buffer.copy_checkpoint(copied)
    return load_checkpoint(copied, device="cpu", **env_of(kind))


SAVED: list[tuple[str, Any, Callable[..., Any]]] = [
    *((kind, "prioritized", way) for kind in CLASSES for way in (through_pickle, through_checkpoint)),
    *(("her", sampler, way) for sampler in SAMPLERS for way in (through_pickle, through_checkpoint)),
    *(("optimized", sampler, through_copy) for sampler in (*SAMPLERS, WeightedSampler())),
    ("vectors", "prioritized", through_copied_checkpoint),
]


@pytest.mark.parametrize(("kind", "sampler", "way"), SAVED)
def test_saved_buffers_continue_exactly(
    kind: str, sampler: str | Sampler, way: Callable[..., Any], tmp_path: Path
) -> None:
    buffer = new(kind, sampler)
    for first in (0, 30, 60, 90):  # an incremental save, and several laps
        add(buffer, kind, first, first + 30)
        train(buffer, first)
        add(buffer, kind, first + 27, first + 30)
        loaded = way(buffer, kind, tmp_path / "folder")
        assert type(loaded.sampler) is type(buffer.sampler)
        assert_same_training(loaded, buffer)
        add(buffer, kind, 200, 210)
        add(loaded, kind, 200, 210)
        assert_same_training(loaded, buffer)


@pytest.mark.parametrize(
    ("kind", "sampler"), [*((kind, "prioritized") for kind in CLASSES), *(("her", sampler) for sampler in SAMPLERS)]
)
def test_resumed_folders_continue_exactly(kind: str, sampler: str, tmp_path: Path) -> None:
    buffer = new(kind, sampler, storage=tmp_path)
    expected = new(kind, sampler)
    for first in (0, 30, 60, 90):
        for each in (buffer, expected):
            add(each, kind, first, first + 30)
            train(each, first)
            add(each, kind, first + 27, first + 30)
        buffer.close()
        buffer = new(kind, sampler, storage=tmp_path, storage_mode="resume")
        assert_same_training(buffer, expected)
    buffer.close()
    assert verify(tmp_path) == []


# -- resizing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [False, True])
@pytest.mark.parametrize(("kind", "rows"), [("vectors", 20), ("vectors", 90), ("optimized", 49), ("optimized", 51)])
def test_resized_buffers_keep_the_priorities_of_their_rows(kind: str, rows: int, storage: bool, tmp_path: Path) -> None:
    for n_steps in (33, 84):
        folder = tmp_path / str(n_steps)
        options: dict[str, Any] = {"storage": folder} if storage else {}
        buffer = new(kind, "prioritized", **options)
        add(buffer, kind, 0, n_steps)
        for seed in range(5):
            train(buffer, seed)
        expected = by_age(buffer)
        if storage:
            buffer.close()
            is_cut = len(expected) > rows - (kind == "optimized")
            with pytest.warns(UserWarning, match="do not fit") if is_cut else nullcontext():
                loaded = new(kind, "prioritized", rows, storage=folder, storage_mode="resume")
        else:
            save_checkpoint(buffer, folder)
            loaded = load_checkpoint(folder, device="cpu", buffer_size=rows * buffer.n_envs)
        n_kept = min(len(expected), rows - (kind == "optimized" and rows < len(expected) + 1))
        np.testing.assert_array_equal(by_age(loaded), expected[len(expected) - n_kept :])
        add(loaded, kind, n_steps, n_steps + 3)
        batch = train(loaded, 0)[-1]
        assert loaded.update_priorities(batch.indices, np.ones(BATCH)) == 0
        loaded.close()
        if storage:  # and what was written is consistent
            again = new(kind, "prioritized", rows, storage=folder, storage_mode="resume")
            assert_same_training(again, loaded)
            again.close()


def by_age(buffer: Any) -> Any:
    """Return the priorities of all transitions that may be drawn, ``(n_rows, n_envs)``, the oldest first."""
    priorities = buffer.sampler.priorities.reshape(buffer.buffer_size, buffer.n_envs)
    rolled = np.roll(priorities, -buffer.pos, axis=0) if buffer.full else priorities[: buffer.pos]
    return rolled[rolled.any(axis=1)]


# -- kills -----------------------------------------------------------------------------------------------------------


def test_failed_flush_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = new("vectors", "prioritized", storage=tmp_path)
    add(buffer, "vectors", 0, 30)
    buffer.flush()
    train(buffer, 0)
    commit, fails = CommitWriter.commit, iter([True])

    def failing(self: CommitWriter, *arguments: Any) -> None:
        if next(fails, False):
            raise OSError("no space left on device")
        commit(self, *arguments)

    monkeypatch.setattr(CommitWriter, "commit", failing)
    with pytest.raises(OSError, match="no space left"):
        buffer.flush()
    buffer.close()
    assert_same_training(new("vectors", "prioritized", storage=tmp_path, storage_mode="resume"), buffer)


@pytest.mark.parametrize(("kind", "n_steps"), [("vectors", 20), ("optimized", 84), ("her", 84)])
def test_transitions_of_failed_adds_are_not_drawn(
    kind: str, n_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, expected = new(kind, "prioritized", storage=tmp_path), new(kind, "prioritized")
    for each in (buffer, expected):
        add(each, kind, 0, n_steps)
        if kind != "her":  # an episode that is put back has the priority of new ones
            train(each, 0)
    for step in range(n_steps, n_steps + 30):  # in which episodes end and are overwritten
        with monkeypatch.context() as patch:
            patch.setattr(CommitWriter, "commit", lambda *_: (_ for _ in ()).throw(OSError("no space left on device")))
            with pytest.raises(OSError, match="no space left"):
                add(buffer, kind, step, step + 1)
        for each in (buffer, expected):
            each.sample(4)
        np.testing.assert_array_equal(buffer.sampler.is_valid, expected.sampler.is_valid)
        np.testing.assert_array_equal(buffer.sampler.priorities, expected.sampler.priorities)
        for each in (buffer, expected):
            add(each, kind, step, step + 1)
    buffer.close()


# -- other samplers than the stored one ------------------------------------------------------------------------------


def saved(folder: Path, sampler: Any, kind: str = "vectors") -> Any:
    """Save a trained buffer."""
    buffer = new(kind, sampler)
    add(buffer, kind, 0, 60)
    if sampler != "uniform":
        train(buffer, 0)
    save_checkpoint(buffer, folder)
    return buffer


def test_folders_rebuild_the_sampler(tmp_path: Path) -> None:
    saved(tmp_path, PrioritizedSampler(alpha=0.25, beta_steps=99, mode="lap"))
    loaded = load_checkpoint(tmp_path, device="cpu")
    assert loaded.sampler == PrioritizedSampler(alpha=0.25, beta_steps=99, mode="lap")
    assert describe(open_to_read(tmp_path))["sampler"] == {
        "name": "prioritized",
        "arguments": {
            "alpha": 0.25, "beta": 0.4, "beta_final": 1.0, "beta_steps": 99, "epsilon": 1e-6, "stratified": True,
            "mode": "lap",
        },
    }  # fmt: skip


def test_uniform_buffers_ignore_the_state(tmp_path: Path) -> None:
    buffer = saved(tmp_path, "prioritized")
    loaded = load_checkpoint(tmp_path, device="cpu", sampler="uniform")
    assert loaded.sampler is None
    np.testing.assert_array_equal(loaded.rewards, buffer.rewards)
    follower = load_checkpoint(tmp_path, device="cpu", sampler="uniform", follow=True)
    follower.sample(8)
    with pytest.warns(UserWarning, match=r"contains the state of the sampler .*prioritized.*sampler='uniform'"):
        resumed = new("vectors", "uniform", storage=tmp_path, storage_mode="resume")
    add(resumed, "vectors", 60, 70)
    resumed.close()
    assert load_checkpoint(tmp_path, device="cpu").sampler is None, "it was removed from the folder"


@pytest.mark.parametrize("storage", [False, True])
def test_folders_without_state_begin_with_the_priority_of_new_transitions(storage: bool, tmp_path: Path) -> None:
    saved(tmp_path, "uniform")
    if storage:
        buffer = new("vectors", "prioritized", storage=tmp_path, storage_mode="resume")
    else:
        buffer = load_checkpoint(tmp_path, device="cpu", sampler="prioritized")
    train(buffer, 0, 1)
    assert (by_age(buffer) > 0).all()
    if storage:
        buffer.close()
    else:
        save_checkpoint(buffer, tmp_path)
    assert_same_training(load_checkpoint(tmp_path, device="cpu"), buffer)


def test_another_alpha_raises(tmp_path: Path) -> None:
    saved(tmp_path, PrioritizedSampler(alpha=0.5))
    with pytest.raises(StorageError, match=r"'alpha': 0.5.*does not fit.*alpha=0.9") as raised:
        load_checkpoint(tmp_path, device="cpu", sampler=PrioritizedSampler(alpha=0.9))
    assert not isinstance(raised.value, CorruptStorage)


def test_other_arguments_continue_with_the_priorities(tmp_path: Path) -> None:
    buffer = saved(tmp_path, PrioritizedSampler(beta=0.5))
    other = PrioritizedSampler(beta=0.9, stratified=False)
    loaded = load_checkpoint(tmp_path, device="cpu", sampler=other)
    np.testing.assert_array_equal(loaded.sampler.priorities, buffer.sampler.priorities)
    new("vectors", other, storage=tmp_path, storage_mode="resume").close()
    assert load_checkpoint(tmp_path, device="cpu").sampler == other


def test_samplers_of_users_are_passed_again(tmp_path: Path) -> None:
    class MyWeightedSampler(WeightedSampler):
        """Another class."""

    buffer = saved(tmp_path, WeightedSampler())
    buffer.update_priorities(buffer.sample(BATCH).indices, np.arange(1.0, BATCH + 1))
    save_checkpoint(buffer, tmp_path)
    with pytest.raises(StorageError, match=r"sampler=WeightedSampler"):
        load_checkpoint(tmp_path, device="cpu")
    loaded = load_checkpoint(tmp_path, device="cpu", sampler=MyWeightedSampler())
    assert (loaded.sampler.values <= 1).all(), "that is another class"


class StoredSampler(WeightedSampler):
    """A sampler of a user, which stores its values."""

    n_draws = 0

    def draw(self, batch_size: int) -> Any:
        """Draw and count."""
        self.n_draws += 1
        return super().draw(batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with values of all kinds that can be stored."""
        odd = {"text": "ä", "none": None, "flag": np.bool_(True), "inf": np.float64("inf"), "key": np.arange(3)}
        return {**super().state_dict(), "values": self.values.copy(), "n_draws": self.n_draws, **odd}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state)
        assert (state["text"], state["none"], state["flag"], state["inf"]) == ("ä", None, True, np.inf)
        assert state["key"].tolist() == [0, 1, 2]
        self.values[:], self.n_draws = state["values"], state["n_draws"]


@pytest.mark.parametrize("kind", ["vectors", "her"])
def test_samplers_of_users_continue_exactly(kind: str, tmp_path: Path) -> None:
    buffer = new(kind, StoredSampler(), storage=tmp_path / "storage")
    add(buffer, kind, 0, 84)
    batch = buffer.sample(BATCH)
    buffer.update_priorities(batch.indices, np.arange(1.0, BATCH + 1))
    buffer.save_checkpoint(tmp_path / "saved")
    options = {"sampler": StoredSampler(), "device": "cpu", **env_of(kind)}
    loaded = load_checkpoint(tmp_path / "saved", **options)
    assert loaded.sampler.n_draws == buffer.sampler.n_draws == 1
    assert_same_training(loaded, buffer)
    buffer.close()
    assert_same_training(new(kind, StoredSampler(), storage=tmp_path / "storage", storage_mode="resume"), buffer)
    smaller = load_checkpoint(tmp_path / "saved", buffer_size=20 * buffer.n_envs, **options)
    np.testing.assert_array_equal(np.unique(smaller.sampler.values)[-1:] >= 1, True)
    train(smaller, 0)
    assert describe(open_to_read(tmp_path / "saved"))["class"] == type(buffer).__name__


class WithState(WeightedSampler):
    """A sampler of a user with a state of one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        """Return the state with the value."""
        return {**super().state_dict(), "value": self.value}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.complex128), "cannot store the array 'value' of .*its dtype is complex128"),
        ({1, 2}, "the state 'value' of .*: cannot store {1, 2}, which is not a number"),
    ],
)
def test_states_that_cannot_be_stored_raise(value: Any, message: str, tmp_path: Path) -> None:
    buffer = new("vectors", WithState(0))
    add(buffer, "vectors", 0, 20)
    save_checkpoint(buffer, tmp_path)
    buffer.sampler.value = value
    with pytest.raises(StorageError, match=message):
        save_checkpoint(buffer, tmp_path)
    loaded = load_checkpoint(tmp_path, device="cpu", sampler=WithState(0))
    np.testing.assert_array_equal(loaded.rewards, buffer.rewards)


def test_states_keep_their_shape(tmp_path: Path) -> None:
    buffer = new("vectors", WithState(np.zeros(3)), storage=tmp_path)
    add(buffer, "vectors", 0, 20)
    buffer.sampler.value = np.zeros(4)
    with pytest.raises(StorageError, match=r"value must always be \(3,\) of float64, got \(4,\) of float64"):
        buffer.flush()
    buffer.sampler.value = np.zeros(3)
    buffer.close()
    with pytest.raises(CorruptStorage, match=r"value must be \(4,\) of float64, got \(3,\) of float64"):
        load_checkpoint(tmp_path, device="cpu", sampler=WithState(np.zeros(4)))
    assert load_checkpoint(tmp_path, device="cpu", sampler=WithState(np.zeros(3))).pos == 20


# -- followers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vectors", "her"])
def test_followers_have_the_priorities_of_the_last_flush(kind: str, tmp_path: Path) -> None:
    buffer = new(kind, "prioritized", storage=tmp_path)
    add(buffer, kind, 0, 30)
    buffer.flush()
    follower = load_checkpoint(tmp_path, follow=True, device="cpu", **env_of(kind))
    for first in (30, 60, 90):
        add(buffer, kind, first, first + 27)
        train(buffer, first)
        follower.refresh()
        train(follower, 0)  # with rows that are in no flush yet
        buffer.flush()
        assert follower.refresh()
        np.testing.assert_array_equal(follower.sampler.priorities, buffer.sampler.priorities)
    buffer.close()


def test_followers_see_updates_without_new_transitions(tmp_path: Path) -> None:
    buffer = new("vectors", "prioritized", storage=tmp_path)
    add(buffer, "vectors", 0, 30)
    buffer.flush()
    follower = load_checkpoint(tmp_path, follow=True, device="cpu")
    buffer.update_priorities([1, 4], [0.3, 0.2])
    buffer.flush()
    assert follower.refresh()
    np.testing.assert_array_equal(follower.sampler.priorities, buffer.sampler.priorities)
    buffer.close()


def test_followers_of_uniform_buffers_keep_their_own_priorities(tmp_path: Path) -> None:
    buffer = new("vectors", "uniform", storage=tmp_path)
    add(buffer, "vectors", 0, 30)
    follower = load_checkpoint(tmp_path, follow=True, device="cpu", sampler="prioritized")
    train(follower, 0)
    before = by_age(follower)
    add(buffer, "vectors", 30, 40)
    assert follower.refresh()
    train(follower, 0, 0)
    np.testing.assert_array_equal(by_age(follower)[:30], before)
    buffer.close()


# -- hindsight replay ------------------------------------------------------------------------------------------------


def test_truncated_trajectories_are_included_after_loading(tmp_path: Path) -> None:
    buffer = new("her", "prioritized", storage=tmp_path)
    add(buffer, "her", 0, 32)
    with pytest.warns(UserWarning, match="last trajectory"):
        buffer.truncate_last_trajectory()
    assert buffer.ep_length.all(axis=1).sum() == 32
    loaded = load_checkpoint(tmp_path, device="cpu", **env_of("her"))
    for name in ("ep_start", "ep_length", "_current_ep_start", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(buffer, name), name)
    loaded.sample(1)
    assert (loaded.sampler.priorities > 0).sum() == 32 * buffer.n_envs
    buffer.close()


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    crafted.make_folder("vectors", tmp_path, sampler="prioritized")
    return tmp_path


def test_damaged_states_raise_in_any_way_and_are_repaired_in_their_folder(folder: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["sampler/priorities"].reshape(-1)[3] = np.nan

    crafted.forge(folder, change_arrays=change)

    def opened(mode: str) -> Any:
        return crafted.new_buffer("vectors", storage=folder, sampler="prioritized", storage_mode=mode)

    attempts: list[Callable[[], Any]] = [
        lambda: load_checkpoint(folder, device="cpu", follow=True),
        lambda: load_checkpoint(folder, device="cpu", buffer_size=10),
        lambda: opened("resume"),
    ]
    for attempt in attempts:
        with pytest.raises(CorruptStorage, match="the state of its sampler"):
            attempt()
    load_checkpoint(folder, device="cpu", sampler="uniform").sample(4)
    with pytest.warns(UserWarning, match="sampler"):
        buffer = opened("repair")
    assert_repaired(buffer)
    buffer.close()
    assert (load_checkpoint(folder, device="cpu").sampler.priorities == 1).all()
    assert verify(folder) == []


def assert_repaired(buffer: Any) -> None:
    buffer.sample(4)
    assert (buffer.sampler.priorities == 1).all()
    assert len(buffer.repair_report.dropped) == 0
    assert any("sampler" in problem for problem in buffer.repair_report.problems)
