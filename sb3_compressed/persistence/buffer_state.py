"""What of a replay buffer is its state: arrays by their names, and a few values; and the buffer made of them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.ring_resize import EPISODE_BEGINS
from sb3_compressed.persistence.vector_slots import are_slots
from sb3_compressed.storage.json_schema import brief
from sb3_compressed.storage.manifest import ArraySpec
from sb3_compressed.storage.metadata_schema import MAX_SPACE_NBYTES, space_nbytes
from sb3_compressed.storage.spaces import argument_from_data, argument_to_data, space_from_data, space_to_data

__all__ = [
    "about",
    "arguments_of",
    "codecs",
    "is_observation",
    "named_arrays",
    "plans",
    "put_array",
    "refuse_other",
    "restore_values",
    "streams",
    "values",
]

OBSERVATIONS = ("observations", "next_observations")
#: SB3's own arrays, the last three those of hindsight replay.
PLAIN = ("actions", "rewards", "dones", "timeouts", "ep_start", "ep_length", "_current_ep_start")


def named_arrays(buffer: Any) -> dict[str, Any]:
    """Return all arrays that are part of a buffer's state, compressed and plain ones."""
    found: dict[str, Any] = {}
    for name in OBSERVATIONS:
        value = vars(buffer).get(name)
        if isinstance(value, dict):
            found.update({f"{name}/{key}": array for key, array in value.items()})
        elif value is not None:
            found[name] = value
    found.update({name: vars(buffer)[name] for name in PLAIN if isinstance(vars(buffer).get(name), np.ndarray)})
    return found


def is_observation(name: str) -> bool:
    """Return whether an array of that name holds observations, not next ones."""
    return name.partition("/")[0] == OBSERVATIONS[0]


def put_array(buffer: Any, name: str, array: NDArray[Any] | CompressedArray) -> None:
    """Put an array in the place of one of a buffer's."""
    attribute, _, key = name.partition("/")
    if key:
        dict.__setitem__(getattr(buffer, attribute), key, array)  # an assignment would copy it
    else:
        vars(buffer)[attribute] = array


def plans(buffer: Any) -> dict[str, ArraySpec]:
    """Return how each array of a buffer is stored, compressed ones as addresses of slots."""
    slotted = {name for names in streams(buffer).values() for name in names}
    return {
        name: ArraySpec(array.shape[:2], "<i8", is_table=True, is_ring=True)
        if name in slotted
        else ArraySpec(tuple(array.shape), array.dtype.str, is_ring=name != EPISODE_BEGINS)
        for name, array in named_arrays(buffer).items()
    }


def about(buffer: Any) -> dict[str, Any]:
    """Return what has to be known to make such a buffer, for JSON.

    :raises StorageError: if it cannot be stored
    """
    if getattr(buffer, "copy_info_dict", False):
        raise StorageError(
            "info dicts of hindsight replay (copy_info_dict=True) are Python objects and cannot be stored"
        )
    arrays = named_arrays(buffer)
    return {
        "class": type(buffer).__name__,
        "streams": {key: _stream(arrays[names[-1]]) for key, names in streams(buffer).items()},
        "observation_space": space_to_data(buffer.observation_space),
        "action_space": space_to_data(buffer.action_space),
        "arguments": {name: argument_to_data(value) for name, value in buffer.given_arguments.items()},
    }


