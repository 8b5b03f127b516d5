"""The tests with every supported Python, and with the oldest of everything: ``nox``, or ``nox -s oldest``."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """Run the tests with the newest of what is needed."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest versions that pyproject.toml allows."""
    session.install("-c", "constraints.txt", "-c", "oldest.txt", "-e", ".[dev]")
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs)
