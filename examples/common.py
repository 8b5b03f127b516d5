"""Shared by the examples: options, Atari environments, training with a graceful Ctrl-C, and the memory table."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import gc
import math
import signal
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import ale_py
import gymnasium as gym
import numpy as np
import psutil
import torch as th
import typer
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_compressed import CompressedArray, get_codec

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner per environment

SUFFIX = "NoFrameskip-v4"  # SB3's Atari wrapper skips frames itself
NOISE_NBYTES = 1_000_000  # by which the memory of a training process varies anyway

# -- options ---------------------------------------------------------------------------------------------------


def _validate_game(name: str) -> str:
    games = {env_id.removesuffix(SUFFIX).lower(): env_id for env_id in gym.registry if env_id.endswith(SUFFIX)}
    if f"{name}{SUFFIX}" not in games.values():
        similar = difflib.get_close_matches(name.lower(), games, n=5, cutoff=0.4)
        names = ", ".join(games[key].removesuffix(SUFFIX) for key in similar or games)
        hint = f"did you mean {names}?" if similar else f"available games: {names}"
        raise typer.BadParameter(f"there is no game {name!r}; {hint}")
    return name


def _validate_method(shorthand: str) -> str:
    try:
        get_codec(shorthand)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return shorthand


Game = Annotated[str, typer.Option(help="Atari game, for example Pong or MsPacman.", callback=_validate_game)]
Method = Annotated[
    str, typer.Option(help="Codec of the observations, for example zstd-5 or igzip/3.", callback=_validate_method)
]
Steps = Annotated[int, typer.Option(min=1, help="Environment steps to train for.")]
NEnvs = Annotated[int, typer.Option(min=1, help="Number of environments.")]
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Seed of the environments, the network and the exploration.")
]

# -- training --------------------------------------------------------------------------------------------------

Model: TypeAlias = OffPolicyAlgorithm | OnPolicyAlgorithm


def make_atari(game: str, n_envs: int, seed: int, n_stack: int = 4, **kwargs: Any) -> VecEnv:
    """Return environments with DeepMind's preprocessing and stacked frames; ``kwargs`` go to ``make_atari_env``."""
    return VecFrameStack(make_atari_env(f"{game}{SUFFIX}", n_envs, seed, **kwargs), n_stack)


def train(model: Model, steps: int, callbacks: Sequence[BaseCallback] = ()) -> None:
    """Train with SB3's progress bar, then print the memory of the buffer and the results of the last episodes.

    A model that was trained before continues up to ``steps`` in total. Ctrl-C ends the training after the current step;
    the summary is still printed.
    """
    # Networks this small gain little from a second thread, and lose a lot if cores are shared.
    th.set_num_threads(1)
    stop, memory = StopOnInterrupt(), BufferMemoryCallback(steps)
    previous = signal.signal(signal.SIGINT, stop.request)
    try:
        model.learn(
            steps - model.num_timesteps,
            callback=[stop, memory, *callbacks],
            reset_num_timesteps=model.num_timesteps == 0,
            progress_bar=True,
        )
    finally:
        signal.signal(signal.SIGINT, previous)
    if stop.interrupted:
        print(f"Ctrl-C: stopped after {model.num_timesteps:,} of {steps:,} steps.")
    Console().print(memory.table() if memory.n_transitions else "The buffer is empty: there is no memory to compare.")
    rewards = [episode["r"] for episode in model.ep_info_buffer or []]
    success_rate = f", success rate {np.mean(model.ep_success_buffer):.2f}" if model.ep_success_buffer else ""
    mean = f"mean reward {np.mean(rewards):.2f}" if rewards else ""
    results = f"{mean}{success_rate} in the last {len(rewards)}" if rewards else "none ended"
    print(f"Episodes: {results}.")


class StopOnInterrupt(BaseCallback):
    """Ends the training on Ctrl-C between two steps, so that environments, buffer and progress bar stay intact."""

    interrupted = False

    def request(self, signum: int, frame: object) -> None:
        """Handle the signal; a second one interrupts immediately."""
        self.interrupted = True
        signal.signal(signum, signal.default_int_handler)

    def _on_step(self) -> bool:
        return not self.interrupted


# -- memory ----------------------------------------------------------------------------------------------------


