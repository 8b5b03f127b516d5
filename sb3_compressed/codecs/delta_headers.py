"""Header bytes of payloads of ``delta``, and what its kernels need of a codec: :mod:`sb3_compressed.kernels.jit`."""

import numpy as np

__all__ = ["CODEC_STATE", "ENCODER_STATE", "FIRST_REFERENCE", "LZ4_BLOCK", "PACKED", "RAW"]

FIRST_REFERENCE = 2
"""That of a delta from the first reference; smaller ones are those of ``zstd-dict``."""
PACKED, LZ4_BLOCK, RAW = 251, 254, 255
"""Those of packed differences, of blocks of LZ4, and of uncompressed frames."""

CODEC_STATE = np.dtype(
    [
        ("references", np.int64),
        ("references_nbytes", np.int64),
        ("reference_nbytes", np.int64),
        ("channels", np.int64),
        ("channel_last_nbytes", np.int64),
    ]
)
"""What decoding needs of a codec: the address of its references, their size in bytes, and that of each; the number of
channels and the size of frames that it stores in channel-last order."""

ENCODER_STATE = np.dtype(
    [
        ("references", np.int64),  # their address
        ("references_nbytes", np.int64),
        ("table", np.int64),  # the address of the hash table of their words, see ``index_words``
        ("line", np.int64),  # bytes of a line of pixels
        ("plane", np.int64),  # bytes of a color plane, 0 if there is only one
        ("pixel", np.int64),  # bytes of a pixel, if equal pixels are searched for in the frame itself, else 0
        ("small_nbytes", np.int64),  # bytes of a small payload, which need not compete with other coders
    ]
)
"""What encodes frames of one shape as deltas."""
