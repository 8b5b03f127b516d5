"""``delta``: what it learns, and how it chooses between a difference and zstd."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sb3_compressed.codecs.delta import Delta, References, _line_and_plane_nbytes, choose_references
from sb3_compressed.codecs.delta_kernels import decode_deltas, encode_deltas
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CodecError


def screens(n: int, n_rooms: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Return frames of a few rooms of noise, each with a thing somewhere in it."""
    rng = np.random.default_rng(seed)
    rooms = np.random.default_rng(99).integers(0, 256, (n_rooms, 30, 30), np.uint8)
    frames = rooms[rng.integers(0, n_rooms, n)]
    for frame in frames:
        row, column = rng.integers(0, 27, 2)
        frame[row : row + 3, column : column + 3] = 0
    return frames


def test_references_are_chosen_from_every_kind_of_frame() -> None:
    rows = screens(60, n_rooms=3).reshape(60, -1)
    chosen = choose_references(rows, 3)
    rooms = np.random.default_rng(99).integers(0, 256, (3, 30, 30), np.uint8).reshape(3, -1)
    nearest = [int((rooms != rows[index]).sum(axis=1).argmin()) for index in chosen]
    assert sorted(nearest) == [0, 1, 2]


def test_equal_frames_are_one_reference() -> None:
    assert len(choose_references(np.zeros((9, 16), np.uint8), 4)) == 1


def test_what_stands_still_costs_nothing_though_zstd_cannot_compress_it() -> None:
    codec = Delta().train(screens(64))
    payloads = codec.encode(screens(50, seed=1))
    assert max(map(len, payloads)) < 80
    assert min(map(len, Delta().encode(screens(50, seed=1)))) > 700


def test_frames_unlike_any_reference_are_left_to_zstd() -> None:
    codec = Delta().train(screens(64))
    ramp = np.arange(900, dtype=np.uint8).reshape(1, 30, 30)
    [payload] = codec.encode(ramp)
    assert payload[0] < 2
    out = np.empty_like(ramp)
    codec.decode_into([payload], out)
    np.testing.assert_array_equal(out, ramp)


@pytest.mark.parametrize("shape", [(2, 10, 10), (1, 70_000), (3, 900)])
def test_frames_of_another_size_than_the_references_survive(shape: tuple[int, ...]) -> None:
    codec = Delta().train(screens(64))
    frames = np.random.default_rng(0).integers(0, 3, shape, dtype=np.uint8)
    out = np.empty_like(frames)
    codec.decode_into(codec.encode(frames), out)
    np.testing.assert_array_equal(out, frames)


def test_frames_too_large_for_references_are_learned_for_zstd_only() -> None:
    frames = np.random.default_rng(0).integers(0, 3, (20, (1 << 20) + 1), dtype=np.uint8)
    codec = Delta().train(frames)
    assert len(codec.references) == 0
    assert codec.dictionary


def test_stretches_longer_than_numbers_tell_are_told_in_parts() -> None:
    sizes = [65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 200_000]
    for size in sizes:
        references = np.random.default_rng(0).integers(0, 256, (2, size), np.uint8)
        codec = Delta(references=References(references.tobytes(), size))
        frames = references[[0, 1, 0, 0, 0]]
        frames[2, -1] ^= 1  # literals after a long stretch
        frames[3, -40:] = references[1, 100:140]  # another source after one
        frames[4, 30:] = references[1, 30:]  # a long stretch after literals
        payloads = codec.encode(frames)
        assert max(map(len, payloads)) < 70
        out = np.empty_like(frames)
        codec.decode_into(payloads, out)
        np.testing.assert_array_equal(out, frames)


def test_more_literals_in_a_row_than_numbers_tell_are_left_to_zstd() -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 300_000), np.uint8)
    codec = Delta(references=References(frames[:1].tobytes(), 300_000))
    frames[1, 70_000:] = frames[0, 70_000:]
    out, payloads = np.empty_like(frames), codec.encode(frames)
    codec.decode_into(payloads, out)
    np.testing.assert_array_equal(out, frames)
    assert [payload[0] < 2 for payload in payloads] == [False, True]


