"""``sb3-compressed advise``: train shortly with each buffer, and show what it saves and costs in an environment."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from sb3_compressed.cli.output import Json, note, print_result, progress_bar, python_code
from sb3_compressed.cli.sources import expand_user

if TYPE_CHECKING:
    from gymnasium import spaces

    from sb3_compressed.benchmarking.recommendation import Cost
    from sb3_compressed.benchmarking.training_run import Setup

__all__ = ["advise"]

CODECS = ("auto", "none")


class Wrapper(str, Enum):
    """How environments are created."""

    ATARI = "atari"
    NONE = "none"


def advise(
    env_id: Annotated[str, typer.Argument(help="Gymnasium environment, e.g. PongNoFrameskip-v4 or module:id.")],
    n_envs: Annotated[int, typer.Option(min=1, help="Number of parallel environments.")] = 1,
    wrapper: Annotated[
        Wrapper | None,
        typer.Option(
            help="make_atari_env (atari) or make_vec_env (none).", show_default="atari for ALE games, else none"
        ),
    ] = None,
    frame_stack: Annotated[
        int | None, typer.Option(min=1, help="Frames stacked by VecFrameStack.", show_default="4 with atari, else 1")
    ] = None,
    buffer_size: Annotated[int, typer.Option(min=1, help="Capacity of your replay buffer in transitions.")] = 1_000_000,
    n_steps: Annotated[
        int | None,
        typer.Option(
            min=2, help="Advise on rollout buffers, and train PPO with this n_steps.", show_default="replay buffers"
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=100, help="Transitions to collect with random actions before DQN or SAC trains.")
    ] = 3_000,
    seconds: Annotated[float, typer.Option(min=1, help="About how long to train with SB3's buffer after that.")] = 15.0,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each buffer is measured; the medians are reported.")
    ] = 1,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", help="Codec to try, e.g. zstd-5; may be repeated.", show_default=" ".join(CODECS)),
    ] = None,
    sequential: Annotated[
        bool,
        typer.Option(
            "--sequential", help="Train one after the other, for environments of which only one can run at a time."
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot to this file, e.g. out.png.", callback=expand_user)
    ] = None,
    as_json: Json = False,
) -> None:
    """Train an agent shortly with SB3's buffer and with others, and recommend one.

    Every training has its own process, and all of them do the same: DQN, SAC or PPO with default settings. They take
    turns, so that what else runs on the machine slows all of them alike.
    """
    from sb3_compressed import get_codec
    from sb3_compressed.benchmarking.plot import check_plottable

    codecs = [*dict.fromkeys(codec or CODECS)]
    for name in codecs:
        get_codec(name)  # raises if it is unknown
    if plot:
        check_plottable(plot)
    buffer = {"n_steps": n_steps} if n_steps else {"buffer_size": buffer_size}
    with contextlib.redirect_stdout(sys.stderr):  # what environments print
        setup, space = _new_setup(env_id, n_envs, wrapper, frame_stack, buffer, steps, seconds, len(codecs))
    measured = _measure(setup, codecs, rounds, time_sliced=not sequential)
    _report(setup, space, measured, plot, as_json=as_json)


def _new_setup(
    env_id: str,
    n_envs: int,
    wrapper: Wrapper | None,
    frame_stack: int | None,
    buffer: dict[str, int],
    steps: int,
    seconds: float,
    n_others: int,
) -> tuple[Setup, spaces.Space[Any]]:
    """Return what to train, and the observation space as the buffers get it.

    :param n_others: number of buffers besides SB3's
    :raises ValueError: if the environment does not exist, or cannot be trained on
    """
    from sb3_compressed.benchmarking.benchmark_envs import make_env, wrap_as_sb3
    from sb3_compressed.benchmarking.sb3_classes import off_policy_algorithm
    from sb3_compressed.benchmarking.training_run import Setup, check_memory

    atari = _use_atari_wrappers(env_id, wrapper)
    n_stack = frame_stack or (4 if atari else 1)
    env = make_env(env_id, n_envs, atari=atari)
    try:
        algorithm = "PPO" if "n_steps" in buffer else off_policy_algorithm(env.action_space)
        setup = Setup(env_id, atari, n_envs, n_stack, algorithm, buffer, steps, seconds)
        space = wrap_as_sb3(env, n_stack).observation_space
    finally:
        env.close()
    check_memory(setup, space, n_others)
    return setup, space


def _measure(setup: Setup, codecs: Sequence[str], rounds: int, *, time_sliced: bool) -> dict[str, Any]:
    """Train with SB3's buffer and for as long with each codec; return what was measured.

    :param time_sliced: whether all are trained at the same time, in time slices
    """
    from sb3_compressed.benchmarking import worker
    from sb3_compressed.benchmarking.measurement import Job, medians
    from sb3_compressed.benchmarking.sb3_classes import SB3
    from sb3_compressed.benchmarking.time_slices import run_in_time_slices
    from sb3_compressed.benchmarking.training_run import N_SLICES

    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where the user's environment was found
    names = [SB3, *codecs]

    with progress_bar() as progress:
        n_slices = 1 + N_SLICES if time_sliced else 1
        task = progress.add_task(setup.env_id, total=1 + rounds * len(names) * n_slices)

        def on_slice(job: Job) -> None:
            progress.update(task, description=f"{setup.env_id}, {job.name}", advance=1)

        def run(jobs: Sequence[Job]) -> list[dict[str, Any]]:
            return run_in_time_slices(lambda job: worker.command(), jobs, environ, on_slice)

        trial = run([Job(setup.env_id, SB3, setup._asdict())])[0]
        if "error" in trial:
            return {SB3: trial}
        arguments = {**setup._asdict(), **trial, "time_sliced": time_sliced}
        jobs = [Job(setup.env_id, name, arguments) for name in names]
        of_rounds = [run(jobs) for _ in range(rounds)]
    measured = {name: medians([*of_name]) for name, of_name in zip(names, zip(*of_rounds))}
    for name, one in measured.items():
        if "error" in one and name != SB3:
            note(f"{setup.env_id}, {name}: {one['error']}")
    return measured


def _report(
    setup: Setup, space: spaces.Space[Any], measured: Mapping[str, Any], plot: Path | None, *, as_json: bool
) -> None:
    """Print a recommendation and what was measured, and write the plot."""
    from sb3_compressed.benchmarking.recommendation import costs, recommend
    from sb3_compressed.benchmarking.sb3_classes import SB3
    from sb3_compressed.benchmarking.snippet import snippet

    compared = costs(measured, setup.capacity)
    recommended, reason = recommend(compared)
    lines, advice = "", f"Keep SB3's buffer. {reason}"
    if recommended != SB3:
        advice = f"Use {recommended}: {reason}"
        lines = snippet(setup, space, recommended)
    if plot:
        _plot(plot, setup, compared)
    result = {
        "env_id": setup.env_id,
        "n_envs": setup.n_envs,
        "frame_stack": setup.n_stack,
        "atari": setup.atari,
        "kind": "rollout" if setup.is_rollout else "replay",
        "observation_space": str(space),
        "buffer_size": setup.capacity,
        "algorithm": setup.algorithm,
        "buffers": [asdict(cost) for cost in compared],
        "failed": {name: one["error"] for name, one in measured.items() if "error" in one},
        "recommended": recommended,
        "reason": reason,
        "lines": lines,
    }
    code = [python_code(lines)] if lines else []
    parts: list[RenderableType] = [_table(compared, setup, space), _explanation(setup), "", advice, *code]
    print_result(result, *parts, as_json=as_json)


def _plot(path: Path, setup: Setup, compared: Sequence[Cost]) -> None:
    from sb3_compressed.benchmarking.plot import plot_ratios

    panels = {
        "memory": [cost.ratio for cost in compared],
        f"time of {setup.algorithm}": [cost.time_ratio for cost in compared],
    }
    plot_ratios(path, f"{setup.env_id}, relative to SB3's buffer", [cost.buffer for cost in compared], panels)


def _use_atari_wrappers(env_id: str, wrapper: Wrapper | None) -> bool:
    """Return whether to use SB3's Atari wrappers, and print it if that was not requested.

    :raises ValueError: if the environment does not exist
    """
    from sb3_compressed.benchmarking.benchmark_envs import is_atari, skips_frames

    wrapped = is_atari(env_id) if wrapper is None else wrapper is Wrapper.ATARI
    if wrapped and wrapper is None:
        note(f"{env_id} is an Atari game: using make_atari_env and frame stacking (--wrapper none disables both)")
    if wrapped and skips_frames(env_id):
        note(f"{env_id} skips frames itself, and make_atari_env skips more: use a NoFrameskip-v4 environment")
    return wrapped


def _table(costs: Sequence[Cost], setup: Setup, space: spaces.Space[Any]) -> Table:
    from sb3_compressed.benchmarking.metrics import format_nbytes

    title = escape(f"{setup.algorithm} on {setup.env_id}: observations {_describe(space)}")
    # With Rich's usual padding, headings are cut off at 80 columns.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("buffer")
    read = "get" if setup.is_rollout else "sample"
    for heading in ("transition", "memory", "vs. SB3", "training", "add", read, "weights"):
        table.add_column(heading, justify="right")
    for cost in costs:
        times = ((cost.step, cost.time_ratio), (cost.add, cost.add_ratio), (cost.read, cost.read_ratio))
        is_base = cost is costs[0]
        table.add_row(
            cost.buffer,
            format_nbytes(cost.transition),
            format_nbytes(cost.memory),
            f"{cost.ratio:.2%}",
            *(_format_us(time) if is_base else f"{ratio:.2f}x" for time, ratio in times),
            "" if is_base else "equal" if cost.equal_weights else "differ",
        )
    return table


def _format_us(microseconds: float) -> str:
    return f"{microseconds:.0f} us" if microseconds < 1000 else f"{microseconds / 1000:.3g} ms"


def _explanation(setup: Setup) -> str:
    memory = f"Memory is that of {setup.capacity:,} transitions"
    if not setup.is_rollout:
        memory += ", estimated; SB3's optimize_memory_usage=True would take about half of SB3's"
    return (
        f"{memory}. Training is the time of a transition, and the calls are those inside the training, relative to "
        "SB3's buffer. Equal weights prove that the buffer has returned the same batches; they differ if the "
        "environment or the network is not deterministic."
    )


def _describe(space: spaces.Space[Any]) -> str:
    """Return shape and dtype of a space, of a Dict space those of each part."""
    from sb3_compressed.common.spaces import space_parts

    parts = space_parts(space).items()
    return ", ".join(f"{'' if key is None else f'{key} '}{part.shape} {part.dtype}" for key, part in parts)
