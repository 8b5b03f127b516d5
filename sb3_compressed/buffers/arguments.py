"""Constructor arguments of compressed buffers: those of the parent class, and deprecated ones."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    ReplayBuffer,
    RolloutBuffer,
)

from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.buffer_storage import StorageMode

__all__ = [
    "bind_parent_arguments",
    "merge_codec_kwargs",
    "parent_signature",
    "require_drawn_by_parent",
    "require_storable",
    "suggest_argument",
    "takes_dicts",
    "warn_of_time_limits",
]


def parent_signature(cls: type, mixin: type) -> inspect.Signature:
    """Return the constructor arguments of the classes after ``mixin`` in the bases of ``cls``, without ``self``.

    A class that passes ``*args, **kwargs`` on, such as ``NStepReplayBuffer``, also takes its parent's arguments.
    """
    positional: list[inspect.Parameter] = []
    keyword_only: list[inspect.Parameter] = []
    for base in cls.__mro__[cls.__mro__.index(mixin) + 1 :]:
        if "__init__" not in vars(base):
            continue
        known = {parameter.name for parameter in (*positional, *keyword_only)}
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        parameters = [parameter for parameter in parameters if parameter.name not in known]
        positional += [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        keyword_only += [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return inspect.Signature([*positional, *keyword_only])


def bind_parent_arguments(cls: type, mixin: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for the constructor after ``mixin`` by their names.

    :raises TypeError: as a call of that constructor would
    """
    signature = parent_signature(cls, mixin)
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]
        _require_kind(cls, unknown, kwargs)
        hint = suggest_argument(unknown[0], inspect.signature(cls).parameters) if unknown else ""
        raise TypeError(f"{cls.__name__}: {error}{hint}") from None


def _require_kind(cls: type, unknown: Iterable[str], given: Iterable[str]) -> None:
    """Raise if an algorithm of SB3 passes the arguments of the other kind of buffer.

    :param unknown: those of the given arguments that the class does not take
    :raises TypeError: then
    """
    if issubclass(cls, RolloutBuffer) and "optimize_memory_usage" in unknown and "gae_lambda" not in given:
        kind, other = "rollout", "replay"
    elif issubclass(cls, ReplayBuffer) and "gae_lambda" in unknown:
        kind, other = "replay", "rollout"
    else:
        return
    raise TypeError(
        f"{cls.__name__} is a {kind} buffer, and the algorithm needs a {other} buffer: pass {other}_buffer_class="
        f"Compressed{other.capitalize()}Buffer, or its counterpart for Dict spaces"
    )


def suggest_argument(unknown: str, taken: Collection[str]) -> str:
    """Return the argument that may be meant by an unknown one, as the end of an error message.

    >>> suggest_argument("compression", ["compression_method", "n_envs"])
    '; did you mean compression_method?'
    >>> suggest_argument("resume", ["storage", "storage_mode"])
    "; did you mean storage_mode='resume'?"

    :param unknown: name of an argument that a function does not take
    :param taken: names of those that it takes
    """
    if "storage_mode" in taken and unknown in get_args(StorageMode):
        return f"; did you mean storage_mode={unknown!r}?"
    similar = difflib.get_close_matches(unknown, taken, n=1, cutoff=0.7)
    return f"; did you mean {similar[0]}?" if similar else ""


def takes_dicts(cls: type) -> bool:
    """Return whether a buffer class is for Dict spaces."""
    return issubclass(cls, DictReplayBuffer | DictRolloutBuffer)


def warn_of_time_limits(what: str) -> None:
    """Warn that a buffer with ``handle_timeout_termination=False`` does not know where time limits end episodes.

    :param what: what depends on it
    """
    warn_user(
        f"with handle_timeout_termination=False, the buffer does not know where time limits end episodes: {what} "
        "continue into the next episode there. If there are time limits, leave it out, and add terminations | "
        "truncations as done, and as infos for each environment {'TimeLimit.truncated': <bool>}"
    )


def require_storable(cls: type, storage: Any, mode: StorageMode) -> None:
    """Raise if a buffer of a class cannot be stored where its arguments ``storage`` and ``storage_mode`` select.

    :raises StorageError: then
    """
    if storage in ("memory", "device") and mode == "create":
        return
    if issubclass(cls, RolloutBuffer):
        raise StorageError(f"folders are for replay buffers; a {cls.__name__} is refilled at each rollout")
    if mode not in get_args(StorageMode):
        raise StorageError(f"storage_mode must be one of {get_args(StorageMode)}, got {mode!r}")
    if storage in ("memory", "device"):
        raise StorageError(f"storage_mode={mode!r} is for storage=<folder>, got storage={storage!r}")


def require_drawn_by_parent(cls: type, mixin: type) -> None:
    """Raise if a class of replay buffers draws transitions in its own way, which a sampler cannot replace.

    :raises TypeError: then
    """
    order = cls.__mro__
    parent = next(base for base in order[order.index(mixin) + 1 :] if "sample" in vars(base))
    if parent.__module__.partition(".")[0] != "stable_baselines3":
        raise TypeError(
            f"a sampler replaces {parent.__name__}.sample, which {cls.__name__} inherits; override "
            "_samples_at instead, or pass sampler='uniform'"
        )
    owner = next(base for base in order if "_get_samples" in vars(base))
    if not owner.__module__.startswith(f"{__package__}."):
        raise TypeError(
            f"a sampler chooses rows and environments, and {owner.__name__}._get_samples receives rows only: "
            "override _samples_at(self, rows, envs, env=None) instead, which is called with and without a sampler, "
            "or pass sampler='uniform'"
        )


def merge_codec_kwargs(compression_kwargs: Mapping[str, Any] | None, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Remove the deprecated ``decompression_kwargs`` from ``kwargs``; return all arguments of the codec.

    :raises ValueError: if an argument is in both
    """
    decompression_kwargs = kwargs.pop("decompression_kwargs", None)
    if decompression_kwargs is None:
        return None if compression_kwargs is None else dict(compression_kwargs)
    warn_user(
        "decompression_kwargs is deprecated; pass all arguments of the codec in compression_kwargs", DeprecationWarning
    )
    if both := set(compression_kwargs or {}) & set(decompression_kwargs):
        raise ValueError(f"arguments in both compression_kwargs and decompression_kwargs: {sorted(both)}")
    return {**(compression_kwargs or {}), **decompression_kwargs}
