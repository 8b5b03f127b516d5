"""Scripts assign positions of any kind of number, as one that they have loaded from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from support import Stream, add_all, assert_same_batch, filled, same_draws

from sb3_compressed import load_checkpoint, save_checkpoint

KINDS: dict[str, Callable[[Any], Any]] = {
    "int64": np.int64,
    "bool_ or int8": lambda number: np.bool_(number) if isinstance(number, bool) else np.int8(number),
    "0-d array": np.array,
    "tensor": lambda number: th.tensor([number]),
}
OPTIONS: list[dict[str, Any]] = [{}, {"sampler": "prioritized"}, {"storage": True, "sampler": "prioritized"}]


@pytest.mark.parametrize("options", OPTIONS, ids=json.dumps)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_is_a_position(kind: str, options: dict[str, Any], stream: Stream, tmp_path: Path) -> None:
    storage = {"storage": tmp_path / "folder"} if "storage" in options else {}
    ours, theirs = filled(stream, 20, 30, **{**options, **storage}), filled(stream, 20, 30, ReplayBuffer)
    for buffer in (ours, theirs):
        buffer.pos, buffer.full = (15, False) if buffer is theirs else (KINDS[kind](15), KINDS[kind](False))
    ours.sample(4)
    add_all(stream[-1][20:40], ours, theirs)
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full) == (5, True)
    if "sampler" not in options:
        assert_same_batch(*same_draws(lambda: ours.sample(50), lambda: theirs.sample(50), seed=1))
    if storage:
        ours.close()
    else:
        save_checkpoint(ours, tmp_path / "folder")
    loaded = load_checkpoint(tmp_path / "folder", device="cpu")
    assert (loaded.pos, loaded.full) == (5, True)
    assert np.array_equal(loaded.observations, theirs.observations)


@pytest.mark.parametrize("value", [15.5, 15.0, "15", None, [1, 2], np.zeros(0), th.zeros(2)], ids=repr)
def test_other_positions_raise(value: Any, stream: Stream, tmp_path: Path) -> None:
    buffer = filled(stream, 20, 30)
    before = np.array(buffer.observations)
    buffer.pos = value
    with pytest.raises(TypeError):
        add_all(stream[-1][20:21], buffer)
    with pytest.raises(TypeError):
        buffer.extend([], [], [], [], [], timeouts=[])
    with pytest.raises(TypeError):
        save_checkpoint(buffer, tmp_path)
    np.testing.assert_array_equal(before, buffer.observations)
