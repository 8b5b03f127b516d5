"""Restoring the state of a replay buffer from a folder: in memory, or with the arrays of the folder itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.cast import cast_values
from sb3_compressed.codecs.config import abbreviate
from sb3_compressed.errors import CorruptPayload, CorruptStorage, StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.checkpoint import BufferCheckpoint
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.ring_resize import RingResize
from sb3_compressed.persistence.row_copying import RowCopier, row_copier
from sb3_compressed.persistence.sampler_state import (
    load_sampler,
    sampler_arrays,
    sampler_values,
    without_sampler,
)
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import copy_changed
from sb3_compressed.storage.json_schema import check
from sb3_compressed.storage.manifest import ArraySpec
from sb3_compressed.storage.metadata_schema import MAX_SPACE_NBYTES, METADATA, check_values
from sb3_compressed.storage.spaces import space_from_data, space_nbytes

__all__ = ["bind", "fit_arrays", "load_into", "require_buffer", "restore_values"]


def bind(buffer: ReplayBufferLike, store: ArrayStore) -> None:
    """Replace the arrays of a buffer by those of a store, plain ones read-only if the store is."""
    for name, array in buffer_state.named_arrays(buffer).items():
        if isinstance(array, CompressedArray):
            array.move_to(store.log, store.arrays[name])
        else:
            plain = store.arrays[name]
            # What is written to them would be lost. SB3's n-step returns change a row of timeouts and restore it.
            is_restored = name == "timeouts" and hasattr(buffer, "n_steps")
            if not store.log.is_writable and not is_restored:
                plain = plain.view()
                plain.flags.writeable = False
            buffer_state.put_array(buffer, name, plain)


def load_into(buffer: ReplayBufferLike, store: ArrayStore) -> BufferCheckpoint:
    """Load the newest transitions of a store that fit into a buffer in memory; return the store as its checkpoint.

    :raises StorageError: if the store does not contain such a buffer
    :raises CorruptPayload: if a slot is damaged
    """
    store.log.prepare()
    arrays, values = fit_arrays(store, buffer)
    ours = buffer_state.named_arrays(buffer)
    streams = buffer_state.streams(buffer)
    with ExitStack() as stack:
        copiers = [
            stack.enter_context(_row_loader(store, values, key, [ours[name] for name in names]))
            for key, names in streams.items()
        ]
        n_rows = min((copier.max_rows for copier in copiers), default=1)
        for first in range(0, buffer.buffer_size if copiers else 0, n_rows):
            rows = slice(first, min(first + n_rows, buffer.buffer_size))
            for copier, names in zip(copiers, streams.values(), strict=True):
                addresses = np.stack([arrays[name][rows] for name in names])
                if addresses.any():
                    copier.load(rows, addresses)
    slotted = {name for names in streams.values() for name in names}
    for name, array in ours.items():
        if name not in slotted:
            copy_changed(arrays[name], array)
    for array in buffer_state.last_arrays(buffer).values():
        array.stream.log.free_unused()  # what was there before
    restore_values(buffer, store, values)
    store.close()
    # Plain arrays do not store a layout, without which the slots in the folder could not be read later. What was
    # repaired is not in the folder yet.
    is_exact = all(copier.is_exact for copier in copiers)
    is_saved = arrays is store.arrays and is_exact and store.problems is None
    return BufferCheckpoint(buffer, store, is_saved=is_saved)


def _row_loader(store: ArrayStore, values: Mapping[str, Any], key: str, arrays: list[Any]) -> RowCopier:
    """Return what copies rows of a stream from a folder to the arrays of a buffer.

    :param values: the values of the store
    :param key: the key of the stream
    :raises CorruptStorage: if its layout is invalid
    """
    dtype = np.dtype(store.metadata["streams"][key]["stored as"])
    try:
        return row_copier(arrays, store.log, dtype, values["streams"].get(key, {}).get("layout"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptStorage(f"{_invalid_values(store)}: {error!r}") from error


def require_buffer(store: ArrayStore) -> None:
    """Raise if a store contains no buffer.

    :raises StorageError: naming the folder
    """
    if not store.metadata:
        raise StorageError(f"{store.log.folder} contains no buffer: the first save to it was not completed")


def _require_same_kind(store: ArrayStore, buffer: ReplayBufferLike) -> None:
    """Raise if the metadata of a store is not that of such a buffer; the size may differ.

    :raises StorageError: with both values
    """
    stored, here = store.metadata, buffer_state.metadata(buffer)
    for name in ("observation_space", "action_space"):
        if stored[name] == here[name]:
            continue
        # A space much larger than ours is not constructed: its bounds would take memory.
        is_large = space_nbytes(stored[name]) > max(space_nbytes(here[name]), MAX_SPACE_NBYTES)
        theirs, ours = abbreviate(stored[name]) if is_large else space_from_data(stored[name]), getattr(buffer, name)
        if theirs != ours:
            raise StorageError(f"{name} is {theirs} in the folder and {ours} here")
    our_envs, their_envs = (each["arguments"].get("n_envs", 1) for each in (here, stored))
    if our_envs != their_envs:
        raise StorageError(f"n_envs is {their_envs} in the folder and {our_envs} here")
    if not _are_compatible(stored["streams"], here["streams"], buffer):
        raise StorageError(
            f"observations are stored as {abbreviate(stored['streams'])} in the folder and as "
            f"{abbreviate(here['streams'])} here; pass the compression_method and dtypes of the folder"
        )


def _are_compatible(
    stored: Mapping[str, Mapping[str, str]], here: Mapping[str, Mapping[str, str]], buffer: ReplayBufferLike
) -> bool:
    """Return whether stored observations can become those of a buffer: those of plain arrays may be cast."""
    arrays = buffer_state.named_arrays(buffer)
    names = buffer_state.streams(buffer)
    return stored.keys() == here.keys() and all(
        ours == stored[key] or (ours["codec"] == stored[key]["codec"] and isinstance(arrays[names[key][0]], np.ndarray))
        for key, ours in here.items()
    )


def fit_arrays(store: ArrayStore, buffer: ReplayBufferLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays and values of a store for a buffer of any size: its newest rows that fit.

    The arrays are those of the store itself if the sizes are equal.

    :raises StorageError: if the content of the store cannot be the state of such a buffer
    :raises CorruptStorage: if it is invalid
    """
    require_buffer(store)
    check(METADATA, store.metadata, f"{store.log.folder}: its metadata is invalid")
    try:
        _require_same_kind(store, buffer)
    except StorageError as error:
        raise type(error)(f"{store.log.folder}: {error}") from error
    stored, values, old = without_sampler(store.specs), store.values, len(store.arrays.get("actions", ()))
    resized = {
        name: dataclasses.replace(spec, shape=(buffer.buffer_size, *spec.shape[1:]))
        for name, spec in stored.items()
        if spec.is_ring and spec.shape[0] == old
    }
    specs = {**stored, **resized}
    cast = _cast_arrays(store, specs, buffer)
    expected = without_sampler(buffer_state.array_specs(buffer))
    specs |= {name: expected[name] for name in cast}
    if specs != expected:
        both = [(name, specs.get(name), expected.get(name)) for name in {**specs, **expected}]
        differences = [f"{name} {_kind(found)} instead of {_kind(ours)}" for name, found, ours in both if found != ours]
        raise StorageError(f"{store.log.folder} does not fit this buffer: it contains {', '.join(differences)}")
    _check_values(store, values, store.arrays, old)
    stored_arrays = {**store.arrays, **cast}
    if old == buffer.buffer_size:
        return _fit_sampler(store, buffer, stored_arrays if cast else store.arrays, values)
    looks_ahead = bool(buffer.optimize_memory_usage)
    ring = RingResize(values["pos"], old, buffer.buffer_size, full=values["full"], looks_ahead=looks_ahead)
    arrays = {name: spec.zeros() for name, spec in specs.items()}
    ring.copy_arrays(without_sampler(stored_arrays), arrays)
    return _fit_sampler(store, buffer, arrays, {**values, "pos": ring.pos, "full": ring.full}, ring)


