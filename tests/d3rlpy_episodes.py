"""Episodes of d3rlpy, files with them, and the transitions that d3rlpy has for them, without d3rlpy itself.

``test_d3rlpy_library.py`` verifies that d3rlpy reads these files, and that its transitions are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

N_ACTIONS = 5
LENGTHS = (7, 1, 23, 2, 1, 12)  # the episodes of one row have one transition, or none


@dataclass
class Episode:
    """The attributes of ``d3rlpy.dataset.Episode``."""

    observations: Any
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: bool


def new_episodes(kind: str, *, is_discrete: bool = True, seed: int = 0) -> list[Episode]:
    """Return random episodes, of which every other terminated.

    :param kind: of observations: ``frames``, ``vectors`` or ``tuples`` of these
    """
    rng = np.random.default_rng(seed)
    episodes = []
    for number, n in enumerate(LENGTHS):
        frames, vectors = rng.integers(0, 256, (n, 2, 5, 4), np.uint8), rng.standard_normal((n, 3), np.float32)
        observations: Any = {"frames": frames, "vectors": vectors, "tuples": [frames, vectors]}[kind]
        actions = rng.integers(0, N_ACTIONS, (n, 1)) if is_discrete else rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        if is_discrete and not number:
            actions[0] = N_ACTIONS - 1
        episodes.append(Episode(observations, actions, rng.standard_normal((n, 1), np.float32), number % 2 == 0))
    return episodes


def write_file(path: Path, episodes: list[Episode], version: str = "2.1") -> Path:
    """Write a file as ``d3rlpy.dataset.dump`` does."""
    with h5py.File(path, "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"] = len(episodes)
        for number, episode in enumerate(episodes):
            if isinstance(episode.observations, list):
                for index, part in enumerate(episode.observations):
                    file[f"observations_{number}_{index}"] = part
            else:
                file[f"observations_{number}"] = episode.observations
            file[f"actions_{number}"] = episode.actions
            file[f"rewards_{number}"] = episode.rewards
            file[f"terminated_{number}"] = episode.terminated
        file["version"] = version
    return path


def read_file(path: Path) -> list[Episode]:
    """Read a file as ``d3rlpy.dataset.load`` does."""
    episodes = []
    with h5py.File(path) as file:
        assert file["version"][()] == b"2.1"
        assert [*file["columns"][()]] == [b"observations", b"actions", b"rewards", b"terminated"]
        for number in range(file["num_episodes"][()]):
            name = f"observations_{number}"
            n_parts = sum(key.startswith(f"{name}_") for key in file)
            observations = file[name][()] if name in file else [file[f"{name}_{i}"][()] for i in range(n_parts)]
            columns = [file[f"{column}_{number}"][()] for column in ("actions", "rewards", "terminated")]
            episodes.append(Episode(observations, *columns))
    return episodes


def transitions(episodes: list[Episode], n_frames: int = 1) -> list[tuple[Any, Any, NDArray[Any], float, bool, bool]]:
    """Return observation, next observation, action, reward, and whether the episode terminated or was cut there."""
    found = []
    for episode in episodes:
        n = len(episode.actions) - (not episode.terminated)
        for step in range(n):
            is_end = step == n - 1
            obs = observation(episode, step, n_frames)
            if is_end and episode.terminated:
                next_obs = [np.zeros_like(part) for part in obs] if isinstance(obs, list) else np.zeros_like(obs)
            else:
                next_obs = observation(episode, step + 1, n_frames)
            flags = is_end and episode.terminated, is_end and not episode.terminated
            found.append((obs, next_obs, episode.actions[step], float(episode.rewards[step, 0]), *flags))
    return found


def observation(episode: Episode, step: int, n_frames: int) -> Any:
    """Return an observation of an episode, with zeros before its first frame."""

    def stacked(part: NDArray[Any]) -> NDArray[Any]:
        frames = [part[i] if i >= 0 else np.zeros_like(part[0]) for i in range(step - n_frames + 1, step + 1)]
        return frames[-1] if n_frames == 1 else np.concatenate(frames)

    parts = episode.observations
    return [stacked(part) for part in parts] if isinstance(parts, list) else stacked(parts)
