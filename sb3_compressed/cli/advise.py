"""``sb3-compressed advise``: estimate what compressed buffers save and cost in an environment."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
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
    from stable_baselines3.common.vec_env import VecEnv

    from sb3_compressed.benchmarking.frame_recording import Recording
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
    from sb3_compressed.benchmarking.plot import check_plottable

    codecs = [*dict.fromkeys(codec or CODECS)]
    for name in codecs:
        get_codec(name)  # raises if it is unknown
    if plot:
        check_plottable(plot)
    buffer = {"n_steps": n_steps} if n_steps else {"buffer_size": buffer_size}
    setup = _new_setup(env_id, n_envs, wrapper, frame_stack, buffer, steps)
    recording, measured = _measure(setup, codecs, rounds)
    _report(setup, recording, measured, plot, as_json=as_json)


@dataclass(frozen=True)
class Setup:
    """The environment, and how it is measured.

    :param env_id: the id of the environment
    :param env: the environment, whose frames are not stacked yet
    :param atari: whether it has SB3's Atari wrappers
    :param n_stack: number of stacked frames
    :param buffer: the size of the user's buffer: ``n_steps`` of rollout buffers, ``buffer_size`` of replay buffers
    :param kind: the kind of the buffers
    :param algorithm: the name of SB3's algorithm to recommend
    :param batch_size: transitions of each batch
    :param read: the key of the time that reading takes
    :param rows: rows of a measured buffer
    :param n_steps: steps to record
    :param arguments: arguments of the worker
    """

    env_id: str
    env: VecEnv
    atari: bool
    n_stack: int
    buffer: dict[str, int]
    kind: Literal["replay", "rollout"]
    algorithm: str
    batch_size: int
    read: str
    rows: int
    n_steps: int
    arguments: dict[str, Any]

    @property
    def transitions(self) -> int:
        """The number of transitions in each measured buffer."""
        return self.rows * self.env.num_envs

    @property
    def capacity(self) -> int:
        """The number of transitions in the user's buffer."""
        n_steps = self.buffer.get("n_steps")
        return self.buffer["buffer_size"] if n_steps is None else n_steps * self.env.num_envs


