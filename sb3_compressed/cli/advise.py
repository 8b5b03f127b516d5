"""``sb3-compressed advise``: estimate what compressed buffers save and cost in an environment."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from sb3_compressed.cli.output import Json, note, print_result, progress_bar, python_code
from sb3_compressed.cli.sources import expand_user

if TYPE_CHECKING:
    from gymnasium import spaces

    from sb3_compressed.benchmarking.recommendation import Cost

__all__ = ["advise"]

CODECS = ("auto", "auto/small", "auto/fast", "zstd3", "none")
#: The memory of a process fluctuates by about this much.
NOISE_NBYTES = 1_000_000


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
            min=2, help="Advise on rollout buffers (PPO, A2C) with this n_steps instead.", show_default="replay buffers"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="Number of transitions to record for the measurements.")] = 10_000,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each buffer is measured; the medians are reported.")
    ] = 1,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", help="Codec to try, e.g. zstd-5; may be repeated.", show_default=" ".join(CODECS)),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot to this file, e.g. out.png.", callback=expand_user)
    ] = None,
    as_json: Json = False,
) -> None:
    """Record an environment, measure codecs on its observations, and recommend a buffer.

    Every buffer is measured in its own process and compared with SB3's buffer on this machine.
    """
    from sb3_compressed import get_codec
    from sb3_compressed.benchmarking import worker
    from sb3_compressed.benchmarking.adapters import SB3
    from sb3_compressed.benchmarking.benchmark_envs import make_env
    from sb3_compressed.benchmarking.frame_recording import check_memory, write_recording
    from sb3_compressed.benchmarking.plot import check_plottable, plot_ratios
    from sb3_compressed.benchmarking.recommendation import costs, recommend
    from sb3_compressed.benchmarking.runner import Job, run_interleaved
    from sb3_compressed.benchmarking.snippet import snippet

    codecs = [*dict.fromkeys(codec or CODECS)]
    for name in codecs:
        get_codec(name)  # raises if it is unknown
    if plot:
        check_plottable(plot)
    atari = _use_atari_wrappers(env_id, wrapper)
    env = make_env(env_id, n_envs, atari=atari)
    benchmark = _rollout_benchmark(n_steps, n_envs, steps) if n_steps else _replay_benchmark(env, steps)
    n_stack = frame_stack or (4 if atari else 1)
    check_memory(env, n_stack, benchmark.rows)
    with tempfile.TemporaryDirectory(prefix="sb3-compressed-") as folder, progress_bar() as progress:
        task = progress.add_task(f"recording {env_id}", total=benchmark.n_steps)
        recording = write_recording(
            Path(folder) / "observations.zst",
            env,
            benchmark.n_steps,
            n_stack=n_stack,
            on_step=lambda: progress.advance(task),
        )
        jobs = [Job(env_id, name, {"recording": str(recording.path), **benchmark.arguments}) for name in [SB3, *codecs]]
        results = run_interleaved(lambda job: worker.command(benchmark.kind), jobs, rounds, progress)
        space = recording.observation_space
    measured = results[env_id]
    transitions, capacity = benchmark.rows * n_envs, (n_steps * n_envs if n_steps else buffer_size)
    compared = costs(measured, transitions, capacity, benchmark.read)
    if (nbytes := measured[SB3]["rss"] * transitions) < NOISE_NBYTES:
        hint = "" if n_steps else "; pass more --steps"
        note(f"SB3's buffer takes only {nbytes / 1e6:.2f} MB, so memory is a rough estimate{hint}")
    recommended, reason = recommend(compared, benchmark.read)
    lines, advice = "", f"Keep SB3's buffer. {reason}"
    if recommended != SB3:
        buffer = {"n_steps": n_steps} if n_steps else {"buffer_size": buffer_size}
        advice = f"Use {recommended}: {reason}"
        lines = snippet(env_id, recording, benchmark.algorithm, atari=atari, buffer=buffer, method=recommended)
    if plot:
        panels = {
            "memory": [cost.ratio for cost in compared],
            "add": [cost.add_ratio for cost in compared],
            benchmark.read: [cost.sample_ratio for cost in compared],
        }
        plot_ratios(plot, f"{env_id}, relative to SB3's buffer", [cost.contender for cost in compared], panels)
    result = {
        "env_id": env_id,
        "n_envs": n_envs,
        "frame_stack": n_stack,
        "atari": atari,
        "kind": benchmark.kind,
        "observation_space": str(space),
        "buffer_size": capacity,
        "transitions": transitions,
        "algorithm": benchmark.algorithm,
        "batch_size": benchmark.batch_size,
        "buffers": [asdict(cost) for cost in compared],
        "failed": {name: one["error"] for name, one in measured.items() if "error" in one},
        "recommended": recommended,
        "reason": reason,
        "lines": lines,
    }
    table, explanation = _table(compared, env_id, space, benchmark.read), _explanation(benchmark, capacity)
    code = [python_code(lines)] if lines else []
    print_result(result, table, explanation, "", advice, *code, as_json=as_json)


@dataclass(frozen=True)
class Benchmark:
    """The benchmark to run.

    :param kind: the kind of the buffers
    :param algorithm: the name of SB3's algorithm to recommend
    :param batch_size: transitions of each batch
    :param read: the key of the time that reading takes
    :param rows: rows of a buffer
    :param n_steps: steps to record
    :param arguments: arguments of the worker
    """

    kind: Literal["replay", "rollout"]
    algorithm: str
    batch_size: int
    read: str
    rows: int
    n_steps: int
    arguments: dict[str, Any]


def _replay_benchmark(env: Any, steps: int) -> Benchmark:
    from sb3_compressed.benchmarking.replay_benchmark import TIMED_STEPS
    from sb3_compressed.benchmarking.snippet import off_policy_algorithm

    algorithm, batch_size = off_policy_algorithm(env.action_space)
    rows = max(steps // env.num_envs, 8)
    arguments = {"rows": rows, "batch_sizes": [batch_size]}
    return Benchmark("replay", algorithm, batch_size, f"sample({batch_size})", rows, rows + TIMED_STEPS, arguments)


def _rollout_benchmark(n_steps: int, n_envs: int, steps: int) -> Benchmark:
    from sb3_compressed.benchmarking.rollout_benchmark import BATCH_SIZE

    rollouts = max(steps // (n_steps * n_envs), 2)
    arguments = {"n_steps": n_steps, "rollouts": rollouts}
    return Benchmark("rollout", "PPO", BATCH_SIZE, "get", n_steps, n_steps * rollouts, arguments)


def _use_atari_wrappers(env_id: str, wrapper: Wrapper | None) -> bool:
    """Return whether to use SB3's Atari wrappers, and print it if that was not requested.

    :raises ValueError: if the environment does not exist
    """
    from sb3_compressed.benchmarking.benchmark_envs import is_atari

    if wrapper is not None:
        return wrapper is Wrapper.ATARI
    if wrapped := is_atari(env_id):
        note(f"{env_id} is an Atari game: using make_atari_env and frame stacking (--wrapper none disables both)")
    return wrapped


def _table(costs: Sequence[Cost], env_id: str, space: spaces.Space[Any], read: str) -> Table:
    from sb3_compressed.benchmarking.metrics import format_nbytes

    title = escape(f"{env_id}: observations {_describe(space)}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("buffer")
    for heading in ("per transition", "memory", "vs. SB3", "add", read):
        table.add_column(heading, justify="right")
    for cost in costs:
        is_base = cost is costs[0]
        table.add_row(
            cost.contender + (" (returns wrong data)" if cost.wrong else ""),
            format_nbytes(cost.transition),
            format_nbytes(cost.memory),
            f"{cost.ratio:.2%}",
            *(
                f"{time:.1f} us" if is_base else f"{ratio:.2f}x"
                for time, ratio in ((cost.add, cost.add_ratio), (cost.sample, cost.sample_ratio))
            ),
        )
    return table


def _explanation(benchmark: Benchmark, capacity: int) -> str:
    if benchmark.kind == "replay":
        memory = f"estimated for {capacity:,} transitions from the growth of the process (RSS)"
        times = "times are medians"
    else:
        memory = f"the growth of the process (RSS) for {capacity:,} transitions"
        times = "times are medians per transition, get for one epoch"
    return (
        f"Measured with random actions; observations of a trained policy may differ. Memory is {memory}; {times}, "
        "relative to SB3's buffer."
    )


def _describe(space: spaces.Space[Any]) -> str:
    """Return shape and dtype of a space, of a Dict space those of each part."""
    from sb3_compressed.common.spaces import space_parts

    parts = space_parts(space).items()
    return ", ".join(f"{'' if key is None else f'{key} '}{part.shape} {part.dtype}" for key, part in parts)
