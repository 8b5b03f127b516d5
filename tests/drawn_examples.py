"""Settings of hypothesis: how many examples it draws, and whether it draws new ones.

``make test`` and ``make test-all`` draw the same examples in each run, so that they pass or fail for everybody.
``make bounds`` draws new ones, and more of them. Failures that it finds are added as an ``@example`` or a test.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["FACTOR", "examples"]

#: A multiple of the usual number of examples; if it is set, new ones are drawn. ``None`` for a quarter of them.
FACTOR = os.environ.get("SB3_COMPRESSED_EXAMPLES")

settings.register_profile(
    "examples",
    # Whether a test passes depends neither on times nor on examples that failed here before.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=FACTOR is None,
    **({"database": None} if FACTOR is None else {}),
)
settings.load_profile("examples")


def examples(usual: int) -> settings:
    """Return the settings of a test: its number of examples.

    :param usual: the number that finds most mistakes. ``make bounds`` draws a multiple of it, ``make test`` a quarter
    """
    return settings(max_examples=usual * int(FACTOR) if FACTOR else max(usual // 4, 10))
