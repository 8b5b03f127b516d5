"""The choice between coders for ``"auto"`` and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.codecs import TrainableCodec, get_codec
from sb3_compressed.codecs.adaptive import Adaptive, ReferenceFrames
from sb3_compressed.codecs.coder_choice import (
    COUNTS,
    OBJECTIVES,
    Variant,
    best_variant,
    coder_of,
    decoding_work,
    encoding_work,
    estimated_ns,
    frame_work,
    payload_work,
)
from sb3_compressed.codecs.lz4_statistics_kernels import count_sequences
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


def trained(method: str, frames: NDArray[Any]) -> Adaptive:
    codec = get_codec(method)
    assert isinstance(codec, TrainableCodec)
    result = codec.train(frames)
    assert isinstance(result, Adaptive)
    return result


@pytest.mark.parametrize("method", ["auto", "auto/small", "auto/fast"])
def test_noise_is_stored_uncompressed_at_the_cost_of_one_byte(method: str) -> None:
    codec = trained(method, noise(64, 84, 84))
    assert {len(payload) for payload in roundtrip(codec, noise(5, 84, 84, seed=1))} == {84 * 84 + 1}
    if method != "auto/small":
        assert codec.nbytes == 0, "references and dictionary are useless"


def test_frames_of_a_still_background_are_stored_as_deltas() -> None:
    codec = trained("auto/small", moving_object(64))
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
    assert isinstance(codec, Adaptive)
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
    Adaptive.decode_batch(codecs, Payloads.of(payloads, writers), out)
    np.testing.assert_array_equal(out, frames)


@pytest.mark.parametrize("header", [LZ4, RAW])
@pytest.mark.parametrize("content", [b"", b"\0", bytes(64), b"\xff" * 300])
def test_malformed_payloads_without_references_raise(header: bytes, content: bytes) -> None:
    codec = get_codec("auto")
    assert isinstance(codec, Adaptive)
    with pytest.raises(CorruptPayload) as caught:
        codec.decode_into([header + content], np.empty((1, 9, 9), np.uint8))
    assert caught.value.index == 0


def variant_of(codec: Adaptive, frames: NDArray[Any]) -> Variant:
    """Return what a codec without references makes of frames."""
    payloads = codec.encode(frames)
    return Variant(payloads, False, codec.coder, payloads)


def block(*sequences: tuple[int, int, int]) -> bytes:
    """Return a payload with a block of LZ4, of sequences of literals, the offset of a match and its length."""
    data = bytearray(LZ4)
    for n_literals, offset, length in sequences:
        data.append(min(n_literals, 15) << 4 | min(length - 4, 15))
        data += long_number(n_literals) + bytes(n_literals) + offset.to_bytes(2, "little") + long_number(length - 4)
    return bytes(data + bytes([5 << 4]) + bytes(5))


def long_number(number: int) -> bytes:
    """Return the bytes that continue a number in LZ4's format."""
    if number < 15:
        return b""
    n_more, rest = divmod(number - 15, 255)
    return b"\xff" * n_more + bytes([rest])


def count_of(payload: bytes, name: str) -> float:
    [(_, counts)] = payload_work([payload], 10_000).items()
    return float(counts[COUNTS.index(name)])


def test_sequences_of_lz4_are_counted() -> None:
    payload = block((3, 50, 4), (0, 3, 18), (1, 3, 30), (400, 1, 600), (2, 2, 9), (2, 4, 9), (0, 15, 5), (0, 16, 5))
    assert count_of(payload, "sequences") == 9
    assert count_of(payload, "long_matches") == 2
    assert count_of(payload, "overlapping_bytes") == 18 + 30 + 5, "offsets 1, 2 and 4 are fast"
    assert count_of(payload, "payload_bytes") == len(payload)
    assert count_of(RAW + payload, "sequences") == 0


