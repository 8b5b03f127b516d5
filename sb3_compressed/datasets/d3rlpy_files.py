"""HDF5 files of d3rlpy, read and written in pieces.

A file of version 2.1, which ``d3rlpy.dataset.dump`` writes, contains the columns of each episode, one HDF5 dataset
each: ``observations_0`` ``(n_rows, *obs_shape)``, or ``observations_0_0``, ``observations_0_1``... for tuples,
``actions_0`` ``(n_rows, *action_shape)``, ``rewards_0`` ``(n_rows, 1)`` and ``terminated_0``, a flag. It also contains
``columns``, ``num_episodes`` and ``version``. A file of d3rlpy 1, which is not supported, contains all episodes in
``observations``.

Source: ``dump`` and ``load`` in https://github.com/takuseno/d3rlpy, ``d3rlpy/dataset/io.py``.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed.common.extras import import_extra
from sb3_compressed.datasets.d3rlpy_episodes import EpisodeSource, Rows, StoredEpisode, damage_of
from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError
from sb3_compressed.storage.files import completed_file
from sb3_compressed.storage.json_schema import load_json, optional, parse
from sb3_compressed.storage.spaces import parse_space, space_from_data, space_nbytes, space_to_data

__all__ = [
    "MAX_FRAME_STACK",
    "Description",
    "EpisodeWriter",
    "episode_writer",
    "import_h5py",
    "open_file",
    "read_description",
    "read_episodes",
]

VERSION = "2.1"
COLUMNS = ("observations", "actions", "rewards", "terminated")
#: A dataset that d3rlpy ignores: the exported buffer's spaces, and the number of frames of an observation, as JSON.
DESCRIPTION = "sb3_compressed"
#: An array of a file may be so many times as large as the file: gzip compresses no better. A smaller array may have
#: any size, since chunks that were never written take no space.
MAX_RATIO, MAX_NBYTES = 1032, 1 << 26
#: More frames are a mistake, or an attack.
MAX_FRAME_STACK = 256
#: Bytes that HDF5 compresses at once; its cache of decompressed chunks has 1 MB.
CHUNK_NBYTES = 1 << 19
#: Bytes of the disk that stay free: HDF5 has so much in its cache, and crashes if it cannot write it.
RESERVED_NBYTES = 1 << 25


def import_h5py() -> Any:
    """Import h5py.

    :raises ImportError: if it is not installed; the message names the command that installs it
    """
    return import_extra("h5py", "d3rlpy", "HDF5 files")


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Open a file for reading.

    :raises CheckpointNotFound: if there is none
    :raises CorruptStorage: if it is damaged, or not an HDF5 file
    """
    h5py = import_h5py()
    if not path.is_file():
        raise CheckpointNotFound(f"{path} is not a file")
    with damage_of(str(path)):
        file = h5py.File(path, "r")
    with file:
        yield file


# -- reading ----------------------------------------------------------------------------------------------------------


def read_episodes(file: Any, path: Path) -> EpisodeSource:
    """Return the episodes of a file.

    :param file: the open file
    :param path: its path, for error messages
    :raises CorruptStorage: if it is damaged
    :raises StorageError: if d3rlpy did not write it
    """
    with damage_of(str(path)):
        if "observations" in file:
            raise StorageError(f"{path} is of d3rlpy 1; read it with load_v1 of d3rlpy 2 and dump its episodes")
        version = _text(file, "version", path)
        if version != VERSION:
            raise StorageError(
                f"{path} has version {version}, expected {VERSION}: load and dump it with a newer d3rlpy"
            )
        n_episodes = _number(file, "num_episodes", path, "iu")
        if n_episodes < 0:
            raise CorruptStorage(f"{path}: num_episodes is {n_episodes}, expected at least 0")
        if n_episodes and not _has_episode(file, n_episodes - 1):
            raise CorruptStorage(f"{path}: num_episodes is {n_episodes}, but there are fewer episodes")
        if _has_episode(file, n_episodes):
            raise CorruptStorage(f"{path}: num_episodes is {n_episodes}, but there are more episodes")
    return EpisodeSource(n_episodes, partial(_read_episode, file, path), str(path))


