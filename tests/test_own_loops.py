"""The loops of ``docs/training.md`` store what the environments did, also where an episode ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support import atari_env
from test_documentation import BLOCKS

LOOPS = {name: block for name, block in BLOCKS.items() if "training" in name and "SyncVectorEnv" in block}
N_STEP = [LOOPS.pop(name) for name in [*LOOPS] if "NStep" in LOOPS[name]]
assert (len(LOOPS), len(N_STEP)) == (1, 1)
GAME = 'FrameStackObservation(AtariPreprocessing(gym.make("PongNoFrameskip-v4")), 4)'


@pytest.mark.skipif(not hasattr(gym.vector, "AutoresetMode"), reason="Gymnasium has no autoreset modes before 1.1")
def test_returns_end_at_time_limits() -> None:
    namespace: dict[str, Any] = {}
    exec(N_STEP[0].replace('"CartPole-v1"', '"CartPole-v1", max_episode_steps=7'), namespace)
    buffer, batch, n_steps = namespace["buffer"], namespace["batch"], 0.99 ** np.arange(4)
    assert buffer.timeouts.sum() > 40, "no random episode is as short as these"
    np.testing.assert_allclose(np.unique(batch.rewards), np.cumsum(n_steps)[:3], rtol=1e-6)
    np.testing.assert_allclose(np.unique(batch.discounts), n_steps[:0:-1], rtol=1e-6)
    assert batch.dones.sum() == 0, "values after time limits are bootstrapped"


@pytest.mark.skipif(not hasattr(gym.vector, "AutoresetMode"), reason="Gymnasium has no autoreset modes before 1.1")
@pytest.mark.parametrize("name", LOOPS)
def test_transitions_are_those_of_the_environments(name: str) -> None:
    namespace: dict[str, Any] = {}
    assert GAME in LOOPS[name]
    exec(LOOPS[name].replace(GAME, 'gym.make("CartPole-v1")'), namespace)  # whose episodes are short
    buffer = namespace["buffer"]
    n_ends = 0
    for env in range(buffer.n_envs):
        alone: gym.Env[Any, Any] = gym.make("CartPole-v1")
        obs, _ = alone.reset(seed=env)
        for row in range(buffer.size()):
            action = buffer.actions[row, env].item()
            next_obs, reward, terminated, truncated, _ = alone.step(action)
            np.testing.assert_array_equal(buffer.observations[row, env], obs)
            np.testing.assert_array_equal(buffer.next_observations[row, env], next_obs)
            assert (buffer.rewards[row, env], buffer.dones[row, env]) == (reward, terminated)
            obs = alone.reset()[0] if terminated or truncated else next_obs
            n_ends += terminated or truncated
        alone.close()
    assert n_ends >= buffer.n_envs
    assert buffer.size() == 100


def test_checkpoints_of_a_loop_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for name, block in BLOCKS.items() if "checkpoints" in name and "copy_checkpoint" in block]
    env = atari_env("Pong", 1)
    for step in ("1_000", "2_000", "3_000"):
        (tmp_path / "run" / "unfinished").mkdir(parents=True, exist_ok=True)  # as a crash leaves it
        namespace: dict[str, Any] = {"env": env}
        exec(block.replace("1_000", step), namespace)
        assert namespace["state"]["step"] == int(step)
        assert namespace["buffer"].size() == 50
    env.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"newest", "step-1000", "step-2000", "step-3000"}
