"""Every Python block of the README runs, for real, with an Atari game as ``env`` and a DQN on it as ``model``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from support import atari_env

from sb3_compressed import CompressedReplayBuffer

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_block_runs(
    block: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = atari_env("Pong", 1)
    namespace: dict[str, Any] = {"env": env}
    if "model." in block and "model =" not in block:
        options: dict[str, Any] = {"buffer_size": 1000, "learning_starts": 2000, "policy_kwargs": {"net_arch": [8]}}
        model = DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer, **options)
        namespace["model"] = model.learn(20)
    exec(block, namespace)
    if "model" in namespace:
        namespace["model"].learn(16)
    env.close()
    assert "print" not in block or capsys.readouterr().out


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4