def arguments_of(told: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
    """Return the arguments of a buffer's constructor, of which :func:`about` told.

    :param given: names of those that are not needed
    :raises CorruptStorage: if they make no sense
    """
    found = {name: argument_from_data(value) for name, value in told["arguments"].items()}
    made = {name: space_from_data(told[name]) for name in ("observation_space", "action_space") if name not in given}
    return {**made, **found}


def _stream(array: Any) -> dict[str, str]:
    """Return how the items of an array are stored."""
    if isinstance(array, CompressedArray):
        return {"codec": array.codec.name, "stored as": array.elem_type.str}
    return {"codec": "none", "stored as": array.dtype.str}


def refuse_other(told: Mapping[str, Any], named: Collection[str], buffer: Any) -> None:
    """Raise if what is stored cannot be the state of such a buffer; its size may be another.

    :param told: what :func:`about` told of it
    :param named: the names of its arrays
    :raises StorageError: with both sides
    """
    here = about(buffer)
    for name in ("observation_space", "action_space"):
        ours = getattr(buffer, name)
        if told[name] == here[name]:
            continue
        theirs = _space_unlike(told[name], ours, space_nbytes(here[name]))
        if theirs is not None:
            raise StorageError(f"{name} is {theirs} in the folder and {ours} here")
    our_envs, their_envs = (each["arguments"].get("n_envs", 1) for each in (here, told))
    if our_envs != their_envs:
        raise StorageError(f"n_envs is {their_envs} in the folder and {our_envs} here")
    if here["streams"] != told["streams"]:
        raise StorageError(
            f"observations are stored as {told['streams']} in the folder and would be as {here['streams']} here; pass "
            "the compression_method and dtypes of the folder"
        )
    if set(plans(buffer)) != set(named):
        raise StorageError(
            f"the folder holds {', '.join(named)}, and a {type(buffer).__name__} has {', '.join(plans(buffer))}"
        )


def _space_unlike(told: Any, ours: spaces.Space[Any], our_nbytes: int) -> Any:
    """Return the space that a folder tells of if it is another one, ``None`` if it is ours in other words.

    A space much larger than ours is not made, since its bounds take memory; what tells of it is returned then.
    """
    if space_nbytes(told) > max(our_nbytes, MAX_SPACE_NBYTES):
        return brief(told)
    theirs = space_from_data(told)
    return None if theirs == ours else theirs


def streams(buffer: Any) -> dict[str, list[str]]:
    """Return the names of the arrays of slots that share frames, by key, ``""`` where there is no Dict."""
    found: dict[str, list[str]] = {}
    for name, array in named_arrays(buffer).items():
        attribute, _, key = name.partition("/")
        if isinstance(array, CompressedArray) or (attribute in OBSERVATIONS and are_slots(array)):
            found.setdefault(key, []).append(name)
    return found


def last_of_streams(buffer: Any) -> dict[str, CompressedArray]:
    """Return of each compressed stream the array that is written last, that of next observations if there are any."""
    arrays = named_arrays(buffer)
    last = {key: arrays[names[-1]] for key, names in streams(buffer).items()}
    return {key: array for key, array in last.items() if isinstance(array, CompressedArray)}


def values(buffer: Any, last: Mapping[str, CompressedArray] | None = None) -> dict[str, Any]:
    """Return the rest of the state, for JSON.

    :param last: what :func:`last_of_streams` returns, if that is known
    """
    streams = {key: array.stream_data() for key, array in (last_of_streams(buffer) if last is None else last).items()}
    return {"pos": int(buffer.pos), "full": bool(buffer.full), "streams": streams}


def codecs(buffer: Any, last: Mapping[str, CompressedArray] | None = None) -> dict[str, Any]:
    """Return the codec that each stream has at present.

    :param last: what :func:`last_of_streams` returns, if that is known
    """
    return {key: array.codec for key, array in (last_of_streams(buffer) if last is None else last).items()}


def restore_values(buffer: Any, told: Mapping[str, Any], codecs: Mapping[str, Any]) -> None:
    """Put the rest of the state into a buffer whose arrays are in their places.

    :raises ValueError: if it does not fit
    """
    buffer.pos, buffer.full = int(told["pos"]), bool(told["full"])
    if not 0 <= buffer.pos < max(buffer.buffer_size, 1):
        raise ValueError(f"pos must be a row of {buffer.buffer_size}, got {buffer.pos}")
    for key, array in last_of_streams(buffer).items():
        last = array.slots_at((buffer.pos - 1) % buffer.buffer_size)
        slots = [*last] if all(slot is not None for slot in last) else []
        if key in told["streams"]:  # vectors, which are plain arrays in memory, have nothing to tell
            array.restore_stream(told["streams"][key], codecs[key], slots)
