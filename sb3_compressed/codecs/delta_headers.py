"""The header bytes of payloads of ``delta``, which kernels compiled by :mod:`sb3_compressed.kernels.jit` contain."""

__all__ = ["FILTERED", "FIRST_REFERENCE", "LZ4_BLOCK", "PACKED", "RAW", "RAW_IN_C_ORDER"]

FIRST_REFERENCE = 2
"""That of a delta from the first reference; smaller ones are those of ``zstd-dict``."""
PACKED, RAW_IN_C_ORDER, FILTERED, LZ4_BLOCK, RAW = 251, 252, 253, 254, 255
"""Those of packed differences, of uncompressed frames in C order, of filtered ones, of blocks of LZ4, and of
uncompressed frames in the order in which their codec stores them."""
