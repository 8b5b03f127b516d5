"""One training with one buffer, as ``training.py`` measures it: time, memory, weights, and the calls inside."""

from __future__ import annotations

import os
import time
from functools import partial
from importlib import import_module
from typing import Any

import torch as th
from frame_recording import Recording
from gymnasium import spaces
from metrics import resident_nbytes
from recorded_env import TINY_NETWORK, make_recorded, n_recorded_steps
from session import serve
from settings import SETTINGS
from sources import Source, record
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv

from adapters import sb3_class
from sb3_compressed import buffer_statistics, prioritize
from sb3_compressed.benchmarking.benchmark_envs import wrap_as_sb3
from sb3_compressed.benchmarking.measurement import Measurement
from sb3_compressed.benchmarking.metrics import median_us
from sb3_compressed.benchmarking.time_slices import pause
from sb3_compressed.benchmarking.training_run import TimedBatches, TimedCalls, weights_digest
from sb3_compressed.buffers.replay_mixin import CompressedReplay

__all__ = ["RECORDED", "is_on_policy", "measure", "missing", "recording_of"]

RECORDED = "recorded:"
ROLLOUT_SIZE = 1024  # transitions
FAST_BATCH_SIZE = 64
#: Discrete actions for algorithms that need them.
DISCRETE_VARIANTS = {"CarRacing-v3": "CarRacingDiscrete-v3"}


def is_on_policy(algorithm: str) -> bool:
    """Return whether an algorithm has a rollout buffer."""
    return algorithm == "PPO"


def source_of(algorithm: str, scene: str) -> Source:
    """Return the environment of a scene; ``recorded:`` is not part of its name."""
    name = scene.removeprefix(RECORDED)
    return Source(name if algorithm == "SAC" else DISCRETE_VARIANTS.get(name, name))


def missing(algorithm: str, scene: str) -> str:
    """Return why an algorithm cannot be trained on a scene here, empty if it can."""
    source = source_of(algorithm, scene)
    if source.missing_module:
        return f"{source.missing_module} is not installed: pip install --no-deps -r benchmarks/environments.txt"
    try:
        env = source.make(1)
    except (ValueError, ImportError) as error:
        return str(error)
    env.close()
    is_continuous = isinstance(env.action_space, spaces.Box)
    if not scene.startswith(RECORDED) and is_continuous != (algorithm == "SAC"):
        return f"{algorithm} needs {'discrete' if is_continuous else 'continuous'} actions"
    return ""


def recording_of(algorithm: str, scene: str, n_envs: int, n_steps: int) -> Recording:
    """Return the recording that a training of ``n_steps`` steps of all environments replays, from the cache if it can.

    :param scene: begins with ``recorded:``
    """
    source = source_of(algorithm, scene)
    env = source.make(n_envs)
    env.close()
    return record(source.name, n_envs, n_recorded_steps(env.observation_space, n_envs, n_steps))


def make_env(algorithm: str, scene: str, n_envs: int, n_steps: int) -> VecEnv:
    """Return the environments of a training of ``n_steps`` steps of all of them, as SB3's algorithms wrap them."""
    if not scene.startswith(RECORDED):
        source = source_of(algorithm, scene)
        return wrap_as_sb3(source.make(n_envs), source.n_stack)
    recording = recording_of(algorithm, scene, n_envs, n_steps)
    return make_recorded(recording, n_steps, is_continuous=algorithm == "SAC")


