""":func:`save_checkpoint` and :func:`load_checkpoint`: save a replay buffer to a folder and load it."""

from __future__ import annotations

import inspect
from os import PathLike
from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.buffer_from_store import buffer_from_store, loadable_class, open_to_load
from sb3_compressed.buffers.mixed import MixedReplayBuffer
from sb3_compressed.buffers.mixed_checkpoint import is_mixed
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.sampler_state import stored_config
from sb3_compressed.storage.array_store import ArrayStore

__all__ = ["load_checkpoint", "open_to_read", "save_checkpoint"]


def save_checkpoint(buffer: ReplayBuffer, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Save a replay buffer to a folder: all of it the first time, then what changed since.

    See :meth:`~sb3_compressed.buffers.replay.CompressedReplay.save_checkpoint`, and for mixed buffers, of which
    each save writes everything, :meth:`.MixedReplayBuffer.save_checkpoint`.

    :param buffer: a compressed replay buffer, a mixed one, or a distributed one, whose own ``load_checkpoint`` loads it
    :raises StorageError: if the buffer is of another kind, or the folder contains another buffer or other files
    :raises OSError: if it cannot be written; the folder is as it was
    """
    save = getattr(buffer, "save_checkpoint", None)  # of compressed buffers, mixed and distributed ones
    if save is None:
        raise StorageError(f"only compressed replay buffers can be saved to a folder, got a {type(buffer).__name__}")
    save(folder, overwrite=overwrite)


def load_checkpoint(folder: str | PathLike[str], *, follow: bool = False, repair: bool = False, **kwargs: Any) -> Any:
    """Load a replay buffer from a folder.

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

    The arguments are those of :meth:`~sb3_compressed.buffers.replay.CompressedReplay.from_checkpoint`, which also
    loads buffers of your own classes, and for mixed buffers those of :meth:`.MixedReplayBuffer.from_checkpoint`.

    :param follow: whether to read the folder in place, while another process may write to it; not of mixed buffers
    :param repair: whether to exclude damaged transitions instead of raising, with a warning;
        ``buffer.repair_report`` lists them, for each of the ``buffers`` of a mixed one. The folder does not change
    :param kwargs: arguments of the constructor that override the stored ones, such as ``buffer_size``, ``device`` or
        ``env``
    :return: a buffer of the class that was saved
    :raises ValueError: if an argument is invalid
    :raises TypeError: if one is unknown, or of the wrong type
    :raises StorageError: if the folder contains no buffer, or one of a class from outside this package, or there is not
        enough memory
    :raises CorruptStorage: if a file is damaged, or the folder declares far more than its files can contain: arrays of
        more than 512 MiB, or items of a space of more than 32 MiB, and more than 100 times its size on the disk. Pass
        ``buffer_size`` or the space if that is correct, since the buffer is new
    """
    if is_mixed(user_path(folder)):
        return MixedReplayBuffer.from_checkpoint(folder, follow=follow, repair=repair, **kwargs)
    store = open_to_load(folder, kwargs, repair=repair, follow=follow)
    return buffer_from_store(_stored_class(store), store, kwargs, follow=follow)


def open_to_read(folder: str | PathLike[str]) -> Any:
    """Open the buffer in a folder to inspect it in place, even while a process writes to it; little of it is read.

    Hindsight replay is opened without its environment, which only sampling needs.

    :raises StorageError: as :func:`load_checkpoint`
    :raises CorruptStorage: if what must be read is damaged
    """
    store = ArrayStore.open(user_path(folder))
    cls = _stored_class(store)
    needs_env = "env" in inspect.signature(cls).parameters
    given: dict[str, Any] = {"device": "cpu", **({"env": None} if needs_env else {})}
    if store.metadata and "class" in (stored_config(store) or {}):
        given["sampler"] = "uniform"
    return buffer_from_store(cls, store, given, follow=True, of_user=False)


def _stored_class(store: ArrayStore) -> type[CompressedReplay]:
    """Return the class of the buffer in a store.

    :raises StorageError: if it is not from this package; the store is then closed
    """
    name = str(store.metadata.get("class")) if store.metadata else "CompressedReplayBuffer"
    cls: type[CompressedReplay] | None = loadable_class(name)
    if cls is None:
        store.close()
        raise StorageError(
            f"{store.log.folder} contains a {name}, which is not from this package; use {name}.from_checkpoint"
        )
    return cls
