"""How many examples hypothesis draws, and whether they are new ones.

``make test`` and ``make test-all`` draw the same examples in each run, so that they pass or fail for everybody.
``make bounds`` draws new ones, and more of them. What it finds is fixed and becomes an ``@example`` or a test.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["examples"]

#: How many times the usual number of examples is drawn; new ones if it is set.
FACTOR = os.environ.get("SB3_COMPRESSED_EXAMPLES")

settings.register_profile(
    "examples",
    # Neither times nor the examples that failed here before decide whether a test passes.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=FACTOR is None,
    **({"database": None} if FACTOR is None else {}),
)
settings.load_profile("examples")


def examples(usual: int) -> settings:
    """Return settings for a test with a number of examples, in the long run for more of them.

    :param usual: the number in `make test`
    """
    return settings(max_examples=usual * int(FACTOR or 1))
