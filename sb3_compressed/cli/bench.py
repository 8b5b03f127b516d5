"""``sb3-compressed bench``: the project's benchmarks on a user's own environment or recorded frames."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from sb3_compressed.cli.output import Json, note, progress_bar, show
from sb3_compressed.cli.recorded_observations import (
    Codecs,
    FrameStack,
    Plot,
    Wrapper,
    WrapperOption,
    chosen,
    is_wrapped,
    note_noise,
    record,
)

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from sb3_compressed.benchmarking.ratios import Results

__all__ = ["bench"]

CODECS = ("auto", "zstd3", "none")
N_ENVS = 4


def bench(
    env_id: Annotated[
        str | None, typer.Argument(help="An environment, as PongNoFrameskip-v4 or module:id.", show_default=False)
    ] = None,
    frames: Annotated[
        Path | None,
        typer.Option(help="Instead of one: a .npy or .npz of observations (steps, *obs_shape).", show_default=False),
    ] = None,
    n_envs: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Environments, {N_ENVS} by default; of frames, what their second axis has.", show_default=False
        ),
    ] = None,
    frame_stack: FrameStack = None,
    wrapper: WrapperOption = None,
    rollout: Annotated[bool, typer.Option("--rollout", help="Rollout buffers instead of replay buffers.")] = False,
    size: Annotated[int, typer.Option(min=100, help="Transitions in a replay buffer.")] = 20_000,
    n_steps: Annotated[int, typer.Option(min=2, help="Steps of a rollout.")] = 128,
    rollouts: Annotated[int, typer.Option(min=2, help="How many rollouts are collected.")] = 10,
    codec: Codecs = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured; medians are reported.")] = 3,
    plot: Plot = None,
    out: Annotated[
        Path | None, typer.Option(help="A file for the results, in the form of the benchmarks'.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure buffers with several codecs beside SB3's own, in turns, each in a process of its own.

    Memory is what the process grows by (RSS); times are medians.
    """
    from sb3_compressed.benchmarking import worker
    from sb3_compressed.benchmarking.plot import check_plottable
    from sb3_compressed.benchmarking.replay_benchmark import EXTRAPOLATED_BY
    from sb3_compressed.benchmarking.runner import Job, check_savable, run_interleaved, save
    from sb3_compressed.benchmarking.sb3_adapters import SB3

    if (env_id is None) == (frames is None):
        raise typer.BadParameter("name an environment, or a file by --frames")
    names = [SB3, *chosen(codec, CODECS)]
    if plot:
        check_plottable(plot)
    if out:
        check_savable(out)
    shown = _environment(env_id, n_envs, wrapper) if env_id else _frames(frames, n_envs)  # type: ignore[arg-type]
    env, label, most = shown.env, shown.label, shown.n_steps
    kind, held, needed, arguments = _rollouts(most, n_steps, rollouts) if rollout else _replay(most, size, env.num_envs)
    options = {"n_envs": env.num_envs, "rounds": rounds, **(arguments if rollout else {"size": held * env.num_envs})}
    with tempfile.TemporaryDirectory(prefix="sb3-compressed-") as folder, progress_bar() as progress:
        stacked, said = frame_stack or shown.n_stack, f"recording {label}"
        recording = record(folder, env, needed, rows_held=held, n_stack=stacked, said=said, progress=progress)
        jobs = [Job(label, name, {"recording": str(recording.path), **arguments}) for name in names]
        results = run_interleaved(lambda job: worker.command(kind), jobs, rounds, progress)
    if "error" in (base := results[label][SB3]):
        raise ValueError(f"SB3's own buffer could not be measured, its process {base['error']}")
    note_noise(base["rss"] * held * env.num_envs)
    for measured in results[label].values():
        for key in EXTRAPOLATED_BY & measured.keys():
            del measured[key]
    if out:
        save(out, kind, options, results, sys.executable)
    if plot:
        _plot(plot, label, results)
    result = {"benchmark": kind, "arguments": options, "results": results}
    show(result, _table(label, results, f"{kind} buffers, {_said(options)}"), as_json=as_json)


@dataclass(frozen=True)
class Shown:
    """What shows observations."""

    env: VecEnv
    label: str
    n_stack: int  # unless the user says otherwise
    n_steps: int | None = None  # that there are; None for any number


