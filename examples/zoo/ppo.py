"""PPO on Atari games with a compressed rollout buffer, for rl-baselines3-zoo.

pip install rl_zoo3 '.[atari]'
python -m rl_zoo3.train --algo ppo --env PongNoFrameskip-v4 -conf examples/zoo/ppo.py -tb tensorboard

This is Python rather than YAML because the zoo does not evaluate the class of a rollout buffer in YAML. All
hyperparameters but those of the buffer are the zoo's.
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
