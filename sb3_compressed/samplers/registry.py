"""The names of samplers, for ``sampler=`` of replay buffers."""

from __future__ import annotations

import copy
import difflib
import pkgutil
from typing import Any

from sb3_compressed.samplers.sampler import Sampler

__all__ = ["UNIFORM", "available_samplers", "get_sampler", "name_of", "sampler_class"]

#: The name of SB3's own sampling, which is no :class:`Sampler`.
UNIFORM = "uniform"

# As "module:class", so that only the modules that are used are imported.
_SAMPLERS = {
    "prioritized": "sb3_compressed.samplers.prioritized:PrioritizedSampler",
    "recent": "sb3_compressed.samplers.recent:RecentSampler",
    "without-replacement": "sb3_compressed.samplers.without_replacement:WithoutReplacementSampler",
}


def available_samplers() -> tuple[str, ...]:
    """Return the names of all samplers, sorted."""
    return tuple(sorted((UNIFORM, *_SAMPLERS)))


def get_sampler(sampler: str | Sampler) -> Sampler | None:
    """Return the sampler of a name or a configuration, which belongs to no buffer yet.

    >>> get_sampler("uniform") is None
    True

    :param sampler: a name, or a sampler that belongs to no buffer, which is copied
    :return: ``None`` for ``"uniform"``: SB3's own sampling
    :raises ValueError: if the name is unknown; the message lists all names. Also if the sampler belongs to a buffer
    :raises TypeError: if it is neither a name nor a sampler
    """
    if isinstance(sampler, Sampler):
        if sampler.is_bound:
            raise ValueError(
                f"this {type(sampler).__name__} belongs to a buffer; pass a new one, of which each buffer makes a copy"
            )
        return copy.deepcopy(sampler)
    if not isinstance(sampler, str):
        hint = f"; did you mean {sampler.__name__}()?" if isinstance(sampler, type) else ""
        hint = f"; did you mean {UNIFORM!r}?" if sampler is None else hint
        raise TypeError(f"sampler must be one of {available_samplers()} or a Sampler, got {sampler!r}{hint}")
    if sampler == UNIFORM:
        return None
    if sampler not in _SAMPLERS:
        close = difflib.get_close_matches(sampler.lower().replace("_", "-"), available_samplers(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"sampler must be one of {available_samplers()} or a Sampler, got {sampler!r}{hint}")
    configured: Sampler = sampler_class(sampler)()
    return configured


def name_of(sampler: Sampler) -> str | None:
    """Return the name of a sampler's class, ``None`` for a class from outside this package."""
    cls = type(sampler)
    found = (name for name, path in _SAMPLERS.items() if path == f"{cls.__module__}:{cls.__qualname__}")
    return next(found, None)


def sampler_class(name: str) -> type[Any]:
    """Return the class of a name, other than ``"uniform"``.

    :raises ValueError: if the name is unknown
    """
    if name not in _SAMPLERS:
        raise ValueError(f"there is no sampler {name!r}, only {tuple(sorted(_SAMPLERS))}")
    cls: type[Any] = pkgutil.resolve_name(_SAMPLERS[name])
    return cls
