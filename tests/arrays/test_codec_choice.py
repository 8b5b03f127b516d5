"""Tests of the choice between codecs while a training runs, with times that are given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.arrays import codec_choice
from sb3_compressed.arrays.choice_trigger import ChoiceTrigger
from sb3_compressed.arrays.codec_choice import Candidate, Choice, choose, measured
from sb3_compressed.arrays.loop_timing import LoopTiming
from sb3_compressed.arrays.time_budget import Load, TimeBudget
from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.adaptive import Adaptive
from sb3_compressed.codecs.zstd_dict import ZstdDict

US = 1e-6


def candidate(coder: str, nbytes: float, encoding_us: float, decoding_us: float, level: int = 3) -> Candidate:
    codec = Adaptive(objective="balanced", coder=coder, compresslevel=level)
    return Candidate(codec, nbytes, encoding_us * US, decoding_us * US)


RAW = candidate("raw", 21_000, 2, 2)
LZ4 = candidate("lz4", 16_000, 22, 10)
ZSTD = candidate("zstd", 12_000, 80, 44)
ZSTD_19 = candidate("zstd", 10_000, 3_000, 44, level=19)
ALL = [RAW, LZ4, ZSTD, ZSTD_19]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(10, 10, 0, 0.02), ZSTD),  # 3 ms a frame for the best one, ten times a second, are 3%
        (Load(5, 10, 0, 0.02), ZSTD_19),
        (Load(5, 10, 0, 0.005), ZSTD),
        (Load(100, 1_000, 0, 0.02), LZ4),
        (Load(1_000, 10_000, 0, 0.02), RAW),
        (Load(1_000, 10_000, 0, 0.2), LZ4),
        (Load(200, 0, 3_000, 0.1), ZSTD),  # which may take up to 15% of a core
        (Load(200, 0, 4_000, 0.1), LZ4),
        (Load(100, 0, 1_000, 0.005), LZ4),
        # Another thread decodes, which takes a quarter of its time from the training.
        (Load(100, 0, 1_000, 0.02), ZSTD),
        (Load(100, 0, 2_000, 0.02), LZ4),
        (Load(100, 0, 1_000, 0.02, has_idle_core=False), LZ4),
    ],
)
def test_the_smallest_that_the_budget_allows_is_chosen(load: Load, expected: Candidate) -> None:
    choice = choose(ALL, load)
    assert choice.new == expected
    assert choice.later is None
    assert choice.share <= load.share
    assert not choice.is_forced


def test_the_cost_is_that_beyond_uncompressed_frames() -> None:
    choice = choose([RAW, LZ4], Load(1_000, 100, 50, 0.5))
    assert choice.new == LZ4
    assert choice.share == pytest.approx(1_000 * 20 * US + 100 * 8 * US + 50 * 8 * US / 4)


def test_memory_goes_before_the_budget() -> None:
    load = Load(1_000, 10_000, 0, 0.02)
    assert choose(ALL, load, max_nbytes=30_000).new == RAW
    choice = choose(ALL, load, max_nbytes=13_000)
    assert choice.new == ZSTD, "the cheapest that fits"
    assert choice.is_forced
    assert choose(ALL, load, max_nbytes=100).new == ZSTD_19, "nothing fits: the smallest"
    hardly_smaller = candidate("zstd", 11_500, 3_000, 44, level=19)
    assert choose([RAW, LZ4, ZSTD, hardly_smaller], load, max_nbytes=100).new == ZSTD, "or nearly the smallest"


def test_hardly_smaller_payloads_are_not_worth_any_time() -> None:
    hardly = candidate("zstd", 15_800, 80, 44)
    assert choose([RAW, LZ4, hardly], Load(10, 10, 0, 0.5)).new == LZ4


def test_the_present_codec_stays_if_it_is_about_as_good() -> None:
    load = Load(100, 0, 100, 0.0075)
    assert choose(ALL, load).new == LZ4
    assert choose([RAW, candidate("lz4", 12_500, 22, 10), ZSTD], load, present=ZSTD.codec).new == ZSTD
    assert choose(ALL, load._replace(share=0.001), present=ZSTD.codec).new == RAW, "it is far too slow"
    better = candidate("lz4", 9_000, 22, 10)
    assert choose([RAW, better, ZSTD], load, present=ZSTD.codec).new == better


def test_frames_are_encoded_again_later_where_that_is_smaller() -> None:
    load = Load(15, 0, 300, 0.02)
    at_once = choose(ALL, load)
    assert (at_once.new, at_once.later) == (ZSTD, None)
    choice = choose(ALL, load, may_encode_later=True)
    assert (choice.new, choice.later) == (RAW, ZSTD_19)
    assert choice.final == ZSTD_19
    assert choice.share <= load.share
    more_decoding = choose(ALL, load._replace(ahead=1_000), may_encode_later=True)
    assert more_decoding.final == ZSTD, (
        "zstd 19 would take 2.2% of the training: a quarter of 4.2% to decode ahead and of 4.5% to encode again"
    )
    busy = choose(ALL, load._replace(has_idle_core=False), may_encode_later=True)
    assert busy.later is None


def test_another_thread_encodes_where_that_takes_less_of_the_training() -> None:
    load = Load(100, 0, 300, 0.02)  # zstd 19 would take 30% of a core, zstd 3 takes 0.8% of the training
    choice = choose(ALL, load, may_encode_later=True)
    assert (choice.new, choice.later) == (RAW, ZSTD)
    slow = choose(ALL, Load(15, 0, 60, 0.02), may_encode_later=True)
    assert (slow.new, slow.later) == (RAW, ZSTD_19)
    tiny = candidate("raw", 100, 4, 1)  # as deltas are
    assert choose([RAW, tiny, ZSTD], Load(100, 0, 300, 0.02), may_encode_later=True).later is None


def test_the_ladder_has_what_is_smaller_than_all_faster_ones() -> None:
    useless = candidate("zstd", 17_000, 80, 60)
    assert choose([*ALL, useless], Load(1, 1, 1, 0.02)).ladder == (RAW, LZ4, ZSTD, ZSTD_19)


@pytest.mark.parametrize(
    ("change", "is_similar"),
    [
        ({}, True), ({"encoded": 130.0}, True), ({"encoded": 200.0}, False), ({"encoded": 50.0}, False),
        ({"waited": 30.0}, True), ({"ahead": 3_000.0}, False), ({"has_idle_core": False}, False),
    ],
)  # fmt: skip
def test_loads_are_similar_if_no_rate_that_matters_differs_much(change: dict[str, Any], is_similar: bool) -> None:
    load = Load(100.0, 0.0, 1_000.0, 0.02)
    other = load._replace(**change)
    # In 1,000 frames a second, 100 do not matter.
    expected = is_similar if "encoded" not in change else other.encoded < 150
    assert load.is_similar(other, 1.5) == expected
    assert other.is_similar(load, 1.5) == expected


def test_candidates_are_measured() -> None:
    frames = np.zeros((8, 48, 64), np.uint8)
    codec = get_codec("auto")
    assert isinstance(codec, Adaptive)
    raw, compressed = measured([replace(codec, coder="raw"), replace(codec, coder="zstd")], frames)
    assert raw.nbytes > 48 * 64 > compressed.nbytes > 0
    for each in (raw, compressed):
        assert 0 < each.encoding < 1
        assert 0 < each.decoding < 1
    assert math.isfinite(raw.nbytes)


class Recording(ZstdDict):
    """A codec that records the batches that it encodes."""

    batches: ClassVar[list[NDArray[Any]]] = []

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        self.batches.append(frames.copy())
        return super().encode(frames)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.bool_])
def test_candidates_are_also_timed_on_a_frame_unlike_all_others(dtype: type[np.generic]) -> None:
    frames = (noise(16, 40) > 99).astype(dtype)
    (cost,) = measured([Recording()], frames)
    *timed, unlike = Recording.batches[-1]
    np.testing.assert_array_equal(timed, frames)
    assert not np.array_equal(unlike, frames[-1])
    sizes = [len(payload) for payload in ZstdDict().encode(frames)]
    assert cost.nbytes == pytest.approx(np.mean(sizes) + codec_choice.OBJECT_NBYTES), "it does not count as memory"


def short_budget() -> TimeBudget:
    """Return the budget of a buffer that would not fit into memory, so that a choice is due at once."""
    return TimeBudget(LoopTiming(), 0.02, memory_share=1e-9, n_items=1_000_000)


def noise(n: int, side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(side).integers(0, 256, (n, side, side), np.uint8)


def test_candidates_are_compared_on_frames_of_one_layout() -> None:
    """Whole items were collected when the layout was found: only single frames count from then on."""
    trigger, codec = ChoiceTrigger(), Adaptive(objective="balanced").train(noise(64, 40))

    def observe(side: int) -> Callable[[], Choice | None] | None:
        trigger.count(trigger.FIRST_SPACING, codec.encode(noise(1, 40)))
        return trigger.observe(codec, noise(1, side), short_budget(), 1)

    assert observe(40) is None
    choices = [observe(20) for _ in range(trigger.N_COMPARED)]
    assert [each is not None for each in choices] == [False] * (trigger.N_COMPARED - 1) + [True]
    assert choices[-1] is not None
    choice = choices[-1]()
    assert choice is not None
    assert 400 < choice.final.nbytes < 500  # of frames of 400 bytes of noise


def test_much_larger_payloads_lead_to_a_new_choice() -> None:
    trigger, codec = ChoiceTrigger(), Adaptive(objective="balanced").train(noise(64, 40))
    blank, enough = np.zeros((1, 40, 40), np.uint8), TimeBudget(LoopTiming(), 0.02)

    def choice_after(frames: NDArray[np.uint8], budget: TimeBudget, n_frames: int = 512) -> Choice | None:
        for _ in range(0, n_frames, trigger.FIRST_SPACING):
            trigger.count(trigger.FIRST_SPACING, codec.encode(frames))
            if (choose := trigger.observe(codec, frames, budget, 1)) is not None:
                return choose()
        return None

    first = choice_after(blank, short_budget())
    assert first is not None
    first = first._replace(share=0.0)  # within the budget
    trigger.use(first)
    assert [choice_after(blank, enough) for _ in range(100)] == [None] * 100
    second = choice_after(noise(1, 40), enough, 100_000)
    assert second is not None
    assert second.new.nbytes > 1600
    trigger.use(second._replace(share=0.0))
    assert [choice_after(noise(1, 40), enough) for _ in range(100)] == [None] * 100
    trigger.use(first)
    assert choice_after(noise(1, 40), enough) is not None
    trigger.use(first)
    assert choice_after(noise(1, 40), enough) is None, "choices become rarer"


def test_a_codec_without_candidates_stays() -> None:
    frames = noise(2000, 40)
    array = CompressedArray((2000, 1, 40, 40), np.uint8, ZstdDict(), None, num_threads=2)
    array.set_time_budget(short_budget())
    for row, frame in enumerate(frames):
        array[row] = frame[np.newaxis]
    assert isinstance(array.codec, ZstdDict)
    assert array.choice is None
    np.testing.assert_array_equal(array[:, 0], frames)


@pytest.mark.parametrize(("seconds", "least"), [([0.005, 0.001, 0.002], 0.001), ([0.02, 0.001], 0.02)])
def test_the_shortest_of_a_few_calls_counts(
    seconds: list[float], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(np.cumsum([each for call in seconds for each in (0.0, call)]).tolist())
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    result, found = codec_choice._timed(lambda: "result")
    assert result == "result"
    assert found == pytest.approx(least)
