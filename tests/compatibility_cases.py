"""What the fixtures in ``tests/compatibility`` contain: buffers, arrays, codecs and models, and the data in them.

Fixtures are named after these cases, so a case must not change once fixtures of it were recorded: add another one.
All data is computed with integers and fractions of powers of two, and is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import sb3_compressed
from sb3_compressed import contrib as compressed_contrib
from sb3_compressed import get_codec
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.persistence.buffer_repair import RepairReport
from sb3_compressed.recording import FramelessRecordBuffer, RecordBuffer

Arrays = dict[str, NDArray[Any]]

SIDE = 16  # with four frames of it, an observation is just large enough for "auto" to compress it
EPISODE = 7

SPACES: dict[str, spaces.Space[Any]] = {
    "stack": spaces.Box(0, 255, (4, SIDE, SIDE), np.uint8),
    "image": spaces.Box(0, 255, (2 * SIDE, 2 * SIDE, 1), np.uint8),
    "vector": spaces.Box(-8, 8, (6,), np.float32),
    "counts": spaces.Box(0, 1000, (5,), np.int64),
}
SPACES["jumps"] = SPACES["vector"]  # none of the next observations is the observation that follows
SPACES["dict"] = spaces.Dict({"camera": SPACES["stack"], "sensors": SPACES["vector"], "gear": spaces.Discrete(5)})
SPACES["counts-dict"] = spaces.Dict({"counts": SPACES["counts"], "sensors": SPACES["vector"]})

#: The environments of hindsight replay; "bits" has vectors, "bit-images" images.
BITS: dict[str, dict[str, Any]] = {
    "bits": {"n_bits": 20, "max_steps": 6},
    "bit-images": {"n_bits": 5, "max_steps": 6, "image_obs_space": True},
}
DISCRETE = spaces.Discrete(3)


def frame_at(step: int, env: int, side: int = SIDE) -> NDArray[np.uint8]:
    """Return an image of a still background and a square that moves with the steps."""
    rows, columns = np.mgrid[:side, :side]
    frame: NDArray[np.uint8] = ((rows * 7 + columns * 3) % 64).astype(np.uint8)
    top, left = (3 * step + 5 * env) % (side - 4), (5 * step + env) % (side - 4)
    frame[top : top + 4, left : left + 4] = 100 + (step * 13 + env * 29) % 150
    return frame


def observation_at(kind: str, step: int, env: int) -> Any:
    """Return what one environment observes at a step; a stack reaches back to the start of its episode."""
    if kind == "stack":
        return np.stack([frame_at(max(step - back, step - step % (EPISODE + 1)), env) for back in (3, 2, 1, 0)])
    if kind == "image":
        return frame_at(step, env, 2 * SIDE)[..., np.newaxis]
    if kind in ("vector", "jumps"):
        return (((np.arange(6) + 1) * (step * 37 + env * 11 + 5)) % 997).astype(np.float32) / 128 - 4
    if kind == "counts":
        return (np.arange(5) + 1) * (step * 31 + env * 17 + 3) % 1001
    sensors = observation_at("vector", step, env)
    if kind == "counts-dict":
        return {"counts": observation_at("counts", step, env), "sensors": sensors}
    return {"camera": observation_at("stack", step, env), "sensors": sensors, "gear": (step + env) % 5}


def observations_at(kind: str, step: int, n_envs: int) -> Any:
    """Return what all environments observe at a step."""
    found = [observation_at(kind, step, env) for env in range(n_envs)]
    if isinstance(found[0], dict):
        return {key: np.stack([observation[key] for observation in found]) for key in found[0]}
    return np.stack(found)


@dataclass
class Step:
    """The arguments of one call of a replay buffer's ``add``."""

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[Any]
    done: NDArray[Any]
    infos: list[dict[str, Any]]

    def add_to(self, buffer: Any) -> None:
        """Add it; SB3's Dict buffers write into the dicts that they are given, so they get others."""
        obs, next_obs = (dict(each) if isinstance(each, dict) else each for each in (self.obs, self.next_obs))
        buffer.add(obs, next_obs, self.action, self.reward, self.done, self.infos)


