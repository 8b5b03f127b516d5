"""Repairing a stored buffer: damaged transitions are excluded, all others stay.

SB3 samples every row of a full ring, so a damaged transition needs something in its place:

- Hindsight replay samples from complete episodes only. An episode with a damaged step becomes two, one before and one
  behind it, and the step is of none.
- Elsewhere, the nearest undamaged transition of the same environment is copied there. It is sampled twice as often; no
  undamaged one is lost and no false one is made. ``timeouts`` is set for it and the one before, which ends n-step
  returns there and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.buffers.resize import EPISODE_BEGINS, rows_by_age
from sb3_compressed.storage.repair import DamagedStore, damaged_slots
from sb3_compressed.storage.schema import check_values
from sb3_compressed.storage.store import ArrayPlan
from sb3_compressed.warning import warn_user

__all__ = ["RepairReport", "repair_store"]

OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"


@dataclass(frozen=True)
class RepairReport:
    """What a repair found.

    :param dropped: row and environment of each transition that was damaged, ``(n, 2)``, the oldest first
    :param n_transitions: how many transitions the buffer had, damaged ones included
    :param damages: a line for each damaged part, with file and byte
    """

    dropped: NDArray[np.int64]
    n_transitions: int
    damages: tuple[str, ...]

    def __str__(self) -> str:
        n_kept = self.n_transitions - len(self.dropped)
        more = f" and {len(self.damages) - 3:,} more" if self.damages[3:] else ""
        return (
            f"{len(self.dropped):,} of {self.n_transitions:,} transitions are damaged and excluded, {n_kept:,} are "
            f"kept; damaged: {'; '.join(self.damages[:3])}{more}"
        )


def repair_store(store: DamagedStore) -> RepairReport:
    """Exclude the damaged transitions of a buffer from its arrays, in memory; warn if there are any.

    :return: what was excluded
    """
    arrays, values = store.arrays, store.values
    if not store.damages and store.about:
        check_values(values, store.n_ring_rows, f"{store.log.folder}: its values make no sense")
        store.check_claims()
    n_rows, n_envs = arrays["rewards"].shape if "rewards" in arrays else (0, 0)
    pos, is_full = int(values.get("pos", 0)), bool(values.get("full", False))
    by_age = rows_by_age(pos, n_rows, full=is_full)
    is_damaged = np.repeat(store.lost_rows[:, np.newaxis], n_envs, axis=1) if n_rows else np.zeros((0, 0), np.bool_)
    for name, plan in store.plans.items():
        if plan.is_table:
            of_table, damages = damaged_slots(store, name)
            store.damages += damages
            arrays[name][of_table] = 0
            is_damaged |= of_table
            if not _has_next(store):  # they are the next observations of the row before, too
                is_damaged |= np.roll(arrays[name] == 0, -1, axis=0)
    is_written = np.zeros(n_rows, np.bool_)
    is_written[by_age] = True
    is_damaged &= is_written[:, np.newaxis]
    report = RepairReport(
        dropped=np.array(
            [(row, env) for row in by_age for env in np.flatnonzero(is_damaged[row])], dtype=np.int64
        ).reshape(-1, 2),
        n_transitions=len(by_age) * n_envs,
        damages=tuple(dict.fromkeys(store.damages)),
    )
    if len(report.dropped):
        if not _has_next(store):
            _add_next_observations(store)
        if "ep_length" in arrays:
            _split_episodes(arrays, is_damaged, pos)
        else:
            _replace(arrays, is_damaged, by_age, values)
    if report.damages:
        warn_user(f"{store.log.folder}: {report}")
    return report


def _has_next(store: DamagedStore) -> bool:
    return any(name.partition("/")[0] == NEXT_OBSERVATIONS for name in store.arrays)


def _add_next_observations(store: DamagedStore) -> None:
    """Keep next observations, where SB3 takes them from the row behind, which may be damaged."""
    plans: dict[str, ArrayPlan] = {}
    arrays: dict[str, Any] = {}
    for name, array in store.arrays.items():
        plans[name], arrays[name] = store.plans[name], array
        part, slash, key = name.partition("/")
        if part == OBSERVATIONS:
            other = f"{NEXT_OBSERVATIONS}{slash}{key}"
            plans[other], arrays[other] = store.plans[name], np.roll(array, -1, axis=0)
    arguments = {**store.about["arguments"], "optimize_memory_usage": False}
    store.replace_arrays({**store.about, "arguments": arguments}, plans, arrays)


def _split_episodes(arrays: dict[str, Any], is_damaged: NDArray[np.bool_], pos: int) -> None:
    """Let the episodes of hindsight replay end before damaged steps and begin behind them."""
    start, length, current = arrays["ep_start"], arrays["ep_length"], arrays[EPISODE_BEGINS]
    n_rows = len(start)
    for env in range(start.shape[1]):
        for row in np.flatnonzero(is_damaged[:, env]).tolist():
            age = (row - int(current[env])) % n_rows
            is_current = age < (pos - int(current[env])) % n_rows
            begin, n_steps = int(current[env]), (pos - int(current[env])) % n_rows
            if not is_current:
                begin, n_steps = int(start[row, env]), int(length[row, env])
            length[row, env] = 0
            n_before = (row - begin) % n_rows
            if not n_before < n_steps <= n_rows:
                continue  # of no episode that can be sampled from
            before = (begin + np.arange(n_before)) % n_rows
            behind = (row + 1 + np.arange(n_steps - n_before - 1)) % n_rows
            start[before, env], length[before, env] = begin, n_before
            start[behind, env] = (row + 1) % n_rows
            if is_current:
                current[env] = (row + 1) % n_rows
            else:
                length[behind, env] = len(behind)


def _replace(
    arrays: dict[str, Any], is_damaged: NDArray[np.bool_], by_age: NDArray[np.int64], values: dict[str, Any]
) -> None:
    """Copy the nearest undamaged transitions to the places of damaged ones."""
    is_whole = ~is_damaged[by_age]
    if not is_whole.any():
        values.update(pos=0, full=False)
        return
    rings = [array for array in arrays.values() if array.shape[:2] == is_damaged.shape]
    spare_env = int(is_whole.any(axis=0).argmax())
    for env in range(is_damaged.shape[1]):
        source_env = env if is_whole[:, env].any() else spare_env
        whole = np.flatnonzero(is_whole[:, source_env])
        for age in np.flatnonzero(~is_whole[:, env]).tolist():
            nearest = int(whole[np.abs(whole - age).argmin()])
            for array in rings:
                array[by_age[age], env] = array[by_age[nearest], source_env]
        for age in _ends(is_whole[:, env]):
            row = by_age[age]
            if not arrays["dones"][row, env]:
                arrays["timeouts"][row, env] = 1


def _ends(is_whole: NDArray[np.bool_]) -> Iterator[int]:
    """Yield the ages at which sequences of steps end: of replaced transitions, and of those before one."""
    for age in np.flatnonzero(~is_whole).tolist():
        yield age
        if age:
            yield age - 1
