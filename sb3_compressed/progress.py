"""Progress bars of what takes long, by tqdm, where they are asked for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

__all__ = ["progress_bar"]


class _Hidden:
    """A bar that nobody asked for."""

    def update(self, n: int = 1) -> None:
        """Do nothing."""


def progress_bar(is_shown: bool, total: int, what: str, unit: str = "steps") -> Any:
    """Return a context manager that gives a bar with the method ``update(n)``.

    :raises ImportError: if it is to be shown and tqdm is not installed
    """
    if not is_shown:
        return nullcontext(_Hidden())
    try:
        from tqdm import tqdm
    except ImportError:
        raise ImportError("progress bars need tqdm: pip install tqdm (or pass progress=False)") from None
    return tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True)
