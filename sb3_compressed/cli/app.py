"""All commands, and how they report errors: one line on the standard error and an exit code.

The exit code is 0 for success, 1 for an error or damage, 2 for invalid usage and 130 for an interrupt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from sb3_compressed import __version__
from sb3_compressed.cli import advise, inspect, verify
from sb3_compressed.cli.output import note

__all__ = ["app", "run"]

app = typer.Typer(
    name="sb3-compressed",
    help="Compressed replay and rollout buffers for Stable-Baselines3.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(advise.advise)
app.command()(inspect.inspect)
app.command()(verify.verify)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sb3-compressed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None: ...


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit; see :func:`sb3_compressed.cli.main`."""
    try:
        app(None if arguments is None else list(arguments))
    except (ValueError, OSError, ImportError) as error:  # user errors; anything else is a bug and gets its traceback
        note(f"Error: {error}")
        sys.exit(1)