def steps(kind: str, n_envs: int, first: int = 0) -> Iterator[Step]:
    """Yield the transitions of an endless run, in which every second episode ends with a time limit.

    :param first: the step to begin with
    """
    if kind in BITS:
        yield from bit_steps(kind, n_envs, first)
        return
    number = first
    while True:
        # An episode has EPISODE transitions between EPISODE + 1 observations.
        episode, within = divmod(number, EPISODE)
        at = episode * (EPISODE + 1) + within
        is_last = within == EPISODE - 1
        envs = np.arange(n_envs)
        yield Step(
            observations_at(kind, at, n_envs),
            observations_at(kind, at + 1, n_envs) + 0.5 if kind == "jumps" else observations_at(kind, at + 1, n_envs),
            ((number + envs) % 3)[:, np.newaxis],
            ((number * 5 + envs * 3) % 16).astype(np.float32) / 8 - 1,
            np.full(n_envs, is_last),
            [{"TimeLimit.truncated": is_last and episode % 2 == 1} for _ in range(n_envs)],
        )
        number += 1


def bit_steps(kind: str, n_envs: int, first: int) -> Iterator[Step]:
    """Yield transitions with goals: bits are flipped one after the other, from a state that the episode decides."""
    env = BitFlippingEnv(**BITS[kind])
    n_bits = len(env.state) if hasattr(env, "state") else int(BITS[kind]["n_bits"])

    def goals(states: NDArray[np.int8]) -> dict[str, NDArray[Any]]:
        shown = np.stack([np.asarray(env.convert_if_needed(state)) for state in states])
        wanted = np.stack([np.asarray(env.convert_if_needed(np.ones_like(state))) for state in states])
        return {"observation": shown, "achieved_goal": shown.copy(), "desired_goal": wanted}

    number = first
    while True:
        episode, within = divmod(number, 6)
        base = (np.arange(n_bits) + np.arange(n_envs)[:, np.newaxis] + episode) % 3 == 0
        flips = (np.arange(n_bits) < within) & (np.arange(n_bits) % 2 == episode % 2)
        later = (np.arange(n_bits) < within + 1) & (np.arange(n_bits) % 2 == episode % 2)
        is_last = within == 5
        yield Step(
            goals((base ^ flips).astype(np.int8)),
            goals((base ^ later).astype(np.int8)),
            np.full((n_envs, 1), within % n_bits),
            np.full(n_envs, -1, np.float32),
            np.full(n_envs, is_last),
            [{"TimeLimit.truncated": is_last} for _ in range(n_envs)],
        )
        number += 1


def space_of(kind: str) -> spaces.Space[Any]:
    """Return the observation space of such data."""
    return BitFlippingEnv(**BITS[kind]).observation_space if kind in BITS else SPACES[kind]


def action_space_of(kind: str) -> spaces.Space[Any]:
    """Return the action space of such data."""
    return BitFlippingEnv(**BITS[kind]).action_space if kind in BITS else DISCRETE


