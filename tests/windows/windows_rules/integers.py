"""The rule about ``long``: NumPy's old generator draws integers of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windows_rules.state import rules

__all__ = ["install"]


def install() -> None:
    """Replace the functions of ``np.random`` and the methods of its ``RandomState``."""
    if "long" not in rules:
        return
    try:
        import numpy as np
    except ImportError:  # a program of another environment
        return

    def narrow(result: Any, *, is_long: bool = True) -> Any:
        is_wide = is_long and isinstance(result, np.ndarray) and result.dtype == np.int64
        return result.astype(np.int32) if is_wide else result

    def drawing_long(method: Callable[[str], Any]) -> dict[str, Any]:
        randint, permutation, choice = (method(name) for name in ("randint", "permutation", "choice"))

        def draw(*args: Any, **kwargs: Any) -> Any:
            is_long = (args[3] if len(args) > 3 else kwargs.get("dtype", int)) is int
            given = [*args[1::-1], kwargs.get("high"), kwargs.get("low")]
            limit = next((each for each in given if each is not None), 0)
            if is_long and np.max(limit) > 2**31:
                raise ValueError("high is out of bounds for int32 [rule of Windows: long]")
            return narrow(randint(*args, **kwargs), is_long=is_long)

        def permute(x: Any) -> Any:
            return narrow(permutation(x), is_long=isinstance(x, int | np.integer))

        def choose(a: Any, *args: Any, **kwargs: Any) -> Any:
            return narrow(choice(a, *args, **kwargs), is_long=isinstance(a, int | np.integer))

        return {"randint": draw, "permutation": permute, "choice": choose}

    random: Any = np.random
    for name, function in drawing_long(lambda name: getattr(random, name)).items():
        setattr(random, name, function)

    class RandomState(np.random.RandomState):
        def __getattribute__(self, name: str) -> Any:
            if name in ("randint", "permutation", "choice"):
                return drawing_long(super().__getattribute__)[name]
            return super().__getattribute__(name)

    random.RandomState = RandomState
