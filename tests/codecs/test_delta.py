"""``delta``: training, encoding, and the choice between deltas and zstd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from roundtrips import moving_boxes, roundtrip

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.delta import Delta, ReferenceFrames, coder_of
from sb3_compressed.codecs.delta_kernels import DeltaEncoder, encode_deltas
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError


def screens(n: int, n_rooms: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Return frames of a few rooms of noise, each with an object somewhere in it."""
    rng = np.random.default_rng(seed)
    rooms = np.random.default_rng(99).integers(0, 256, (n_rooms, 30, 30), np.uint8)
    frames = rooms[rng.integers(0, n_rooms, n)]
    for frame in frames:
        row, column = rng.integers(0, 27, 2)
        frame[row : row + 3, column : column + 3] = 0
    return frames


def test_incompressible_background_costs_nothing() -> None:
    codec = Delta().train(screens(64))
    payloads = codec.encode(screens(50, seed=1))
    assert len(Delta().train(np.repeat(screens(1), 64, axis=0)).references) == 1, "equal frames have one"
    assert max(map(len, payloads)) < 80
    assert min(map(len, Delta().encode(screens(50, seed=1)))) > 700


@pytest.mark.parametrize(
    ("nbytes", "has_dictionary", "n_references"),
    [(200_000, True, 10), (300_000, False, 6), (1 << 20, False, 1), ((1 << 20) + 1, False, 0)],
)
def test_large_frames_have_few_references_and_no_dictionary(
    nbytes: int, has_dictionary: bool, n_references: int
) -> None:
    frames = np.random.default_rng(0).integers(0, 3, (12, nbytes), dtype=np.uint8)
    codec = Delta().train(frames)
    assert len(codec.references) == n_references
    assert bool(codec.dictionary) == has_dictionary


def test_equal_stretches_longer_than_a_number_encodes_are_split() -> None:
    for size in (65_535, 65_536, 65_537, 131_072, 200_000):
        references = np.random.default_rng(0).integers(0, 256, (2, size), np.uint8)
        codec = Delta(references=ReferenceFrames(references.tobytes(), size))
        frames = references[[0, 1, 0, 0, 0]]
        frames[2, -1] ^= 1  # literals after a long stretch
        frames[3, -40:] = references[1, 100:140]  # another source after one
        frames[4, 30:] = references[1, 30:]  # a long stretch after literals
        assert max(map(len, roundtrip(codec, frames))) < 70


def test_more_literals_than_a_number_encodes_are_compressed_with_zstd() -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 300_000), np.uint8)
    codec = Delta(references=ReferenceFrames(frames[:1].tobytes(), 300_000))
    frames[1, 70_000:] = frames[0, 70_000:]
    assert [coder_of(payload) for payload in roundtrip(codec, frames)] == ["delta", "zstd"]


def test_bytes_that_color_planes_share_are_encoded_once() -> None:
    codec = Delta(references=ReferenceFrames(bytes(3 * 40 * 40), 3 * 40 * 40))
    frames = np.repeat(np.random.default_rng(0).integers(0, 256, (1, 1, 40, 40), np.uint8), 3, axis=1)
    frames[:, 1, 10, 5:9] = 0  # four pixels of another color
    [channel_first] = codec.encode(frames)
    assert channel_first[0] < 2, "a plane of noise does not fit: a delta has at most a quarter of a frame"
    frames[:, :, 20:] = 0
    [payload] = roundtrip(codec, frames)
    assert coder_of(payload) == "delta"
    assert len(payload) < 20 * 40 + 60


@pytest.mark.parametrize(
    "references",
    [
        ReferenceFrames(bytes(253 * 20), 20),  # more than header bytes can encode
        ReferenceFrames(bytes(1_100_000), 1_100_000),  # too large
        ReferenceFrames(bytes(50), 20),  # not whole frames
        ReferenceFrames(bytes(50), 0),
    ],
)
def test_invalid_references_raise(references: ReferenceFrames) -> None:
    with pytest.raises(CodecError, match="references"):
        Delta(references=references)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coder": "lz5"}, "got 'lz5'"),
        ({"channels": 0}, "0 channels"),
        ({"channels": 3, "channel_last_nbytes": -3}, "-3 bytes"),
        ({"channels": 3, "channel_last_nbytes": 100}, "100 bytes cannot have 3 channels"),
    ],
)
def test_invalid_coders_and_orders_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Delta(**arguments)


@pytest.mark.parametrize("shape", [(3, 20, 20), (1200,)])
def test_planes_of_colors_in_another_order_are_restored(shape: tuple[int, ...]) -> None:
    codec = Delta(channels=3, channel_last_nbytes=1200, coder="zstd")
    planes = np.random.default_rng(0).integers(0, 4, (5, 1, 20, 20), np.uint8)
    frames = np.broadcast_to(planes, (5, 3, 20, 20)).reshape(5, *shape)
    payloads = roundtrip(codec, frames)
    assert {coder_of(payload) for payload in payloads} == {"zstd"}


def test_a_sample_of_few_frames_is_enough_to_train() -> None:
    frames = screens(64)
    codec = Delta().train(frames[:2])
    assert len(codec.references)
    roundtrip(codec, frames)


