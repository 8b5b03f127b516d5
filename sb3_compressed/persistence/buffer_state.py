"""The state of a replay buffer: its arrays by name, a few values, and the metadata to construct such a buffer again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.codecs import Codec
from sb3_compressed.common.spaces import Key
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.row_copying import is_stored_as_slots
from sb3_compressed.persistence.sampler_state import sampler_specs
from sb3_compressed.samplers.config import sampler_to_config
from sb3_compressed.samplers.episode_table import EPISODE_ARRAYS
from sb3_compressed.storage.json_schema import check
from sb3_compressed.storage.manifest import ArraySpec
from sb3_compressed.storage.metadata_schema import METADATA, check_values
from sb3_compressed.storage.spaces import argument_to_data, space_to_data

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import BaseBuffer


__all__ = [
    "OBSERVATIONS",
    "array_specs",
    "get_array",
    "is_observation",
    "last_arrays",
    "metadata",
    "named_arrays",
    "observation_arrays",
    "put_array",
    "raw_observations_nbytes",
    "require_buffer_size",
    "require_loadable",
    "streams",
    "values_and_codecs",
]

OBSERVATIONS = ("observations", "next_observations")
#: SB3's own arrays.
PLAIN = ("actions", "rewards", "dones", "timeouts", *EPISODE_ARRAYS)


def named_arrays(buffer: BaseBuffer | ReplayBufferLike) -> dict[str, Any]:
    """Return all arrays of a buffer's state, compressed and plain ones; ``"observations/KEY"`` for a Dict space."""
    arrays: dict[str, Any] = {}
    for name in getattr(buffer, "observation_attributes", OBSERVATIONS):
        value = getattr(buffer, name, None)
        if isinstance(value, dict):
            arrays.update({f"{name}/{key}": array for key, array in value.items()})
        elif value is not None:
            arrays[name] = value
    plain = {name: getattr(buffer, name, None) for name in PLAIN}  # a subclass may have properties
    return arrays | {name: value for name, value in plain.items() if isinstance(value, np.ndarray)}


def observation_arrays(buffer: BaseBuffer | ReplayBufferLike) -> list[tuple[Key, Any]]:
    """Return the arrays of observations and next observations with their keys, compressed and plain ones."""
    found = [(name.partition("/"), array) for name, array in named_arrays(buffer).items()]
    return [(key if is_part else None, each) for (name, is_part, key), each in found if name in OBSERVATIONS]


def raw_observations_nbytes(buffer: BaseBuffer | ReplayBufferLike) -> int:
    """Return the memory of all observations in SB3's buffer with the same arguments, in bytes."""
    arrays = [array for _, array in observation_arrays(buffer)]
    return sum(array.nbytes if isinstance(array, np.ndarray) else array.raw_nbytes for array in arrays)


def is_observation(name: str) -> bool:
    """Return whether the array of that name contains observations, not next observations."""
    return name.partition("/")[0] == OBSERVATIONS[0]


def get_array(buffer: BaseBuffer | ReplayBufferLike, name: str) -> Any:
    """Return one of a buffer's arrays, or what a user assigned instead; ``None`` if there is nothing."""
    attribute, _, key = name.partition("/")
    value = getattr(buffer, attribute, None)
    return value.get(key) if key and isinstance(value, dict) else value


def put_array(buffer: ReplayBufferLike, name: str, array: NDArray[Any] | CompressedArray) -> None:
    """Replace one of a buffer's arrays."""
    attribute, _, key = name.partition("/")
    if key:
        arrays = vars(buffer).get(attribute)
        if not isinstance(arrays, dict):  # a user has released it
            arrays = vars(buffer)[attribute] = {}
        dict.__setitem__(arrays, key, array)  # an assignment would copy the values
    elif attribute in OBSERVATIONS:
        vars(buffer)[attribute] = array  # likewise
    else:
        setattr(buffer, attribute, array)


def array_specs(buffer: ReplayBufferLike) -> dict[str, ArraySpec]:
    """Return how each array of a buffer and its sampler is stored, arrays of slots as addresses."""
    slotted = {name for names in streams(buffer).values() for name in names}
    specs = {
        name: ArraySpec(array.shape[:2], "<i8", is_table=True, is_ring=True)
        if name in slotted
        else ArraySpec(tuple(array.shape), array.dtype.str, is_ring=array.ndim > 1)
        for name, array in named_arrays(buffer).items()
    }
    return {**specs, **sampler_specs(buffer)}


