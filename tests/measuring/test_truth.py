"""The check of what a buffer returns finds what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_compressed.measuring.contenders import Batch, Setup
from sb3_compressed.measuring.like_sb3 import make_replay, make_rollout
from sb3_compressed.measuring.recording import Step
from sb3_compressed.measuring.truth import check_replay, check_rollout

N_ENVS, ROWS = 2, 40
SETUP = Setup(ROWS * N_ENVS, spaces.Box(0, 255, (2, 8, 8), np.uint8), spaces.Discrete(3), N_ENVS)


def steps() -> Iterator[Step]:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (N_ENVS, 2, 8, 8), np.uint8)
    for i in range(4 * ROWS):
        next_obs = rng.integers(0, 256, obs.shape, np.uint8)
        serial = np.arange(i * N_ENVS, (i + 1) * N_ENVS, dtype=np.float32)
        yield Step(obs, next_obs, np.zeros(N_ENVS, np.int64), serial, serial % 7 == 0, [{}] * N_ENVS)
        obs = next_obs


def flip(name: str) -> Callable[[Batch], None]:
    def damage(batch: Batch) -> None:
        getattr(batch, name)[3, 0, 5, 5] ^= 1

    return damage


def rename(batch: Batch) -> None:
    batch.serial[0] = 1e6


@pytest.mark.parametrize("name", ["SB3", "auto", "zstd3", "none"])
def test_buffers_return_what_was_added(name: str) -> None:
    assert check_replay(make_replay(name, SETUP), steps(), ROWS) == ""
    assert check_rollout(make_rollout(name, SETUP), steps(), ROWS) == ""


@pytest.mark.parametrize(
    ("damage", "said"),
    [(flip("obs"), "1 observations of"), (flip("next_obs"), "1 next observations"), (rename, "1 unknown of")],
)
def test_what_is_wrong_is_said(damage: Callable[[Batch], None], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = make_replay("SB3", SETUP)
    read = replay.read

    def read_damaged(batch: Any) -> Batch:
        taken = read(batch)
        damage(taken)
        return taken

    monkeypatch.setattr(replay, "read", read_damaged)
    assert said in check_replay(replay, steps(), ROWS)
