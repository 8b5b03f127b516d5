"""The header bytes of payloads of ``delta``, which kernels compiled by :mod:`sb3_compressed.kernels.jit` contain."""

__all__ = ["FILTERED", "FIRST_REFERENCE", "LZ4_BLOCK", "RAW"]

FIRST_REFERENCE = 2
"""That of a delta from the first reference; smaller ones are those of ``zstd-dict``."""
FILTERED, LZ4_BLOCK, RAW = 253, 254, 255
"""Those of filtered frames, of blocks of LZ4 and of uncompressed frames."""
