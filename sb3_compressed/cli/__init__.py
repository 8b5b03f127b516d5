"""The command line, ``sb3-compressed`` or ``python -m sb3_compressed``, with one file per command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sb3_compressed.errors import install_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit.

    :param arguments: ``sys.argv[1:]`` by default
    """
    try:
        from sb3_compressed.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(f"Error: the command line requires {error.name}: {install_command('cli')}")
    run(arguments)
