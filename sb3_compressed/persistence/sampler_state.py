"""The state of a buffer's sampler in a folder: arrays named ``sampler/<name>``, and the value ``sampler``.

Arrays with an element for each transition have the shape ``(n_rows, n_envs, ...)``. They do not belong to the ring, so
``add`` does not write them: with ``storage=<folder>``, the folder contains their state at the last flush. The value
``sampler`` contains the last step of the store that the sampler was informed of; the rows of later steps are new to it.
This step is negative if the sampler was informed before the store was created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.config import DTYPES, abbreviate, to_json
from sb3_compressed.errors import CodecError, CorruptStorage, StorageError
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.ring_resize import RingResize
from sb3_compressed.samplers.config import sampler_to_config
from sb3_compressed.storage.json_schema import parse
from sb3_compressed.storage.manifest import ArraySpec
from sb3_compressed.storage.metadata_schema import SAMPLER

if TYPE_CHECKING:
    from sb3_compressed.samplers.bound_sampler import BoundSampler
    from sb3_compressed.storage.array_store import ArrayStore

__all__ = [
    "is_sampler_array",
    "load_sampler",
    "sampler_arrays",
    "sampler_specs",
    "sampler_values",
    "stored_config",
    "without_sampler",
]

PREFIX = "sampler/"
#: Errors of samplers that load a state that is not theirs.
INVALID_STATE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def is_sampler_array(name: str) -> bool:
    """Return whether the array of that name in a store is part of the state of a sampler."""
    return name.startswith(PREFIX)


def without_sampler(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays, or what belongs to arrays, without those of samplers."""
    return {name: array for name, array in arrays.items() if not is_sampler_array(name)}


def sampler_arrays(buffer: ReplayBufferLike) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sampler's state as they are stored, without copies where possible.

    :raises StorageError: if they cannot be stored
    """
    arrays: dict[str, NDArray[Any]] = {}
    if (bound := buffer.bound_sampler) is None:
        return arrays
    for name, value in bound.sampler.state_dict().items():
        if isinstance(value, np.ndarray) and value.ndim:
            if value.dtype.str not in DTYPES:
                raise StorageError(f"cannot store the array {name!r} of {bound.sampler}: its dtype is {value.dtype}")
            is_of_items = len(value) == bound.n_rows * bound.n_envs
            shape = (bound.n_rows, bound.n_envs, *value.shape[1:]) if is_of_items else value.shape
            arrays[PREFIX + name] = value.reshape(shape)
    return arrays


def sampler_specs(buffer: ReplayBufferLike) -> dict[str, ArraySpec]:
    """Return how the arrays of a sampler's state are stored."""
    return {name: ArraySpec(array.shape, array.dtype.str) for name, array in sampler_arrays(buffer).items()}


def sampler_values(buffer: ReplayBufferLike, store: ArrayStore, pos: int) -> dict[str, Any]:
    """Return the values of a sampler's state for the next commit to a store, which writes no rows of the ring.

    :param pos: the value ``pos`` of the commit
    :raises StorageError: if a value cannot be stored
    """
    bound = buffer.bound_sampler
    if bound is None:
        return {}
    state = {}
    for name, value in bound.sampler.state_dict().items():
        if isinstance(value, np.ndarray) and value.ndim:
            continue
        try:
            state[name] = to_json(value.item() if isinstance(value, np.generic | np.ndarray) else value)
        except CodecError as error:
            raise StorageError(f"the state {name!r} of {bound.sampler}: {error}") from error
    step = int(store.step_at(pos, buffer.buffer_size) - bound.n_unreported)  # Python's number, for JSON
    return {"sampler": {"step": step, "state": state}}


def load_sampler(buffer: ReplayBufferLike, store: ArrayStore, ring: RingResize | None = None) -> bool:
    """Load the state of a sampler in a store, if it is of the class of the buffer's sampler.

    Call ``synchronize`` of the buffer's sampler when the content of the buffer is restored.

    :param ring: how rows are moved if the buffer has another size
    :return: whether it was loaded
    :raises StorageError: if the state is that of another configuration, and does not fit the buffer's sampler
    :raises CorruptStorage: if it is damaged
    """
    bound, saved = buffer.bound_sampler, store.values.get("sampler")
    stored = stored_config(store)
    if bound is None or saved is None or stored is None:
        return False
    config = sampler_to_config(bound.configuration)
    if any(stored.get(key) != config.get(key) for key in ("name", "class")):
        return False
    folder = store.log.folder
    try:
        values = parse(SAMPLER, saved)
        n_new = store.step - values["step"]
        if n_new < 0:
            raise ValueError(f"it is of step {values['step']}, and the last step is {store.step}")
        state = {**values["state"], **_arrays_in(store, bound, sampler_specs(buffer), ring)}
        bound.load(state, n_new, None if ring is None else len(ring.kept))
    except INVALID_STATE_ERRORS as error:
        if stored != config:
            raise StorageError(
                f"{folder} contains the state of {abbreviate(stored)}, which does not fit {bound.sampler}: {error}; "
                "pass the sampler of the folder, or begin anew with sampler='uniform' once"
            ) from error
        raise CorruptStorage(f"{folder}: the state of its sampler is invalid: {error}") from error
    return True


def stored_config(store: ArrayStore) -> Mapping[str, Any] | None:
    """Return the configuration of the sampler in the metadata of a store, ``None`` if it has none."""
    arguments = store.metadata.get("arguments")
    argument = arguments.get("sampler") if isinstance(arguments, dict) else None
    config = argument.get("sampler") if isinstance(argument, dict) else None
    return config if isinstance(config, dict) else None


def _arrays_in(
    store: ArrayStore, bound: BoundSampler, specs: Mapping[str, ArraySpec], ring: RingResize | None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sampler's state in a store, for a buffer of any size.

    :param specs: how the arrays of the buffer's sampler are stored
    :raises ValueError: if they do not fit these
    """
    arrays: dict[str, NDArray[Any]] = {}
    n_old = len(store.arrays["actions"])
    for name, spec in specs.items():
        stored = store.arrays.get(name)
        is_of_items = spec.shape[:2] == (bound.n_rows, bound.n_envs)
        shape = (n_old, *spec.shape[1:]) if is_of_items else spec.shape
        if stored is None or (stored.shape, stored.dtype.str) != (shape, spec.dtype):
            found = "no array" if stored is None else f"{stored.shape} of {stored.dtype}"
            raise ValueError(f"{name} must be {shape} of {np.dtype(spec.dtype)}, got {found}")
        if is_of_items and ring is not None:
            stored = ring.moved(stored)
        n_items = bound.n_rows * bound.n_envs
        arrays[name.removeprefix(PREFIX)] = stored.reshape(n_items, *spec.shape[2:]) if is_of_items else stored
    return arrays
