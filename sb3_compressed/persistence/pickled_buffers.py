"""Pickled replay buffers, as SB3's ``save_replay_buffer`` writes them: detecting and loading them.

Loading a pickle runs the program that it contains, so do it only with files from a source that you trust.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl

from sb3_compressed.errors import StorageError

__all__ = ["is_pickle", "load_pickled_buffer"]


def is_pickle(path: Path) -> bool:
    """Return whether a file begins as pickles do since protocol 2."""
    with open(path, "rb") as file:
        return file.read(1) == pickle.PROTO


def load_pickled_buffer(path: Path) -> ReplayBuffer:
    """Load a pickled replay buffer, which runs any code that the file contains.

    :raises StorageError: if it cannot be loaded, or is something else
    :raises OSError: if the file cannot be read
    """
    try:
        buffer = load_from_pkl(path)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be unpickled: {error}") from error
    if not isinstance(buffer, ReplayBuffer):
        raise StorageError(f"{path} contains a {type(buffer).__name__}, which is not a replay buffer")
    return buffer
