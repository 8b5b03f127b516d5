"""The configuration of samplers as JSON, for folders: the name and the arguments of a sampler of this package.

Samplers of other classes are stored by the name of their class only. Nothing is imported or evaluated because a folder
names it.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from sb3_compressed.codecs.config import to_json
from sb3_compressed.samplers.registry import SAMPLERS, name_of
from sb3_compressed.samplers.sampler import Sampler
from sb3_compressed.storage.json_schema import parse
from sb3_compressed.storage.spaces import parse_scalar

__all__ = ["sampler_from_config", "sampler_to_config"]


def sampler_to_config(sampler: Sampler) -> dict[str, Any]:
    """Return the configuration of a sampler: ``name`` and ``arguments``, or ``class`` for a user's own class.

    >>> from sb3_compressed.samplers import PrioritizedSampler
    >>> sampler_to_config(PrioritizedSampler(alpha=0.5))["arguments"]["alpha"]
    0.5
    """
    name = name_of(sampler)
    if name is None:
        return {"class": type(sampler).__name__}
    arguments = {each: getattr(sampler, each) for each in inspect.signature(type(sampler)).parameters}
    plain = {each: value.item() if isinstance(value, np.generic) else value for each, value in arguments.items()}
    return {"name": name, "arguments": {each: to_json(value) for each, value in plain.items()}}


def sampler_from_config(data: object) -> Sampler:
    """Return a sampler of this package that belongs to no buffer; one of a user cannot be constructed.

    :raises ValueError: if the configuration is invalid, or names an unknown sampler
    :raises TypeError: if the sampler has no such arguments
    """
    config = parse({"name": str, "arguments": {str: parse_scalar}}, data)
    if config["name"] not in SAMPLERS:
        raise ValueError(f"there is no sampler {config['name']!r}; pass sampler=")
    return SAMPLERS[config["name"]](**config["arguments"])
