""":func:`verify`: check every byte of a folder and list all damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from sb3_compressed.codecs import Codec, available_codecs
from sb3_compressed.codecs.registry import codec_class
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import addresses_in
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import require_log, segment_numbers, segment_path
from sb3_compressed.storage.metadata_schema import check_buffer, check_values
from sb3_compressed.storage.segment import Segment

__all__ = ["damaged_codecs", "damaged_records", "damaged_slots", "verify"]

#: The share of the progress that stands for records; slots and payloads are the rest.
RECORDS_SHARE = 0.5
#: Slots that are read at once.
SLOTS_AT_ONCE = 1 << 14


def verify(folder: str | PathLike[str], *, progress: Callable[[float], object] | None = None) -> list[str]:
    """Return a description of each damaged part in the folder of a buffer; an empty list if there is none.

    This reads every record of every file, every slot and payload that the buffer refers to, and every codec. Nothing
    is changed.

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
    :raises StorageError: if the folder does not exist or contains no buffer
    """
    report = progress or (lambda share: None)
    path = user_path(folder)
    require_log(path)
    found: list[str] = []
    try:
        is_growing = FolderLock.is_locked(path)
    except StorageError as error:  # the lock file is not a regular file
        found.append(str(error))
        is_growing = False
    *others, last = segment_numbers(path)
    for index, number in enumerate(others):
        found += damaged_records(segment_path(path, number), is_growing=is_growing)
        report(RECORDS_SHARE * (index + 1) / (len(others) + 1))
    if not is_growing:  # otherwise only its committed part is read, below
        found += damaged_records(segment_path(path, last))
    try:
        store = ArrayStore.open(path)
    except CorruptStorage as error:
        return [*dict.fromkeys([*found, error.reason])]
    except (StorageError, OSError) as error:
        return [*dict.fromkeys([*found, str(error)])]
    try:
        found += _invalid_metadata(store)
        tables = [name for name, spec in store.specs.items() if spec.is_table]
        for index, table in enumerate(tables):

            def report_share(share: float, index: int = index) -> None:
                report(RECORDS_SHARE + (1 - RECORDS_SHARE) * (index + share) / len(tables))

            found += damaged_slots(store, table, report_share).values()
        found += damaged_codecs(store).values()
    finally:
        store.close()
    report(1)
    return [*dict.fromkeys(found)]


def damaged_records(path: Path, *, is_growing: bool = False) -> Iterator[str]:
    """Yield a description of each damaged part of a file.

    :param is_growing: whether another process writes to the folder, which may have deleted the file
    """
    try:
        segment = Segment(path)
    except (OSError, CorruptStorage) as error:
        if not (is_growing and isinstance(error, FileNotFoundError)):
            yield str(error)
        return
    try:
        yield from segment.problems()
    finally:
        segment.close()


def damaged_slots(
    store: ArrayStore, table: str, report: Callable[[float], object] = lambda share: None
) -> dict[int, str]:
    """Return a description of the damage of each slot of a table that cannot be read, by its address.

    All bytes of the slots, their payloads and codecs are checked, in bounded memory.

    :param report: called with the share of the work that is done, from 0 to 1
    """
    addresses, kind = addresses_in(store.arrays[table]), _codec_of(store, table)
    found: dict[int, str] = {}
    for start in range(0, len(addresses), SLOTS_AT_ONCE):
        chunk = addresses[start : start + SLOTS_AT_ONCE]
        try:
            store.slots.reader.locate(chunk, 0, kind)
        except CorruptPayload:
            found |= {int(each): reason for each in chunk if (reason := _damage(store, each, kind)) is not None}
        report((start + len(chunk)) / len(addresses))
    return found


def _damage(store: ArrayStore, address: np.int64, kind: type[Codec] | None) -> str | None:
    """Return what is wrong with a slot, ``None`` if it can be read."""
    try:
        store.slots.reader.locate(np.array([address]), 0, kind)
    except CorruptPayload as error:
        return error.reason
    return None


def damaged_codecs(store: ArrayStore) -> dict[str, str]:
    """Return a description of the damage of each codec in use that cannot be read, by its name."""
    found: dict[str, str] = {}
    for name, address in store.codecs.items():
        try:
            store.slots.reader.codec(address)
        except CorruptStorage as error:  # noqa: PERF203  # there are few
            found[name] = str(error)
    return found


def _invalid_metadata(store: ArrayStore) -> Iterator[str]:
    """Yield what is invalid in the metadata and values of a store; before the first complete save there are none."""
    if not store.metadata:
        return
    folder, shapes = store.log.folder, {name: spec.shape for name, spec in store.specs.items()}
    for check in (
        partial(check_buffer, store.metadata, shapes, folder),
        partial(check_values, store.values, shapes.get("actions", (0,))[0], f"{folder}: invalid values"),
    ):
        try:
            check()
        except CorruptStorage as error:  # noqa: PERF203  # there are two
            yield str(error)


def _codec_of(store: ArrayStore, table: str) -> type[Codec] | None:
    """Return the class of the codecs that wrote the slots of a table, ``None`` if its name is missing or unknown."""
    streams = store.metadata.get("streams")
    stream = streams.get(table.partition("/")[2]) if isinstance(streams, dict) else None
    name = stream.get("codec") if isinstance(stream, dict) else None
    return codec_class(name) if isinstance(name, str) and name in available_codecs() else None