def test_counting_sequences_agrees_with_what_lz4_wrote() -> None:
    codec = trained("auto/small", tiles(64))
    payloads = variant_of(replace(codec, coder="lz4", references=ReferenceFrames()), tiles(20, seed=1)).payloads
    counts = payload_work(payloads, 64 * 64 * 3)["lz4"]
    assert counts[COUNTS.index("sequences")] > counts[COUNTS.index("long_matches")] > 0
    assert counts[COUNTS.index("payload_bytes")] == sum(map(len, payloads))


@pytest.mark.parametrize("length", range(40))
def test_counting_stays_inside_truncated_and_random_blocks(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(50):
        content = rng.choice([0, 15, 16, 240, 255, *rng.integers(0, 256, 4)], length).astype(np.uint8).tobytes()
        memory = np.frombuffer(LZ4 + content + b"\xff" * 4096, np.uint8)
        places = np.array([[memory.ctypes.data, 1 + length, 0]])
        counts = np.empty((1, 3), dtype=np.int64)
        count_sequences(places, counts)
        assert counts[0, 0] <= length, "each sequence has at least one byte, and what follows is not read"
        assert payload_work([LZ4 + content], 100)["lz4"][COUNTS.index("sequences")] == counts[0, 0]


def test_payloads_without_bytes_are_counted() -> None:
    assert payload_work([b"", b""], 0)["zstd"][COUNTS.index("frames")] == 2
    assert payload_work([], 100) == {}


def without_deltas(payloads: list[bytes]) -> Variant:
    return Variant(payloads, False, coder_of(payloads[0]), payloads)


#: Blocks of few and of many sequences.
SIMPLE, COMPLEX = block(*[(60, 50, 8)] * 25), block(*[(1, 50, 4)] * 1_000)


def test_the_smallest_variant_that_is_fast_enough_is_chosen() -> None:
    variants = [without_deltas([RAW + bytes(12_288)]), without_deltas([SIMPLE]), without_deltas([ZSTD + bytes(1_000)])]
    chosen = {objective: best_variant(objective, variants, 12_288) for objective in OBJECTIVES}
    assert chosen["balanced"] == 1
    assert chosen["small"] == 2
    variants[1] = without_deltas([COMPLEX])
    assert best_variant("balanced", variants, 12_288) == 0, "many short copies take long"


def test_slow_copies_count_as_time() -> None:
    far, near = (without_deltas([block(*[(0, offset, 18)] * 300)]) for offset in (100, 3))
    times = [
        estimated_ns("decoding", decoding_work(each.payloads, 5_400, is_channel_last=False)) for each in (far, near)
    ]
    assert times[0] < times[1]


@pytest.mark.parametrize("order", [False, True])
def test_what_is_tried_in_vain_counts_as_time(order: bool) -> None:
    raw = RAW + bytes(10_000)
    times = [
        estimated_ns(
            "encoding", encoding_work(Variant([raw], tries_delta, coder, [raw]), 10_000, is_channel_last=order)
        )
        for tries_delta, coder in ((False, "raw"), (False, "lz4"), (True, "raw"), (True, "lz4"))
    ]
    assert times[0] < min(times[1], times[2])
    assert max(times[1], times[2]) < times[3]
    small, delta = [DELTA + bytes(100)], [DELTA + bytes(2_000)]
    name, useless = ("color_delta", "useless_color_delta") if order else ("delta", "useless_delta")
    work = encoding_work(Variant(delta, True, "lz4", [raw]), 10_000, is_channel_last=order)
    assert work.keys() >= {name, "lz4"}
    assert encoding_work(Variant(small, True, "lz4", []), 10_000, is_channel_last=order)[useless].sum() == 0


def test_channel_last_frames_take_longer_to_add_and_to_decode() -> None:
    orders = [decoding_work([RAW + bytes(100)], 100, is_channel_last=order) for order in (False, True)]
    assert estimated_ns("decoding", orders[0]) < estimated_ns("decoding", orders[1])
    adding = [estimated_ns("adding", frame_work(order, 1, 12_288)) for order in ("contiguous", "channel_last")]
    assert adding[0] < adding[1]


def block_with(n_sequences: int) -> Variant:
    return without_deltas([block(*[(4, 50, 8)] * n_sequences)])


def slowest_allowed(frame_nbytes: int = 12_288) -> int:
    """Return the most sequences with which blocks are chosen instead of uncompressed frames."""
    raw = without_deltas([RAW + bytes(frame_nbytes)])
    return max(
        n
        for n in range(1, 600)
        if best_variant("balanced", [block_with(n), raw], frame_nbytes, is_channel_last=True) == 0
    )


def test_the_present_coder_is_kept_unless_it_is_clearly_too_slow() -> None:
    raw, limit = without_deltas([RAW + bytes(12_288)]), slowest_allowed()
    slightly, clearly = block_with(limit * 11 // 10), block_with(limit * 2)

    def choice(blocks: Variant, present: int | None) -> int:
        return best_variant("balanced", [blocks, raw], 12_288, is_channel_last=True, present=present)

    assert [choice(slightly, present) for present in (None, 0, 1)] == [1, 0, 1], "both are kept"
    assert [choice(clearly, present) for present in (None, 0, 1)] == [1, 1, 1]


def test_the_present_coder_is_kept_unless_another_is_clearly_smaller() -> None:
    present, slightly, clearly = block_with(100), block_with(95), block_with(50)
    assert best_variant("balanced", [present, slightly], 12_288, is_channel_last=True) == 1
    assert best_variant("balanced", [present, slightly], 12_288, is_channel_last=True, present=0) == 0
    assert best_variant("balanced", [present, clearly], 12_288, is_channel_last=True, present=0) == 1


@pytest.mark.parametrize(("objective", "chosen"), [("small", 0), ("balanced", 1), ("fast", 1)])
def test_slow_decoding_is_not_worth_hardly_any_memory(objective: str, chosen: int) -> None:
    slow, fast = without_deltas([ZSTD + bytes(40)]), without_deltas([block(*[(20, 50, 8)] * 4)])
    assert best_variant(objective, [slow, fast], 12_288) == chosen


def flat_colors(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return color frames ``(n, 3, 64, 64)`` of a few large areas of one color, in channel-last memory."""
    rng = np.random.default_rng(seed)
    frames = np.empty((n, 64, 64, 3), np.uint8)
    frames[:] = 40, 90, 160
    for frame in frames:
        row, column = rng.integers(0, 40, 2)
        frame[row : row + 20, column : column + 20] = 200, 30, 60
    return frames.transpose(0, 3, 1, 2)


def soft_noise(n: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return color frames ``(n, 3, 64, 64)`` of noise with few values, in channel-last memory."""
    return np.ascontiguousarray(noise(n, 64, 64, 3, seed=seed) // 16).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("make", [flat_colors, tiles, moving_object, soft_noise])
@pytest.mark.parametrize("method", ["auto", "auto/small", "auto/fast"])
def test_the_choice_is_reproducible(make: Callable[[int], NDArray[np.uint8]], method: str) -> None:
    assert trained(method, make(64)) == trained(method, make(64))


def test_flat_colors_and_arcade_games_are_compressed() -> None:
    for make in (flat_colors, moving_object):
        codec = trained("auto", make(64))
        assert sum(map(len, roundtrip(codec, make(20, seed=1)))) < 0.1 * make(20).nbytes


def test_frames_that_compress_only_slowly_are_stored_uncompressed() -> None:
    codec = trained("auto", soft_noise(64))
    assert {coder_of(payload) for payload in roundtrip(codec, soft_noise(5, seed=1))} == {"raw"}
    assert codec.nbytes == 0


def still_tiles(n: int, seed: int) -> NDArray[np.uint8]:
    """Return nearly equal frames of the same random tiles."""
    frames = np.repeat(tiles(1, seed).transpose(0, 2, 3, 1), n, axis=0)
    for frame, row in zip(frames, np.random.default_rng(seed).integers(0, 60, n), strict=True):
        frame[row : row + 4, :4] = 0
    return frames.transpose(0, 3, 1, 2)


def dashes(n: int, seed: int) -> NDArray[np.uint8]:
    """Return color frames ``(n, 3, 64, 64)`` of dashes of random colors, in channel-last memory."""
    frames = np.repeat(noise(n, 64, 22, 3, seed=seed), 3, axis=2)[:, :, :64]
    return np.ascontiguousarray(frames).transpose(0, 3, 1, 2)


def test_a_coder_that_is_far_too_slow_for_recent_frames_is_given_up() -> None:
    codec = trained("auto", still_tiles(48, seed=0))
    similar, others = still_tiles(64, seed=0), dashes(64, seed=1)
    assert codec.references
    assert {*map(coder_of, codec.encode(others))} == {"lz4"}, "training did not see such frames"
    assert codec.adapted_to(codec.encode(similar), similar) is codec
    adapted = codec.adapted_to(roundtrip(codec, others), others)
    assert (adapted.coder, adapted.references) == ("raw", codec.references)
    assert {*map(coder_of, roundtrip(adapted, others))} == {"raw"}
    assert {*map(coder_of, roundtrip(adapted, similar))} == {"delta"}
    assert adapted.adapted_to(adapted.encode(others), others) is adapted


def test_references_that_are_far_too_slow_for_recent_frames_are_given_up() -> None:
    codec = trained("auto", still_tiles(48, seed=0))
    others = tiles(64, seed=1)  # the same tiles elsewhere: large deltas of many pieces
    assert {*map(coder_of, codec.encode(others))} == {"delta"}
    adapted = codec.adapted_to(codec.encode(others), others)
    assert (adapted.coder, len(adapted.references)) == ("raw", 0)
    assert {*map(coder_of, roundtrip(adapted, others))} == {"raw"}
    assert adapted.adapted_to(adapted.encode(others), others) is adapted


@pytest.mark.parametrize("method", ["auto/small", "delta"])
def test_a_slow_coder_is_kept_where_memory_comes_first(method: str) -> None:
    codec, others = trained(method, still_tiles(48, seed=0)), tiles(64, seed=1)
    assert codec.adapted_to(codec.encode(others), others) is codec


def test_an_untrained_codec_keeps_its_coder() -> None:
    codec, frames = get_codec("auto"), tiles(64)
    assert isinstance(codec, Adaptive)
    assert codec.adapted_to(codec.encode(frames), frames) is codec


def test_training_a_codec_of_uncompressed_frames_again_returns_the_same_one() -> None:
    codec = trained("auto", soft_noise(64))
    assert codec.train(soft_noise(64, seed=1)) is codec


@pytest.mark.parametrize("n", [0, 1, 2, 17])
@pytest.mark.parametrize("method", ["auto", "auto/small", "auto/fast"])
def test_training_on_a_few_frames_chooses_a_coder(n: int, method: str) -> None:
    for make in (tiles, moving_object):
        roundtrip(trained(method, make(n)), make(3, seed=1))


def test_training_keeps_the_coder_on_frames_of_the_same_kind() -> None:
    for make in (flat_colors, tiles, moving_object, soft_noise):
        codec = trained("auto", make(64)).train(make(64, seed=9))  # a second sample may revise the first choice
        assert isinstance(codec, Adaptive)
        for seed in range(1, 5):
            again = codec.train(make(64, seed=seed))
            assert isinstance(again, Adaptive)
            assert (again.coder, bool(again.references)) == (codec.coder, bool(codec.references))
            codec = again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "tiny"}, "small, balanced, fast"),
        ({"coder": "gzip"}, "lz4, zstd, raw"),
        ({"channels": 3, "channel_last_nbytes": 10}, "3 channels"),
        ({"channels": 0, "channel_last_nbytes": 10}, "0 channels"),
        ({"channel_last_nbytes": -1}, "-1 bytes"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Adaptive(**arguments)
