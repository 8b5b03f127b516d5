"""The slots of arrays as Python finds them, and damage to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from slot_objects import load_slots, put_slots, slots_at


def loaded_slots(*arrays: Any) -> list[NDArray[Any]]:
    """Return the slots of arrays of one stream as objects, ``(rows, n_envs)`` each; shared payloads are one object."""
    references = np.concatenate([array.references.reshape(-1) for array in arrays])
    slots = np.split(load_slots(arrays[0].stream.log, references), len(arrays))
    return [each.reshape(array.references.shape) for each, array in zip(slots, arrays, strict=True)]


def payload_addresses(array: Any, *index: int) -> list[int]:
    """Return where the payloads of a slot are in memory."""
    references = np.atleast_1d(array.references[index]).copy()
    addresses: list[int] = array.stream.gather(references).payloads.places[:, 0].tolist()
    return addresses


def damage(array: Any, row: int, env: int) -> None:
    """Replace the last payload of a slot by one that its codec cannot decode."""
    slots = slots_at(array, slice(row, row + 1))
    slot = slots[0, env]
    slots[0, env] = (*slot[:-1], b"!") if isinstance(slot, tuple) else b"!"
    put_slots(array, slice(row, row + 1), slots)
