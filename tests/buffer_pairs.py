"""Every buffer class of this package with the class of SB3 or sb3-contrib that it is compared with."""

from __future__ import annotations

from typing import Any

from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_compressed.contrib import (
    CompressedMaskableDictRolloutBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentDictRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
)

REPLAY_PAIRS: dict[str, tuple[type[Any], type[Any]]] = {
    "replay": (CompressedReplayBuffer, ReplayBuffer),
    "n-step": (CompressedNStepReplayBuffer, NStepReplayBuffer),
    "dict": (CompressedDictReplayBuffer, DictReplayBuffer),
    "her": (CompressedHerReplayBuffer, HerReplayBuffer),
}
ROLLOUT_PAIRS: dict[str, tuple[type[Any], type[Any]]] = {
    "plain": (CompressedRolloutBuffer, RolloutBuffer),
    "dict": (CompressedDictRolloutBuffer, DictRolloutBuffer),
    "maskable": (CompressedMaskableRolloutBuffer, MaskableRolloutBuffer),
    "maskable-dict": (CompressedMaskableDictRolloutBuffer, MaskableDictRolloutBuffer),
    "recurrent": (CompressedRecurrentRolloutBuffer, RecurrentRolloutBuffer),
    "recurrent-dict": (CompressedRecurrentDictRolloutBuffer, RecurrentDictRolloutBuffer),
}

#: Arguments with which SB3 stores each observation once.
SB3_OPTIMIZED: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