def measure(
    name: str,
    algorithm: str,
    scene: str,
    n_envs: int,
    n_threads: int | None,
    warm_up: int,
    steps: int,
    buffer_size: int | None,
    seed: int,
    n_segments: int = 0,
    device: str = "cpu",
) -> Measurement:
    """Train once and return times, memory and a digest of the weights.

    :param n_threads: of torch, ``None`` for its default
    :param warm_up: steps before those that are measured, of all environments
    :param steps: steps that are measured
    :param buffer_size: of replay buffers, ``None`` for all transitions of the training
    :param n_segments: number of time slices of the measured steps, see :func:`pause`; 0 to measure them without a pause
    :param device: of the model and its buffer
    :return: ``seconds``, also of each of the ``segments``, and ``cpu`` seconds of all threads of the process; the
        ``transitions`` in them; bytes of the process (RSS) at the end, ``rss``, and of each further transition in the
        buffer, ``growth``; median microseconds of ``add`` and of ``sample`` or a batch of ``get``, and ``in_buffer``,
        the seconds of all of them; ``counted``, the bytes of a transition that it reports, to compare with ``growth``;
        and ``weights``
    """
    if n_threads is not None:
        th.set_num_threads(n_threads)
    if device != "cpu":  # as on the CPU, where the same training has the same weights each time
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        th.use_deterministic_algorithms(True, warn_only=True)
    env = make_env(algorithm, scene, n_envs, -(-(warm_up + steps) // n_envs))
    make = partial(make_model, name, algorithm, env, is_fast=scene.startswith(RECORDED), seed=seed, device=device)
    if is_on_policy(algorithm):
        # Triggers what happens once in a process. Its memory would count as that of the first rollout otherwise.
        make(rollout_size=4 * n_envs, warm_up=0, buffer_size=0).learn(4 * n_envs)
    model = make(
        rollout_size=min(ROLLOUT_SIZE, warm_up), warm_up=warm_up, buffer_size=buffer_size or warm_up + steps + n_envs
    )
    of_first_rollout = RolloutGrowth()
    model.learn(warm_up, callback=of_first_rollout if is_on_policy(algorithm) else None)

    buffer = model.rollout_buffer if is_on_policy(algorithm) else model.replay_buffer
    adds = TimedCalls(buffer, "add")
    batches = TimedBatches(buffer, "get") if is_on_policy(algorithm) else TimedCalls(buffer, "sample")
    size, num_timesteps = buffer.size() * n_envs, model.num_timesteps
    segments = Segments(steps, n_segments)
    segments.pause()
    rss = resident_nbytes()
    cpu = time.process_time()
    model.learn(steps, callback=segments, reset_num_timesteps=False)
    result: Measurement = {"seconds": sum(segments.seconds), "segments": segments.seconds}
    result["cpu"] = time.process_time() - cpu
    result["transitions"] = model.num_timesteps - num_timesteps
    result["rss"] = resident_nbytes()
    if is_on_policy(algorithm):
        result["growth"] = of_first_rollout.nbytes / (buffer.size() * n_envs)
    elif buffer.size() * n_envs > size:
        result["growth"] = (result["rss"] - rss) / (buffer.size() * n_envs - size)
    result["add"] = median_us(adds.seconds)
    result["get" if is_on_policy(algorithm) else "sample"] = median_us(batches.seconds)
    result["in_buffer"] = sum(adds.seconds) + sum(batches.seconds)
    if isinstance(buffer, CompressedReplay):
        result["counted"] = buffer_statistics(buffer).memory_nbytes / (buffer.size() * n_envs)
    env.close()
    return {**result, "seed": seed, "weights": weights_digest(model)}


def make_model(
    name: str,
    algorithm: str,
    env: VecEnv,
    *,
    is_fast: bool,
    seed: int,
    rollout_size: int,
    warm_up: int,
    buffer_size: int,
    device: str = "cpu",
) -> Any:
    """Return a model with a buffer.

    :param name: name of the buffer
    :param is_fast: whether it has a tiny network
    :param rollout_size: transitions of a rollout
    :param warm_up: steps before those that are measured
    """
    settings = dict(SETTINGS[algorithm])
    cls, arguments = sb3_class(name, "rollout" if is_on_policy(algorithm) else "replay", env.observation_space)
    if is_on_policy(algorithm):
        settings["n_steps"] = max(rollout_size // env.num_envs, 1)
        settings |= {"rollout_buffer_class": cls, "rollout_buffer_kwargs": arguments}
    else:
        # As many updates per transition as with one environment.
        train_freq = max(settings["train_freq"] // env.num_envs, 1)
        n_updates = settings.get("gradient_steps", 1) * train_freq * env.num_envs / settings["train_freq"]
        settings |= {
            "buffer_size": buffer_size,
            "learning_starts": min(settings["learning_starts"], warm_up // 2),
            "train_freq": train_freq,
            "gradient_steps": max(round(n_updates), 1),
            "optimize_memory_usage": arguments.pop("optimize_memory_usage", False),
            "replay_buffer_class": cls,
            "replay_buffer_kwargs": arguments,
        }
    if is_fast:
        settings |= {"batch_size": FAST_BATCH_SIZE, "policy_kwargs": dict(TINY_NETWORK)}
        if algorithm == "QRDQN":
            settings["policy_kwargs"]["n_quantiles"] = 25
    settings["batch_size"] = min(settings["batch_size"], rollout_size)
    if algorithm == "PrioritizedDQN":
        arguments["sampler"] = "prioritized"
    policy = "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"
    model = _class_of(algorithm)(policy, env, seed=seed, device=device, **settings)
    if algorithm == "PrioritizedDQN":
        prioritize(model)
    return model


def _class_of(algorithm: str) -> Any:
    name = algorithm.removeprefix("Prioritized")
    return getattr(import_module("sb3_contrib" if name == "QRDQN" else "stable_baselines3"), name)


class Segments(BaseCallback):
    """Times the segments of a training, which consist of whole cycles, and pauses the process between them.

    :param steps: transitions of the training
    :param n: number of segments; 0 for one without pauses
    """

    def __init__(self, steps: int, n: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._may_pause = n > 0
        self._length = steps / max(n, 1)
        self._first = 0

    def pause(self) -> None:
        """Pause if there are time slices."""
        if self._may_pause:
            pause()

    def _on_training_start(self) -> None:
        self._first = self.num_timesteps
        self._begin = time.perf_counter()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self._first >= self._length * (len(self.seconds) + 1):
            self._end_segment()
            self.pause()
            self._begin = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._end_segment()

    def _end_segment(self) -> None:
        self.seconds.append(time.perf_counter() - self._begin)


class RolloutGrowth(BaseCallback):
    """Measures by how many bytes the process grows while the first rollout is collected."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0
        self._before: int | None = None

    def _on_rollout_start(self) -> None:
        if self._before is None:
            self._before = resident_nbytes()

    def _on_rollout_end(self) -> None:
        if not self.nbytes and self._before is not None:
            self.nbytes = resident_nbytes() - self._before

    def _on_step(self) -> bool:
        return True


if __name__ == "__main__":
    serve(measure)
