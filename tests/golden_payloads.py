"""Golden payloads: wire formats that never change, in hexadecimal digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta import Delta, ReferenceFrames

__all__ = [
    "CHANGES_OF_SOURCE",
    "COUNTED",
    "DELTAS",
    "FRAMES",
    "GOLDEN",
    "MALFORMED_DELTAS",
    "delta_frames",
]

FRAMES: dict[str, NDArray[Any]] = {
    "stripes": np.repeat(np.arange(4, dtype=np.uint8), 16).reshape(8, 8),
    "noise": np.frombuffer(bytes.fromhex("9b1c5e07d2f84a6390ab3dc1e47f2658"), np.uint8).reshape(4, 4),
    "floats": np.array([0.0] * 5 + [-0.0] * 5 + [np.nan] * 6, "<f4"),
    "empty": np.empty((0, 3), np.uint16),
}

RLE = {
    "stripes": "01 10101010 00010203",
    "noise": "00 9b1c5e07d2f84a6390ab3dc1e47f2658",
    "floats": "01 050506 00000000 00000080 0000c07f",
    "empty": "00",
}

ZSTD_DICT = {
    "stripes": "0000007d00002800000102030410009d74d731b90d",
    "noise": "0000008100009b1c5e07d2f84a6390ab3dc1e47f2658",
    "floats": "0000007d000028000080c07f030080c69dc73ed006",
    "empty": "",
}

GOLDEN: dict[str, dict[str, str]] = {
    "none": {
        "stripes": "00" * 16 + "01" * 16 + "02" * 16 + "03" * 16,
        "noise": "9b1c5e07d2f84a6390ab3dc1e47f2658",
        "floats": "00000000" * 5 + "00000080" * 5 + "0000c07f" * 6,
        "empty": "",
    },
    "rle": RLE,
    "rle-jit": RLE,
    # Written by zlib 1.2.13, ISA-L 2.32.1, Zstandard 1.5.7 and LZ4 1.9.4; other versions only need to decode it.
    "gzip": {
        "stripes": "1f8b0800000000000003636040058c6880090d30a301002d6b483540000000",
        "noise": "1f8b08000000000000039b2d13c77ee98757f284d5b6079fd4ab450000a35f5c5510000000",
        "floats": "1f8b08000000000000036360c00a1a30f1817a6c18007d93586e40000000",
        "empty": "",
    },
    "igzip": {
        "stripes": "1f8b08000000000000ff6340038c6880090d30a301002d6b483540000000",
        "noise": "1f8b08000000000000ff9b2d13c77ee98757f284d5b6079fd4ab450000a35f5c5510000000",
        "floats": "1f8b08000000000000ff63c00e1a181818d0f0817a06064c0c007d93586e40000000",
        "empty": "",
    },
    "zstd": {
        "stripes": "28b52ffd20407d00002800000102030410009d74d731b90d",
        "noise": "28b52ffd20108100009b1c5e07d2f84a6390ab3dc1e47f2658",
        "floats": "28b52ffd20407d000028000080c07f030080c69dc73ed006",
        "empty": "",
    },
    "packed": {
        "stripes": "41 02 0054 00ff 00ff 00ff",
        "noise": "00 9b1c5e07d2f84a6390ab3dc1e47f2658",
        "floats": "41 04 202020c0 fcfcfcfcfcfcfc e0e0e0e0e0e0e0e0 03ffffffffffffff",
        "empty": "00",
    },
    "zstd-dict": ZSTD_DICT,
    "delta": ZSTD_DICT,  # before training
    "lz4-frame": {
        "stripes": "04224d18684040000000000000005c160000001b0001001b0101001b0201001603010050030303030300000000",
        "noise": "04224d186840100000000000000065100000809b1c5e07d2f84a6390ab3dc1e47f265800000000",
        "floats": "04224d18684040000000000000005c140000001f000100031e8004002bc07f0400507f0000c07f00000000",
        "empty": "",
    },
    "lz4-block": {
        "stripes": "1b0001001b0101001b02010016030100500303030303",
        "noise": "f0019b1c5e07d2f84a6390ab3dc1e47f2658",
        "floats": "1f000100031e8004002bc07f0400507f0000c07f",
        "empty": "",
    },
}


def delta_frames() -> tuple[Delta, NDArray[np.uint8]]:
    """Return a codec with two references, and frames that differ from them in 1, 3, about 270 and 0 bytes."""
    references = np.zeros((2, 600), np.uint8)
    references[1, 200:] = 9
    frames = references[[0, 1, 0, 1]]
    frames[0, 5] = 77
    frames[1, [0, 3, 599]] = 1, 2, 3
    frames[2, 290:560] = np.arange(270) % 251
    codec = Delta(references=ReferenceFrames(references.tobytes(), 600))
    return codec, frames


DELTAS = [
    "02 05014d ff5202",
    "03 0004 01000002 ff5302 01 03 00",
    "02 ff2301 ff0d01" + (bytes(range(1, 251)) + bytes(range(19))).hex() + "28",
    "03 ff5802",
]

COUNTED = bytes(range(1, 41))
CHANGES_OF_SOURCE = [
    # 100 bytes of reference 0; 50 from position 800, in reference 1; the rest from reference 0 again.
    "02 64 00 042003 32 00 00 ffc201",
    # 40 literals; 40 bytes from the start of the frame itself; the rest from reference 0.
    "02 00 28" + COUNTED.hex() + "00 00 04b004 28 00 00 ff0802",
    # Nothing from reference 1; then all from the least recent source, which is reference 1, too.
    "03 00 00 03 ff5802",
]

MALFORMED_DELTAS = [
    "04 ff5802",  # no such reference
    "02",  # no number
    "02 05",  # no length
    "02 0501",  # no bytes
    "02 05014d",  # no end
    "02 0500",  # no new source
    "02 050004",  # half of a new source
    "02 05000420",
    "02 05000520 03 ff5302",  # a source after all decoded bytes
    "02 050004b004 ff5302",  # a source in the frame, but too close
    "02 050004ac04 ff5302",  # a source that runs from the references into the frame, too close
    "02 ff02",  # half of a long number
    "02 ff5902",  # more than a frame
    "02 ff5802 01 00",  # literals that start after the frame
    "02 ff5702 02 0000 00",  # literals that end after it
    "02 05014d ff5202 00",  # a byte too many
    "02 05014d ff5102",  # a byte too few
]
