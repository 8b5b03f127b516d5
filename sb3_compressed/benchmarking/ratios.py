"""What results mean: every number is a ratio to SB3's own buffer in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["Results", "contenders", "is_wrong", "mean", "ratios"]

Results = dict[str, dict[str, dict[str, Any]]]
"""``{label: {contender: {key: number}}}``"""


def contenders(results: Results, *, baseline: str = "SB3") -> list[str]:
    """Return who was measured besides the baseline, in order."""
    return list(dict.fromkeys(name for of_label in results.values() for name in of_label if name != baseline))


def ratios(results: Results, contender: str, key: str, *, baseline: str = "SB3") -> list[float]:
    """Return one number's ratio to the baseline's for every label where there are both."""
    both = [(of_label.get(contender, {}), of_label.get(baseline, {})) for of_label in results.values()]
    return [theirs[key] / base[key] for theirs, base in both if key in theirs and base.get(key, 0) > 0]


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean; what noise has made negative or zero counts as very little."""
    return statistics.geometric_mean([max(value, 1e-6) for value in values])


def is_wrong(results: Results, contender: str) -> bool:
    """Whether a contender returned something else than what was added, with any label."""
    return any(of_label.get(contender, {}).get("wrong") for of_label in results.values())
