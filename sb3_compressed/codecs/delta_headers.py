"""Header bytes of payloads of ``delta``, and what its kernels need of a codec: :mod:`sb3_compressed.kernels.jit`."""

import numpy as np

__all__ = ["CODEC_STATE", "FIRST_REFERENCE", "LZ4_BLOCK", "PACKED", "RAW"]

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