def _cast_arrays(
    store: ArrayStore, specs: Mapping[str, ArraySpec], buffer: ReplayBufferLike
) -> dict[str, NDArray[Any]]:
    """Return plain arrays of a store that have other dtypes than those of a buffer, in the dtypes of the buffer.

    Where these do not contain all values, the buffer gets an array of the stored dtype instead. Up to version 0.3.0,
    arrays that a user assigned were saved as they were, ``rewards`` of float64 for example.

    :param specs: those of the store, for the size of the buffer
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, expected in without_sampler(buffer_state.array_specs(buffer)).items():
        stored = specs.get(name)
        if stored is None or stored.is_table or stored.dtype == expected.dtype:
            continue
        if dataclasses.replace(stored, dtype=expected.dtype) != expected:
            continue
        try:
            arrays[name] = cast_values(store.arrays[name], np.dtype(expected.dtype))
        except ValueError:
            buffer_state.put_array(buffer, name, stored.zeros())
    return arrays


def _kind(spec: ArraySpec | None) -> str:
    """Return what an array is, for error messages."""
    if spec is None:
        return "missing"
    return f"{'compressed' if spec.is_table else spec.dtype} of shape {spec.shape}"


def _fit_sampler(
    store: ArrayStore,
    buffer: ReplayBufferLike,
    arrays: dict[str, Any],
    values: dict[str, Any],
    ring: RingResize | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the state of a sampler; return arrays and values with this state for a buffer of any size.

    :param arrays: the other arrays, for a buffer of that size
    :param values: all values, likewise
    :param ring: how rows are moved if the buffer has another size
    """
    is_loaded = load_sampler(buffer, store, ring)
    ours = buffer_state.metadata(buffer)["arguments"].get("sampler")
    is_unchanged = ring is None and ours == store.metadata["arguments"].get("sampler")
    if is_unchanged and store.specs == buffer_state.array_specs(buffer) and is_loaded == ("sampler" in values):
        return arrays, values
    values = {name: value for name, value in values.items() if name != "sampler"}
    if is_loaded:
        values |= sampler_values(buffer, store, values["pos"])
    copies = {name: np.array(array) for name, array in sampler_arrays(buffer).items()}
    return {**without_sampler(arrays), **copies}, values


