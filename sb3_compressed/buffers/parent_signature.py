"""Which arguments a compressed buffer takes besides its own: those of the buffer behind it."""

from __future__ import annotations

import inspect

__all__ = ["classes_with", "parent_signature"]


def parent_signature(cls: type, mixin: type) -> inspect.Signature:
    """Return the constructor arguments of what comes after ``mixin`` among the bases of ``cls``, ``self`` excepted.

    A class that passes ``*args, **kwargs`` on, as ``NStepReplayBuffer`` does, has those of its own parent too.
    """
    positional: list[inspect.Parameter] = []
    keyword_only: list[inspect.Parameter] = []
    for base in cls.__mro__[cls.__mro__.index(mixin) + 1 :]:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        positional += [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        keyword_only += [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return inspect.Signature([*positional, *keyword_only])


def classes_with(argument: str, mixin: type) -> list[type]:
    """Return the subclasses of ``mixin`` in its own package whose constructors take an argument."""
    package = mixin.__module__.rpartition(".")[0]
    found: set[type] = set()
    left: list[type] = mixin.__subclasses__()
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if cls.__module__.rpartition(".")[0] == package and argument in parent_signature(cls, mixin).parameters:
            found.add(cls)
    return sorted(found, key=lambda cls: cls.__name__)
