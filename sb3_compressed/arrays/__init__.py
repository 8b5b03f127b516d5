"""Arrays that keep compressed observations. They know nothing of SB3 or of reinforcement learning."""

from sb3_compressed.arrays.compressed_array import CompressedArray

__all__ = ["CompressedArray"]
