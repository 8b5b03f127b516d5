"""Ratios of results to SB3's buffer in the same run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["Results", "buffer_names", "is_wrong", "mean", "median_interval", "paired_ratios", "ratios"]

Results = dict[str, dict[str, dict[str, Any]]]
"""``{label: {buffer name: {key: number}}}``"""


def buffer_names(results: Results) -> list[str]:
    """Return the measured buffers other than SB3's, in order."""
    return list(dict.fromkeys(name for of_label in results.values() for name in of_label if name != "SB3"))


def ratios(results: Results, name: str, key: str) -> list[float]:
    """Return a buffer's ratio to SB3's for every label where both were measured."""
    pairs = [(of_label.get(name, {}), of_label.get("SB3", {})) for of_label in results.values()]
    return [ours[key] / base[key] for ours, base in pairs if key in ours and base.get(key, 0) > 0]


def paired_ratios(of_label: dict[str, dict[str, Any]], name: str, key: str) -> list[float]:
    """Return a buffer's ratio to SB3's for each round; without rounds in the results, for their medians."""
    runs = [of_label.get(each, {}).get("runs", {}).get(key) for each in (name, "SB3")]
    if runs[0] is None or runs[1] is None:
        return ratios({"": of_label}, name, key)
    return [ours / base for ours, base in zip(*runs) if base > 0]


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean. Less than 0.1% counts as 0.1%: the growth of a process is not more precise."""
    return statistics.geometric_mean([max(value, 1e-3) for value in values])


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the median that presumes nothing of the distribution: two of the values.

    It is the narrowest pair of order statistics with that confidence. Fewer than six values cannot reach 95%; then it
    is the smallest and the largest.

    >>> median_interval([3, 1, 2]), median_interval(range(1, 7)), median_interval(range(1, 11))
    ((1, 3), (1, 6), (2, 9))
    """
    ordered, n = sorted(values), len(values)
    skipped = 0
    outside = 2 * 0.5**n  # the probability that the median is outside of the interval without so many values
    while skipped + 1 < n - skipped - 1:
        outside += 2 * math.comb(n, skipped + 1) * 0.5**n
        if outside > 1 - confidence:
            break
        skipped += 1
    return ordered[skipped], ordered[n - 1 - skipped]


def is_wrong(results: Results, name: str) -> bool:
    """Return whether a buffer returned wrong data under any label."""
    return any(of_label.get(name, {}).get("wrong") for of_label in results.values())
