"""Every Python block of the README and of ``docs`` runs, for real, with an ALE game as ``env`` and DQN as ``model``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from dopamine_ring import Ring
from fork_server import fork_executables
from stable_baselines3 import DQN
from support import atari_env

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.codecs import registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {
    f"{page.relative_to(ROOT)}, {number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL), 1)
}


USES_RAY = {name for name, block in BLOCKS.items() if re.search("Ray|istributed", block)}


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # of metadata that is not given
@pytest.mark.parametrize(
    "name", [pytest.param(name, id=name, marks=[pytest.mark.slow] * (name in USES_RAY)) for name in BLOCKS]
)
def test_code_block_of_the_documentation_runs(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = BLOCKS[name]
    if "minari" in block:
        pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
    if "AutoresetMode" in block and not hasattr(gym.vector, "AutoresetMode"):
        pytest.skip("this version of Gymnasium has no autoreset modes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    if name in USES_RAY:
        monkeypatch.setattr(sys, "executable", sys.executable)  # restored after the test
        fork_executables()  # Ray, which the first of these blocks starts, starts its workers with them
    if "import_dopamine" in block:
        ring = Ring(100)
        ring.play(50, np.random.default_rng(0))
        ring.save(tmp_path / "Pong" / "1" / "replay_logs", 0)
    env = atari_env("Pong", 1)
    is_complete = name.startswith(("README", "docs/index"))  # what a new user pastes first defines everything
    namespace: dict[str, Any] = {} if is_complete else {"env": env}
    if re.search(r"\bmodel\b", block.partition("model =")[0]):
        options: dict[str, Any] = {"buffer_size": 1000, "learning_starts": 2000, "policy_kwargs": {"net_arch": [8]}}
        model = DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer, **options)
        namespace["model"] = model.learn(20)
    is_run_again = "missing_ok=True" in block  # with the same command, to continue
    for _ in range(1 + is_run_again):
        exec(block, namespace)
    if "model" in namespace:
        if hasattr(namespace["model"], "n_epochs"):
            namespace["model"].n_epochs = 1
        namespace["model"].learn(16)
    env.close()
    assert "print" not in block or capsys.readouterr().out


assert len(BLOCKS) >= 20, "the pattern finds the blocks"


def test_code_fits_into_the_pages() -> None:
    code = "\n".join(re.findall(r"```(?:python|console)\n(.*?)```", "\n".join(map(Path.read_text, PAGES)), re.DOTALL))
    assert [line for line in code.splitlines() if len(line) > 100] == []


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
