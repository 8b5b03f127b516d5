"""Arrays that store compressed observations. They do not depend on SB3 or on reinforcement learning."""

from sb3_compressed.arrays.compressed_array import CompressedArray

__all__ = ["CompressedArray"]
