"""The bytes of a delta, the wire format of :mod:`.delta`, and the records that its kernels read.

A payload begins with one byte ``h``:

- ``h`` < 2: the rest is a payload of ``zstd-dict``, with its header byte ``h``;
- 251: the rest is a packed payload of :mod:`.packed`;
- 254: the rest is a block of LZ4;
- 255: the rest is the frame, uncompressed and in the order in which the codec stores frames;
- otherwise: a sequence of pieces. The *source* starts at the first byte of reference ``h - 2`` and advances with the
  frame. A piece is a number, how many bytes to copy from the source, and a second number:

  - ``n`` > 0: ``n`` literal bytes follow, which replace as many of the source;
  - 0: the source changes here. One byte ``k`` < 4 resumes the ``k``-th most recently left source, counted from 0, at
    the offset from the frame that it had. (It is then no longer among those left; at the beginning all of them are the
    first source.) Otherwise ``k`` and two more bytes are the position where a new source starts: ``k - 4`` is the
    highest byte of the position, then come the lowest and the middle one. Positions count the bytes of all references,
    followed by those of the frame itself, where a source must start at least 32 bytes back.

  The last piece is the one number that completes the frame. A number below 255 is one byte; a larger one is the byte
  255 and two bytes, little-endian. In longer runs of equal bytes, some are written as literals.

The constants are those of kernels: :mod:`sb3_compressed.kernels.jit`.
"""

import numpy as np

__all__ = ["CODEC_STATE", "ENCODER_STATE", "FIRST_REFERENCE", "LZ4_BLOCK", "PACKED", "RAW"]

FIRST_REFERENCE = 2
"""The first byte of a delta from the first reference; smaller ones are those of ``zstd-dict``."""
PACKED, LZ4_BLOCK, RAW = 251, 254, 255
"""The first bytes of packed differences, of blocks of LZ4, and of uncompressed frames."""

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
