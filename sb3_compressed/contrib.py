"""Compressed counterparts of sb3-contrib's buffers (``pip install sb3-compressed[contrib]``)."""

from sb3_compressed.buffers.contrib import (
    CompressedMaskableDictRolloutBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentDictRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
    compress_rollout_buffer,
)

__all__ = [
    "CompressedMaskableDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "CompressedRecurrentRolloutBuffer",
    "compress_rollout_buffer",
]
