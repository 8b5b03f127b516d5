"""Times and page faults of calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from metrics import CallTimer

MEGABYTES = 64


def test_calls_have_a_median_quartiles_and_the_page_faults_during_them() -> None:
    timer, result = CallTimer(), dict[str, Any](rss=1.0)
    for _ in range(4):
        timer.call(np.ones, (MEGABYTES, 1 << 20), np.uint8)
        np.ones((MEGABYTES, 1 << 20), np.uint8)  # not counted
    timer.add_to(result, "ones", divisor=4)
    first, third = result["quartiles"]["ones"]
    assert 0 < first <= result["ones"] <= third
    # Pages have 4 KiB, or 2 MiB where the system has joined them.
    assert MEGABYTES / 2 / 4 / 2 < result["faults"]["ones"] < MEGABYTES * 256 / 4 * 1.5
    assert result["rss"] == 1.0
