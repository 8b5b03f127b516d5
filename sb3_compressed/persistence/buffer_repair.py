"""Repairing a stored buffer: damaged transitions are excluded, all others stay.

Damaged transitions must not be sampled, but SB3 samples every row of a full ring. So:

- Hindsight replay samples from complete episodes only. Episodes with a damaged step are excluded as a whole.
- Elsewhere, the nearest undamaged transition of the same environment (of another one if none is left) is copied over
  it. That one is sampled more often; no undamaged transition is lost and no false one is made up. ``timeouts`` is set
  for the copy and the transition before it, which ends n-step returns there and changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.persistence.ring_resize import rows_by_age
from sb3_compressed.persistence.sampler_state import without_sampler
from sb3_compressed.samplers.episode_table import CURRENT, EpisodeTable
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.chunks import row_chunks
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.metadata_schema import check_values
from sb3_compressed.storage.verification import damaged_codecs, damaged_slots

__all__ = ["RepairReport", "repair_store"]


@dataclass(frozen=True)
class RepairReport:
    """Which transitions a repair excluded.

    Those of commits after the first damaged one are no longer in the buffer and not counted; ``problems`` lists the
    damage.

    :param dropped: row and environment of each damaged transition, ``(n, 2)``, the oldest first
    :param n_transitions: number of transitions in the buffer, damaged ones included
    :param problems: one line for each damaged part, with the file and, where it is known, the byte
    """

    dropped: NDArray[np.int64]
    n_transitions: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        n_kept = self.n_transitions - len(self.dropped)
        more = f" and {len(self.problems) - 3:,} more" if self.problems[3:] else ""
        damaged = f"; damaged: {'; '.join(self.problems[:3])}{more}" if self.problems else ""
        return (
            f"{len(self.dropped):,} of {self.n_transitions:,} transitions are damaged and excluded, {n_kept:,} are "
            f"kept{damaged}"
        )


def repair_store(store: ArrayStore) -> RepairReport:
    """Exclude the damaged transitions of a buffer from its arrays, in memory; warn if there are any.

    :param store: opened for a repair
    :raises StorageError: if a process writes to it
    :raises CorruptStorage: if the values or the shapes of the arrays are invalid
    """
    folder, values = store.log.folder, store.values
    problems = store.problems
    assert problems is not None
    if not store.log.is_writable and FolderLock.is_locked(folder):
        raise StorageError(f"{folder} is being written to; close the buffer that writes to it before repairing")
    for name, damage in damaged_codecs(store).items():  # a writer creates new ones
        problems.append(damage)
        del store.codecs[name]
    rewards = store.arrays.get("rewards")
    if not store.metadata or rewards is None:  # no save was completed
        return RepairReport(np.zeros((0, 2), np.int64), 0, tuple(problems))
    if values.pop("sampler", None) is not None:
        problems.append(f"{folder}: the state of its sampler is not restored by a repair, and begins anew")
    check_values(values, store.n_ring_rows, f"{folder}: its values are invalid")
    _check_shapes(store)
    is_damaged = _damaged_transitions(store, problems)
    by_age = rows_by_age(values["pos"], len(rewards), full=values["full"])
    ages, envs = np.nonzero(is_damaged[by_age])
    report = RepairReport(
        dropped=np.stack([by_age[ages], envs], axis=1).astype(np.int64),
        n_transitions=is_damaged[by_age].size,
        problems=tuple(dict.fromkeys(problems)),
    )
    if len(report.dropped):
        if not any(name.startswith("next_observations") for name in store.arrays):
            raise CorruptStorage(
                f"{folder}: transitions of a buffer with optimize_memory_usage=True and "
                f"handle_timeout_termination=False cannot be excluded one by one: {report}"
            )
        if (episodes := EpisodeTable.among(store.arrays)) is not None:
            episodes.check(len(rewards), str(folder))
            episodes.exclude(is_damaged, values["pos"], store.arrays["dones"])
        else:
            _replace(store.arrays, is_damaged, by_age, values)
    if report.problems:
        warn_user(f"{folder}: {report}")
    return report


def _check_shapes(store: ArrayStore) -> None:
    """Raise if an array does not have an element for each transition.

    :raises CorruptStorage: naming the array
    """
    arrays = without_sampler(store.arrays)
    rows, n_envs = (*arrays["rewards"].shape, 0, 0)[:2]
    for name in ("rewards", "dones", "timeouts", *arrays):
        expected = (n_envs,) if name == CURRENT else (rows, n_envs)
        found = arrays[name].shape if name in arrays else ()
        if found[: len(expected)] != expected:
            raise CorruptStorage(f"{store.log.folder}: the shape of {name} must begin with {expected}, got {found}")


def _damaged_transitions(store: ArrayStore, problems: list[str]) -> NDArray[np.bool_]:
    """Return which transitions are damaged, ``(n_rows, n_envs)``; clear the slots that cannot be read.

    :param problems: receives the damage of slots
    """
    arrays = store.arrays
    lost_rows = np.zeros((len(arrays["rewards"]), 1), np.bool_)
    for name, lost in store.lost_rows.items():
        if store.specs[name].is_ring:
            lost_rows[lost] = True
    is_damaged = np.repeat(lost_rows, arrays["rewards"].shape[1], axis=1)
    for name, spec in store.specs.items():
        if spec.is_table:
            damage = damaged_slots(store, name)
            problems += damage.values()
            for rows in row_chunks(arrays[name]) if damage else ():
                is_lost = np.isin(arrays[name][rows], list(damage))
                arrays[name][rows][is_lost] = 0
                is_damaged[rows] |= is_lost
    return is_damaged


def _replace(
    arrays: dict[str, Any], is_damaged: NDArray[np.bool_], by_age: NDArray[np.int64], values: dict[str, Any]
) -> None:
    """Overwrite damaged transitions with the nearest undamaged ones."""
    is_whole = ~is_damaged[by_age]
    if not is_whole.any():
        values.update(pos=0, full=False)
        return
    rings = [array for array in arrays.values() if array.shape[:2] == is_damaged.shape]
    spare_env = int(is_whole.any(axis=0).argmax())
    for env in range(is_damaged.shape[1]):
        source_env = env if is_whole[:, env].any() else spare_env
        whole, damaged = np.flatnonzero(is_whole[:, source_env]), np.flatnonzero(~is_whole[:, env])
        place = np.searchsorted(whole, damaged)
        before, after = whole[np.maximum(place - 1, 0)], whole[np.minimum(place, len(whole) - 1)]
        nearest = np.where(np.abs(damaged - before) <= np.abs(after - damaged), before, after)
        for array in rings:
            array[by_age[damaged], env] = array[by_age[nearest], source_env]
        # Sequences of steps end with a replaced transition, and with the one before it.
        ends = by_age[np.unique(np.concatenate([damaged, damaged[damaged > 0] - 1]))]
        arrays["timeouts"][ends, env] = np.where(arrays["dones"][ends, env] == 0, 1, arrays["timeouts"][ends, env])
