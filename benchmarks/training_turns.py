"""The time of a training with a buffer relative to another one, with both in turns in one process.

In another process, the same training takes up to a quarter more or less time, since its memory lies elsewhere: up to
ten times what a buffer costs. So one process trains one model with both buffers in turns; the network, its memory and
the environment are the same.

A turn takes some cycles, each of which collects transitions and then updates the network, and is compared with both of
its neighbors. The first cycles of a turn are not measured, since they fill the caches. Transitions of a turn are added
to its buffer alone, so each replay buffer holds half of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from measurement import Job, Measurement
from metrics import TimedBatches, TimedCalls, keep_freed_memory, median_us, one_thread
from ratios import ratio_interval
from session import serve
from settings import N_ENVS, SETTINGS
from stable_baselines3.common.callbacks import BaseCallback
from training_loops import (
    ROLLOUT_SIZE,
    TINY,
    baseline_of,
    is_on_policy,
    is_recorded,
    make_env,
    make_model,
    missing,
    recording_of,
)

from sb3_compressed import buffer_statistics
from sb3_compressed.buffers.base import CompressedBuffer

__all__ = ["Turns", "job_of", "measure", "n_steps", "neighbors", "prepare"]

#: Of each algorithm: measured turns of each buffer; those before, in which kernels are compiled and codecs trained; and
#: cycles of a turn, of which one of PPO is a whole rollout and its epochs.
SIZES = {"DQN": (16, 4, 80), "PrioritizedDQN": (16, 4, 80), "SAC": (10, 4, 10), "PPO": (8, 2, 1)}
SMOKE_SIZES = 2, 1, 5
#: The share of a turn at its beginning that is not measured.
SETTLING = 0.2


class Turns(BaseCallback):
    """Trains a model with each of two buffers in turns, the first one in even turns.

    :param model: the model
    :param buffers: the two
    :param n_cycles: of a turn
    :param n_settling: cycles at the beginning of a turn that are not measured
    :ivar seconds: of each turn
    """

    def __init__(self, model: Any, buffers: tuple[Any, Any], n_cycles: int, n_settling: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._buffers = buffers
        self._attribute = "rollout_buffer" if hasattr(model, "rollout_buffer") else "replay_buffer"
        self._n_cycles, self._n_settling = n_cycles, n_settling
        self._cycle = 0
        self._update: Callable[..., None] = model.train
        # A rollout belongs to the update after it, so buffers change between an update and the next rollout, where SB3
        # calls no callback.
        model.train = self._train

    def _on_step(self) -> bool:
        return True

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        starts = getattr(model, "learning_starts", 0)
        if self.num_timesteps < starts:  # both need transitions to sample from
            self._use(int(self.num_timesteps > starts / 2))
        elif self._cycle == 0:
            self._use(0)

    def _train(self, *args: Any, **kwargs: Any) -> None:
        self._update(*args, **kwargs)
        self._cycle += 1
        if self._cycle % self._n_cycles == 0:
            self.seconds.append(time.perf_counter() - self._began)
            self._use(len(self.seconds) % 2)
        if self._cycle % self._n_cycles == self._n_settling:
            self._began = time.perf_counter()

    def _use(self, index: int) -> None:
        setattr(self.model, self._attribute, self._buffers[index])


def neighbors(values: list[float]) -> tuple[list[float], list[float]]:
    """Return the values of odd turns, and for each the mean of those before and after it.

    >>> neighbors([1.0, 5.0, 3.0, 6.0, 5.0])
    ([5.0, 6.0], [2.0, 4.0])
    """
    odd = values[1:-1:2]
    return odd, [(before + after) / 2 for before, after in zip(values[:-2:2], values[2::2])]


def n_steps(algorithm: str, n_pairs: int, warm_up: int, n_cycles: int) -> int:
    """Return the transitions of a training with so many pairs of turns after the warm-up."""
    settings, n_cycles_in_total = SETTINGS[algorithm], (2 * (warm_up + n_pairs) + 1) * n_cycles
    if is_on_policy(algorithm):
        return ROLLOUT_SIZE * n_cycles_in_total
    return int(settings["learning_starts"] + settings["train_freq"] * (n_cycles_in_total + 1))


def job_of(name: str, algorithm: str, scene: str, *, is_smoke: bool = False, **options: Any) -> Job:
    """Return the job of a training in turns.

    :param name: of the buffer
    :param options: further arguments of :func:`measure`, such as ``n_pairs``
    """
    sizes = dict(zip(("n_pairs", "warm_up", "n_cycles"), SMOKE_SIZES if is_smoke else SIZES[algorithm]))
    parts = [algorithm, scene]
    parts += [f"{value} environments" for key, value in options.items() if key == "n_envs"]
    parts += [f"batches of {value}" for key, value in options.items() if key == "batch_size"]
    return Job(", ".join(parts), name, {"algorithm": algorithm, "scene": scene, **sizes, **options})


def prepare(jobs: Sequence[Job]) -> list[Job]:
    """Record what trainings in turns replay, and return those that can run here; print why others cannot."""
    found = []
    for job in jobs:
        of_job = job.arguments
        algorithm, scene = of_job["algorithm"], of_job["scene"]
        if reason := missing(algorithm, scene):
            print(f"skipping {job.label}: {reason}")
            continue
        if is_recorded(scene):
            n_envs = of_job.get("n_envs") or N_ENVS[algorithm]
            steps = n_steps(algorithm, of_job["n_pairs"], of_job["warm_up"], of_job["n_cycles"])
            recording_of(algorithm, scene, n_envs, -(-steps // n_envs))
        found.append(job)
    return found


def measure(
    name: str,
    algorithm: str,
    scene: str,
    n_pairs: int,
    warm_up: int,
    n_cycles: int,
    device: str = "cpu",
    batch_size: int | None = None,
    n_envs: int | None = None,
) -> Measurement:
    """Train once and return the ``time`` with a buffer relative to the baseline, and its interval of 95%.

    :param name: of the buffer
    :param scene: begins with ``recorded:`` or ``tiny:`` to replay frames
    :param n_pairs: turns of the buffer
    :param warm_up: turns of each buffer before
    :param n_cycles: of a turn
    :param device: of the model and both buffers
    :param batch_size: ``None`` for that of ``settings.py``
    :param n_envs: number of environments, ``None`` for that of ``settings.py``
    :return: ratios, median microseconds of the calls of the buffer, ``add`` and ``read`` (``sample``, or a batch of
        ``get``), and of the baseline's, ``base add`` and ``base read``, and ``reported``, the memory that the buffer
        reports, relative to that of raw arrays
    """
    one_thread()
    keep_freed_memory()
    steps, n_envs = n_steps(algorithm, n_pairs, warm_up, n_cycles), n_envs or N_ENVS[algorithm]
    env = make_env(algorithm, scene, n_envs, -(-steps // n_envs))
    make: Callable[[str], Any] = partial(
        make_model, algorithm=algorithm, env=env, is_tiny=scene.startswith(TINY), seed=0, rollout_size=ROLLOUT_SIZE,
        warm_up=steps, buffer_size=steps, device=device,
    )  # fmt: skip
    kind = "rollout_buffer" if is_on_policy(algorithm) else "replay_buffer"
    model, buffer = make(baseline_of(algorithm)), getattr(make(name), kind)
    model.batch_size = batch_size or model.batch_size
    buffers = getattr(model, kind), buffer
    timed = TimedBatches if is_on_policy(algorithm) else TimedCalls
    calls = [[TimedCalls(each, "add"), timed(each, "get" if is_on_policy(algorithm) else "sample")] for each in buffers]
    turns = Turns(model, buffers, n_cycles, int(SETTLING * n_cycles))
    model.learn(steps, callback=turns)
    env.close()
    ours, base = neighbors(turns.seconds[2 * warm_up : 2 * (warm_up + n_pairs) + 1])
    low, high = ratio_interval(ours, base)
    result = {"time": sum(ours) / sum(base), "low": low, "high": high, "pairs": len(ours)}
    for prefix, of_buffer in zip(("base ", ""), calls):
        for call, found in zip(("add", "read"), of_buffer):
            result[f"{prefix}{call}"] = median_us(found.seconds[len(found.seconds) // 2 :])
    if isinstance(buffer, CompressedBuffer):
        statistics = buffer_statistics(buffer)
        # On the device if the buffer is there.
        nbytes = statistics.device_memory_nbytes or statistics.memory_nbytes
        result["reported"] = nbytes / statistics.raw_memory_nbytes
    return result


if __name__ == "__main__":
    serve(measure)
