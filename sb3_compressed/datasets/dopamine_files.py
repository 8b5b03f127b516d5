"""Files of Dopamine's replay buffer, which the DQN Replay data set consists of, read in pieces.

A checkpoint N of a buffer of ``n_rows`` rows consists of gzip-compressed ``.npy`` files, one for each array:
``$store$_observation_ckpt.N.gz`` with single frames ``(n_rows, height, width)``, ``$store$_action_ckpt.N.gz``,
``$store$_reward_ckpt.N.gz`` and ``$store$_terminal_ckpt.N.gz``, each ``(n_rows,)``, and ``add_count_ckpt.N.gz``, the
number of rows that were ever added, from which the position in the ring follows. The other files are not read.

Source: ``OutOfGraphReplayBuffer`` in https://github.com/google/dopamine,
``dopamine/replay_memory/circular_replay_buffer.py``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal import igzip, isal_zlib
from numpy.lib import format as npy
from numpy.typing import NDArray

from sb3_compressed.errors import CheckpointNotFound, CorruptStorage, StorageError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoint", "NpyReader", "checkpoint_numbers", "checkpoint_path", "open_checkpoint"]

#: Arrays with one element for each row, and the kinds of their dtypes.
STORED: dict[str, str | tuple[str, ...]]
STORED = {"observation": "u1", "action": ("i", "u"), "reward": "f", "terminal": ("b", "u")}
#: No training adds as many rows. A larger count is damaged, and would select rows that were never written.
MAX_ADD_COUNT = 1 << 48


def checkpoint_path(folder: Path, name: str, number: int) -> Path:
    """Return the path of an array of a checkpoint."""
    prefix = "$store$_" if name in STORED else ""
    return folder / f"{prefix}{name}_ckpt.{number}.gz"


def checkpoint_numbers(folder: Path) -> list[int]:
    """Return the numbers of all checkpoints in a folder, ascending, including incomplete ones.

    :raises CheckpointNotFound: if there is none
    """
    if not folder.is_dir():
        raise CheckpointNotFound(f"{folder} is not a folder")
    pattern = re.compile(rf"\$store\$_({'|'.join(STORED)})_ckpt\.(\d+)\.gz")
    numbers = {int(match[2]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))}
    if not numbers:
        raise CheckpointNotFound(
            f"{folder} contains no checkpoints of Dopamine, such as {checkpoint_path(folder, 'observation', 0).name}"
        )
    return sorted(numbers)


class NpyReader:
    """A gzip-compressed ``.npy`` file that is decompressed in pieces.

    :param path: the file
    :raises CheckpointNotFound: if it does not exist
    :raises CorruptStorage: if it is not such a file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CheckpointNotFound(f"{path} is missing")
        self._file = igzip.IGzipFile(path, "rb")  # type: ignore[no-untyped-call]
        try:
            with self._reports_damage():
                self.shape, self.dtype = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(self._file))
        if read is None:
            raise ValueError("unknown version of the .npy format")
        shape, fortran_order, dtype = read(self._file)
        if (fortran_order and len(shape) > 1) or dtype.hasobject or any(size < 0 for size in shape):
            raise ValueError(f"unsupported array of shape {shape} and dtype {dtype}")
        return shape, dtype

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read_rows(self, n_rows: int) -> NDArray[Any]:
        """Return the next rows.

        :raises CorruptStorage: if the file is damaged or ends before
        """
        return self._read((n_rows, *self.shape[1:]))

    def read_all(self) -> NDArray[Any]:
        """Return the whole array, and verify the checksum."""
        values = self._read(self.shape)
        self.finish()
        return values

    def _read(self, shape: tuple[int, ...]) -> NDArray[Any]:
        with self._reports_damage():
            content = self._file.read(self._nbytes(shape))
            if len(content) < self._nbytes(shape):
                raise EOFError("it ends too early")
        return np.frombuffer(content, self.dtype).reshape(shape)

    def skip_rows(self, n_rows: int) -> None:
        """Decompress rows without returning them."""
        with self._reports_damage():
            end = self._file.tell() + self._nbytes((n_rows, *self.shape[1:]))
            if self._file.seek(end) < end:  # type: ignore[no-untyped-call]
                raise EOFError("it ends too early")

    def _nbytes(self, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize

    def finish(self) -> None:
        """Verify the checksum after all rows were read.

        :raises CorruptStorage: if it is wrong, or more data follow
        """
        with self._reports_damage():
            if self._file.read(1):
                raise ValueError(f"it contains more than the array of shape {self.shape}")

    @contextmanager
    def _reports_damage(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ValueError, zlib.error, isal_zlib.error, igzip.BadGzipFile) as error:  # type: ignore[misc]
            raise CorruptStorage(f"{self.path} is damaged, or not a gzip-compressed .npy file: {error}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of Dopamine's replay buffer. Its rows are counted from the oldest one, not as in the files.

    :param folder: the folder with its files
    :param number: its number
    :param capacity: rows of the files
    :param frame_shape: shape of a row of observations, ``(height, width)``
    :param add_count: rows that were ever added; ``None`` if there is no such file, and all rows are in order
    """

    folder: Path
    number: int
    capacity: int
    frame_shape: tuple[int, ...]
    add_count: int | None

    @property
    def n_rows(self) -> int:
        """Number of rows that were written."""
        return self.capacity if self.add_count is None else min(self.add_count, self.capacity)

    @property
    def oldest(self) -> int:
        """Position of the oldest row in the files."""
        is_full = self.add_count is not None and self.add_count > self.capacity
        return self.add_count % self.capacity if is_full and self.add_count is not None else 0

    def path(self, name: str) -> Path:
        """Return the path of one of its arrays."""
        return checkpoint_path(self.folder, name, self.number)

    def column(self, name: str) -> NDArray[Any]:
        """Return actions, rewards or terminal flags ``(n_rows,)``, oldest first."""
        with NpyReader(self.path(name)) as file:
            values = file.read_all()
        return np.concatenate([values[self.oldest :], values[: self.oldest]])[: self.n_rows]

    def terminals(self) -> NDArray[np.bool_]:
        """Return the column of terminal flags.

        :raises CorruptStorage: if it contains anything but 0 and 1, such as rows that were never written
        """
        values = self.column("terminal")
        if len(wrong := values[(values != 0) & (values != 1)]):
            raise CorruptStorage(f"{self.path('terminal')} contains {wrong[0]}, expected 0 or 1")
        return values.astype(np.bool_)

    def frames(self, first: int, chunk_size: int) -> Iterator[NDArray[np.uint8]]:
        """Yield frames ``(n, height, width)``, oldest first, at most ``chunk_size`` at a time.

        The newer part of a ring precedes the older one in the file, which is then decompressed twice.

        :param first: the row to start with
        """
        begin, end = self.oldest + first, self.oldest + self.n_rows
        # Positions beyond the capacity are those from the beginning of the file.
        older = begin, min(end, self.capacity)
        newer = max(begin - self.capacity, 0), end - self.capacity
        is_verified = False
        for start, stop in (older, newer):
            if start >= stop:
                continue
            with NpyReader(self.path("observation")) as file:
                file.skip_rows(start)
                for at in range(start, stop, chunk_size):
                    yield file.read_rows(min(chunk_size, stop - at))
                if not is_verified:
                    file.skip_rows(self.capacity - stop)
                    file.finish()
                    is_verified = True


def open_checkpoint(folder: Path, number: int) -> Checkpoint:
    """Read the headers of all files of a checkpoint, and its counter.

    :raises CheckpointNotFound: if a file is missing
    :raises CorruptStorage: if a file is damaged
    :raises StorageError: if the files do not belong together, or are not arrays of the expected kind
    """
    shapes = {}
    for name, kinds in STORED.items():
        path = checkpoint_path(folder, name, number)
        with NpyReader(path) as file:
            shapes[name] = file.shape
            n_dims = 3 if name == "observation" else 1
            if not file.dtype.str[1:].startswith(kinds) or len(file.shape) != n_dims:
                raise StorageError(
                    f"{path} contains {file.dtype} of shape {file.shape}, which are not {name}s of Dopamine"
                )
            if file.shape[0] != shapes["observation"][0]:
                raise StorageError(
                    f"{path} has {file.shape[0]:,} rows, but {checkpoint_path(folder, 'observation', number).name} has "
                    f"{shapes['observation'][0]:,}"
                )
    capacity, *frame_shape = shapes["observation"]
    if 0 in shapes["observation"]:
        raise StorageError(f"{checkpoint_path(folder, 'observation', number)} is empty")
    return Checkpoint(folder, number, capacity, tuple(frame_shape), _add_count(folder, number))


def _add_count(folder: Path, number: int) -> int | None:
    """Return how many rows were ever added, ``None`` if there is no such file.

    :raises StorageError: if the file contains anything else
    """
    path = checkpoint_path(folder, "add_count", number)
    if not path.exists():
        return None
    with NpyReader(path) as file:
        if file.shape not in ((), (1,)) or file.dtype.kind not in "iu":
            raise StorageError(f"{path} contains {file.dtype} of shape {file.shape}, expected one integer")
        count = int(file.read_all().item())
    if not 0 <= count <= MAX_ADD_COUNT:
        raise StorageError(f"{path} contains {count}, expected 0 to {MAX_ADD_COUNT}")
    return count
