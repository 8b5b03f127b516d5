"""Chi-square tests of drawn frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_frequencies(counts: Any, expected: Any = None, n_free: int | None = None) -> None:
    """Assert that counts are those of independent draws; this fails with a probability of 1e-3 if they are.

    :param counts: how often each value was drawn, of any shape
    :param expected: the probabilities, up to a factor; equal ones by default
    :param n_free: degrees of freedom, one less than there are values by default
    """
    counts = np.asarray(counts, dtype=float)
    expected = np.ones(counts.shape) if expected is None else np.asarray(expected, dtype=float)
    expected = expected * (counts.sum() / expected.sum())
    assert expected.min() >= 5, "the approximation needs more draws"
    n_free = counts.size - 1 if n_free is None else n_free
    # The quantile by Wilson and Hilferty (1931); 3.09 is that of the normal distribution.
    limit = n_free * (1 - 2 / (9 * n_free) + 3.09 * np.sqrt(2 / (9 * n_free))) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < limit
