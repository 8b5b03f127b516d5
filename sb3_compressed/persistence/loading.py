""":func:`save_checkpoint` and :func:`load_checkpoint`: a replay buffer to a folder and back."""

from __future__ import annotations

import inspect
from os import PathLike
from pathlib import Path
from typing import Any

from sb3_compressed.buffers import replay
from sb3_compressed.buffers.base import CompressedReplay
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.checkpoint import open_to_load
from sb3_compressed.storage.array_store import ArrayStore

__all__ = ["load_checkpoint", "open_to_read", "save_checkpoint"]


def save_checkpoint(buffer: CompressedReplay, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Save a replay buffer to a folder: all of it the first time, then what changed since.

    See :meth:`~sb3_compressed.persistence.persistent.Persistent.save_checkpoint`.

    :raises StorageError: if the buffer is of another kind, or the folder holds another buffer or other files
    :raises OSError: if the disk does not take it; the folder is as it was
    """
    if not isinstance(buffer, CompressedReplay):
        raise StorageError(f"only compressed replay buffers can be saved to a folder, got a {type(buffer).__name__}")
    buffer.save_checkpoint(folder, overwrite=overwrite)


def load_checkpoint(folder: str | PathLike[str], *, follow: bool = False, repair: bool = False, **kwargs: Any) -> Any:
    """Return the replay buffer that a folder holds, of the class that it had.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer, load_checkpoint, save_checkpoint
    >>> space, buttons = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
    >>> buffer = CompressedReplayBuffer(1000, space, buttons)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(buffer, folder)
    ...     load_checkpoint(folder).buffer_size
    1000

    Arguments are those of :meth:`~sb3_compressed.persistence.persistent.Persistent.from_checkpoint`, which buffers of
    classes of your own have as well.

    :param follow: whether to read the folder in place, while another process may write to it
    :param repair: whether to exclude damaged transitions instead of raising, with a warning;
        ``buffer.repair_report`` lists them. The folder stays as it is
    :param kwargs: arguments of the constructor in the places of those stored, as ``buffer_size``, ``device`` or ``env``
    :raises StorageError: if the folder holds no buffer, or one of a class that is not of this package
    :raises CorruptStorage: if a file is damaged, or the folder declares far more than its files can hold: arrays of
        more than 512 MiB, or items of a space of more than 32 MiB, and more than 100 times its size on the disk. Pass
        ``buffer_size`` or the space if that is right, since the buffer is new
    """
    rows = kwargs.get("buffer_size") or 0
    store = open_to_load(Path(folder), repair=repair, follow=follow, rows=rows)
    return _class_in(store).of_store(store, kwargs, follow=follow)


def open_to_read(folder: str | PathLike[str]) -> Any:
    """Return the buffer that a folder holds, to look at in place, whoever writes to it; little of it is read.

    Hindsight replay is opened without its environment, which only sampling needs.

    :raises StorageError: as :func:`load_checkpoint`
    :raises CorruptStorage: if what has to be read for that is damaged
    """
    store = ArrayStore.open(Path(folder))
    cls = _class_in(store)
    needs_env = "env" in inspect.signature(cls).parameters
    return cls.of_store(store, {"device": "cpu", **({"env": None} if needs_env else {})}, follow=True)


def _class_in(store: ArrayStore) -> type[CompressedReplay]:
    """Return the class of the buffer that a store holds.

    :raises StorageError: if it is not of this package; the store is closed then
    """
    name = store.metadata.get("class")
    if store.metadata and name not in replay.__all__:
        store.close()
        raise StorageError(
            f"{store.log.folder} holds a {name}, which is not of this package; use {name}.from_checkpoint"
        )
    cls: type[CompressedReplay] = getattr(replay, name or "CompressedReplayBuffer")
    return cls