def _check_values(store: ArrayStore, values: Mapping[str, Any], arrays: Mapping[str, Any], rows: int) -> None:
    """Raise if values, or the arrays of hindsight's episodes, are out of range.

    :raises CorruptStorage: naming the value
    """
    check_values(values, rows, _invalid_values(store))
    if (episodes := EpisodeTable.among(arrays)) is not None:
        episodes.check(rows, str(store.log.folder))


def restore_values(buffer: ReplayBufferLike, store: ArrayStore, values: dict[str, Any]) -> None:
    """Restore the state of a buffer that is not in arrays, after the arrays.

    :raises CorruptStorage: if it is invalid
    """
    _check_values(store, values, buffer_state.named_arrays(buffer), buffer.buffer_size)
    try:
        stored, arrays = store.read_codecs(), buffer_state.last_arrays(buffer)
        codecs = {key: stored.get(key, array.codec) for key, array in arrays.items()}
        for key, array in arrays.items():
            if (name := codecs[key].name) != array.codec.name:
                raise ValueError(f"the codec of {key!r} is {name}, and its slots are by {array.codec.name}")
        buffer.pos, buffer.full = int(values["pos"]), bool(values["full"])
        for key, array in arrays.items():
            if key in values["streams"]:  # not for vectors of a buffer that was in memory
                last = array.references[(buffer.pos - 1) % buffer.buffer_size].copy()
                array.stream.restore(values["streams"][key], codecs[key], last)
        if buffer.bound_sampler is not None:
            buffer.bound_sampler.synchronize(buffer)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StorageError | CorruptPayload):
            raise
        raise CorruptStorage(f"{_invalid_values(store)}: {error!r}") from error


def _invalid_values(store: ArrayStore) -> str:
    """Return how messages about invalid values of a store begin."""
    return f"{store.log.folder}: its values are invalid"
