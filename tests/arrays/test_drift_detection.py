"""Larger payloads are found soon, and those that training does not help are reported ever less often."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.drift_detection import DriftDetector

FRAME_NBYTES = 28_224


def changes(detector: DriftDetector, sizes: NDArray[np.int64]) -> list[int]:
    """Return after how many frames changes are reported, with trainings that do not help.

    :param sizes: sizes of payloads, ``(n, n_frames)``, at each measurement
    """
    found = []
    for step, row in enumerate(sizes):
        if detector.observe([bytes(size) for size in row], 32, FRAME_NBYTES):
            found.append((step + 1) * 32)
            detector.reacted(helped=False)
    return found


def payloads(nbytes: float, n_frames: int, spread: float = 0.3) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return rng.normal(nbytes, spread * nbytes, (n_frames // 32, 4)).clip(1).astype(np.int64)


@pytest.mark.parametrize("after", [500, 1000, 1601])
@pytest.mark.parametrize("n_before", [256, 1056, 20_000])
def test_larger_payloads_are_found_within_two_blocks(after: int, n_before: int) -> None:
    detector = DriftDetector()
    assert changes(detector, payloads(150, n_before)) == []
    [first, *_] = changes(detector, payloads(after, 2048, spread=0))
    assert first <= 2 * DriftDetector.BLOCK


@pytest.mark.parametrize("nbytes", [5, 150, 1601])
def test_payloads_of_varying_size_are_no_change(nbytes: int) -> None:
    assert changes(DriftDetector(), payloads(nbytes, 100_000)) == []


def test_a_few_bytes_more_are_no_change() -> None:
    detector = DriftDetector()
    assert changes(detector, payloads(10, 1024)) == changes(detector, payloads(60, 1024)) == []


def test_payloads_that_grow_slowly_are_found() -> None:
    detector = DriftDetector()
    assert changes(detector, payloads(200, 1024)) == []
    assert changes(detector, np.concatenate([payloads(nbytes, 1024) for nbytes in range(220, 500, 20)]))


def test_a_change_that_training_does_not_help_is_reported_ever_less_often() -> None:
    detector = DriftDetector()
    changes(detector, payloads(100, 1024))
    found = np.diff(changes(detector, payloads(1601, 100_000, spread=0)))
    assert found[0] >= DriftDetector.SHORTEST
    assert (np.diff(found) >= 0).all()
    assert found[-1] >= DriftDetector.LONGEST


def test_a_change_after_some_noise_is_found_soon() -> None:
    detector = DriftDetector()
    changes(detector, payloads(100, 1024))
    changes(detector, payloads(1601, 3200, spread=0))
    [first, *_] = changes(detector, payloads(400, 8192))
    assert first <= 4096


def test_a_training_that_helps_makes_the_next_reaction_as_fast() -> None:
    detector = DriftDetector()
    for _ in range(5):
        assert changes(detector, payloads(100, 4096)) == []
        sizes = payloads(1000, 256)
        assert any(detector.observe([bytes(size) for size in row], 32, FRAME_NBYTES) for row in sizes)
        detector.reacted(helped=True)
        detector.restart()


@pytest.mark.parametrize(("n_frames", "n_passed"), [(1, 8), (4, 32), (100, 32)])
def test_few_calls_are_measured(n_frames: int, n_passed: int) -> None:
    assert DriftDetector().next_measurement(n_frames) == n_passed


def test_payloads_as_large_as_frames_are_found_whatever_the_first_block_was() -> None:
    detector = DriftDetector()
    found = changes(detector, payloads(FRAME_NBYTES, 50_000, spread=0))
    assert found[0] == DriftDetector.BLOCK
    assert len(found) <= 8  # ever less often
