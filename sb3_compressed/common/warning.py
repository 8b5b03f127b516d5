"""``warn_user``: warnings that point at the user's line instead of a line of this package or SB3."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_user"]

#: The last one calls context managers of the others.
LIBRARIES = ("sb3_compressed", "stable_baselines3", "sb3_contrib", "contextlib")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest caller outside these libraries."""
    level = 1
    while True:
        try:
            frame = sys._getframe(level)
        except ValueError:  # all callers are in these libraries
            break
        if frame.f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES:
            break
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)
