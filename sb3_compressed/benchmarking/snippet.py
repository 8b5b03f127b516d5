"""The Python lines that make a user's environment and a model with the buffer that is advised."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb3_compressed.benchmarking.benchmark_envs import is_atari
from sb3_compressed.benchmarking.frame_recording import Recording
from sb3_compressed.benchmarking.sb3_adapters import sb3_class
from sb3_compressed.codecs.registry import AUTO

__all__ = ["algorithm_for", "snippet"]


def algorithm_for(action_space: spaces.Space[Any]) -> tuple[str, int]:
    """Return an off-policy algorithm of SB3 that takes such actions, and its default batch size.

    :raises ValueError: if there is none
    """
    if isinstance(action_space, spaces.Discrete):
        return "DQN", 32
    if isinstance(action_space, spaces.Box):
        return "SAC", 256
    raise ValueError(
        f"no off-policy algorithm of Stable-Baselines3 takes actions of {action_space}; "
        "'sb3-compressed bench ENV_ID --rollout' measures the buffers of PPO and A2C"
    )


def _policy_for(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def snippet(env_id: str, recording: Recording, *, atari: bool, buffer_size: int, method: str) -> str:
    """Return the lines for a compression method."""
    algorithm, _ = algorithm_for(recording.action_space)
    maker = "make_atari_env" if atari else "make_vec_env"
    imports = [f"from stable_baselines3 import {algorithm}", f"from stable_baselines3.common.env_util import {maker}"]
    env = f'{maker}("{env_id}", n_envs={recording.n_envs})'
    if recording.n_stack > 1:
        imports.append("from stable_baselines3.common.vec_env import VecFrameStack")
        env = f"VecFrameStack({env}, n_stack={recording.n_stack})"
    games = ["import ale_py", "import gymnasium as gym"] if is_atari(env_id) else []
    space = recording.observation_space
    cls = sb3_class(method, "replay", space)[0].__name__
    arguments = [
        f'"{_policy_for(space)}"',
        "env",
        f"buffer_size={buffer_size:_}",
        f"replay_buffer_class={cls}",
        *([] if method == AUTO else [f'replay_buffer_kwargs=dict(compression_method="{method}")']),
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