def _has_episode(file: Any, index: int) -> bool:
    return any(f"observations_{index}{part}" in file for part in ("", "_0"))


def _read_episode(file: Any, path: Path, index: int) -> StoredEpisode:
    with damage_of(f"{path}: episode {index}"):
        names, is_tuple = [f"observations_{index}"], f"observations_{index}_0" in file
        if is_tuple:
            parts = (f"observations_{index}_{number}" for number in count())
            names = [*takewhile(file.__contains__, parts)]
        return StoredEpisode(
            tuple(_column(file, name, path) for name in names),
            is_tuple,
            _column(file, f"actions_{index}", path),
            _column(file, f"rewards_{index}", path),
            bool(_number(file, f"terminated_{index}", path, "biu")),
            f"{path}: episode {index}",
        )


def _column(file: Any, name: str, path: Path) -> Rows:
    dataset = _dataset(file, name, path)
    if not dataset.ndim:
        raise StorageError(f"{path}: {name!r} must be an array, got a single value")
    limit = max(MAX_NBYTES, MAX_RATIO * path.stat().st_size)
    if dataset.nbytes > limit:
        raise CorruptStorage(f"{path}: {name!r} declares {dataset.nbytes:,} bytes, more than the file can contain")
    return Rows(dataset, f"{path}: {name}")


def _number(file: Any, name: str, path: Path, kinds: str) -> int:
    """Return the content of a dataset of one number.

    :raises CorruptStorage: if it is something else
    """
    dataset = _dataset(file, name, path)
    if dataset.shape != () or dataset.dtype.kind not in kinds:
        raise CorruptStorage(f"{path}: {name!r} must be one number, got {dataset.dtype} of shape {dataset.shape}")
    return int(dataset[()])


def _dataset(file: Any, name: str, path: Path, kinds: str = "biuf") -> Any:
    """Return a dataset, which must be in this file: an untrusted one could refer to any other.

    :raises StorageError: if there is none, or it is not one that d3rlpy writes
    """
    h5py = import_h5py()
    link = file.get(name, getlink=True)
    found = file[name] if isinstance(link, h5py.HardLink) else None
    if link is None:
        raise StorageError(f"{path} has no dataset {name!r}, which files of d3rlpy contain")
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise StorageError(f"{path}: {name!r} must be a dataset in the file itself")
    if found.dtype.kind not in kinds:
        raise StorageError(f"{path}: {name!r} has the dtype {found.dtype}, which no file of d3rlpy has there")
    return found


