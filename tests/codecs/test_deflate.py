"""``gzip`` and ``igzip``: two libraries with one standard format."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from sb3_compressed.codecs import get_codec

NAMES = ("gzip", "igzip")


@pytest.mark.parametrize(("writer", "reader"), [NAMES, NAMES[::-1]])
@pytest.mark.parametrize("level", [0, 3])
def test_gzip_and_igzip_decode_each_others_payloads(writer: str, reader: str, level: int) -> None:
    frames = np.arange(900, dtype=np.int32).reshape(3, 300) // 7
    out = np.empty_like(frames)
    get_codec(reader).decode_into(get_codec(f"{writer}/{level}").encode(frames), out)
    np.testing.assert_array_equal(out, frames)


@pytest.mark.parametrize("name", NAMES)
def test_payload_is_a_gzip_file_without_a_time_stamp(name: str) -> None:
    [payload] = get_codec(name).encode(np.arange(300, dtype=np.uint8)[np.newaxis] // 7)
    assert gzip.decompress(payload) == (np.arange(300, dtype=np.uint8) // 7).tobytes()
    assert payload[4:8] == bytes(4)