def metadata(buffer: ReplayBufferLike) -> dict[str, Any]:
    """Return what is needed to construct such a buffer, for JSON.

    :raises StorageError: if the buffer cannot be stored
    """
    if getattr(buffer, "copy_info_dict", False):
        raise StorageError(
            "info dicts of hindsight replay (copy_info_dict=True) are Python objects and cannot be stored"
        )
    arrays = named_arrays(buffer)
    arguments = {name: argument_to_data(value) for name, value in buffer.given_arguments.items()}
    if buffer.bound_sampler is not None:  # folders of buffers without one are as they were before there were samplers
        arguments["sampler"] = {"sampler": sampler_to_config(buffer.bound_sampler.configuration)}
    return {
        "class": type(buffer).__name__,
        "streams": {key: _item_format(arrays[names[-1]]) for key, names in streams(buffer).items()},
        "observation_space": space_to_data(buffer.observation_space),
        "action_space": space_to_data(buffer.action_space),
        "arguments": arguments,
    }


def _item_format(array: Any) -> dict[str, str]:
    """Return how the items of an array are stored."""
    if isinstance(array, CompressedArray):
        return {"codec": array.codec.name, "stored as": array.elem_type.str}
    return {"codec": "none", "stored as": array.dtype.str}


def streams(buffer: ReplayBufferLike) -> dict[str, list[str]]:
    """Return the names of the arrays of slots that share frames, by key, ``""`` where there is no Dict."""
    names_by_key: dict[str, list[str]] = {}
    for name, array in named_arrays(buffer).items():
        attribute, _, key = name.partition("/")
        is_vector = attribute in OBSERVATIONS and not isinstance(array, CompressedArray)
        if isinstance(array, CompressedArray) or (is_vector and is_stored_as_slots(array.shape[2:], array.dtype)):
            names_by_key.setdefault(key, []).append(name)
    return names_by_key


def last_arrays(buffer: ReplayBufferLike) -> dict[str, CompressedArray]:
    """Return of each compressed stream the array that is written last, that of next observations if there is one."""
    arrays = named_arrays(buffer)
    last = {key: arrays[names[-1]] for key, names in streams(buffer).items()}
    return {key: array for key, array in last.items() if isinstance(array, CompressedArray)}


def require_buffer_size(buffer: ReplayBufferLike, n_rows: int, what: str) -> None:
    """Raise if the attribute ``buffer_size`` is not the number of rows of the arrays, which a folder has in common.

    :param what: what was not done, for the message
    :raises StorageError: with both numbers
    """
    if buffer.buffer_size != n_rows:
        raise StorageError(
            f"{what}: buffer_size was changed to {buffer.buffer_size} rows, and the arrays have {n_rows}: create a new "
            "buffer of that size, or resume the folder with it"
        )


def require_loadable(buffer: ReplayBufferLike, folder: Path) -> None:
    """Raise if a folder with the values and the metadata of a buffer could not be loaded.

    :param folder: the folder that they are about to be written to
    :raises StorageError: with the value
    """
    what = f"nothing was saved to {folder}, since it could not be loaded"
    require_buffer_size(buffer, len(buffer.actions), what)
    try:
        check(METADATA, metadata(buffer), what)
        check_values({"pos": int(buffer.pos), "full": bool(buffer.full), "streams": {}}, buffer.buffer_size, what)
        if (episodes := buffer.episodes) is not None:
            episodes.check(buffer.buffer_size, what)
    except CorruptStorage as error:
        raise StorageError(str(error)) from error


def values_and_codecs(
    buffer: ReplayBufferLike, last: Mapping[str, CompressedArray]
) -> tuple[dict[str, Any], dict[str, Codec]]:
    """Return the state that is not in arrays: for JSON, and the current codec of each stream.

    :param last: what :func:`last_arrays` returns
    """
    streams = {key: array.stream.state() for key, array in last.items()}
    codecs = {key: array.codec for key, array in last.items()}
    return {"pos": int(buffer.pos), "full": bool(buffer.full), "streams": streams}, codecs
