"""The buffers that ``advise`` compares get the same transitions, and return them."""

from __future__ import annotations

from typing import Any

import pytest
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage
from support import atari_env, console_env

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.cli.buffer_costs import BufferCost, measure_buffers


def costs_of(env: VecEnv, size: int, n_rows: int, *, is_rollout: bool = False) -> dict[str, BufferCost]:
    """Measure ``auto`` and ``none``, and count the steps."""
    counted: list[None] = []
    found = measure_buffers(env, ["auto", "none"], size, n_rows, 8, lambda: counted.append(None), is_rollout=is_rollout)
    env.close()
    assert len(counted) == 2 * n_rows
    return {cost.buffer: cost for cost in found}


@pytest.mark.parametrize("is_rollout", [False, True])
def test_dict_observations_are_compared(is_rollout: bool) -> None:
    found = costs_of(VecTransposeImage(console_env(2, max_steps=20)), 40, 40, is_rollout=is_rollout)
    assert [*found] == ["SB3", "auto", "none"], "SB3's Dict buffers have no optimize_memory_usage"
    assert found["auto"].ratio < 1


def test_a_buffer_that_returns_other_values_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Any, obs: Any, next_obs: Any, action: Any, reward: Any, *others: Any) -> None:
        original(self, obs, next_obs, action, reward + 1, *others)

    original = CompressedReplayBuffer.add
    monkeypatch.setattr(CompressedReplayBuffer, "add", add)
    with pytest.raises(RuntimeError, match="auto returned another batch"):
        costs_of(atari_env("Pong", 1), 100, 50)


def test_several_rollouts_are_added() -> None:
    found = costs_of(atari_env("Pong", 2), 16, 48, is_rollout=True)
    assert [*found] == ["SB3", "auto", "none"]
    assert found["SB3"].memory == pytest.approx(2 * 16 * 4 * 84 * 84, rel=0.01)
    assert found["auto"].ratio < 0.5
