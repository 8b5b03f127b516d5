"""What a replay buffer holds, and what that takes, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.mixin import CompressedBuffer, CompressedReplay
from sb3_compressed.buffers.resize import rows_by_age
from sb3_compressed.buffers.state import named_arrays, streams
from sb3_compressed.codecs import LearningCodec

__all__ = ["describe"]

#: Runs of consecutive rows of which payloads are counted, at most, and the rows of each.
N_RUNS, ROWS = 16, 65


def describe(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what a replay buffer is and holds, for JSON; it may be one of SB3's own.

    Payloads are counted in some runs of rows, so that it is quick however much there is, and nothing is decoded.

    :return: ``class``, ``observation_space``, ``action_space``; the numbers ``n_envs``, ``capacity`` and
        ``transitions`` (of all environments), ``rows``, ``position`` (the row that is written next) and ``full``; for
        each part of the observations, by its key, the ``codec``, the bytes that it has learned (``learned_bytes``) and
        how many frames are stacked; ``raw_bytes_per_transition`` in SB3's own buffer,
        ``payload_bytes_per_transition`` of observations here, ``None`` where there are not two rows, and their
        ``ratio``
    """
    n_slots = buffer.buffer_size * buffer.n_envs
    arrays = named_arrays(buffer)
    raw = (
        buffer.raw_observations_nbytes
        if isinstance(buffer, CompressedBuffer)
        else sum(array.nbytes for name, array in arrays.items() if _is_of_observations(name))
    ) / max(n_slots, 1)
    payload = _payload_bytes_per_transition(buffer, arrays)
    return {
        "class": type(buffer).__name__,
        "observation_space": str(buffer.observation_space),
        "action_space": str(buffer.action_space),
        "n_envs": buffer.n_envs,
        "capacity": n_slots,
        "transitions": buffer.size() * buffer.n_envs,
        "rows": buffer.buffer_size,
        "position": int(buffer.pos),
        "full": bool(buffer.full),
        "observations": {
            name.partition("/")[2]: _description_of(array)
            for name, array in arrays.items()
            if name.partition("/")[0] == "observations"
        },
        "raw_bytes_per_transition": raw,
        "payload_bytes_per_transition": payload,
        "ratio": raw / payload if payload else None,
    }


def _is_of_observations(name: str) -> bool:
    return name.partition("/")[0] in ("observations", "next_observations")


def _description_of(array: Any) -> dict[str, Any]:
    if not isinstance(array, CompressedArray):
        return {"codec": None, "learned_bytes": 0, "frames": 1, "stored_as": str(array.dtype)}
    return {
        "codec": repr(array.codec),
        "learned_bytes": array.codec.nbytes if isinstance(array.codec, LearningCodec) else 0,
        "frames": array.n_frames,
        "stored_as": str(array.elem_type),
    }


def _payload_bytes_per_transition(buffer: ReplayBuffer, arrays: dict[str, Any]) -> float | None:
    """Return the bytes of payloads that a transition adds, of plain arrays those of an element."""
    rows = rows_by_age(buffer.pos, buffer.buffer_size, full=buffer.full)
    if len(rows) < 2:
        return None
    total = 0.0
    compressed = {name for name, array in arrays.items() if isinstance(array, CompressedArray)}
    for name, array in arrays.items():
        if _is_of_observations(name) and name not in compressed:
            total += array.nbytes / (buffer.buffer_size * buffer.n_envs)
    for names in streams(buffer).values():
        of_stream = [arrays[name] for name in names if name in compressed]
        if of_stream:
            starts = np.arange(0, len(rows) - 1, ROWS - 1)
            starts = starts[np.unique(np.linspace(0, len(starts) - 1, N_RUNS).astype(int))]
            counts = [_new_payloads(buffer, of_stream, rows[start : start + ROWS]) for start in starts]
            total += sum(nbytes for nbytes, _ in counts) / sum(n for _, n in counts)
    return total


def _new_payloads(buffer: ReplayBuffer, arrays: list[CompressedArray], rows: NDArray[np.int64]) -> tuple[int, int]:
    """Return the bytes of the payloads that rows after the first one have and that has not; and of how many steps."""
    slots = np.concatenate([array.slots[rows].ravel() for array in arrays])
    if slots.dtype != object:  # addresses, of which those that share payloads have to be loaded together
        assert isinstance(buffer, CompressedReplay)
        assert buffer._store is not None
        slots = buffer._store.slots.load(slots)
    by_row = slots.reshape(len(arrays), len(rows), buffer.n_envs).swapaxes(0, 1).reshape(len(rows), -1)
    before = _payloads(by_row[0])
    new = {name: nbytes for name, nbytes in _payloads(by_row[1:].ravel()).items() if name not in before}
    return sum(new.values()), (len(rows) - 1) * buffer.n_envs


def _payloads(slots: Iterable[Any]) -> dict[int, int]:
    """Return the bytes of each payload, by its identity."""
    parts = [part for slot in slots for part in (slot if type(slot) is tuple else (slot,)) if type(part) is bytes]
    return {id(part): len(part) for part in parts}
