"""Packages whose names are imported on first use, so that importing one of their modules does not import the others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, names: Sequence[str], modules: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562) that imports its names when they are first used.

    :param package: the package's ``__name__``
    :param names: what it exports, its ``__all__``
    :param modules: modules in it; a name is imported from the first of these that exports it
    """

    def get(name: str) -> Any:
        if name in names:
            for module in map(load, modules):
                if name in module.__all__:
                    setattr(sys.modules[package], name, getattr(module, name))
                    return getattr(module, name)
        if name in modules:  # which is an attribute of the package once it is imported
            return load(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def load(module: str) -> Any:
        return importlib.import_module(f"{package}.{module}")

    return get, lambda: sorted({*vars(sys.modules[package]), *names})
