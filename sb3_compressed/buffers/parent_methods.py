"""Methods of SB3's classes that a compressed class implements itself and never calls, so a replacement has no effect.

A class in the bases whose method would never be called is an error. Projects also replace methods of SB3's classes at
run time, ``ReplayBuffer.add = own_add``: then a warning names the method of the compressed class to replace instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stable_baselines3.common.buffers import BaseBuffer

from sb3_compressed.common.warning import warn_user

__all__ = ["Methods", "record_parents", "require_reimplemented", "warn_of_replaced"]

Methods = tuple[Callable[..., Any], ...]
"""Methods of classes."""

PACKAGE = __name__.partition(".")[0]
#: Implemented methods that call the next class's all the same, unless it is SB3's own.
CALLED_IF_REPLACED = {"reset"}

#: The attributes of classes of SB3 and sb3-contrib when the first compressed class was derived from them.
_original: dict[type[Any], dict[str, Any]] = {}
#: What methods were replaced by when a warning said so, by the compressed class, SB3's class and the name.
_warned: dict[tuple[type[Any], type[Any], str], Any] = {}


def _is_of(value: Any, *packages: str) -> bool:
    """Return whether a class or a method is of one of these packages."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in packages


def record_parents(cls: type[Any]) -> None:
    """Record the methods of SB3's and sb3-contrib's classes from which a new class is derived."""
    for parent in cls.__mro__:
        if _is_of(parent, "stable_baselines3", "sb3_contrib"):
            _original.setdefault(parent, dict(vars(parent)))


def _names_of(cls: type[Any], methods: Methods) -> list[str]:
    """Return the names that some methods have in the parents of a class."""
    found = [(name, each) for parent in cls.__mro__ for name, each in _original.get(parent, {}).items()]
    return sorted({name for name, each in found if any(each is method for method in methods)})


def require_reimplemented(cls: type[Any], mixin: type[Any], reimplemented: Methods) -> None:
    """Raise if a class has a parent whose method would never be called, since a compressed class precedes it.

    :param mixin: the last compressed class in its bases
    :param reimplemented: the methods of SB3 and sb3-contrib that it implements
    :raises TypeError: then
    """
    parents = [parent for parent in cls.__mro__[cls.__mro__.index(mixin) + 1 :] if parent is not BaseBuffer]
    for name in {*_names_of(cls, reimplemented)} - CALLED_IF_REPLACED:
        for parent in parents:
            method = _original.get(parent, vars(parent)).get(name)
            if method is not None and not any(method is each for each in reimplemented):
                raise TypeError(
                    f"{cls.__name__} would never call {parent.__name__}.{name}: place {parent.__name__} before the "
                    "compressed class in the bases, or derive from its compressed counterpart"
                )


def warn_of_replaced(cls: type[Any], uncalled: Methods) -> None:
    """Warn, once for each class and method, if SB3's buffer would call a method that a user has replaced.

    :param uncalled: the methods of SB3 and sb3-contrib that the buffer never calls
    """
    for name in _names_of(cls, uncalled):
        next_owner = next(each for each in cls.__mro__ if each in _original and name in vars(each))
        for owner, method in _replaced(cls, name, uncalled):
            if name in CALLED_IF_REPLACED and owner is next_owner:
                continue
            if _warned.get((cls, owner, name)) is method:
                continue
            _warned[cls, owner, name] = method
            ours = next(each for each in cls.__mro__ if _is_of(each, PACKAGE))
            warn_user(
                f"{owner.__name__}.{name} was replaced by {_described(method)}, which this "
                f"{cls.__name__} does not call, since it has its own {name}: replace {ours.__name__}.{name} instead, "
                "or override it in a subclass"
            )


def _described(method: Any) -> str:
    """Return the name of a method; that of a wrapper is its own, not what ``functools.wraps`` has copied."""
    code = getattr(method, "__code__", None)
    if code is None or not hasattr(method, "__wrapped__"):
        return str(getattr(method, "__qualname__", method))
    return f"a wrapper, {code.co_name} of {method.__globals__.get('__name__')}"


def _replaced(cls: type[Any], name: str, uncalled: Methods) -> Iterator[tuple[type[Any], Any]]:
    """Yield SB3's classes with a replaced method that would be called without the compressed class, and that method."""
    for owner in cls.__mro__:
        if name not in vars(owner):
            continue
        method = original = vars(owner)[name]
        if owner in _original:
            original = _original[owner].get(name)  # None if a user has added it
            # From another module, it was replaced before the compressed class was imported.
            is_replaced = method is not original or not _is_of(method, "stable_baselines3", "sb3_contrib")
            if is_replaced and (original is None or any(original is each for each in uncalled)):
                yield owner, method
        elif _is_of(owner, PACKAGE):
            if not _is_of(method, PACKAGE):  # it was replaced here, too
                return
            continue
        if name not in getattr(getattr(original, "__code__", None), "co_names", ()):  # it does not call super()'s
            return
