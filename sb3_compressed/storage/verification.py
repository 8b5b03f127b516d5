""":func:`verify`: look at every byte of a folder, and tell of all damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs import available_codecs
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.storage.chunks import addresses_in
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import segment_numbers
from sb3_compressed.storage.schema import check_buffer, check_values
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.store import Store

__all__ = ["codec_of", "verify"]


def verify(folder: str | PathLike[str], *, progress: Callable[[float], object] | None = None) -> list[str]:
    """Return a line for each damaged place in the folder of a buffer, nothing if all of it is as it was written.

    Every record of every file, every slot and payload that the buffer refers to, and every codec is looked at. Nothing
    is changed.

    >>> import tempfile
    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from sb3_compressed import CompressedReplayBuffer, save_checkpoint, verify
    >>> buffer = CompressedReplayBuffer(10, spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Discrete(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(buffer, folder)
    ...     verify(folder)
    []

    :param progress: called with the share of the work that is done, from 0 to 1
    :raises StorageError: if it is no folder of a buffer
    """
    report = progress or (lambda share: None)
    path = Path(folder)
    if not path.is_dir() or not segment_numbers(path):
        raise StorageError(f"{path} holds no buffer")
    found: list[str] = []
    try:
        is_growing = FolderLock.is_held(path)
    except StorageError as error:  # a link, a FIFO
        found.append(str(error))
        is_growing = False
    *others, last = segment_numbers(path)
    for index, number in enumerate(others):
        found += _damaged_records(path / f"{number:08}.log", is_growing=is_growing)
        report(RECORDS_SHARE * (index + 1) / (len(others) + 1))
    if not is_growing:  # else it is read below, as whoever follows reads it
        found += _damaged_records(path / f"{last:08}.log", is_growing=False)
    try:
        store = Store.open(path)
    except (StorageError, OSError) as error:
        return [*dict.fromkeys([*found, str(error)])]
    try:
        found += _nonsense(store)
        found += _damaged_slots(store, lambda share: report(RECORDS_SHARE + (1 - RECORDS_SHARE) * share))
    finally:
        store.close()
    report(1)
    return [*dict.fromkeys(found)]


def _damaged_records(path: Path, *, is_growing: bool) -> Iterator[str]:
    """Yield what is wrong with the records of a file, which a process that writes may have deleted."""
    try:
        segment = Segment(path)
    except (OSError, CorruptStorage) as error:
        if not (is_growing and isinstance(error, FileNotFoundError)):
            yield str(error)
        return
    yield from segment.damages()
    segment.close()


def _damaged_slots(store: Store, report: Callable[[float], object]) -> Iterator[str]:
    """Yield what is wrong with slots, payloads and codecs that are referred to."""
    tables = [name for name, plan in store.plans.items() if plan.is_table]
    for index, name in enumerate(tables):
        addresses, codec = addresses_in(store.arrays[name]), codec_of(store, name)
        n_left = n_all = len(addresses)
        while n_left:
            some = addresses[n_all - n_left :][:AT_ONCE]
            damage = _first_damage(store, some, codec)
            if damage is not None:
                yield damage.reason
            n_left -= len(some) if damage is None else damage.index + 1
            report((index + 1 - n_left / n_all) / len(tables))
    yield from filter(None, (_damaged_codec(store, address) for address in store.codecs.values()))


def _nonsense(store: Store) -> Iterator[str]:
    """Yield what makes no sense of what a store says of its buffer; one that no save to was completed says nothing."""
    if not store.about:
        return
    folder = store.log.folder
    shapes = {name: plan.shape for name, plan in store.plans.items()}
    rows = shapes.get("actions", (0,))[0]
    try:
        check_buffer(store.about, shapes, folder)
    except CorruptStorage as error:
        yield str(error)
    try:
        check_values(store.values, rows, f"{folder}: its values make no sense")
    except CorruptStorage as error:
        yield str(error)


def codec_of(store: Store, table: str) -> str | None:
    """Return the name of the codec that wrote the slots of a table, ``None`` if the store does not say a known one."""
    streams = store.about.get("streams")
    stream = streams.get(table.partition("/")[2]) if isinstance(streams, dict) else None
    name = stream.get("codec") if isinstance(stream, dict) else None
    return name if isinstance(name, str) and name in available_codecs() else None


def _first_damage(store: Store, addresses: NDArray[np.int64], codec: str | None) -> CorruptPayload | None:
    try:
        store.slots.reader.load(addresses, codec)
    except CorruptPayload as error:
        return error
    return None


def _damaged_codec(store: Store, address: int) -> str | None:
    try:
        store.slots.reader.codec(address)
    except CorruptStorage as error:
        return str(error)
    return None


#: The share of the work that records are; slots and payloads are the rest.
RECORDS_SHARE = 0.5
#: Slots that are looked at at once.
AT_ONCE = 1 << 14
