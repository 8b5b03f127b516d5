"""Subclasses of hindsight replay that skip its ``add``, since they track episodes in their own way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import add_all, assert_same_batch, new_buffer, recorded, same_draws

from sb3_compressed import CompressedHerReplayBuffer


def filtering(base: Any, skipped: Any) -> Any:
    """Return a class that begins no episodes in some rows."""

    class Filtering(base):  # type: ignore[misc]
        n_added = 0

        def add(self, *transition: Any) -> None:
            self.n_added += 1
            add = super(skipped, self).add if self.n_added % 7 < 3 else super().add
            add(*transition)

    return Filtering


def of_whole_episodes(base: Any, skipped: Any) -> Any:
    """Return a class that adds whole episodes of one environment, and can sample every second one."""

    class OfWholeEpisodes(base):  # type: ignore[misc]
        n_episodes = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.waiting: list[Any] = []

        def add(self, *transition: Any) -> None:
            self.waiting.append(transition)
            if not transition[4][0]:
                return
            self.n_episodes += 1
            rows = np.arange(self.pos, self.pos + len(self.waiting)) % self.buffer_size
            self.ep_length[self.ep_start[rows, 0], 0] = 0  # those of overwritten episodes
            self.ep_length[rows, 0] = 0
            self.ep_start[rows, 0] = self.pos
            for each in self.waiting:
                super(skipped, self).add(*each)
            self.waiting = []
            if self.n_episodes % 2:
                self.ep_length[rows, 0] = len(rows)

    return OfWholeEpisodes


@pytest.mark.parametrize("stored", ["renamed", "kept"])
@pytest.mark.parametrize("name", ["bits", "goal-bits"])
@pytest.mark.parametrize(
    ("make", "strategy"),
    [(filtering, "final"), (filtering, "episode"), (of_whole_episodes, "future"), (of_whole_episodes, "final")],
)
def test_a_subclass_that_skips_add_samples_as_sb3s(
    make: Callable[[Any, Any], Any], strategy: str, name: str, stored: str
) -> None:
    """``super(HerReplayBuffer, self).add``, with the class renamed or not."""
    stream = recorded(name)
    options = {"goal_selection_strategy": strategy}
    skipped = CompressedHerReplayBuffer if stored == "renamed" else HerReplayBuffer
    ours = new_buffer(make(CompressedHerReplayBuffer, skipped), stream, 37, **options)
    theirs = new_buffer(make(HerReplayBuffer, HerReplayBuffer), stream, 37, **options)
    n_samples = 0
    for step, transition in enumerate(stream[-1][:130]):
        add_all([transition], ours, theirs)
        for array in ("ep_start", "ep_length", "_current_ep_start", "rewards", "dones"):
            np.testing.assert_array_equal(getattr(ours, array), getattr(theirs, array), err_msg=f"{array} {step}")
        if theirs.ep_length.any():
            assert_same_batch(*same_draws(*[partial(each.sample, 12) for each in (ours, theirs)], seed=step))
            n_samples += 1
    assert n_samples > 50


@pytest.mark.parametrize("options", [{"sampler": "prioritized"}, {"storage": "folder"}], ids=repr)
def test_samplers_and_folders_need_add(options: dict[str, Any], tmp_path: Path) -> None:
    stream = recorded("goal-bits")
    where = {"storage": tmp_path / "folder"} if "storage" in options else options
    buffer = new_buffer(filtering(CompressedHerReplayBuffer, CompressedHerReplayBuffer), stream, 37, **where)
    for transition in stream[-1][:3]:
        with pytest.raises(TypeError, match=r"super\(\)\.add"):
            transition.add_to(buffer)
        assert buffer.size() == 0
        if buffer.n_added == 2:
            break
    buffer.n_added = 2
    add_all(stream[-1][:4], buffer)
    assert buffer.size() == 4
    buffer.close()


def test_one_that_skips_add_is_saved(tmp_path: Path) -> None:
    stream = recorded("goal-bits")
    cls = filtering(CompressedHerReplayBuffer, CompressedHerReplayBuffer)
    buffer = new_buffer(cls, stream, 37, goal_selection_strategy="final")
    add_all(stream[-1][:50], buffer)
    buffer.save_checkpoint(tmp_path / "saved")
    loaded = cls.from_checkpoint(tmp_path / "saved", device="cpu", env=buffer.env)
    for step, transition in enumerate(stream[-1][50:80]):
        loaded.n_added = buffer.n_added
        add_all([transition], buffer, loaded)
        assert_same_batch(*same_draws(*[partial(each.sample, 12) for each in (buffer, loaded)], seed=step))
