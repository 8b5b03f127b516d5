"""Every Python block of the README and of ``docs`` runs, page by page, as a reader pastes one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from dopamine_ring import Ring
from fork_server import fork_executables

from sb3_compressed.codecs import registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INCLUDE = re.compile(r'```\{include\} (\S+)\n:start-after: "(.*)"\n:end-before: "(.*)"\n(?:.*\n)?```')


def read_page(page: Path) -> str:
    """Return the text of a page, with what it includes of other ones."""

    def included(found: re.Match[str]) -> str:
        text = (page.parent / found[1]).read_text(encoding="utf-8")
        return text[text.index(found[2]) + len(found[2]) : text.index(found[3])]

    return INCLUDE.sub(included, page.read_text(encoding="utf-8"))


TEXTS = {page.relative_to(ROOT).as_posix(): read_page(page) for page in PAGES}
BLOCKS = {
    f"{page}, {number}": block
    for page, text in TEXTS.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), 1)
}


def blocks_of(page: str) -> dict[str, str]:
    return {name: block for name, block in BLOCKS.items() if name.startswith(f"{page}, ")}


WITH_CODE = [page for page in TEXTS if blocks_of(page) and page != "README.md"]  # which the quick start includes
USES_RAY = {page for page in WITH_CODE if "distributed import" in "".join(blocks_of(page).values())}


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # of metadata that is not given
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in USES_RAY)) for page in WITH_CODE]
)
def test_code_of_a_page_runs(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    if page in USES_RAY:
        monkeypatch.setattr(sys, "executable", sys.executable)  # restored after the test
        fork_executables()  # Ray starts its workers with them
    namespace: dict[str, Any] = {}
    for name, block in blocks_of(page).items():
        if "minari" in block and find_spec("minari") is None:
            continue  # a Minari that stores images without loss needs Python 3.11
        if "AutoresetMode" in block and not hasattr(gym.vector, "AutoresetMode"):
            continue  # before Gymnasium 1.1
        if "import_dopamine" in block:
            ring = Ring(100)
            ring.play(50, np.random.default_rng(0))
            ring.save(tmp_path / "Pong" / "1" / "replay_logs", 0)
        code = compile(block, name, "exec")
        is_run_again = "missing_ok=True" in block  # with the same command, to continue
        for _ in range(1 + is_run_again):
            exec(code, namespace)
        if "model =" in block:
            if hasattr(namespace["model"], "n_epochs"):
                namespace["model"].n_epochs = 1
            namespace["model"].learn(16)
        assert "print" not in block or capsys.readouterr().out
    for environments in ("env", "envs"):
        if environments in namespace:
            namespace[environments].close()


assert len(BLOCKS) >= 25, "the pattern finds the blocks"


def test_code_fits_into_the_pages() -> None:
    code = "\n".join(re.findall(r"```(?:python|console)\n(.*?)```", "\n".join(TEXTS.values()), re.DOTALL))
    assert [line for line in code.splitlines() if len(line) > 100] == []


def test_linked_figures_are_those_of_the_results() -> None:
    """A link such as ``[0.34 GB](docs/results/scale.md)`` has a number of that page, perhaps with fewer digits."""
    n_figures = 0
    for page, text in TEXTS.items():
        for shown, unit, target in re.findall(r"\[([\d.]+)([^\]]*)\]\(([^)#]*results/[^)#]*)", text):
            results = ((ROOT / page).parent / target).read_text(encoding="utf-8")
            digits = len(shown.partition(".")[2])
            unit = unit.strip().replace("times", "x")
            numbers = re.findall(rf"(\d+(?:\.\d+)?) ?{re.escape(unit)}", results)
            assert shown in {f"{float(number):.{digits}f}" for number in numbers}, (page, shown, unit, target)
            n_figures += 1
    assert n_figures >= 5


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_links_lead_to_files_and_headings(name: str) -> None:
    """Sphinx verifies those of the site."""
    targets = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert targets
    for target, anchor in targets:
        path = (ROOT / name).parent / target
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, anchor


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
