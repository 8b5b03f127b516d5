"""Memory estimates are exact for few slots, close for many, and their cost is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from gathering import loaded_slots
from support import Transition

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.memory_estimate import MemoryEstimate

ROWS = 300


def filled(transitions: list[Transition], codec: str, rows: int = ROWS) -> list[CompressedArray]:
    """Return arrays of observations and next ones with all transitions written around the ring."""
    first = transitions[0].obs
    observations = CompressedArray((rows, *first.shape), first.dtype, codec)
    arrays = [observations, observations.new_sharing_frames()]
    for step, transition in enumerate(transitions):
        rows_of_slots = observations.stream.append(transition.obs, transition.next_obs)
        for array, row in zip(arrays, rows_of_slots, strict=True):
            array.write_encoded(step % rows, row)
    return arrays


def estimate(arrays: list[CompressedArray], begin: int, n_rows: int, max_slots: int = 8192) -> MemoryEstimate:
    return arrays[0].stream.estimate([array.references for array in arrays], begin, n_rows, max_slots)


def exact_payloads(arrays: list[CompressedArray]) -> tuple[int, int, int]:
    """Return bytes of payloads, how many there are, and how many references to them."""
    slots = [slot for each in loaded_slots(*arrays) for slot in each.ravel() if slot is not None]
    parts = [part for slot in slots for part in (slot if isinstance(slot, tuple) else (slot,))]
    payloads = [part for part in parts if isinstance(part, bytes)]
    distinct = {id(payload): len(payload) for payload in payloads}
    return sum(distinct.values()), len(distinct), len(payloads)


def test_slots_that_were_not_written_do_not_count(stream: Any) -> None:
    arrays = filled(stream[3][:10], "zstd3")
    found, exact = estimate(arrays, 0, 20), exact_payloads(arrays)
    assert (found.payload_nbytes, found.n_payloads, found.n_frames) == exact


@pytest.mark.parametrize("codec", ["auto", "zstd3"])
def test_an_estimate_of_some_slots_is_close_to_all(stream: Any, codec: str) -> None:
    arrays = filled(stream[3], codec)
    found = estimate(arrays, len(stream[3]) % ROWS, ROWS, max_slots=ROWS * 2)  # a quarter of them
    payload_nbytes, n_payloads, n_frames = exact_payloads(arrays)
    assert found.nbytes == pytest.approx(arrays[0].stream.nbytes(*[array.references for array in arrays]), rel=0.2)
    assert found.payload_nbytes == pytest.approx(payload_nbytes, rel=0.2)
    assert found.n_payloads / found.n_frames == pytest.approx(n_payloads / n_frames, rel=0.2)
