"""``sb3-compressed advise``: what compressed replay buffers would save and cost in a user's own environment."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from sb3_compressed.cli.output import Json, progress_bar, show
from sb3_compressed.cli.recorded_observations import (
    Codecs,
    FrameStack,
    Plot,
    WrapperOption,
    chosen,
    is_wrapped,
    note_noise,
    record,
)

if TYPE_CHECKING:
    from sb3_compressed.benchmarking.advice import Cost

__all__ = ["advise"]

CODECS = ("auto", "zstd3", "lz4-frame", "none")


def advise(
    env_id: Annotated[str, typer.Argument(help="An environment of gymnasium, as PongNoFrameskip-v4 or module:id.")],
    n_envs: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 1,
    frame_stack: FrameStack = None,
    buffer_size: Annotated[int, typer.Option(min=1, help="Transitions that your buffer shall hold.")] = 1_000_000,
    steps: Annotated[int, typer.Option(min=100, help="Transitions to play and to measure with.")] = 10_000,
    wrapper: WrapperOption = None,
    codec: Codecs = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Play an environment for a while, try codecs on what it shows, and say which buffer to take.

    All is compared with SB3's own replay buffer on this machine, each buffer in a process of its own.
    """
    from sb3_compressed.benchmarking import worker
    from sb3_compressed.benchmarking.advice import advise as advice_on
    from sb3_compressed.benchmarking.advice import costs
    from sb3_compressed.benchmarking.benchmark_envs import make_env
    from sb3_compressed.benchmarking.plot import check_plottable, plot_ratios
    from sb3_compressed.benchmarking.replay_benchmark import TIMED_STEPS
    from sb3_compressed.benchmarking.runner import Job, run_interleaved
    from sb3_compressed.benchmarking.sb3_adapters import SB3
    from sb3_compressed.benchmarking.snippet import algorithm_for, snippet
    from sb3_compressed.benchmarking.tree_map import said as said_of

    names = [SB3, *chosen(codec, CODECS)]
    if plot:
        check_plottable(plot)
    rows = max(steps // n_envs, 8)
    atari = is_wrapped(env_id, wrapper)
    env = make_env(env_id, n_envs, atari=atari)
    algorithm, batch_size = algorithm_for(env.action_space)
    n_stack = frame_stack or (4 if atari else 1)
    with tempfile.TemporaryDirectory(prefix="sb3-compressed-") as folder, progress_bar() as progress:
        playing = f"playing {env_id}"
        recording = record(
            folder, env, rows + TIMED_STEPS, rows_held=rows, n_stack=n_stack, said=playing, progress=progress
        )
        arguments = {"recording": str(recording.path), "rows": rows, "batch_sizes": [batch_size]}
        jobs = [Job(env_id, name, arguments) for name in names]
        [measured] = run_interleaved(lambda job: worker.command("replay"), jobs, 1, progress).values()
        space = recording.observation_space
    every = costs(measured, rows * n_envs, buffer_size, batch_size)
    note_noise(measured[SB3]["rss"] * rows * n_envs)
    advice = advice_on(every)
    lines = ""
    if advice.contender != SB3:
        lines = snippet(env_id, recording, atari=atari, buffer_size=buffer_size, method=advice.contender)
    if plot:
        panels = {
            "memory": [cost.ratio for cost in every],
            "add": [cost.add_ratio for cost in every],
            f"sample({batch_size})": [cost.sample_ratio for cost in every],
        }
        plot_ratios(plot, f"{env_id}, relative to SB3's own buffer", [cost.contender for cost in every], panels)
    result = {
        **{"env_id": env_id, "n_envs": n_envs, "frame_stack": n_stack, "atari": atari},
        **{"observation_space": str(space), "buffer_size": buffer_size, "transitions": rows * n_envs},
        **{"algorithm": algorithm, "batch_size": batch_size, "buffers": [asdict(cost) for cost in every]},
        "failed": {name: one["error"] for name, one in measured.items() if "error" in one},
        **{"recommended": advice.contender, "reason": advice.reason, "lines": lines},
    }
    about = (
        f"Measured with {rows * n_envs:,} transitions of random play; a trained policy shows other frames. Memory is "
        f"an estimate for {buffer_size:,}, extrapolated from what the process grew by (RSS); what a codec learned "
        "counts once. Times are medians, relative to SB3's own buffer."
    )
    said: list[RenderableType] = (
        [f"Take {advice.contender}: {advice.reason}", Syntax(lines, "python", background_color="default")]
        if lines
        else [f"Keep SB3's own buffer. {advice.reason}"]
    )
    table = _table(every, f"{env_id}: observations {said_of(space)}", batch_size)
    show(result, table, about, "", *said, as_json=as_json)


def _table(every: Sequence[Cost], title: str, batch_size: int) -> Table:
    from sb3_compressed.benchmarking.advice import in_bytes

    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("buffer")
    for heading in ("a transition", "memory", "of SB3's", "add", f"sample({batch_size})"):
        table.add_column(heading, justify="right")
    for cost in every:
        is_base = cost is every[0]
        table.add_row(
            cost.contender + (" (returns wrong data)" if cost.wrong else ""),
            in_bytes(cost.transition),
            in_bytes(cost.memory),
            f"{cost.ratio:.2%}",
            *(
                f"{time:.0f} us" if is_base else f"{ratio:.2f}x"
                for time, ratio in ((cost.add, cost.add_ratio), (cost.sample, cost.sample_ratio))
            ),
        )
    return table
