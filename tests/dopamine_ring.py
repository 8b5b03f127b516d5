"""A ring of rows like Dopamine's replay buffer, and the transitions that it represents."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.datasets.dopamine_files import checkpoint_path

DTYPES = {"action": np.int32, "reward": np.float32, "terminal": np.uint8}


def write_array(path: Path, values: Any) -> None:
    """Write a gzip-compressed ``.npy`` file as Dopamine does."""
    with gzip.open(path, "wb") as file:
        np.save(file, values, allow_pickle=False)


@dataclass
class Ring:
    """Rows of frames, actions, rewards and terminal flags; those of each episode follow rows of zeros.

    :param capacity: rows in the ring
    :param padding: rows of zeros before an episode
    :param shape: shape of a frame
    """

    capacity: int
    padding: int = 3
    shape: tuple[int, int] = (12, 10)
    rows: list[tuple[NDArray[np.uint8], int, float, int]] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # the rows of the first frames of episodes

    def add(self, frame: NDArray[np.uint8], action: int, reward: float, terminal: int) -> None:
        """Add a row, after padding at the beginning of an episode."""
        if not self.rows or self.rows[-1][3]:
            self.rows += [(np.zeros(self.shape, np.uint8), 0, 0.0, 0)] * self.padding
            self.begins.append(len(self.rows))
        self.rows.append((frame, action, reward, terminal))

    def play(self, n_steps: int, rng: np.random.Generator, end: float = 0.08) -> None:
        """Add random steps, among them black frames and episodes of one step."""
        for _ in range(n_steps):
            frame = rng.integers(0, 256, self.shape, np.uint8) * np.uint8(rng.random() > 0.2)
            self.add(frame, int(rng.integers(6)), float(rng.integers(-1, 2)), int(rng.random() < end))

    def save(self, folder: Path, number: int, *, count: int | None = None) -> None:
        """Write a checkpoint.

        :param count: the content of ``add_count``, if it is not the number of rows
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, NDArray[Any]] = {
            "observation": np.full((self.capacity, *self.shape), 99, np.uint8)
        }  # unwritten rows are arbitrary
        arrays |= {name: np.ones(self.capacity, dtype) for name, dtype in DTYPES.items()}
        for at in range(max(0, len(self.rows) - self.capacity), len(self.rows)):
            for values, value in zip(arrays.values(), self.rows[at], strict=True):
                values[at % self.capacity] = value
        for name, values in arrays.items():
            write_array(checkpoint_path(folder, name, number), values)
        write_array(checkpoint_path(folder, "add_count", number), np.array(len(self.rows) if count is None else count))

    def transitions(self, first: int = 0, last: int | None = None, stack: int = 4) -> list[tuple[Any, ...]]:
        """Return observation, next observation, action, reward and done of all transitions between two rows.

        They are those that have all frames of their observation there, or begin their episode there, and the next row
        or the end of the episode.
        """
        last = len(self.rows) if last is None else last
        found = []
        for begin, end in zip(self.begins, [*self.begins[1:], len(self.rows) + self.padding], strict=True):
            stop = end - self.padding
            frames = [np.zeros(self.shape, np.uint8)] * (stack - 1)
            frames += [self.rows[at][0] for at in range(begin, stop)] + [np.zeros(self.shape, np.uint8)]
            for i, at in enumerate(range(begin, stop)):
                _, action, reward, terminal = self.rows[at]
                has_stack = at - (stack - 1) >= first or (begin >= first and first == 0)
                if has_stack and at < last and (terminal or at + 1 < min(last, stop)):
                    obs, next_obs = (np.array(frames[j : j + stack]) for j in (i, i + 1))
                    found.append((obs, next_obs, action, reward, terminal))
        return found
