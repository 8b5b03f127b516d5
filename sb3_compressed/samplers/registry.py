"""The names of samplers, for ``sampler=`` of replay buffers."""

from __future__ import annotations

import copy
import difflib

from sb3_compressed.samplers.prioritized import PrioritizedSampler
from sb3_compressed.samplers.recent import RecentSampler
from sb3_compressed.samplers.sampler import Sampler
from sb3_compressed.samplers.without_replacement import WithoutReplacementSampler

__all__ = ["SAMPLERS", "UNIFORM", "available_samplers", "get_sampler", "name_of"]

#: The name of SB3's own sampling, which is no :class:`Sampler`.
UNIFORM = "uniform"

#: The samplers of this package by name.
SAMPLERS: dict[str, type[Sampler]] = {
    "prioritized": PrioritizedSampler,
    "recent": RecentSampler,
    "without-replacement": WithoutReplacementSampler,
}


def available_samplers() -> tuple[str, ...]:
    """Return the names of all samplers, sorted."""
    return tuple(sorted((UNIFORM, *SAMPLERS)))


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
    if sampler not in SAMPLERS:
        close = difflib.get_close_matches(sampler.lower().replace("_", "-"), available_samplers(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"sampler must be one of {available_samplers()} or a Sampler, got {sampler!r}{hint}")
    return SAMPLERS[sampler]()


def name_of(sampler: Sampler) -> str | None:
    """Return the name of a sampler's class, ``None`` for a class from outside this package."""
    return next((name for name, cls in SAMPLERS.items() if type(sampler) is cls), None)
