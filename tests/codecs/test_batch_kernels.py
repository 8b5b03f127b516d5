"""Kernels decode batches of payloads, and only those of codecs that write their format."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.payloads import Payloads

SIZE = 200


def smooth_frames(n: int, size: int) -> NDArray[np.uint8]:
    """Return frames of which a part is noise."""
    frames = np.repeat(np.arange(n, dtype=np.uint8), size).reshape(n, size) + np.arange(size, dtype=np.uint8) // 9
    frames[:, : size // 5] = np.random.default_rng(2).integers(0, 256, (n, size // 5))
    return frames


@pytest.mark.parametrize("name", ["none", "zstd", "zstd-dict", "delta", "rle", "packed", "gzip", "lz4-block"])
def test_payloads_that_are_done_are_skipped(name: str) -> None:
    codec, frames = get_codec(name), smooth_frames(3, SIZE)
    payloads = codec.encode(frames)
    out = np.full_like(frames, 7)
    corrupt, done = Payloads.of([payloads[0], b"corrupt", payloads[2]]), np.array([0, 1, 0], np.uint8)
    type(codec).decode_batch([codec], corrupt, out, done)
    np.testing.assert_array_equal(out[[0, 2]], frames[[0, 2]])
    assert (out[1] == 7).all()
    with pytest.raises(ValueError, match="one element for each of 3 payloads, got 2"):
        type(codec).decode_batch([codec], Payloads.of(payloads), out, np.zeros(2, np.uint8))
