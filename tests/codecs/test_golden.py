"""Wire formats are frozen: payloads of older versions stay readable, and our own formats never change."""

from __future__ import annotations

import numpy as np
import pytest
from golden_payloads import CHANGES_OF_SOURCE, COUNTED, DELTAS, FRAMES, GOLDEN, MALFORMED_DELTAS, delta_frames

from sb3_compressed.codecs import available_codecs, get_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.delta_kernels import DeltaEncoder, encode_deltas
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", available_codecs())
def test_golden_payloads_decode(name: str, frame: str) -> None:
    expected = FRAMES[frame]
    out = np.empty_like(expected)
    get_codec(name).decode_into([bytes.fromhex(GOLDEN[name][frame])], out[np.newaxis])
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", ["none", "rle", "rle-jit", "packed"])
def test_own_formats_are_encoded_to_golden_payloads(name: str, frame: str) -> None:
    [payload] = get_codec(name).encode(FRAMES[frame][np.newaxis])
    assert payload == bytes.fromhex(GOLDEN[name][frame])


@pytest.mark.parametrize(
    ("frame", "payload"),
    [
        ("stripes", "0100005d00002000010203045401000c01"),
        ("noise", "0100008100009b1c5e07d2f84a6390ab3dc1e47f2658"),
        ("floats", "010000750000200080c07f030080c69dc7142004"),
    ],
)
def test_golden_payloads_decode_with_their_dictionary(frame: str, payload: str) -> None:
    expected = FRAMES[frame]
    out = np.empty_like(expected)
    codec = get_codec("zstd-dict", dictionary=bytes(range(64)) * 2)
    codec.decode_into([bytes.fromhex(payload)], out[np.newaxis])
    assert out.tobytes() == expected.tobytes()


def test_deltas_are_encoded_and_decoded_as_golden_payloads() -> None:
    codec, frames = delta_frames()
    payloads = [bytes.fromhex(delta) for delta in DELTAS]
    out = np.empty_like(frames)
    codec.decode_into(payloads, out)
    np.testing.assert_array_equal(out, frames)
    written = codec.encode(frames)
    assert [written[i] for i in (0, 1, 3)] == [payloads[i] for i in (0, 1, 3)]
    assert written[2] == payloads[2] or written[2][0] < 2, "zstd compresses this one better"
    output, places = np.empty(4 * 600, np.uint8), np.empty((4, 3), np.int64)
    for small_nbytes, nbytes in ((min(map(len, payloads)), 0), (600, sum(map(len, payloads)))):
        encoder = DeltaEncoder(codec.references.rows.reshape(-1), line=30, plane=0, pixel=0, small_nbytes=small_nbytes)
        assert encode_deltas(frames, encoder.state, output, places) == nbytes
    assert [*Payloads(places, output)] == payloads


def test_golden_deltas_with_changes_of_source_decode() -> None:
    codec, _ = delta_frames()
    out = np.empty((3, 600), np.uint8)
    codec.decode_into([bytes.fromhex(payload) for payload in CHANGES_OF_SOURCE], out)
    assert out[0].tobytes() == bytes(100) + b"\x09" * 50 + bytes(450)
    assert out[1].tobytes() == COUNTED * 2 + bytes(520)
    assert out[2].tobytes() == codec.references.content[600:]


@pytest.mark.parametrize("payload", MALFORMED_DELTAS)
def test_malformed_deltas_are_corrupt(payload: str) -> None:
    codec, _ = delta_frames()
    guarded = np.full((4, 600), 7, np.uint8)
    with pytest.raises(CorruptPayload, match="delta") as caught:
        codec.decode_into([bytes.fromhex(DELTAS[0]), bytes.fromhex(payload)], guarded[1:3])
    assert caught.value.index == 1
    assert (guarded[[0, 3]] == 7).all()


@pytest.mark.parametrize("header", [0xFC, 0xFD])
@pytest.mark.parametrize("coder", ["lz4", "zstd"])
def test_payloads_with_a_header_of_versions_before_0_5_are_corrupt(coder: str, header: int) -> None:
    frame = FRAMES["noise"]
    frames = np.full((1, *frame.shape), 7, np.uint8)
    with pytest.raises(CorruptPayload):
        Delta(coder=coder).decode_into([bytes([header]) + frame.tobytes()], frames)
