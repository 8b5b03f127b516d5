"""What is stored is the same in each run, whatever the number of threads, and what happens between two calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from programs import fresh_outcome
from stored_digests import STACKS, digests, observations, replay_digest

from sb3_compressed import CompressedArray
from sb3_compressed.codecs import TrainableCodec


@pytest.fixture(scope="module")
def expected() -> Mapping[str, str]:
    return digests(num_threads=1)


@pytest.mark.parametrize("options", [{"num_threads": 4}, {}])
def test_neither_threads_nor_pauses_change_what_is_stored(options: dict[str, Any], expected: Mapping[str, str]) -> None:
    assert digests(is_disturbed=True, **options) == expected


@pytest.mark.slow
def test_another_process_stores_the_same(expected: Mapping[str, str]) -> None:
    done = fresh_outcome("from stored_digests import digests; import json; print(json.dumps(digests()))")
    assert json.loads(done.stdout) == expected


def test_digests_of_other_payloads_differ(expected: Mapping[str, str]) -> None:
    assert len({*expected.values()}) == 4
    assert replay_digest(STACKS, is_disturbed=False, compression_method="delta") != expected["replay, stacks"]


def test_the_run_trains_the_codec_several_times() -> None:
    array = CompressedArray((2_000, 2, 4, 32, 32))
    codecs = set()
    for row, stack in zip(range(2_000), observations(STACKS), strict=False):
        array[row] = stack
        assert isinstance(array.codec, TrainableCodec)
        codecs.add(array.codec)
    assert len(codecs) >= 5  # as it was made, after 64, 256 and 1,024 frames, and after a change of scene