# -- replay buffers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayCase:
    """A replay buffer and what is added to it.

    :param kind: what is observed, one of ``SPACES`` or ``BITS``
    :param n_steps: number of calls of ``add``
    :param rows: number of rows of the buffer
    :param class_name: its class, in ``sb3_compressed``
    :param options: arguments of compressed buffers
    :param arguments: arguments that SB3's class takes, too
    :param is_in_folder: whether the recorded buffer is in a folder, with ``storage=``, when it is pickled
    """

    kind: str
    n_steps: int
    rows: int = 16
    n_envs: int = 2
    class_name: str = "CompressedReplayBuffer"
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_in_folder: bool = False

    def new(self, **changes: Any) -> Any:
        """Return an empty buffer."""
        options = {"num_threads": 1, **self.options, **changes}
        return self._make(getattr(sb3_compressed, self.class_name), **{**self.arguments, **options})

    def new_of_sb3(self) -> Any:
        """Return an empty buffer of SB3's own class, with arrays for all that the compressed one returns."""
        arguments = dict(self.arguments)
        if arguments.get("handle_timeout_termination", True) or self.class_name != "CompressedReplayBuffer":
            arguments.pop("optimize_memory_usage", None)  # which SB3 refuses; contents and samples are the same
        return self._make(OF_SB3[self.class_name], **arguments)

    def _make(self, buffer_class: Any, **arguments: Any) -> Any:
        if self.kind in BITS:
            arguments["env"] = self.env()
        size, space, action_space = self.rows * self.n_envs, space_of(self.kind), action_space_of(self.kind)
        return buffer_class(size, space, action_space, device="cpu", n_envs=self.n_envs, **arguments)

    def env(self) -> VecEnv:
        """Return the environment that hindsight replay computes rewards with."""
        env = make_vec_env(BitFlippingEnv, self.n_envs, seed=0, env_kwargs=BITS[self.kind])
        env.reset()
        return env

    def fill(self, buffer: Any, n_steps: int | None = None, first: int = 0) -> Any:
        """Add transitions and return the buffer."""
        stream = steps(self.kind, self.n_envs, first)
        n_steps = self.n_steps if n_steps is None else n_steps
        for _, step in zip(range(n_steps), stream, strict=False):
            step.add_to(buffer)
        if getattr(buffer, "sampler", None) is not None and first + n_steps == self.n_steps:
            update_priorities(buffer)
        return buffer


def update_priorities(buffer: Any) -> None:
    """Give drawn transitions other priorities, as a training does."""
    np.random.seed(SEED)  # noqa: NPY002  # what samplers draw from
    for _ in range(3):
        indices = buffer.sample(BATCH).indices
        buffer.update_priorities(indices, np.arange(1, BATCH + 1) / 8)


OF_SB3: dict[str, Any] = {
    "CompressedReplayBuffer": ReplayBuffer,
    "CompressedNStepReplayBuffer": NStepReplayBuffer,
    "CompressedDictReplayBuffer": DictReplayBuffer,
    "CompressedHerReplayBuffer": HerReplayBuffer,
}

#: Enough frames for codecs to be trained twice, after 64 and after 256 more, late enough for both to be in use.
TRAINED = {"n_steps": 60, "rows": 16, "n_envs": 4}
N_STEP = {"class_name": "CompressedNStepReplayBuffer", "arguments": {"n_steps": 3, "gamma": 0.5}}
DICT = {"class_name": "CompressedDictReplayBuffer"}
HER: dict[str, Any] = {
    "class_name": "CompressedHerReplayBuffer",
    "arguments": {"n_sampled_goal": 2, "goal_selection_strategy": "future"},
}
LEAN = {"optimize_memory_usage": True}
LEANEST = {"optimize_memory_usage": True, "handle_timeout_termination": False}


def method(compression_method: Any, **options: Any) -> dict[str, Any]:
    """Return options of a compressed buffer."""
    return {"compression_method": compression_method, **options}


