""":func:`verify`: check every byte of a buffer in a folder and list all damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike

import numpy as np

from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import addresses_in
from sb3_compressed.storage.log_files import require_log
from sb3_compressed.storage.metadata_schema import check_buffer, check_values

__all__ = ["damaged_codecs", "damaged_slots", "verify"]

#: Slots that are read at once.
SLOTS_AT_ONCE = 1 << 14


def verify(folder: str | PathLike[str], *, progress: Callable[[float], object] | None = None) -> list[str]:
    """Return a description of each damaged part in the folder of a buffer; an empty list if there is none.

    This reads everything that the buffer consists of: its state, every slot and payload, and every codec. Remains of
    overwritten transitions are not read. Nothing is changed.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer, save_checkpoint
    >>> from sb3_compressed.storage import verify
    >>> buffer = CompressedReplayBuffer(
    ...     10, spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Discrete(2)
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(buffer, folder)
    ...     verify(folder)
    []

    :param progress: called with the share of the work that is done, from 0 to 1
    :raises StorageError: if the folder does not exist, contains no buffer, or one of another version of this package
    """
    report = progress or (lambda share: None)
    path = user_path(folder)
    require_log(path)
    try:
        store = ArrayStore.open(path, repair=True)
    except CorruptStorage as error:
        return [error.reason]
    except OSError as error:
        return [str(error)]
    try:
        found = [*(store.problems or ()), *_invalid_metadata(store)]
        for index, (name, spec) in enumerate(store.specs.items(), start=1):
            found += damaged_slots(store, name).values() if spec.is_table else ()
            report(index / len(store.specs))
        found += damaged_codecs(store).values()
    finally:
        store.close()
    return [*dict.fromkeys(found)]


def damaged_slots(store: ArrayStore, table: str) -> dict[int, str]:
    """Return a description of the damage of each slot of a table that cannot be read, by its address.

    All bytes of the slots, their payloads and codecs are checked, in bounded memory.
    """
    addresses = addresses_in(store.arrays[table])
    found: dict[int, str] = {}
    for start in range(0, len(addresses), SLOTS_AT_ONCE):
        chunk = addresses[start : start + SLOTS_AT_ONCE]
        try:
            store.log.gather(chunk, 0)
        except CorruptPayload:
            found |= {int(each): reason for each in chunk if (reason := _damage(store, each)) is not None}
    return found


def _damage(store: ArrayStore, address: np.int64) -> str | None:
    """Return what is wrong with a slot, ``None`` if it can be read."""
    try:
        store.log.gather(np.array([address]), 0)
    except CorruptPayload as error:
        return error.reason
    return None


def damaged_codecs(store: ArrayStore) -> dict[str, str]:
    """Return a description of the damage of each codec in use that cannot be read, by its name."""
    found: dict[str, str] = {}
    for name, address in store.codecs.items():
        try:
            store.log.codec(address)
        except CorruptStorage as error:  # noqa: PERF203  # there are few
            found[name] = str(error)
    return found


def _invalid_metadata(store: ArrayStore) -> Iterator[str]:
    """Yield what is invalid in the metadata and values of a store; before the first complete save there are none."""
    if not store.metadata:
        return
    folder, shapes = store.log.folder, {name: spec.shape for name, spec in store.specs.items()}
    try:
        check_buffer(store.metadata, shapes, folder)
        check_values(store.values, shapes.get("actions", (0,))[0], f"{folder}: invalid values")
    except CorruptStorage as error:
        yield str(error)