def _text(file: Any, name: str, path: Path) -> str:
    """Return the content of a dataset of text."""
    dataset = _dataset(file, name, path, "OS")
    if import_h5py().check_string_dtype(dataset.dtype) is None or dataset.shape != ():
        raise StorageError(f"{path}: {name!r} must be text")
    content: bytes = dataset[()]
    return content.decode(errors="replace")


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """What an export adds to a file.

    :param observation_space: the space of the exported buffer
    :param action_space: likewise
    :param frame_stack: the number of frames of an observation, of which only the newest is stored; ``None`` if
        observations are stored as they were
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    frame_stack: int | None

    def to_json(self) -> str:
        """Return it as text."""
        data = {name: space_to_data(getattr(self, name)) for name in ("observation_space", "action_space")}
        return json.dumps({**data, "frame_stack": self.frame_stack})


def read_description(file: Any, path: Path, episode: StoredEpisode) -> Description | None:
    """Return what an export added to a file, if anything.

    :param episode: any of the episodes. Spaces are refused if their items are larger than its rows, because the bounds
        of a space take memory
    :raises CorruptStorage: if it is invalid
    """
    with damage_of(f"{path}: {DESCRIPTION}"):
        if DESCRIPTION not in file:
            return None
        text = _text(file, DESCRIPTION, path)
    schema = {"observation_space": parse_space, "action_space": parse_space}
    try:
        data = load_json(text.encode())
        frame_stack = parse({**schema, "frame_stack": optional(range(1, MAX_FRAME_STACK + 1))}, data)["frame_stack"]
        nbytes = sum(rows.row_nbytes for rows in episode.observations) * (frame_stack or 1), episode.actions.row_nbytes
        for name, limit in zip(schema, nbytes, strict=True):
            if space_nbytes(data[name]) > max(limit, 8):
                raise ValueError(f"{name} does not fit rows of {limit} bytes")
        observation_space, action_space = (space_from_data(data[name]) for name in schema)
        return Description(observation_space, action_space, frame_stack)
    except ValueError as error:
        raise CorruptStorage(f"{path}: the dataset {DESCRIPTION!r} is invalid: {error}") from error


@contextmanager
def episode_writer(path: Path, description: Description, gzip_level: int | None) -> Iterator[EpisodeWriter]:
    """Yield the writer of a new file, which appears under its name when it is complete.

    :param path: the file
    :param description: is added to the file
    :param gzip_level: level of HDF5's gzip filter for observations, which then have checksums; ``None`` to store them
        uncompressed
    :raises StorageError: if the file exists
    :raises OSError: if it cannot be written
    """
    h5py = import_h5py()
    if path.exists():
        raise StorageError(f"{path} exists already; delete it, or choose another name")
    with completed_file(path) as unfinished:
        _require_space(unfinished, 0)
        with h5py.File(unfinished, "w") as file:
            file.create_dataset("columns", data=list(COLUMNS))
            file.create_dataset("version", data=VERSION)
            file.create_dataset(DESCRIPTION, data=description.to_json())
            writer = EpisodeWriter(file, unfinished, gzip_level)
            yield writer
            file.create_dataset("num_episodes", data=writer.n_episodes)
        with open_file(unfinished) as file:
            read_episodes(file, unfinished)  # raises if the number of episodes is another one


def _require_space(path: Path, nbytes: int) -> None:
    """Raise if the disk has no room for more bytes.

    :raises OSError: if it has not
    """
    if shutil.disk_usage(path.parent).free < nbytes + RESERVED_NBYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class EpisodeWriter:
    """Writes episodes to an open file.

    :ivar n_episodes: their number
    """

    def __init__(self, file: Any, path: Path, gzip_level: int | None) -> None:
        self._file, self._path, self._gzip_level, self.n_episodes = file, path, gzip_level, 0

    def add(
        self,
        observations: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        *,
        is_tuple: bool,
        terminated: bool,
    ) -> Callable[[int, Sequence[NDArray[Any]]], None]:
        """Begin an episode, and return the function that writes its observations from a row on.

        :param observations: shape and dtype of each part of an observation
        :param actions: ``(n_rows, *action_shape)``
        :param rewards: ``(n_rows, 1)``
        :param is_tuple: whether observations are tuples
        :param terminated: whether the episode terminated
        :raises OSError: if the disk is full, as the returned function does
        """
        _require_space(self._path, actions.nbytes + rewards.nbytes)
        index, self.n_episodes = self.n_episodes, self.n_episodes + 1
        parts = []
        for number, (shape, dtype) in enumerate(observations):
            name = f"observations_{index}_{number}" if is_tuple else f"observations_{index}"
            options: dict[str, Any] = {}
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if self._gzip_level is not None and nbytes:
                chunk = min(len(actions), max(1, CHUNK_NBYTES // nbytes)), *shape
                options = {"chunks": chunk, "fletcher32": True}
                options |= {"compression": "gzip", "compression_opts": self._gzip_level}
            parts.append(self._file.create_dataset(name, (len(actions), *shape), dtype, **options))
        self._file.create_dataset(f"actions_{index}", data=actions)
        self._file.create_dataset(f"rewards_{index}", data=rewards)
        self._file.create_dataset(f"terminated_{index}", data=terminated)

        def write(first: int, values: Sequence[NDArray[Any]]) -> None:
            _require_space(self._path, sum(rows.nbytes for rows in values))
            for dataset, rows in zip(parts, values, strict=True):
                dataset[first : first + len(rows)] = rows

        return write
