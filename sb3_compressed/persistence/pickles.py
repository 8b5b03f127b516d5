"""Pickled replay buffers: what can be told of one without opening it, and opening it.

To open a pickle is to run the program that it is, of whoever wrote it. To read that program is safe: it is a list of
instructions with their arguments, and the beginning says which class is made and what its first attributes are.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl

from sb3_compressed.errors import StorageError

__all__ = ["PickleClaims", "claims_of_pickle", "is_pickle", "unpickled"]

#: Bytes that are read of a pickle to tell what it is: some spaces with their bounds, not the observations.
READ_NBYTES = 1 << 20
#: What every pickle of the last ten years begins with.
FIRST = pickle.PROTO
#: Attributes of SB3's buffers that are numbers.
NUMBERS = ("buffer_size", "n_envs", "pos", "full", "action_dim", "optimize_memory_usage", "handle_timeout_termination")


@dataclass
class PickleClaims:
    """What a pickle says of itself in its first megabyte. It may lie.

    :param protocol: the version of the format
    :param classes: all that it imports, ``module.name``, in that order; the first is its class
    :param numbers: attributes by their names, as ``buffer_size``
    """

    protocol: int = 0
    classes: list[str] = field(default_factory=list)
    numbers: dict[str, int | bool] = field(default_factory=dict)

    @property
    def class_name(self) -> str | None:
        """The class of the object, as far as it can be told."""
        return self.classes[0] if self.classes else None

    @property
    def numpy_version(self) -> str | None:
        """Which NumPy wrote it, of which the names of modules tell a little; ``None`` if they do not."""
        if any(name.startswith("numpy._core.") for name in self.classes):
            return "2 or newer"
        return "older than 2" if any(name.startswith("numpy.core.") for name in self.classes) else None


def is_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle does."""
    with open(path, "rb") as file:
        return file.read(1) == FIRST


def claims_of_pickle(path: Path) -> PickleClaims:
    """Return what a pickle says of itself, without running any of it.

    :raises OSError: if the file cannot be read
    """
    with open(path, "rb") as file:
        start = file.read(READ_NBYTES)
    claims = PickleClaims()
    texts: list[str] = []  # what is on the stack, of text
    memo: dict[int, Any] = {}
    latest: Any = None  # what the instruction before put on the stack, if that is text
    for code, argument in _instructions(start):
        if code == "MEMOIZE" or code.endswith("BINPUT"):
            memo[len(memo) if argument is None else argument] = latest
            continue
        if code == "PROTO":
            claims.protocol = argument
        elif code == "GLOBAL":
            claims.classes.append(argument.replace(" ", "."))
        elif code == "STACK_GLOBAL" and len(texts) >= 2:
            claims.classes.append(f"{texts[-2]}.{texts[-1]}")
        elif latest in NUMBERS and code in VALUES:  # an attribute's name, and its value
            claims.numbers[latest] = code == "NEWTRUE" if argument is None else argument
        latest = memo.get(argument) if code.endswith("BINGET") else argument if "UNICODE" in code else None
        if isinstance(latest, str):
            texts.append(latest)
    return claims


def _instructions(start: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the instructions of the beginning of a pickle and their arguments, as far as they are whole."""
    try:
        for operation, argument, _ in pickletools.genops(BytesIO(start)):
            yield operation.name, argument
    except ValueError:  # where what was read ends, or what is no pickle begins
        return


VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE"}


def unpickled(path: Path) -> ReplayBuffer:
    """Open a pickled replay buffer, which runs whatever is in it.

    :raises StorageError: if it cannot be opened, or is something else
    :raises OSError: if the file cannot be read
    """
    try:
        buffer: Any = load_from_pkl(path)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be unpickled: {error}") from error
    if not isinstance(buffer, ReplayBuffer):
        raise StorageError(f"{path} holds a {type(buffer).__name__}, which is no replay buffer")
    return buffer