def test_encoder_never_writes_outside_a_small_output() -> None:
    codec = Delta().train(screens(64))
    frames = np.random.default_rng(1).integers(0, 256, (3, 900), np.uint8)
    for room in (0, 1, 15, 16, 40, 300):
        guarded, places = np.full(3 * room + 64, 99, np.uint8), np.empty((3, 3), np.int64)
        encoder = DeltaEncoder(codec.references.rows.reshape(-1), line=30, plane=0, pixel=0, small_nbytes=900)
        assert encode_deltas(frames, encoder.state, guarded[32 : 32 + 3 * room], places) == 0
        assert not places[:, 1:].any()
        assert (guarded[:32] == 99).all()
        assert (guarded[-32:] == 99).all()


@pytest.mark.parametrize("speed", [1, 2, 5])
def test_payloads_of_scrolling_frames_are_small(speed: int) -> None:
    rng = np.random.default_rng(0)
    landscape = rng.integers(0, 256, (40 * 200, 30), np.uint8)
    frames = np.stack([landscape[start : start + 30] for start in range(0, 64 * 40, 40)])
    codec = Delta().train(frames)
    seen = frames[rng.integers(0, 64, 50)]
    scrolled = np.concatenate([seen[:, speed:], rng.integers(0, 256, (50, speed, 30), np.uint8)], axis=1)
    references = codec.references.rows.reshape(-1, 30, 30)
    shifted = np.concatenate([references[:, speed:], scrolled[:16, -speed:]], axis=1)
    assert max(map(len, roundtrip(codec, shifted))) < 30 * speed + 40


def tile_images(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return images ``(n, 3, 64, 64)`` in channel-last memory, each of equal tiles, with others in its center."""
    rng = np.random.default_rng(seed)
    images = np.empty((n, 64, 64, 3), np.uint8)
    for image in images:
        common, other = rng.integers(0, 256, (2, 8, 8, 3), np.uint8)
        image[:] = np.tile(common, (8, 8, 1))
        image[24:40, 24:48] = np.tile(other, (2, 3, 1))
    return images.transpose(0, 3, 1, 2)


def test_tiles_of_unknown_colors_are_encoded_about_once() -> None:
    references = tile_images(1, seed=1).transpose(0, 2, 3, 1)
    without = Delta(
        references=ReferenceFrames(references.tobytes(), 64 * 64 * 3),
        coder="raw",
        channels=3,
        channel_last_nbytes=64 * 64 * 3,
    )
    codec = replace(without, finds_tiles=True)
    images = tile_images(5)
    payloads = roundtrip(codec, images)
    assert max(map(len, payloads)) < 1000
    assert min(map(len, without.encode(images))) > 3000
    assert [codec.encode(images[k : k + 1])[0] for k in range(5)] == payloads, "they do not depend on the batch"


@pytest.mark.parametrize("is_gray", [False, True])
def test_training_enables_the_search_for_tiles_where_it_pays(is_gray: bool) -> None:
    images = tile_images(64)
    images = np.ascontiguousarray(images[:, 0]) if is_gray else images
    trained = Delta(coder="lz4").train(images)
    assert trained.finds_tiles == (not is_gray)
    assert not Delta().train(images).finds_tiles
    roundtrip(trained, images)


def test_auto_stores_deltas_and_blocks_of_lz4_after_training() -> None:
    codec = get_codec("auto")
    assert isinstance(codec, Delta)
    frames = moving_boxes(96)
    trained = codec.train(frames[:64])
    assert trained == codec.train(frames[:64]), "it is the same in each run"
    assert {*map(coder_of, roundtrip(trained, frames[64:]))} == {"delta"}
    stripes = np.repeat(np.random.default_rng(1).integers(0, 256, (8, 48, 4), np.uint8), 16, axis=2)
    assert {*map(coder_of, roundtrip(replace(trained, tries_coder=True), stripes))} == {"lz4"}


def test_auto_trains_no_dictionary() -> None:
    trained = Delta(coder="lz4").train(moving_boxes(64))
    assert trained.references
    assert not trained.dictionary


@examples(120)
@given(st.data())
def test_roundtrip_of_frames_composed_of_references(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(16, 300))
    n_values = data.draw(st.sampled_from([2, 4, 256]))
    frames = rng.integers(0, n_values, (20, size), np.uint8)
    codec = Delta().train(frames)
    frame = np.empty(0, np.uint8)
    while frame.size < size:  # pieces of references, of the frame itself, and of noise
        sources = [*codec.references.rows, frame if frame.size else frames[0]]
        source = sources[rng.integers(len(sources))]
        start = rng.integers(len(source))
        noise = rng.integers(0, n_values, rng.integers(0, 4), np.uint8)
        frame = np.concatenate([frame, source[start : start + rng.integers(1, 80)], noise])
    frame = frame[np.newaxis, :size]
    shape = data.draw(st.sampled_from([(size,), (1, size), (size, 1), (size, 1, 1), (1, 1, size)]))
    output, places = np.empty(2 * size + 64, np.uint8), np.empty((1, 3), np.int64)
    line, plane, pixel = (data.draw(st.integers(least, most)) for least, most in ((1, size), (0, size), (0, 5)))
    encode_deltas(
        frame, DeltaEncoder(codec.references.rows.reshape(-1), line, plane, pixel, size).state, output, places
    )
    out = np.empty_like(frame)
    codec.decode_into([*Payloads(places, output)], out)
    np.testing.assert_array_equal(out, frame)
    roundtrip(codec, frame.reshape(1, *shape))
