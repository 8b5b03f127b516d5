"""``import_extra``: modules of optional dependencies."""

from __future__ import annotations

import importlib
from typing import Any

from sb3_compressed.errors import install_command

__all__ = ["import_extra"]


def import_extra(name: str, extra: str, purpose: str, hint: str = "") -> Any:
    """Import a module that an extra installs.

    :param purpose: what needs it, in the plural
    :param hint: is added to the message
    :raises ImportError: if it is not installed; the message names the command that installs it
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = name.partition(".")[0]
        message = f"{purpose} need {missing}, which is not installed: {install_command(extra)}{hint}"
        raise ImportError(message, name=error.name) from error
