"""What the examples share: their flags, Atari games, a training that Ctrl-C ends well, and the table of memory."""

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
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every environment

SUFFIX = "NoFrameskip-v4"  # SB3's Atari wrapper skips frames itself
NOISE_NBYTES = 1_000_000  # about what a training process grows and shrinks by for no reason to be seen

# -- flags -----------------------------------------------------------------------------------------------------


def _known_game(name: str) -> str:
    games = {env_id.removesuffix(SUFFIX).lower(): env_id for env_id in gym.registry if env_id.endswith(SUFFIX)}
    if f"{name}{SUFFIX}" not in games.values():
        near = difflib.get_close_matches(name.lower(), games, n=5, cutoff=0.4)
        names = ", ".join(games[key].removesuffix(SUFFIX) for key in near or games)
        raise typer.BadParameter(f"there is no game {name!r}; {'did you mean' if near else 'there are'} {names}?")
    return name


def _known_method(shorthand: str) -> str:
    try:
        get_codec(shorthand)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return shorthand


Game = Annotated[str, typer.Option(help="An Atari game, as Pong or MsPacman.", callback=_known_game)]
Method = Annotated[
    str, typer.Option(help="What compresses observations, as zstd-5 or igzip/3.", callback=_known_method)
]
Steps = Annotated[int, typer.Option(min=1, help="Environment steps to train for.")]
NEnvs = Annotated[int, typer.Option(min=1, help="Number of environments.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of environments, network and exploration.")]

# -- training --------------------------------------------------------------------------------------------------

Model: TypeAlias = OffPolicyAlgorithm | OnPolicyAlgorithm


def make_atari(game: str, n_envs: int, seed: int, n_stack: int = 4, **kwargs: Any) -> VecEnv:
    """Return environments with DeepMind's preprocessing and stacked frames; ``kwargs`` go to ``make_atari_env``."""
    return VecFrameStack(make_atari_env(f"{game}{SUFFIX}", n_envs, seed, **kwargs), n_stack)


def train(model: Model, steps: int, callbacks: Sequence[BaseCallback] = ()) -> None:
    """Train with SB3's progress bar, then print what the model's buffer takes and how the last episodes went.

    A model that has been trained before goes on, up to ``steps`` in all. Ctrl-C ends the training after the current
    step, and the rest is printed all the same.
    """
    # Networks this small gain little from a second thread, and lose a lot to it where cores are shared.
    th.set_num_threads(1)
    stop, gauge = StopOnInterrupt(), MemoryGauge(steps)
    previous = signal.signal(signal.SIGINT, stop.request)
    try:
        model.learn(
            steps - model.num_timesteps,
            callback=[stop, gauge, *callbacks],
            reset_num_timesteps=model.num_timesteps == 0,
            progress_bar=True,
        )
    finally:
        signal.signal(signal.SIGINT, previous)
    if stop.interrupted:
        print(f"Ctrl-C: stopped after {model.num_timesteps:,} of {steps:,} steps.")
    Console().print(gauge.table() if gauge.held else "The buffer is empty: there is no memory to compare.")
    rewards = [episode["r"] for episode in model.ep_info_buffer or []]
    successes = f", success rate {np.mean(model.ep_success_buffer):.2f}" if model.ep_success_buffer else ""
    last = f"mean reward {np.mean(rewards):.2f}{successes} in the last {len(rewards)}" if rewards else "none ended"
    print(f"Episodes: {last}.")


class StopOnInterrupt(BaseCallback):
    """Lets Ctrl-C end the training between two steps, which leaves environments, buffer and progress bar whole."""

    interrupted = False

    def request(self, signum: int, frame: object) -> None:
        """Handle the signal; a second one does not wait for the step to end."""
        self.interrupted = True
        signal.signal(signum, signal.default_int_handler)

    def _on_step(self) -> bool:
        return not self.interrupted


# -- memory ----------------------------------------------------------------------------------------------------