def _environment(env_id: str, n_envs: int | None, wrapper: Wrapper | None) -> Shown:
    from sb3_compressed.benchmarking.benchmark_envs import make_env

    atari = is_wrapped(env_id, wrapper)
    return Shown(make_env(env_id, n_envs or N_ENVS, atari=atari), env_id, 4 if atari else 1)


def _frames(path: Path, n_envs: int | None) -> Shown:
    from sb3_compressed.benchmarking.benchmark_envs import FramesEnv, load_frames

    frames = load_frames(path, n_envs)
    return Shown(FramesEnv(frames), path.name, 1, len(frames) - 1)


def _replay(most: int | None, size: int, n_envs: int) -> tuple[str, int, int, dict[str, Any]]:
    """Return the kind of buffer, the steps it holds, those needed, and the arguments of the measurement."""
    from sb3_compressed.benchmarking.replay_benchmark import BATCH_SIZES, TIMED_STEPS

    rows, timed = max(size // n_envs, 2), TIMED_STEPS
    if most is not None and rows + timed > most:
        timed = min(timed, most // 5)
        rows = most - timed
        if rows < 2:
            raise ValueError(f"there are {most + 1} steps, too few for a buffer")
        note(f"{most + 1:,} steps are enough for a buffer of {rows * n_envs:,} transitions")
    return "replay", rows, rows + timed, {"rows": rows, "batch_sizes": list(BATCH_SIZES)}


def _rollouts(most: int | None, n_steps: int, rollouts: int) -> tuple[str, int, int, dict[str, Any]]:
    """Return the same of rollout buffers."""
    if most is not None and n_steps * rollouts > most:
        rollouts = most // n_steps
        if rollouts < 2:
            raise ValueError(f"there are {most + 1} steps, too few for two rollouts of {n_steps}; pass --n-steps")
        note(f"{most + 1:,} steps are enough for {rollouts} rollouts")
    return "rollout", n_steps, n_steps * rollouts, {"n_steps": n_steps, "rollouts": rollouts}


def _said(options: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in options.items())


def _ratios(label: str, results: Results) -> dict[str, dict[str, float | None]]:
    """Return every number of every buffer that did not fail, relative to SB3's: ``{buffer: {key: ratio}}``."""
    from sb3_compressed.benchmarking.ratios import ratios
    from sb3_compressed.benchmarking.sb3_adapters import SB3

    keys = [key for key, value in results[label][SB3].items() if isinstance(value, int | float)]
    there = [name for name, measured in results[label].items() if "error" not in measured]
    return {name: {key: next(iter(ratios(results, name, key)), None) for key in keys} for name in there}


def _table(label: str, results: Results, title: str) -> Table:
    from sb3_compressed.benchmarking.advice import in_bytes
    from sb3_compressed.benchmarking.sb3_adapters import SB3

    of_each, base = _ratios(label, results), results[label][SB3]
    table = Table(title=escape(f"{label}: {title}"), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("buffer")
    for key in of_each[SB3]:
        table.add_column("a transition" if key == "rss" else key, justify="right")
    table.add_row(SB3, *(in_bytes(base[key]) if key == "rss" else f"{base[key]:.0f} us" for key in of_each[SB3]))
    for name, measured in results[label].items():
        if name == SB3:
            continue
        if name not in of_each:
            table.add_row(name, "failed")
            continue
        cells = [
            "" if value is None else f"{value:.2%}" if key == "rss" else f"{value:.2f}x"
            for key, value in of_each[name].items()
        ]
        table.add_row(name + (" (returns wrong data)" if measured["wrong"] else ""), *cells)
    return table


def _plot(path: Path, label: str, results: Results) -> None:
    from sb3_compressed.benchmarking.plot import plot_ratios

    of_each = _ratios(label, results)
    panels = {}
    for key in next(iter(of_each.values())):
        values = [value for numbers in of_each.values() if (value := numbers[key]) is not None]
        if len(values) == len(of_each):  # there is no memory of so small a buffer that the process did not grow
            panels["memory" if key == "rss" else key] = values
    plot_ratios(path, f"{label}, relative to SB3's own buffer", list(of_each), panels)