REPLAY: dict[str, ReplayCase] = {
    "empty": ReplayCase("stack", 0),
    "stack-auto": ReplayCase("stack", **TRAINED),  # type: ignore[arg-type]
    "stack-auto-three-codecs": ReplayCase("stack", 60, rows=56, n_envs=4),
    "stack-auto-partial": ReplayCase("stack", 10),
    "stack-auto-of-folder": ReplayCase("stack", 40, is_in_folder=True),
    "vector-of-folder": ReplayCase("vector", 40, is_in_folder=True),
    "stack-auto-optimized": ReplayCase("stack", **TRAINED, arguments=LEAN),  # type: ignore[arg-type]
    "stack-auto-optimized-without-timeouts": ReplayCase("stack", 40, arguments=LEANEST),
    "stack-zstd-dict": ReplayCase("stack", **TRAINED, options=method("zstd-dict")),  # type: ignore[arg-type]
    "stack-delta": ReplayCase("stack", **TRAINED, options=method(Delta(compresslevel=5))),  # type: ignore[arg-type]
    "stack-zstd3": ReplayCase("stack", 40, options=method("zstd3", frame_stack=4)),
    "stack-rle-jit": ReplayCase("stack", 13, options=method("rle-jit")),
    "stack-igzip-float": ReplayCase("stack", 30, options=method("igzip1", output_dtype="float", normalize_images=True)),
    "stack-none": ReplayCase("stack", 40, options=method("none")),
    "image-packed": ReplayCase("image", 30, options=method("packed")),
    "image-lz4": ReplayCase("image", 30, options=method("lz4-frame/5", frame_stack=None)),
    "vector": ReplayCase("vector", 40),
    "vector-partial": ReplayCase("vector", 13),
    "vector-jumps": ReplayCase("jumps", 40),
    "vector-optimized": ReplayCase("vector", 40, arguments=LEAN),
    "vector-optimized-without-timeouts": ReplayCase("vector", 40, arguments=LEANEST),
    "vector-zstd": ReplayCase("vector", 40, options=method("zstd-5")),
    "counts-rle": ReplayCase("counts", 40, options=method("rle", dtypes={"elem_type": "int64", "runs_type": "uint8"})),
    "dict": ReplayCase("dict", **TRAINED, **DICT),  # type: ignore[arg-type]
    "dict-partial": ReplayCase("dict", 11, **DICT, options=method({"camera": "zstd-dict"})),  # type: ignore[arg-type]
    "dict-optimized": ReplayCase("dict", 40, **DICT, arguments=LEAN),  # type: ignore[arg-type]
    "n-step-stack": ReplayCase("stack", 40, **N_STEP),  # type: ignore[arg-type]
    "n-step-vector": ReplayCase("vector", 40, **N_STEP),  # type: ignore[arg-type]
    "stack-prioritized": ReplayCase("stack", 40, options={"sampler": "prioritized"}),
    "vector-prioritized-partial": ReplayCase("vector", 13, options={"sampler": "prioritized"}),
    "dict-prioritized": ReplayCase("dict", 40, **DICT, options={"sampler": "prioritized"}),  # type: ignore[arg-type]
    "her-vector": ReplayCase("bits", 40, **HER),
    "her-vector-partial": ReplayCase("bits", 15, **HER),
    "her-image": ReplayCase("bit-images", 40, **HER),
}

#: Those that are saved as checkpoints, and those that are kept in folders.
CHECKPOINTS = (
    "stack-auto", "stack-auto-partial", "stack-auto-optimized", "stack-zstd-dict", "vector", "vector-partial",
    "stack-none", "image-packed", "dict", "n-step-stack", "n-step-vector", "her-vector", "her-vector-partial",
    "her-image", "stack-prioritized", "vector-prioritized-partial", "dict-prioritized",
)  # fmt: skip
#: The parts of a mixed buffer, and their weights.
MIXED = {"vector": 0.75, "vector-jumps": 0.25}
STORAGE = (
    "stack-auto", "stack-auto-partial", "image-packed", "vector", "dict", "n-step-vector", "her-vector",
    "stack-prioritized", "vector-prioritized-partial",
)  # fmt: skip