class MemoryGauge(BaseCallback):
    """Measures what a replay buffer takes: by how much the process grows while the buffer fills for the first time.

    What grows is the resident set, as the operating system counts it: payloads, Python's objects around them, and what
    allocators lose between those. It is read when a tenth of the transitions are there (by then PyTorch, the optimiser
    and the environments have what they need) and when the buffer or the training is at its end; the growth in between
    is scaled to all transitions. Whatever else grows in that time is counted too. To drop the buffer and look what
    comes back would miss half of it: Python returns an arena of 1 MiB only once nothing at all is left in it.

    A rollout buffer is made anew for every rollout from memory that was in use before: there is only its own count.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._marks: list[tuple[int, int]] = []  # transitions held, resident bytes
        self._warm = math.inf  # how many transitions must be there for the first mark

    @property
    def buffer(self) -> Any:
        """The replay or rollout buffer of the model."""
        model: Any = self.model
        return model.replay_buffer if hasattr(model, "replay_buffer") else model.rollout_buffer

    @property
    def held(self) -> int:
        """How many transitions it holds."""
        return int(self.buffer.size() * self.buffer.n_envs)

    def _mark(self) -> None:
        self._marks.append((self.held, resident_nbytes()))

    def _on_training_start(self) -> None:
        if isinstance(self.model, OffPolicyAlgorithm):
            most = min(self._steps, self.buffer.buffer_size * self.buffer.n_envs)
            self._warm = max(most // 10, 2 * self.model.learning_starts)

    def _on_step(self) -> bool:
        if not self._marks and self.held >= self._warm:
            self._mark()
        return True

    def _on_rollout_end(self) -> None:
        if self.buffer.full:  # from here on, what is added takes the place of what was
            self._on_training_end()

    def _on_training_end(self) -> None:
        if len(self._marks) == 1 and self.held > self._marks[0][0]:
            self._mark()

    def table(self) -> Table:
        """Return what was measured, what the buffer itself counts, and what SB3 takes for the same transitions."""
        (some, before), (most, after) = self._marks if len(self._marks) == 2 else [(0, 0), (0, 0)]
        if after - before <= NOISE_NBYTES:
            return memory_table(self.buffer)
        # Slots take their place for the whole ring with the first write: no part of the growth, but of the memory.
        slots = sum(array.slots.nbytes for array in arrays_of(self.buffer) if isinstance(array, CompressedArray))
        return memory_table(self.buffer, (after - before) * self.held / (most - some) + slots)


def memory_table(buffer: Any, measured: float | None = None) -> Table:
    """Return what a buffer takes, beside what SB3 takes for the same transitions.

    :param measured: what the operating system says that it takes, in bytes, if that is known
    """
    arrays = list(arrays_of(buffer))
    ours = [array for array in arrays if not isinstance(array, np.ndarray)]
    # NumPy's zeros take no memory before they are written, so of SB3's arrays only the filled part counts.
    filled = buffer.size() / buffer.buffer_size
    plain = filled * sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    sb3 = plain + filled * sum(array.raw_nbytes for array in ours)
    counted = plain + (buffer.observations_nbytes if ours else 0)

    table = Table("transitions held", f"{buffer.size() * buffer.n_envs:,}", title=type(buffer).__name__)
    table.columns[1].justify = "right"
    if measured is not None:
        table.add_row("memory, measured (RSS)", f"{measured / 1e6:,.1f} MB")
    table.add_row("memory, counted by the buffer", f"{counted / 1e6:,.1f} MB")
    table.add_row("memory in SB3's buffer", f"{sb3 / 1e6:,.1f} MB")
    table.add_row("times less", f"{sb3 / max(measured or 0, counted, 1):.1f}")
    return table


def arrays_of(buffer: Any) -> Iterator[Any]:
    """Yield every array that a buffer of SB3, or one of ours, keeps."""
    for name, value in vars(buffer).items():
        for array in value.values() if isinstance(value, dict) else [value]:
            if (isinstance(array, np.ndarray) or hasattr(array, "raw_nbytes")) and not name.startswith("_"):
                yield array


def resident_nbytes() -> int:
    """Return the memory of this process, less what it can give back at once."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
