"""The round-trip check detects wrong data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_checks import check_replay, check_rollout
from frame_recording import Recording
from gymnasium import spaces

from adapters import make_replay, make_rollout
from adapters.sb3_adapters import Batch
from sb3_compressed.step import Step

N_ENVS, ROWS = 2, 40
IMAGES = Recording(Path(), N_ENVS, 1, spaces.Box(0, 255, (2, 8, 8), np.uint8), spaces.Discrete(3))


def steps() -> Iterator[Step]:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (N_ENVS, 2, 8, 8), np.uint8)
    for i in range(4 * ROWS):
        next_obs = rng.integers(0, 256, obs.shape, np.uint8)
        serial = np.arange(i * N_ENVS, (i + 1) * N_ENVS, dtype=np.float32)
        yield Step(obs, next_obs, np.zeros(N_ENVS, np.int64), serial, serial % 7 == 0, [{}] * N_ENVS)
        obs = next_obs


def damaged(adapter: Any, damage: Callable[[Batch], None], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an adapter that damages each batch."""
    read = adapter.read

    def read_damaged(batch: Any) -> Batch:
        result: Batch = read(batch)
        damage(result)
        return result

    monkeypatch.setattr(adapter, "read", read_damaged)
    return adapter


def flip(name: str) -> Callable[[Batch], None]:
    def damage(batch: Batch) -> None:
        getattr(batch, name)[3, 0, 5, 5] ^= 1

    return damage


def rename(batch: Batch) -> None:
    batch.serial[0] = 1e6


@pytest.mark.parametrize("name", ["SB3", "zstd3", "none"])
def test_correct_buffers_pass(name: str) -> None:
    assert check_replay(make_replay(name, IMAGES, ROWS), steps(), ROWS) == ""
    assert check_rollout(make_rollout(name, IMAGES, ROWS), steps(), ROWS) == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [(flip("obs"), "1 observations of"), (flip("next_obs"), "1 next observations"), (rename, "1 unknown of")],
)
def test_wrong_data_is_reported(damage: Callable[[Batch], None], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = damaged(make_replay("SB3", IMAGES, ROWS), damage, monkeypatch)
    assert message in check_replay(replay, steps(), ROWS)


def test_wrong_data_of_rollouts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = damaged(make_rollout("SB3", IMAGES, ROWS), flip("obs"), monkeypatch)
    assert "1 observations of" in check_rollout(rollout, steps(), ROWS)
