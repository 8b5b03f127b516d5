"""Python code that creates a user's environment and a model with the recommended buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb3_compressed.benchmarking.adapters import sb3_class
from sb3_compressed.benchmarking.benchmark_envs import is_atari
from sb3_compressed.benchmarking.frame_recording import Recording
from sb3_compressed.codecs.registry import AUTO

__all__ = ["off_policy_algorithm", "snippet"]


def off_policy_algorithm(action_space: spaces.Space[Any]) -> tuple[str, int]:
    """Return an off-policy algorithm of SB3 for an action space, and its default batch size.

    :raises ValueError: if there is none
    """
    if isinstance(action_space, spaces.Discrete):
        return "DQN", 32
    if isinstance(action_space, spaces.Box):
        return "SAC", 256
    raise ValueError(
        f"no off-policy algorithm of Stable-Baselines3 supports the action space {action_space}; "
        "pass --n-steps for the rollout buffers of PPO and A2C"
    )


def _policy(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def snippet(
    env_id: str, recording: Recording, algorithm: str, *, atari: bool, buffer: Mapping[str, int], method: str
) -> str:
    """Return the code.

    :param buffer: the model's argument ``buffer_size``, or ``n_steps`` for a rollout buffer
    :param method: compression method
    """
    kind: Any = "rollout" if "n_steps" in buffer else "replay"
    make = "make_atari_env" if atari else "make_vec_env"
    imports = [f"from stable_baselines3 import {algorithm}", f"from stable_baselines3.common.env_util import {make}"]
    env = f'{make}("{env_id}", n_envs={recording.n_envs})'
    if recording.n_stack > 1:
        imports.append("from stable_baselines3.common.vec_env import VecFrameStack")
        env = f"VecFrameStack({env}, n_stack={recording.n_stack})"
    games = ["import ale_py", "import gymnasium as gym"] if is_atari(env_id) else []
    space = recording.observation_space
    cls = sb3_class(method, kind, space)[0].__name__
    arguments = [
        f'"{_policy(space)}"',
        "env",
        *(f"{name}={value:_}" for name, value in buffer.items()),
        f"{kind}_buffer_class={cls}",
        *([] if method == AUTO else [f'{kind}_buffer_kwargs=dict(compression_method="{method}")']),
    ]
    return "\n".join(
        [
            *games,
            *imports,
            "",
            f"from sb3_compressed import {cls}",
            "",
            *(["gym.register_envs(ale_py)"] if games else []),
            f"env = {env}",
            f"model = {algorithm}(",
            *(f"    {argument}," for argument in arguments),
            ")",
        ]
    )
