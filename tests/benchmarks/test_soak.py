"""``benchmarks/soak.py``: drifting frames in a buffer that is overwritten many times."""

from __future__ import annotations

import pytest
from soak import run


@pytest.mark.slow
def test_content_is_correct_while_frames_drift() -> None:
    results = run(adds=4_000, rows=60, n_envs=4, n_steps=50, phase=90, sample_every=7)
    assert [n_added for n_added, _, _ in results] == [400 * part for part in range(1, 11)]
    assert results[-1][2] == len(range(7, 1_000, 7))
