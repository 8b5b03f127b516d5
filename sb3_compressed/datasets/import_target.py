"""``import_target``: the buffer that a data set is imported into."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sb3_compressed.buffers.arguments import storage_mode_of

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["import_target"]


@contextmanager
def import_target(
    buffer: ReplayBuffer | None, new_buffer: Callable[..., Any], *args: Any, **options: Any
) -> Iterator[ReplayBuffer]:
    """Yield the buffer to import into; if the block raises, nothing is left of a new one.

    A buffer that existed before, because it is passed or its folder is resumed, keeps what was added.

    :param buffer: the buffer, ``None`` for a new one
    :param new_buffer: creates it from the other arguments
    """
    if buffer is not None:
        yield buffer
        return
    mode = storage_mode_of(options.pop("storage_mode", "create"), options)
    created = new_buffer(*args, storage_mode=mode, **options)
    try:
        yield created
    except BaseException:
        storage = created._storage
        if mode in ("create", "overwrite") and storage is not None:
            with suppress(OSError):
                storage.store.log.close()  # without a flush, which may be what has failed
            shutil.rmtree(storage.folder, ignore_errors=True)
        raise
