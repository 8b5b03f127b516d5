"""PPO on Atari games with a compressed rollout buffer, for rl-baselines3-zoo, which takes Python files as well as YAML.

pip install rl_zoo3 'sb3-compressed[atari]'
python -m rl_zoo3.train --algo ppo --env PongNoFrameskip-v4 -conf examples/zoo/ppo.py -tb tensorboard

In YAML, a rollout buffer's class cannot be named: the zoo leaves that a text. Hyperparameters are the zoo's own, but
for what is said of buffers.
"""

from __future__ import annotations

from typing import Any

from sb3_compressed import CompressedRolloutBuffer

hyperparams: dict[str, dict[str, Any]] = {
    "atari": {
        "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
        "frame_stack": 4,
        "policy": "CnnPolicy",
        "n_envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "n_timesteps": 1e7,
        "learning_rate": "lin_2.5e-4",
        "clip_range": "lin_0.1",
        "vf_coef": 0.5,
        "ent_coef": 0.01,
        "rollout_buffer_class": CompressedRolloutBuffer,
        "rollout_buffer_kwargs": {"compression_method": "auto"},
        "callback": "sb3_compressed.BufferStatsCallback",
    },
}
