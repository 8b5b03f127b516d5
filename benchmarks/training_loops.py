"""Trainings of the benchmarks: their environments and models, and the memory and weights of one training."""

from __future__ import annotations

import hashlib
import os
import time
from functools import partial
from typing import Any

import stable_baselines3
import torch as th
from frame_recording import Recording
from gymnasium import spaces
from measurement import Measurement
from metrics import keep_freed_memory, minor_page_faults, one_thread, resident_nbytes
from recorded_env import TINY_NETWORK, make_recorded, n_recorded_steps
from sb3_envs import wrap_as_sb3
from session import serve
from settings import SETTINGS
from sources import Source, record
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv

from adapters import sb3_class
from sb3_compressed import prioritize

__all__ = [
    *("RECORDED", "ROLLOUT_SIZE", "TINY", "baseline_of", "is_on_policy", "is_recorded", "make_env", "make_model"),
    *("measure", "missing", "recording_of"),
]

#: Scenes whose frames are replayed from memory: with the usual network, and with a tiny one.
RECORDED, TINY = "recorded:", "tiny:"
ROLLOUT_SIZE = 1024  # transitions
TINY_BATCH_SIZE = 64
#: Discrete actions for algorithms that need them.
DISCRETE_VARIANTS = {"CarRacing-v3": "CarRacingDiscrete-v3"}


def is_on_policy(algorithm: str) -> bool:
    """Return whether an algorithm has a rollout buffer."""
    return algorithm == "PPO"


def baseline_of(algorithm: str) -> str:
    """Return the buffer that others are compared with; SB3 has no prioritized one, so that is our uncompressed one."""
    return "none" if algorithm == "PrioritizedDQN" else "SB3"


def is_recorded(scene: str) -> bool:
    """Return whether the frames of a scene are replayed from memory."""
    return scene.startswith((RECORDED, TINY))


def source_of(algorithm: str, scene: str) -> Source:
    """Return the environment of a scene, whose name may have a prefix."""
    name = scene.removeprefix(RECORDED).removeprefix(TINY)
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
    if not is_recorded(scene) and is_continuous != (algorithm == "SAC"):
        return f"{algorithm} needs {'discrete' if is_continuous else 'continuous'} actions"
    return ""


def recording_of(algorithm: str, scene: str, n_envs: int, n_steps: int) -> Recording:
    """Return the recording that a training of ``n_steps`` steps of all environments replays, from the cache if it can.

    :param scene: begins with ``recorded:`` or ``tiny:``
    """
    source = source_of(algorithm, scene)
    env = source.make(n_envs)
    env.close()
    return record(source.name, n_envs, n_recorded_steps(env.observation_space, n_envs, n_steps))


def make_env(algorithm: str, scene: str, n_envs: int, n_steps: int) -> VecEnv:
    """Return the environments of a training of ``n_steps`` steps of all of them, as SB3's algorithms wrap them."""
    if not is_recorded(scene):
        source = source_of(algorithm, scene)
        return wrap_as_sb3(source.make(n_envs), source.n_stack)
    recording = recording_of(algorithm, scene, n_envs, n_steps)
    return make_recorded(recording, n_steps, is_continuous=algorithm == "SAC")


def measure(
    name: str,
    algorithm: str,
    scene: str,
    n_envs: int,
    warm_up: int,
    steps: int,
    device: str = "cpu",
    *,
    keeps_memory: bool = False,
) -> Measurement:
    """Train once and return memory and a digest of the weights.

    :param warm_up: steps before those that are measured, of all environments
    :param steps: steps that are measured
    :param device: of the model and its buffer
    :param keeps_memory: whether the process keeps memory that is freed
    :return: bytes by which the process (RSS) grows with each further transition in the buffer, ``growth``; ``seconds``
        and minor page ``faults`` of the measured steps; and ``weights``
    """
    one_thread()
    if keeps_memory:
        keep_freed_memory()
    if device != "cpu":  # as on the CPU, where the same training has the same weights each time
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        th.use_deterministic_algorithms(True, warn_only=True)
    env = make_env(algorithm, scene, n_envs, -(-(warm_up + steps) // n_envs))
    make = partial(make_model, name, algorithm, env, is_tiny=scene.startswith(TINY), seed=0, device=device)
    if is_on_policy(algorithm):
        # Triggers what happens once in a process. Its memory would count as that of the first rollout otherwise.
        make(rollout_size=4 * n_envs, warm_up=0, buffer_size=0).learn(4 * n_envs)
    model = make(rollout_size=min(ROLLOUT_SIZE, warm_up), warm_up=warm_up, buffer_size=warm_up + steps + n_envs)
    of_first_rollout = RolloutGrowth()
    model.learn(warm_up, callback=of_first_rollout if is_on_policy(algorithm) else None)

    buffer = model.rollout_buffer if is_on_policy(algorithm) else model.replay_buffer
    size, rss = buffer.size() * n_envs, resident_nbytes()
    begin, faults = time.perf_counter(), minor_page_faults()
    model.learn(steps, reset_num_timesteps=False)
    result: Measurement = {"seconds": time.perf_counter() - begin, "faults": minor_page_faults() - faults}
    if is_on_policy(algorithm):
        result["growth"] = of_first_rollout.nbytes / (buffer.size() * n_envs)
    else:
        result["growth"] = (resident_nbytes() - rss) / (buffer.size() * n_envs - size)
    env.close()
    return {**result, "weights": weights_digest(model)}


def weights_digest(model: Any) -> str:
    """Return a digest of all weights of a model's policy."""
    digest = hashlib.sha256()
    for parameter in model.policy.state_dict().values():
        digest.update(parameter.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def make_model(
    name: str,
    algorithm: str,
    env: VecEnv,
    *,
    is_tiny: bool,
    seed: int,
    rollout_size: int,
    warm_up: int,
    buffer_size: int,
    device: str = "cpu",
) -> Any:
    """Return a model with a buffer.

    :param name: name of the buffer
    :param is_tiny: whether it has a tiny network
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
    if is_tiny:
        settings |= {"batch_size": TINY_BATCH_SIZE, "policy_kwargs": dict(TINY_NETWORK)}
    settings["batch_size"] = min(settings["batch_size"], rollout_size)
    if algorithm == "PrioritizedDQN":
        arguments["sampler"] = "prioritized"
    policy = "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"
    model = getattr(stable_baselines3, algorithm.removeprefix("Prioritized"))(
        policy, env, seed=seed, device=device, **settings
    )
    if algorithm == "PrioritizedDQN":
        prioritize(model)
    return model


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