def colour_screens(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return frames ``(n, 3, 40, 40)`` of noise that is never the same, in grey, but for one colour of some pixels."""
    rng = np.random.default_rng(seed)
    frames = np.repeat(rng.integers(0, 256, (n, 1, 40, 40), np.uint8), 3, axis=1)
    frames[:, 1, 10, 5:9] = 0
    return frames


def test_what_colours_have_in_common_is_told_once() -> None:
    codec = Delta(references=References(bytes(3 * 40 * 40), 3 * 40 * 40))
    [channel_first] = codec.encode(colour_screens(1))
    assert channel_first[0] < 2, "there is no room for a plane of noise: a delta has a quarter of a frame at most"
    frames = colour_screens(1)
    frames[:, :, 20:] = 0
    payloads = codec.encode(frames)
    assert payloads[0][0] >= 2
    assert len(payloads[0]) < 20 * 40 + 60
    out = np.empty_like(frames)
    codec.decode_into(payloads, out)
    np.testing.assert_array_equal(out, frames)


@pytest.mark.parametrize(
    ("shape", "line", "plane"),
    [
        ((84, 84), 84, 0),
        ((1, 84, 84), 84, 0),
        ((3, 96, 90), 90, 8640),
        ((96, 90, 3), 270, 0),
        ((2, 4, 10, 10), 10, 100),
        ((100,), 100, 0),
    ],
)
def test_lines_and_planes_are_those_of_images(shape: tuple[int, ...], line: int, plane: int) -> None:
    assert _line_and_plane_nbytes(np.empty((5, *shape), np.uint8)) == (line, plane)
    assert _line_and_plane_nbytes(np.empty((5, *shape), np.float32)) == (4 * line, 4 * plane)


def test_zstd_is_tried_only_if_it_was_better_for_frames_of_the_lesson() -> None:
    rng = np.random.default_rng(0)
    still = screens(64)
    assert not Delta().train(still).tries_zstd
    # Stripes of all widths: little of them is in the references, and zstd needs few bytes for each.
    stripes = np.stack([np.arange(900, dtype=np.uint16) * step // 256 % 256 for step in rng.integers(300, 9000, 64)])
    codec = Delta().train(stripes.astype(np.uint8).reshape(64, 30, 30))
    assert codec.tries_zstd
    assert pickle.loads(pickle.dumps(Delta().train(still))) == Delta().train(still)


def test_a_batch_of_many_generations_is_decoded_at_once() -> None:
    codecs = [Delta(), *(Delta().train(screens(64, seed=seed)) for seed in range(4))]
    frames = screens(40, seed=7)
    writers = [codecs[i % len(codecs)] for i in range(40)]
    payloads = [writer.encode(frame[np.newaxis])[0] for writer, frame in zip(writers, frames, strict=True)]
    out = np.empty_like(frames)
    numbers = np.arange(40) % len(codecs)
    written = Payloads.of(payloads, numbers)
    Delta.decode_batch(codecs, written, out)
    np.testing.assert_array_equal(out, frames)
    Delta.decode_batch(codecs, written[7:30], out[:23])
    np.testing.assert_array_equal(out[:23], frames[7:30])


def test_what_was_learned_is_compared_and_pickled() -> None:
    codec = Delta().train(screens(64))
    twin = pickle.loads(pickle.dumps(codec))
    assert twin == codec != Delta()
    assert twin.encode(screens(5)) == codec.encode(screens(5))


def test_kernels_are_compiled_for_one_signature() -> None:
    for frames in (screens(4), screens(4).astype(np.float32)):
        frames.flags.writeable = False
        Delta().train(frames).encode(frames)
    assert len(encode_deltas.signatures) == len(decode_deltas.signatures) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "references",
    [
        References(bytes(255 * 20), 20),  # more than there are header bytes for
        References(bytes(1_100_000), 1_100_000),  # too large
        References(bytes(50), 20),  # not whole
        References(bytes(50), 0),
    ],
)
def test_references_that_payloads_cannot_tell_are_refused(references: References) -> None:
    with pytest.raises(CodecError, match="must be at most 254 whole frames of at most 1048576 bytes"):
        Delta(references=references)


def test_payloads_need_writers_that_are_there() -> None:
    codec = Delta().train(screens(64))
    payloads, out = codec.encode(screens(3)), np.empty((3, 30, 30), np.uint8)
    for numbers in ([0, 0, 1], [0, -1, 0]):
        with pytest.raises(IndexError, match="a payload's writer is not among the codecs"):
            Delta.decode_batch([codec], Payloads.of(payloads, np.array(numbers)), out)


def test_nothing_learned_is_the_same_codec() -> None:
    codec = Delta()
    assert codec.train(np.zeros((2, 2_000_000), np.uint8)) is codec
    assert codec.train(np.zeros((100, 1), np.uint8)) is codec


def test_a_kernel_without_room_writes_nothing_outside_of_it() -> None:
    codec = Delta().train(screens(64))
    frames = np.random.default_rng(1).integers(0, 256, (3, 900), np.uint8)
    for room in (0, 1, 15, 16, 40, 300):
        guarded, ends = np.full(3 * room + 64, 99, np.uint8), np.empty(3, np.int64)
        n_bytes = encode_deltas(frames, *codec._new_encoder()[1:], 30, 0, guarded[32 : 32 + 3 * room], ends)
        assert n_bytes == ends[-1] == 0
        assert (guarded[:32] == 99).all()
        assert (guarded[-32:] == 99).all()


@pytest.mark.parametrize("speed", [1, 2, 5])
def test_pictures_that_scroll_stay_small(speed: int) -> None:
    rng = np.random.default_rng(0)
    landscape = rng.integers(0, 256, (40 * 200, 30), np.uint8)
    frames = np.stack([landscape[start : start + 30] for start in range(0, 64 * 40, 40)])
    codec = Delta().train(frames)
    seen = frames[rng.integers(0, 64, 50)]
    scrolled = np.concatenate([seen[:, speed:], rng.integers(0, 256, (50, speed, 30), np.uint8)], axis=1)
    references = codec.references.rows.reshape(-1, 30, 30)
    shifted = np.concatenate([references[:, speed:], scrolled[:16, -speed:]], axis=1)
    payloads = codec.encode(shifted)
    assert max(map(len, payloads)) < 30 * speed + 40
    out = np.empty_like(shifted)
    codec.decode_into(payloads, out)
    np.testing.assert_array_equal(out, shifted)


def test_references_of_more_bytes_than_positions_can_tell_are_no_trouble() -> None:
    rng = np.random.default_rng(0)
    references = rng.integers(0, 256, (254, 65_535), np.uint8)
    codec = Delta(references=References(references.tobytes(), 65_535))
    frame = references[:1].copy()
    frame[0, 1000:3000] = references[253, 60_000:62_000]  # from beyond them
    frame[0, 5000:7000] = references[100, 60_000:62_000]
    frame[0, 30_000:40_000] = frame[0, 10_000:20_000]
    out = np.empty_like(frame)
    codec.decode_into(codec.encode(frame), out)
    np.testing.assert_array_equal(out, frame)


def test_the_nearest_reference_is_found_for_small_frames_too() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (20, 100), np.uint8)
    codec = Delta().train(frames)
    payloads = codec.encode(codec.references.rows.copy())
    assert [payload[0] - 2 for payload in payloads] == list(range(len(codec.references)))
    assert max(map(len, payloads)) == 2


@given(st.data())
def test_whatever_resembles_the_references_survives(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(16, 300))
    n_values = data.draw(st.sampled_from([2, 4, 256]))
    frames = rng.integers(0, n_values, (20, size), np.uint8)
    codec = Delta().train(frames)
    frame = np.empty(0, np.uint8)
    while frame.size < size:  # made of pieces of references, of itself, and of noise
        sources = [*codec.references.rows, frame if frame.size else frames[0]]
        source = sources[rng.integers(len(sources))]
        start = rng.integers(len(source))
        noise = rng.integers(0, n_values, rng.integers(0, 4), np.uint8)
        frame = np.concatenate([frame, source[start : start + rng.integers(1, 80)], noise])
    frame = frame[np.newaxis, :size]
    shape = data.draw(st.sampled_from([(size,), (1, size), (size, 1), (size, 1, 1), (1, 1, size)]))
    payloads, ends = np.empty(2 * size + 64, np.uint8), np.empty(1, np.int64)
    line, plane = data.draw(st.integers(1, size)), data.draw(st.integers(0, size))
    n_bytes = encode_deltas(frame, *codec._new_encoder()[1:], line, plane, payloads, ends)
    out = np.empty_like(frame)
    codec.decode_into([payloads[:n_bytes].tobytes()], out)
    np.testing.assert_array_equal(out, frame)
    codec.decode_into(codec.encode(frame.reshape(1, *shape)), out)
    np.testing.assert_array_equal(out, frame)
