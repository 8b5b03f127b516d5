"""Python code that creates a user's environment and a model with the recommended buffer."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from sb3_compressed.benchmarking.benchmark_envs import is_atari
from sb3_compressed.benchmarking.sb3_classes import policy_for, sb3_class
from sb3_compressed.benchmarking.training_run import Setup
from sb3_compressed.codecs.registry import AUTO

__all__ = ["snippet"]


def snippet(setup: Setup, space: spaces.Space[Any], method: str) -> str:
    """Return the code.

    :param space: the observation space of the environment
    :param method: compression method
    """
    kind: Any = "rollout" if setup.is_rollout else "replay"
    make = "make_atari_env" if setup.atari else "make_vec_env"
    imports = [
        f"from stable_baselines3 import {setup.algorithm}",
        f"from stable_baselines3.common.env_util import {make}",
    ]
    envs = [f'env = {make}("{setup.env_id}", n_envs={setup.n_envs})']
    if setup.n_stack > 1:
        imports.append("from stable_baselines3.common.vec_env import VecFrameStack")
        envs.append(f"env = VecFrameStack(env, n_stack={setup.n_stack})")
    games = ["import ale_py", "import gymnasium as gym"] if is_atari(setup.env_id) else []
    cls = sb3_class(method, kind, space)[0].__name__
    arguments = [
        f'"{policy_for(space)}"',
        "env",
        *(f"{name}={value:_}" for name, value in setup.buffer.items()),
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
            *envs,
            f"model = {setup.algorithm}(",
            *(f"    {argument}," for argument in arguments),
            ")",
        ]
    )
