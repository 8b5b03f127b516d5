"""The payloads of slots as Python finds them, to compare kernels with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.payloads import Payloads


def gather_in_python(slots: NDArray[Any], n_frames: int, codec: Codec | None = None) -> PayloadBatch:
    """Return the payloads of slots.

    :param slots: object array ``(n,)``
    :param n_frames: the number of frames of an item
    :param codec: the codec of all payloads if it is not trainable
    """
    codecs: list[Any] = [] if codec is None else [codec]
    numbers: dict[int, int] = {}
    payloads: list[bytes] = []
    writers: list[int] = []
    offsets = [0]
    for slot in slots.tolist():
        writer = 0
        for part in slot if type(slot) is tuple else () if slot is None else (slot,):
            if type(part) is bytes:
                payloads.append(part)
                writers.append(writer)
                continue
            written_by = part
            writer = numbers.setdefault(id(written_by), len(codecs))
            codecs += [written_by] * (writer == len(codecs))
        offsets.append(len(payloads))
    return PayloadBatch(codecs, Payloads.of(payloads, np.array(writers, dtype=np.int64)), n_frames, np.array(offsets))


def loaded_slots(*arrays: Any) -> list[NDArray[Any]]:
    """Return the slots of arrays of one stream as objects, ``(rows, n_envs)`` each; shared payloads are one object."""
    references = np.concatenate([array.slots.reshape(-1) for array in arrays])
    slots = np.split(arrays[0].store.load(references), len(arrays))
    return [each.reshape(array.slots.shape) for each, array in zip(slots, arrays, strict=True)]


def payload_addresses(array: Any, *index: int) -> list[int]:
    """Return where the payloads of a slot are in memory."""
    references = np.atleast_1d(array.slots[index]).copy()
    addresses: list[int] = array.store.gather(references, array.n_frames).payloads.places[:, 0].tolist()
    return addresses


def damage(array: Any, row: int, env: int) -> None:
    """Replace the last payload of a slot by one that its codec cannot decode."""
    slots = array.slots_at(slice(row, row + 1))
    slot = slots[0, env]
    slots[0, env] = (*slot[:-1], b"!") if isinstance(slot, tuple) else b"!"
    array.put_slots(slice(row, row + 1), slots)
