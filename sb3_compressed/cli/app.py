"""The commands together, and how their errors are told: a line that says what to do, and an exit code.

0 is for success, 1 for an error or damage that was found, 2 for a command that was not understood, 130 for an
interrupt.
"""

from __future__ import annotations

import os
import sys

import typer

from sb3_compressed import __version__
from sb3_compressed.cli import advise, bench, export, inspect, play, verify
from sb3_compressed.cli.output import note

__all__ = ["app", "main"]

app = typer.Typer(
    name="sb3-compressed",
    help="Replay and rollout buffers for Stable-Baselines3 that hold their observations compressed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(advise.advise)
app.command()(bench.bench)
app.command()(inspect.inspect)
app.command()(verify.verify)
app.command()(export.export)
app.command()(play.play)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sb3-compressed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None: ...


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    try:
        app()
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, ImportError) as error:  # what users of the library meet, too; others are defects
        note(f"Error: {error}")
        sys.exit(1)
    except MemoryError as error:  # what was asked for is too large, as a picture of 10**12 pixels
        note(f"Error: there is not enough memory: {error}")
        sys.exit(1)
