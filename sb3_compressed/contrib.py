"""Compressed versions of sb3-contrib's buffers (``pip install '.[contrib]'``)."""

from sb3_compressed.errors import install_command

try:
    from sb3_compressed.buffers.contrib_rollout import (
        CompressedMaskableDictRolloutBuffer,
        CompressedMaskableRolloutBuffer,
        CompressedRecurrentDictRolloutBuffer,
        CompressedRecurrentRolloutBuffer,
        compress_rollout_buffer,
    )
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("sb3_contrib"):
        raise
    raise ModuleNotFoundError(
        f"sb3_compressed.contrib needs sb3-contrib: {install_command('contrib')}", name=error.name
    ) from error

__all__ = [
    "CompressedMaskableDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "CompressedRecurrentRolloutBuffer",
    "compress_rollout_buffer",
]
