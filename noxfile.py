"""The tests with every supported Python, with the oldest of everything, with checks: ``nox``, or ``nox -s oldest``."""

from __future__ import annotations

import re
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run the tests with the newest of what is needed."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest versions that pyproject.toml allows."""
    session.install("-c", "constraints.txt", "-c", "oldest.txt", "-e", ".[dev]")
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


@nox.session(python="3.11")
def bounds(session: nox.Session) -> None:
    """Run the tests, with more damaged folders, while every index in a kernel is checked.

    numba checks indices of arrays only: kernels that read at addresses check them themselves.
    """
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    env = {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(Path(session.create_tmp()).absolute() / "kernels"),
        "SB3_COMPRESSED_DAMAGES": "1000",
        "SB3_COMPRESSED_FOLDERS": "1000",
    }
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs, env=env)


@nox.session(python="3.11")
def fallbacks(session: nox.Session) -> None:
    """Run the tests without all that depends on the interpreter; see ``sb3_compressed/arrays/batch_pool.py``."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    env = {"SB3_COMPRESSED_FORCE_FALLBACKS": "1"}
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs, env=env)


@nox.session(python="3.11")
def zoo(session: nox.Session) -> None:
    """Train with rl-baselines3-zoo and SBX."""
    session.install("-c", "constraints.txt", "-r", "zoo.txt", "-e", ".[examples]")
    session.run(
        "python", "-m", "pytest", "tests/examples/test_zoo.py", "tests/algorithms/test_sbx.py", *session.posargs
    )


@nox.session
def package(session: nox.Session) -> None:
    """Build sdist and wheel, look at them, and try the wheel alone in a folder with nothing else."""
    session.install("build", "twine")
    made = Path(session.create_tmp()).absolute()
    session.run("python", "-m", "build", "--outdir", str(made / "dist"), ".")
    packages = sorted(map(str, (made / "dist").iterdir()))
    session.run("python", "-m", "twine", "check", "--strict", *packages)
    [wheel] = (made / "dist").glob("*.whl")
    pages = [Path(page).read_text(encoding="utf-8") for page in ("README.md", "docs/quickstart.md")]
    blocks = re.findall(r"```python\n(.*?)```", "".join(pages), re.DOTALL)
    session.run("python", "-m", "venv", "--clear", str(made / "venv"))
    python = str(made / "venv" / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-q", "-c", "constraints.txt", f"{wheel}[atari,cli]", external=True)
    empty = made / "empty"
    empty.mkdir(exist_ok=True)
    script = made / "quick_start.py"
    script.write_text("\n".join(blocks))
    with session.chdir(empty):
        session.run(python, "-I", str(script), external=True)
        session.run(str(made / "venv" / "bin" / "sb3-compressed"), "--version", external=True)
