"""Changes of scene are found soon, and fluctuations are not reported again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_compressed.arrays.drift_detection import DriftDetector

FRAMES = np.zeros((4, 40, 40), np.uint8)


def changes(detector: DriftDetector, sizes: NDArray[np.int64], frames: NDArray[np.uint8] = FRAMES) -> list[int]:
    """Return after how many frames changes are reported, with trainings that do not help.

    :param sizes: sizes of payloads, ``(n, n_frames)``, at each measurement
    """
    found = []
    for step, row in enumerate(sizes):
        new = frames[step * 4 % len(frames) :][:4]
        if detector.observe(new, [bytes(size) for size in row], 32):
            found.append((step + 1) * 32)
            detector.reacted(helped=False)
    return found


def payloads(nbytes: float, n_frames: int, spread: float = 0.3) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return rng.normal(nbytes, spread * nbytes, (n_frames // 32, 4)).clip(1).astype(np.int64)


def noise(n: int = 400) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n, 40, 40), np.uint8)


@pytest.mark.parametrize("after", [500, 1000, 1601])
@pytest.mark.parametrize("n_before", [256, 1056, 20_000])
def test_larger_payloads_are_found_within_two_blocks(after: int, n_before: int) -> None:
    detector = DriftDetector()
    assert changes(detector, payloads(150, n_before)) == []
    [first, *_] = changes(detector, payloads(after, 2048, spread=0))
    assert first <= 2 * DriftDetector.BLOCK


@pytest.mark.parametrize("nbytes", [5, 150, 1601])
def test_payloads_of_varying_size_are_no_change(nbytes: int) -> None:
    assert changes(DriftDetector(), payloads(nbytes, 100_000), noise()) == []


def test_a_few_bytes_more_are_no_change() -> None:
    detector = DriftDetector()
    assert changes(detector, payloads(10, 1024)) == changes(detector, payloads(60, 1024)) == []


def test_a_change_that_training_does_not_help_is_reported_once() -> None:
    detector = DriftDetector()
    changes(detector, payloads(100, 1024))
    assert len(changes(detector, payloads(500, 100_000))) == 1


def test_noise_is_reported_ever_less_often() -> None:
    detector = DriftDetector()
    changes(detector, payloads(100, 1024))
    found = np.diff(changes(detector, payloads(1601, 100_000, spread=0), noise()))
    assert found[0] >= DriftDetector.SHORTEST
    assert (np.diff(found) >= 0).all()
    assert found[-1] >= DriftDetector.LONGEST


def test_a_change_after_noise_is_found_soon() -> None:
    detector = DriftDetector()
    changes(detector, payloads(100, 1024))
    changes(detector, payloads(1601, 3200, spread=0), noise())
    [first, *_] = changes(detector, payloads(400, 2048))
    assert first <= 2 * DriftDetector.BLOCK


@pytest.mark.parametrize("later", ["equal", "smooth"])
def test_frames_that_compress_are_found_among_raw_payloads(later: str) -> None:
    detector = DriftDetector()
    raw = payloads(1601, 2048, spread=0)
    assert changes(detector, raw, noise()) == []
    frames = {"equal": np.repeat(noise(1), 400, axis=0), "smooth": np.full((400, 40, 40), 7, np.uint8)}[later]
    [first, *_] = changes(detector, raw, frames)
    assert first <= 3 * DriftDetector.BLOCK


def test_a_training_that_helps_makes_the_next_reaction_as_fast() -> None:
    detector = DriftDetector()
    for _ in range(5):
        assert changes(detector, payloads(100, 4096)) == []
        sizes = payloads(1000, 256)
        assert any(detector.observe(FRAMES, [bytes(size) for size in row], 32) for row in sizes)
        detector.reacted(helped=True)
        detector.restart(90.0)


@pytest.mark.parametrize(("n_frames", "n_passed"), [(1, 8), (4, 32), (100, 32)])
def test_few_calls_are_measured(n_frames: int, n_passed: int) -> None:
    assert DriftDetector().next_measurement(n_frames) == n_passed


@pytest.mark.parametrize("shape", [(1,), (3,), (0,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.bool_, np.float64])
def test_frames_of_any_size_and_dtype_are_measured(shape: tuple[int, ...], dtype: type) -> None:
    frames: NDArray[Any] = np.ones((2, *shape), dtype)
    detector = DriftDetector()
    for _ in range(20):
        assert not detector.observe(frames, [bytes(frames[0].nbytes + 1)] * 2, 64)
    assert any(detector.observe(frames, [bytes(frames[0].nbytes + 1000)] * 2, 64) for _ in range(4))