# -- rollout buffers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RolloutCase:
    """A rollout buffer and what is added to it.

    :param of_sb3: SB3's class, or that of sb3-contrib
    :param is_flattened: whether batches were drawn before the buffer was saved
    """

    kind: str
    compressed: Any
    of_sb3: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    n_steps: int = 12
    is_flattened: bool = False

    ROWS, N_ENVS = 12, 2

    def new(self) -> Any:
        """Return an empty buffer."""
        return self._make(self.compressed, num_threads=1, **self.options)

    def new_of_sb3(self) -> Any:
        """Return an empty buffer of SB3's or sb3-contrib's own class."""
        return self._make(self.of_sb3)

    def _make(self, buffer_class: Any, **options: Any) -> Any:
        if self.is_recurrent:
            options["hidden_state_shape"] = (self.ROWS, 1, self.N_ENVS, 3)
        gamma = {"gamma": 0.5, "gae_lambda": 0.75}
        return buffer_class(
            self.ROWS, SPACES[self.kind], DISCRETE, device="cpu", n_envs=self.N_ENVS, **gamma, **options
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the states of an LSTM are added with each step."""
        return issubclass(self.of_sb3, RecurrentRolloutBuffer | RecurrentDictRolloutBuffer)

    def fill(self, buffer: Any, first: int = 0) -> Any:
        """Add transitions, compute returns if the buffer is full, and return the buffer."""
        starts = np.ones(self.N_ENVS, bool)
        for number, step in zip(range(first, first + self.n_steps), steps(self.kind, self.N_ENVS, first), strict=False):
            value = th.tensor([(number * 3 % 8) / 8, (number * 5 % 8) / 4])
            extra: dict[str, Any] = {}
            if self.is_recurrent:
                states = th.arange(6, dtype=th.float32).reshape(1, 2, 3) / 8 + number
                extra["lstm_states"] = RNNStates((states, states + 1), (states + 2, states + 3))
            elif issubclass(self.of_sb3, MaskableRolloutBuffer | MaskableDictRolloutBuffer):
                extra["action_masks"] = (np.arange(6).reshape(2, 3) + number) % 2
            obs = dict(step.obs) if isinstance(step.obs, dict) else step.obs
            buffer.add(obs, step.action, step.reward, starts, value, -value, **extra)
            starts = step.done
        if buffer.full:
            buffer.compute_returns_and_advantage(th.tensor([0.5, 0.25]), starts)
        if self.is_flattened:
            list(buffer.get(5))
        return buffer


ROLLOUT: dict[str, RolloutCase] = {
    "stack": RolloutCase("stack", sb3_compressed.CompressedRolloutBuffer, RolloutBuffer),
    "stack-flattened": RolloutCase(
        "stack", sb3_compressed.CompressedRolloutBuffer, RolloutBuffer, method("zstd-dict"), is_flattened=True
    ),
    "stack-partial": RolloutCase("stack", sb3_compressed.CompressedRolloutBuffer, RolloutBuffer, n_steps=5),
    "vector": RolloutCase("vector", sb3_compressed.CompressedRolloutBuffer, RolloutBuffer),
    "dict": RolloutCase("dict", sb3_compressed.CompressedDictRolloutBuffer, DictRolloutBuffer),
    "maskable": RolloutCase("stack", compressed_contrib.CompressedMaskableRolloutBuffer, MaskableRolloutBuffer),
    "maskable-dict": RolloutCase(
        "dict", compressed_contrib.CompressedMaskableDictRolloutBuffer, MaskableDictRolloutBuffer
    ),
    "recurrent": RolloutCase("stack", compressed_contrib.CompressedRecurrentRolloutBuffer, RecurrentRolloutBuffer),
    "recurrent-dict": RolloutCase(
        "dict", compressed_contrib.CompressedRecurrentDictRolloutBuffer, RecurrentDictRolloutBuffer
    ),
}


# -- arrays and codecs -------------------------------------------------------------------------------------------


def stacks(n_rows: int, first: int = 0) -> NDArray[np.uint8]:
    """Return observations ``(n_rows, 2, 4, SIDE, SIDE)`` of two environments."""
    return np.stack([observations_at("stack", step, 2) for step in range(first, first + n_rows)])


def frames() -> NDArray[np.uint8]:
    """Return single frames ``(n_frames, SIDE, SIDE)``, of which the last were not seen by a codec that was trained.

    The very last are smooth.
    """
    games = np.stack([frame_at(step, env) for step in range(40) for env in range(2)])
    rows, columns = np.ogrid[:SIDE, :SIDE]
    smooth = [5 * rows + 7 * columns + 3 * step + rows * columns % 3 for step in range(8)]
    return np.concatenate([games, np.stack(smooth).astype(np.uint8)])


N_TRAINING_FRAMES = 64

ARRAYS: dict[str, Mapping[str, Any]] = {
    "array-zstd": {"codec": "zstd3", "frame_stack": 4},
    "array-auto": {"codec": "auto"},
    "array-rle": {"codec": "rle-jit", "frame_stack": None},
}

CODECS: dict[str, Callable[[], Any]] = {
    f"codec-{name}": partial(get_codec, name)
    for name in (
        "none", "rle", "rle-jit", "gzip", "igzip", "zstd", "lz4-frame", "lz4-block", "delta", "packed", "zstd-dict"
    )
}  # fmt: skip
CODECS["codec-zstd-5"] = partial(get_codec, "zstd-5")
CODECS["codec-rle-with-runs-type"] = partial(get_codec, "rle", runs_type=np.dtype("uint16"))


def trained(name: str) -> TrainableCodec:
    """Return a codec that was trained on the first frames."""
    codec = get_codec(name)
    assert isinstance(codec, TrainableCodec)
    return codec.train(frames()[:N_TRAINING_FRAMES])


CODECS |= {f"codec-{name}-trained": partial(trained, name) for name in ("delta", "zstd-dict")}


#: What a buffer that was repaired has as ``repair_report``, in memory and in pickles.
REPORTS = {"repair-report": RepairReport(np.array([[3, 0], [4, 1]], np.int64), 24, ("00000001.log at byte 120",))}


# -- recordings --------------------------------------------------------------------------------------------------

RECORDINGS = {"recording": RecordBuffer, "recording-without-frames": FramelessRecordBuffer}
N_RECORDED = 6


def record_steps(recording: RecordBuffer, numbers: Iterable[int]) -> None:
    """Record steps of one environment, whose episodes end after the fourth and the seventh step."""
    for number in numbers:
        obs = np.full((1, 3), number / 8, np.float32)
        features = np.full((1, 2), number, np.float32)
        recording.record(obs, [number % 2], obs + 0.125, [float(number)], [number in (3, 6)], [{}], features=features)


def new_recording(name: str) -> RecordBuffer:
    """Return a recording of the first steps; the last of them waits for the features of the next one."""
    recording = RECORDINGS[name](spaces.Box(-1, 1, (3,)), spaces.Discrete(2), feature_space=2)
    record_steps(recording, range(N_RECORDED))
    return recording


# -- models ------------------------------------------------------------------------------------------------------


class RunEnv(gym.Env[Any, Any]):
    """An environment that observes the data above, whatever the actions are."""

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = space_of(kind), DISCRETE
        self.kind, self.episode, self.within = kind, -1, 0

    def _observe(self) -> Any:
        return observation_at(self.kind, self.episode * (EPISODE + 1) + self.within, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode, self.within = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on."""
        self.within += 1
        is_over = self.within == EPISODE
        return self._observe(), self.within / 8, is_over, False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are allowed."""
        return np.array([True, self.within % 2 == 0, True])


@dataclass(frozen=True)
class ModelCase:
    """A model with a compressed buffer.

    :param buffer_class: class of its buffer
    :param buffer_kwargs: arguments of the buffer's class
    """

    algorithm: type[BaseAlgorithm]
    policy: str
    kind: str
    buffer_class: Any
    buffer_kwargs: Callable[[], dict[str, Any]]

    @property
    def attribute(self) -> str:
        """The attribute of the model that is its buffer."""
        return "rollout_buffer" if issubclass(self.algorithm, PPO | MaskablePPO) else "replay_buffer"

    def env(self) -> VecEnv:
        """Return a new environment to train in."""
        if self.kind in BITS:
            continuous = self.algorithm is SAC
            return make_vec_env(BitFlippingEnv, 1, seed=0, env_kwargs={**BITS[self.kind], "continuous": continuous})
        return make_vec_env(partial(RunEnv, self.kind), 1, seed=0)

    def new(self) -> Any:
        """Return a model that has not learned yet."""
        arguments: dict[str, Any] = {
            f"{self.attribute}_class": self.buffer_class,
            f"{self.attribute}_kwargs": self.buffer_kwargs(),
            "policy_kwargs": {"net_arch": [1]},  # small files
        }
        if self.attribute == "replay_buffer":
            arguments.update(buffer_size=40, learning_starts=60, batch_size=8, train_freq=4)
        else:
            arguments.update(n_steps=8, batch_size=8, n_epochs=1)
        return self.algorithm(self.policy, self.env(), seed=0, device="cpu", **arguments)


MODELS: dict[str, ModelCase] = {
    "dqn": ModelCase(DQN, "MlpPolicy", "stack", sb3_compressed.CompressedReplayBuffer, dict),
    "dqn-zstd-5": ModelCase(
        DQN, "MlpPolicy", "stack", sb3_compressed.CompressedReplayBuffer,
        lambda: {"compression_method": "zstd", "compression_kwargs": {"compresslevel": -5}, "num_threads": 1},
    ),
    "dqn-zstd-dict": ModelCase(
        DQN, "MlpPolicy", "stack", sb3_compressed.CompressedReplayBuffer,
        lambda: {"compression_method": get_codec("zstd-dict"), "frame_stack": 4},
    ),
    "dqn-delta-trained": ModelCase(
        DQN, "MlpPolicy", "stack", sb3_compressed.CompressedReplayBuffer,
        lambda: {"compression_method": trained("delta")},
    ),
    "dqn-vector": ModelCase(DQN, "MlpPolicy", "vector", sb3_compressed.CompressedReplayBuffer, dict),
    "dqn-n-step": ModelCase(
        DQN, "MlpPolicy", "vector", sb3_compressed.CompressedNStepReplayBuffer, lambda: {"n_steps": 3, "gamma": 0.5}
    ),
    "dqn-her": ModelCase(
        DQN, "MultiInputPolicy", "bits", sb3_compressed.CompressedHerReplayBuffer, lambda: {"n_sampled_goal": 2}
    ),
    "sac-her": ModelCase(
        SAC, "MultiInputPolicy", "bits", sb3_compressed.CompressedHerReplayBuffer,
        lambda: {"n_sampled_goal": 2, "compression_method": "zstd3"},
    ),
    "dqn-dict": ModelCase(
        DQN, "MultiInputPolicy", "counts-dict", sb3_compressed.CompressedDictReplayBuffer,
        lambda: {"compression_method": {"counts": get_codec("rle-jit")}},
    ),
    "ppo": ModelCase(
        PPO, "MlpPolicy", "stack", sb3_compressed.CompressedRolloutBuffer, lambda: {"compression_method": "igzip"}
    ),
    "ppo-dict": ModelCase(PPO, "MultiInputPolicy", "counts-dict", sb3_compressed.CompressedDictRolloutBuffer, dict),
    "maskable-ppo": ModelCase(
        MaskablePPO, "MlpPolicy", "stack", compressed_contrib.CompressedMaskableRolloutBuffer,
        lambda: {"compression_method": get_codec("zstd3")},
    ),
}  # fmt: skip


# -- contents ----------------------------------------------------------------------------------------------------

CONTENTS = (
    "observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start", "ep_length",
    "_current_ep_start", "pos", "full", "returns", "episode_starts", "values", "log_probs", "advantages",
    "action_masks", "hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf",
)  # fmt: skip
"""Attributes of SB3's buffers that are their content."""

SEED, BATCH = 11, 10


def contents(buffer: Any) -> Arrays:
    """Return what a buffer contains, by its attributes and keys."""
    found: Arrays = {}
    for name in CONTENTS:
        value = getattr(buffer, name, None)
        if value is None:
            continue
        parts = {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        found |= {part_name: np.asarray(part if np.ndim(part) == 0 else part[:]) for part_name, part in parts.items()}
    return found


def flat(batch: Any, name: str) -> Arrays:
    """Return the arrays of a batch with its fields' names."""
    if batch is None:
        return {}
    if hasattr(batch, "_fields"):
        parts = batch._asdict()
    elif isinstance(batch, dict):
        parts = batch
    elif isinstance(batch, tuple | list):
        parts = dict(enumerate(batch))
    else:
        return {name: batch if isinstance(batch, np.ndarray) else batch.cpu().numpy()}
    return {key: array for part, value in parts.items() for key, array in flat(value, f"{name}/{part}").items()}


def sample(buffer: Any) -> Arrays:
    """Return a batch of a replay buffer that NumPy's global generator decides, nothing if the buffer is empty."""
    if buffer.size() == 0:
        return {}
    np.random.seed(SEED)  # noqa: NPY002  # what SB3 draws from
    return flat(buffer.sample(BATCH), "sample")


def rollout_batches(buffer: Any) -> Arrays:
    """Return batches of a rollout buffer that NumPy's global generator decides, nothing if the buffer is not full."""
    if not buffer.full:
        return {}
    np.random.seed(SEED)  # noqa: NPY002
    return flat(list(buffer.get(BATCH)), "batches")
