"""Every Python block of the README runs, in order and for real, with an Atari game as ``env``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import atari_env

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = atari_env("Pong", 1)
    namespace: dict[str, Any] = {"env": env}
    exec(block, namespace)
    if "model" in namespace:
        namespace["model"].learn(16)
    env.close()
    assert "print" not in block or capsys.readouterr().out


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4
