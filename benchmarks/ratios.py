"""Ratios of results to SB3's buffer in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["Results", "buffer_names", "extent", "is_wrong", "mean", "ratio_interval", "ratios"]

Results = dict[str, dict[str, dict[str, Any]]]
"""``{label: {buffer name: {key: number}}}``"""


def buffer_names(results: Results) -> list[str]:
    """Return the measured buffers other than SB3's, in order."""
    return list(dict.fromkeys(name for of_label in results.values() for name in of_label if name != "SB3"))


def ratios(results: Results, name: str, key: str) -> list[float]:
    """Return a buffer's ratio to SB3's for every label where both were measured."""
    pairs = [(of_label.get(name, {}), of_label.get("SB3", {})) for of_label in results.values()]
    return [ours[key] / base[key] for ours, base in pairs if key in ours and base.get(key, 0) > 0]


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean. Less than 0.1% counts as 0.1%: the growth of a process is not more precise."""
    return statistics.geometric_mean([max(value, 1e-3) for value in values])


def ratio_interval(ours: Sequence[float], base: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap confidence interval of the ratio of two sums of paired values.

    It presumes nothing of their distribution, and that pairs are independent: Efron and Tibshirani (1993), An
    Introduction to the Bootstrap.

    >>> ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    (2.0, 2.0)
    """
    pairs = np.array([ours, base]).T
    samples = np.random.default_rng(0).integers(len(pairs), size=(10_000, len(pairs)))
    sums = pairs[samples].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def is_wrong(results: Results, name: str) -> bool:
    """Return whether a buffer returned wrong data under any label."""
    return any(of_label.get(name, {}).get("wrong") for of_label in results.values())


def extent(values: Iterable[float | None], form: str) -> str:
    """Return the lowest and the highest value as text, empty if there is none.

    >>> extent([0.5, 0.25, None], "{:.0%}"), extent([0.5], "{:.0%}")
    ('25% to 50%', '50%')
    """
    found = sorted(value for value in values if value is not None)
    texts = list(dict.fromkeys(form.format(value) for value in (*found[:1], *found[-1:])))
    return " to ".join(texts)
