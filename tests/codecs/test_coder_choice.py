"""The choice between coders for ``"auto"`` and its variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.codecs import TrainableCodec, get_codec
from sb3_compressed.codecs.coder_choice import OBJECTIVES, Variant, best_variant, coder_of
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError, CorruptPayload

ZSTD, DELTA, LZ4, RAW = b"\0", b"\2", b"\xfe", b"\xff"


def noise(n: int, *shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def tiles(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return color frames ``(n, 3, 64, 64)`` of random tiles from a set of eight, in channel-last memory."""
    kinds = noise(8, 8, 8, 3, seed=99) // 16
    chosen = np.random.default_rng(seed).integers(0, 8, (n, 8, 8))
    frames = kinds[chosen].transpose(0, 1, 3, 2, 4, 5).reshape(n, 64, 64, 3)
    return np.ascontiguousarray(frames).transpose(0, 3, 1, 2)


def moving_object(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return frames ``(n, 84, 84)`` of a background of noise with an object somewhere."""
    frames = np.repeat(noise(1, 84, 84, seed=99), n, axis=0)
    for frame, (row, column) in zip(frames, np.random.default_rng(seed).integers(0, 80, (n, 2)), strict=True):
        frame[row : row + 4, column : column + 4] = 0
    return frames


def trained(method: str, frames: NDArray[Any]) -> Delta:
    codec = get_codec(method)
    assert isinstance(codec, TrainableCodec)
    result = codec.train(frames)
    assert isinstance(result, Delta)
    return result


def roundtrip(codec: Delta, frames: NDArray[Any]) -> list[bytes]:
    payloads = codec.encode(frames)
    out = np.empty(frames.shape, frames.dtype)
    codec.decode_into(payloads, out)
    np.testing.assert_array_equal(out, frames)
    return payloads


@pytest.mark.parametrize("method", ["auto", "auto/small", "auto/fast"])
def test_noise_is_stored_uncompressed_at_the_cost_of_one_byte(method: str) -> None:
    codec = trained(method, noise(64, 84, 84))
    assert {len(payload) for payload in roundtrip(codec, noise(5, 84, 84, seed=1))} == {84 * 84 + 1}
    if method != "auto/small":
        assert codec.nbytes == 0, "references and dictionary are useless"


def test_frames_of_a_still_background_are_stored_as_deltas() -> None:
    codec = trained("auto", moving_object(64))
    payloads = roundtrip(codec, moving_object(20, seed=1))
    assert {coder_of(payload) for payload in payloads} == {"delta"}


def test_memory_decreases_and_time_increases_from_fast_to_small() -> None:
    sizes = {}
    for method in ("auto/fast", "auto", "auto/small"):
        codec = trained(method, tiles(64))
        sizes[method] = sum(map(len, roundtrip(codec, tiles(20, seed=1))))
    assert sizes["auto/small"] <= sizes["auto"] <= sizes["auto/fast"]
    assert sizes["auto/small"] < 0.5 * sizes["auto/fast"]


def test_untrained_codec_does_not_expand_frames() -> None:
    codec = get_codec("auto")
    assert isinstance(codec, Delta)
    assert max(map(len, roundtrip(codec, noise(3, 84, 84)))) == 84 * 84 + 1
    assert max(map(len, roundtrip(codec, np.zeros((3, 84, 84), np.uint8)))) < 100


def test_the_order_of_bytes_in_memory_is_kept_in_payloads() -> None:
    channel_last, channel_first = tiles(64), np.ascontiguousarray(tiles(64))
    assert trained("auto/small", channel_last).channels == 3
    assert trained("auto/small", channel_first).channels == 1
    assert trained("delta", channel_last).channels == 1, "a codec chosen by name has one wire format"


@pytest.mark.parametrize("method", ["auto", "auto/small", "auto/fast"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "?", "<f4"])
def test_frames_in_either_memory_order_are_decoded_alike(method: str, dtype: str) -> None:
    codec = trained(method, tiles(64))
    frames = (tiles(6, seed=1) % 2).astype(dtype)
    for copied in (frames, np.ascontiguousarray(frames), frames.reshape(6, -1), frames.reshape(6, 3, 16, 256)):
        assert roundtrip(codec, copied) == codec.encode(frames)


def test_codecs_of_both_memory_orders_are_decoded_in_one_batch() -> None:
    codecs = [trained(method, tiles(64)) for method in ("auto", "auto/small", "auto/fast", "delta")]
    frames = np.ascontiguousarray(tiles(8, seed=2))
    writers = np.arange(8) % 4
    payloads = [codecs[writer].encode(frame[np.newaxis])[0] for writer, frame in zip(writers, frames, strict=True)]
    out = np.empty_like(frames)
    Delta.decode_batch(codecs, Payloads.of(payloads, writers), out)
    np.testing.assert_array_equal(out, frames)


@pytest.mark.parametrize("header", [LZ4, RAW])
@pytest.mark.parametrize("content", [b"", b"\0", bytes(64), b"\xff" * 300])
def test_malformed_payloads_without_references_raise(header: bytes, content: bytes) -> None:
    codec = get_codec("auto")
    assert isinstance(codec, Delta)
    with pytest.raises(CorruptPayload) as caught:
        codec.decode_into([header + content], np.empty((1, 9, 9), np.uint8))
    assert caught.value.index == 0


def test_the_smallest_variant_that_is_fast_enough_is_chosen() -> None:
    variants = [
        Variant([RAW + bytes(10_000)], tries_delta=False),
        Variant([LZ4 + bytes(1_000)], tries_delta=False),
        Variant([ZSTD + bytes(500)], tries_delta=False),
    ]
    chosen = {objective: best_variant(objective, variants, 10_000) for objective in OBJECTIVES}
    assert chosen == {"fast": 0, "balanced": 1, "small": 1}
    variants[2] = Variant([ZSTD + bytes(10)], tries_delta=False)
    assert best_variant("small", variants, 10_000) == 2


def test_deltas_that_are_tried_in_vain_count_as_time() -> None:
    variants = [Variant([LZ4 + bytes(1_000)], tries_delta=False), Variant([LZ4 + bytes(999)], tries_delta=True)]
    assert best_variant("balanced", variants, 10_000) == 0
    assert best_variant("small", variants, 10_000) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "tiny"}, "objective must be one of small, balanced, fast, got 'tiny'"),
        ({"coder": "gzip"}, "coder must be one of lz4, zstd, raw, got 'gzip'"),
        ({"channels": 3, "channel_last_nbytes": 10}, "frames of 10 bytes cannot have 3 channels"),
        ({"channels": 0, "channel_last_nbytes": 10}, "cannot have 0 channels"),
        ({"channel_last_nbytes": -1}, "frames of -1 bytes"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Delta(**arguments)