class BufferMemoryCallback(BaseCallback):
    """Measures the memory of a replay buffer as the growth of the process while the buffer fills for the first time.

    The resident set includes payloads, Python's objects around them, and allocator overhead. It is read twice: when a
    tenth of the transitions are stored (PyTorch, the optimizer and the environments are initialized by then), and when
    the buffer is full or the training ends. The growth in between, whatever its cause, is scaled to all transitions.
    Deleting the buffer and measuring what is freed would miss half of it: Python frees an arena of 1 MiB only when all
    objects in it are gone.

    A rollout buffer reuses the memory of the previous rollout, so only the buffer's own count is available for it.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._measurements: list[tuple[int, int]] = []  # number of transitions, resident bytes
        self._first_at = math.inf  # number of transitions at the first measurement

    @property
    def buffer(self) -> Any:
        """The replay or rollout buffer of the model."""
        model: Any = self.model
        return model.replay_buffer if hasattr(model, "replay_buffer") else model.rollout_buffer

    @property
    def n_transitions(self) -> int:
        """The number of transitions in the buffer."""
        return int(self.buffer.size() * self.buffer.n_envs)

    def _measure(self) -> None:
        self._measurements.append((self.n_transitions, resident_nbytes()))

    def _on_training_start(self) -> None:
        if isinstance(self.model, OffPolicyAlgorithm):
            final = min(self._steps, self.buffer.buffer_size * self.buffer.n_envs)
            self._first_at = max(final // 10, 2 * self.model.learning_starts)

    def _on_step(self) -> bool:
        if not self._measurements and self.n_transitions >= self._first_at:
            self._measure()
        return True

    def _on_rollout_end(self) -> None:
        if self.buffer.full:  # from now on, transitions are overwritten
            self._on_training_end()

    def _on_training_end(self) -> None:
        if len(self._measurements) == 1 and self.n_transitions > self._measurements[0][0]:
            self._measure()

    def table(self) -> Table:
        """Return the measured memory, the buffer's own count, and the memory of SB3's buffer."""
        if len(self._measurements) < 2:
            return memory_table(self.buffer)
        (first, before), (last, after) = self._measurements
        if after - before <= NOISE_NBYTES:
            return memory_table(self.buffer)
        # Slots are allocated for the whole ring with the first write, before the first measurement.
        slots = sum(array.references.nbytes for array in arrays_of(self.buffer) if isinstance(array, CompressedArray))
        return memory_table(self.buffer, (after - before) * self.n_transitions / (last - first) + slots)


def memory_table(buffer: Any, measured: float | None = None) -> Table:
    """Return a table of the memory of a buffer and of SB3's buffer with the same transitions.

    :param measured: resident memory of the buffer in bytes, if it was measured
    """
    arrays = list(arrays_of(buffer))
    ours = [array for array in arrays if not isinstance(array, np.ndarray)]
    # np.zeros takes no memory before it is written, so only the filled part of SB3's arrays counts.
    filled = buffer.size() / buffer.buffer_size
    plain = filled * sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    sb3 = plain + filled * sum(array.raw_nbytes for array in ours)
    counted = plain + (buffer.observations_nbytes if ours else 0)

    table = Table("transitions stored", f"{buffer.size() * buffer.n_envs:,}", title=type(buffer).__name__)
    table.columns[1].justify = "right"
    if measured is not None:
        table.add_row("memory, measured (RSS)", f"{measured / 1e6:,.1f} MB")
    table.add_row("memory, counted by the buffer", f"{counted / 1e6:,.1f} MB")
    table.add_row("memory in SB3's buffer", f"{sb3 / 1e6:,.1f} MB")
    table.add_row("reduction", f"{sb3 / max(measured or 0, counted, 1):.1f}x")
    return table


def arrays_of(buffer: Any) -> Iterator[Any]:
    """Yield every array of a buffer, SB3's or compressed."""
    for name, value in vars(buffer).items():
        for array in value.values() if isinstance(value, dict) else [value]:
            if (isinstance(array, np.ndarray) or hasattr(array, "raw_nbytes")) and not name.startswith("_"):
                yield array


def resident_nbytes() -> int:
    """Return the resident memory of this process after freeing what can be freed."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
