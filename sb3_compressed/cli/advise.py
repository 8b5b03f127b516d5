"""``sb3-compressed advise``: what compressed buffers save and cost in an environment, and the lines to use one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table

from sb3_compressed.cli.output import Json, code, format_nbytes, note, print_result, progress_bar

__all__ = ["advise"]

CODECS = ("auto", "none", "lz4-block", "zstd3")
#: A compressed buffer is recommended if it takes at most this share of the memory of SB3's smallest one.
MAX_RATIO = 0.9
OPTIMIZED = "optimize_memory_usage"


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
            min=2, help="Compare rollout buffers, as of PPO with this n_steps.", show_default="replay buffers"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="Transitions to collect with random actions.")] = 2_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Transitions of a batch.")] = 32,
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", help="Codec to compare, e.g. zstd-5; may be repeated.", show_default=" ".join(CODECS)),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare SB3's buffer with compressed ones in your environment, without a training.

    All buffers get the same transitions, and must return the same batches.

    Prints memory, the times of calls, and the lines to use the first codec if that pays off.
    """
    import torch as th

    from sb3_compressed import get_codec
    from sb3_compressed.cli.buffer_costs import measure_buffers
    from sb3_compressed.cli.environments import environment_spec, is_game, make_env, off_policy_algorithm, policy

    codecs = [*dict.fromkeys(codec or CODECS)]
    for name in codecs:
        get_codec(name)  # raises if it is unknown
    n_rows = -(-steps // n_envs)
    if n_steps:
        n_rows = n_steps * -(-n_rows // n_steps)  # whole rollouts
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # what environments print
        spec = environment_spec(env_id)
        atari = is_game(spec) if wrapper is None else wrapper is Wrapper.ATARI
        if atari and wrapper is None:
            note(f"{env_id} is an Atari game: using make_atari_env and frame stacking (--wrapper none disables both)")
        if atari and spec.kwargs.get("frameskip", 1) != 1:
            note(f"{env_id} skips frames itself, and make_atari_env skips more: use a NoFrameskip-v4 environment")
        stack.enter_context(warnings.catch_warnings())
        # The note above and the table show the same as these warnings.
        warnings.filterwarnings("ignore", ".*(skips frames|memory)", UserWarning)
        n_stack = frame_stack or (4 if atari else 1)
        env = stack.enter_context(closing(make_env(env_id, n_envs, atari=atari, n_stack=n_stack)))
        result: dict[str, Any] = {
            "env_id": env_id,
            "n_envs": n_envs,
            "atari": atari,
            "frame_stack": n_stack,
            "observation_space": str(env.observation_space),
            "observations": _describe(env.observation_space),
            "algorithm": "PPO" if n_steps else off_policy_algorithm(env.action_space),
            "policy": policy(env.observation_space),
            "kind": "rollout" if n_steps else "replay",
            "buffer_size": n_steps * n_envs if n_steps else buffer_size,
            "transitions": n_rows * n_envs,
            "batch_size": batch_size,
        }
        stack.callback(th.set_num_threads, th.get_num_threads())
        th.set_num_threads(1)  # several would wait for each other on a busy machine to copy a batch
        progress = stack.enter_context(progress_bar())
        task = progress.add_task(env_id, total=2 * n_rows)
        size, is_rollout = n_steps or buffer_size, n_steps is not None
        costs = measure_buffers(
            env, codecs, size, n_rows, batch_size, lambda: progress.advance(task), is_rollout=is_rollout
        )
    result["buffers"] = [asdict(cost) for cost in costs]
    memory = {cost.buffer: cost.memory for cost in costs}
    result["recommended"], result["advice"] = recommend(memory, codecs[0], result["policy"])
    result["lines"] = _lines(result, size) if result["recommended"] in codecs else ""
    print_result(result, *report(result), as_json=as_json)


def report(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what is printed of the JSON object."""
    yield f"{result['algorithm']} on {result['env_id']}: observations {result['observations']}\n"
    yield _table(result)
    yield f"\n{_explanation(result)}\n\n{result['advice']}"
    if result["lines"]:
        yield code(f"\n{result['lines']}")


def recommend(memory: Mapping[str, float], codec: str, policy: str) -> tuple[str, str]:
    """Return ``codec`` or ``SB3``, and the reason.

    :param memory: bytes of full buffers
    """
    ours, base = memory[codec], memory["SB3"]
    smallest = min(base, memory.get(OPTIMIZED, base))
    if ours <= MAX_RATIO * smallest:
        return codec, f"Use {codec}: {format_nbytes(ours)} instead of {format_nbytes(base)}, {base / ours:.3g}x less."
    advice = f"Keep SB3's buffer: {codec} takes {format_nbytes(ours)} instead of {format_nbytes(smallest)}."
    if policy == "MlpPolicy":
        advice += " Observations other than images rarely compress, and auto stores vectors as SB3 does."
    return "SB3", advice


def _lines(result: Mapping[str, Any], size: int) -> str:
    """Return the code that creates a model with the recommended buffer."""
    kind, algorithm, method = result["kind"], result["algorithm"], result["recommended"]
    dict_ = "Dict" if result["policy"] == "MultiInputPolicy" else ""
    cls = f"Compressed{dict_}{kind.capitalize()}Buffer"
    size_name = "n_steps" if kind == "rollout" else "buffer_size"
    keywords = f'    {kind}_buffer_kwargs=dict(\n        compression_method="{method}",\n    ),\n'
    return (
        f"from stable_baselines3 import {algorithm}\nfrom sb3_compressed import {cls}\n\nmodel = {algorithm}(\n"
        f'    "{result["policy"]}",\n    env,\n    {size_name}={size:_},\n    {kind}_buffer_class={cls},\n'
        f"{'' if method == 'auto' else keywords})"
    )


def _table(result: Mapping[str, Any]) -> Table:
    # Without an edge and with little padding, so that it fits into 60 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("buffer")
    for heading in ("transition", "memory", "of SB3", "add", "get" if result["kind"] == "rollout" else "sample"):
        table.add_column(heading, justify="right")
    for cost in result["buffers"]:
        table.add_row(
            "SB3 optimized" if cost["buffer"] == OPTIMIZED else cost["buffer"],
            format_nbytes(cost["transition"]),
            format_nbytes(cost["memory"]),
            f"{cost['ratio']:.1%}",
            *(_format_us(cost[call]) for call in ("add", "read")),
        )
    return table


def _format_us(microseconds: float) -> str:
    return f"{microseconds:.0f} us" if microseconds < 1000 else f"{microseconds / 1000:.3g} ms"


def _explanation(result: Mapping[str, Any]) -> str:
    n_transitions = f"Memory is that of {result['buffer_size']:,} transitions"
    if result["kind"] == "replay":
        n_transitions += f", estimated from {result['transitions']:,} with random actions"
    optimized = any(cost["buffer"] == OPTIMIZED for cost in result["buffers"])
    return (
        f"{n_transitions}. {'SB3 optimized has optimize_memory_usage=True. ' if optimized else ''}"
        f"Times are medians of calls, for batches of {result['batch_size']}. "
        "The compressed buffers returned the same batches as SB3's, bit for bit."
    )


def _describe(space: Any) -> str:
    """Return shape and dtype of a space, of a Dict space those of each part."""
    from sb3_compressed.common.spaces import space_parts

    parts = space_parts(space).items()
    return ", ".join(f"{'' if key is None else f'{key} '}{part.shape} {part.dtype}" for key, part in parts)
