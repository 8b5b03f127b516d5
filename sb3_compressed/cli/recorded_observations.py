"""What ``advise`` and ``bench`` have in common: options that say which observations, and their recording."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from sb3_compressed.cli.output import note

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from sb3_compressed.benchmarking.frame_recording import Recording

__all__ = ["Codecs", "FrameStack", "Plot", "Wrapper", "WrapperOption", "chosen", "is_wrapped", "note_noise", "record"]


#: What a process may grow or shrink by for no reason to be seen, about.
NOISE_NBYTES = 1_000_000


class Wrapper(str, Enum):
    """What environments are made with."""

    ATARI = "atari"
    NONE = "none"


WrapperOption = Annotated[
    Wrapper | None,
    typer.Option(help="SB3's preprocessing of Atari games, or none. Default: atari for ALE games.", show_default=False),
]
FrameStack = Annotated[
    int | None,
    typer.Option(
        min=1, help="Frames that VecFrameStack stacks. Default: 4 with the atari wrapper.", show_default=False
    ),
]
Codecs = Annotated[
    list[str] | None,
    typer.Option("--codec", help="A codec's shorthand, as zstd-5; again for more of them.", show_default=False),
]
Plot = Annotated[Path | None, typer.Option(help="A file for a plot, as out.png.", show_default=False)]


def chosen(codecs: list[str] | None, default: tuple[str, ...]) -> list[str]:
    """Return the codecs' shorthands, each once.

    :raises ValueError: if one cannot be had; the message lists what there is
    """
    from sb3_compressed import get_codec

    names = list(dict.fromkeys(codecs or default))
    for name in names:
        get_codec(name)
    return names


def is_wrapped(env_id: str, wrapper: Wrapper | None) -> bool:
    """Return whether an environment gets the preprocessing of Atari games, and say so where nobody asked for it.

    :raises ValueError: if there is no such environment
    """
    from sb3_compressed.benchmarking.benchmark_envs import is_atari

    if wrapper is not None:
        return wrapper is Wrapper.ATARI
    if is_game := is_atari(env_id):
        note(f"{env_id} is an Atari game: made with make_atari_env, and stacked (--wrapper none for neither)")
    return is_game


def record(
    folder: str, env: VecEnv, n_steps: int, *, rows_held: int, n_stack: int, said: str, progress: Progress
) -> Recording:
    """Play at random, and close the environments.

    :param rows_held: how many of the steps SB3's own buffer will hold
    :param said: what the progress bar says
    :raises ValueError: if memory is not enough for that
    """
    from sb3_compressed.benchmarking.frame_recording import check_memory, write_recording

    check_memory(env, n_stack, rows_held)
    task = progress.add_task(said, total=n_steps)
    path = Path(folder) / "observations.zst"
    return write_recording(path, env, n_steps, n_stack=n_stack, on_step=lambda: progress.advance(task))


def note_noise(nbytes: float) -> None:
    """Say so if SB3's buffer, which is the largest, is too small for its memory to be told from noise."""
    if nbytes < NOISE_NBYTES:
        note(f"SB3's buffer takes {nbytes / 1e6:.2f} MB here: memory is rough, more transitions make it exact")