def _new_setup(
    env_id: str, n_envs: int, wrapper: Wrapper | None, frame_stack: int | None, buffer: dict[str, int], steps: int
) -> Setup:
    from sb3_compressed.benchmarking.benchmark_envs import make_env
    from sb3_compressed.benchmarking.frame_recording import check_memory
    from sb3_compressed.benchmarking.replay_benchmark import TIMED_STEPS
    from sb3_compressed.benchmarking.rollout_benchmark import BATCH_SIZE
    from sb3_compressed.benchmarking.snippet import off_policy_algorithm

    atari = _use_atari_wrappers(env_id, wrapper)
    env = make_env(env_id, n_envs, atari=atari)
    given = env_id, env, atari, frame_stack or (4 if atari else 1), buffer
    if n_steps := buffer.get("n_steps"):
        rollouts = max(steps // (n_steps * n_envs), 2)
        arguments: dict[str, Any] = {"n_steps": n_steps, "rollouts": rollouts}
        setup = Setup(*given, "rollout", "PPO", BATCH_SIZE, "get", n_steps, n_steps * rollouts, arguments)
    else:
        algorithm, size = off_policy_algorithm(env.action_space)
        rows = max(steps // n_envs, 8)
        arguments = {"rows": rows, "batch_sizes": [size]}
        setup = Setup(*given, "replay", algorithm, size, f"sample({size})", rows, rows + TIMED_STEPS, arguments)
    check_memory(env, setup.n_stack, setup.rows)
    return setup


def _measure(setup: Setup, codecs: Sequence[str], rounds: int) -> tuple[Recording, dict[str, Any]]:
    """Record the environment, and return what was measured with each codec and with SB3's buffer."""
    from sb3_compressed.benchmarking import worker
    from sb3_compressed.benchmarking.adapters import SB3
    from sb3_compressed.benchmarking.frame_recording import write_recording
    from sb3_compressed.benchmarking.runner import Job, run_interleaved

    env_id = setup.env_id
    with tempfile.TemporaryDirectory(prefix="sb3-compressed-") as folder, progress_bar() as progress:
        task = progress.add_task(f"recording {env_id}", total=setup.n_steps)
        recording = write_recording(
            Path(folder) / "observations.zst",
            setup.env,
            setup.n_steps,
            n_stack=setup.n_stack,
            on_step=lambda: progress.advance(task),
        )
        jobs = [Job(env_id, name, {"recording": str(recording.path), **setup.arguments}) for name in [SB3, *codecs]]
        results = run_interleaved(lambda job: worker.command(setup.kind), jobs, rounds, progress)
    return recording, results[env_id]


def _report(
    setup: Setup, recording: Recording, measured: Mapping[str, Any], plot: Path | None, *, as_json: bool
) -> None:
    """Print a recommendation and what was measured, and write the plot."""
    from sb3_compressed.benchmarking.adapters import SB3
    from sb3_compressed.benchmarking.recommendation import costs, recommend
    from sb3_compressed.benchmarking.snippet import snippet

    env_id, space = setup.env_id, recording.observation_space
    compared = costs(measured, setup.transitions, setup.capacity, setup.read)
    if (nbytes := measured[SB3]["rss"] * setup.transitions) < NOISE_NBYTES:
        hint = "; pass more --steps" if setup.kind == "replay" else ""
        note(f"SB3's buffer takes only {nbytes / 1e6:.2f} MB, so memory is a rough estimate{hint}")
    recommended, reason = recommend(compared, setup.read)
    lines, advice = "", f"Keep SB3's buffer. {reason}"
    if recommended != SB3:
        advice = f"Use {recommended}: {reason}"
        lines = snippet(env_id, recording, setup.algorithm, atari=setup.atari, buffer=setup.buffer, method=recommended)
    if plot:
        _plot(plot, env_id, compared, setup.read)
    result = {
        "env_id": env_id,
        "n_envs": setup.env.num_envs,
        "frame_stack": setup.n_stack,
        "atari": setup.atari,
        "kind": setup.kind,
        "observation_space": str(space),
        "buffer_size": setup.capacity,
        "transitions": setup.transitions,
        "algorithm": setup.algorithm,
        "batch_size": setup.batch_size,
        "buffers": [asdict(cost) for cost in compared],
        "failed": {name: one["error"] for name, one in measured.items() if "error" in one},
        "recommended": recommended,
        "reason": reason,
        "lines": lines,
    }
    table, explanation = _table(compared, env_id, space, setup.read), _explanation(setup)
    code = [python_code(lines)] if lines else []
    print_result(result, table, explanation, "", advice, *code, as_json=as_json)


def _plot(path: Path, env_id: str, compared: Sequence[Cost], read: str) -> None:
    from sb3_compressed.benchmarking.plot import plot_ratios

    panels = {
        "memory": [cost.ratio for cost in compared],
        "add": [cost.add_ratio for cost in compared],
        read: [cost.sample_ratio for cost in compared],
    }
    plot_ratios(path, f"{env_id}, relative to SB3's buffer", [cost.buffer for cost in compared], panels)


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
            cost.buffer + (" (returns wrong data)" if cost.wrong else ""),
            format_nbytes(cost.transition),
            format_nbytes(cost.memory),
            f"{cost.ratio:.2%}",
            *(
                f"{time:.1f} us" if is_base else f"{ratio:.2f}x"
                for time, ratio in ((cost.add, cost.add_ratio), (cost.sample, cost.sample_ratio))
            ),
        )
    return table


def _explanation(setup: Setup) -> str:
    if setup.kind == "replay":
        memory = f"estimated for {setup.capacity:,} transitions from the growth of the process (RSS)"
        times = "times are medians"
    else:
        memory = f"the growth of the process (RSS) for {setup.capacity:,} transitions"
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
