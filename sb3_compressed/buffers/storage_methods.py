"""What replay buffers do with folders: ``flush``, ``joint_commit``, ``save_checkpoint``, ``from_checkpoint``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_compressed.buffers.array_formats import restore_formats
from sb3_compressed.buffers.buffer_from_store import buffer_from_store, open_to_load
from sb3_compressed.buffers.sampler_methods import SamplerMethods
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.buffer_repair import RepairReport
from sb3_compressed.persistence.buffer_storage import BufferStorage, JointCommit
from sb3_compressed.persistence.checkpoint import CheckpointHistory

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StorageMethods"]


class StorageMethods(SamplerMethods):
    """Methods of replay buffers for folders, which :class:`.BufferStorage` writes and reads."""

    #: What was excluded when the buffer was loaded or resumed with a repair, ``None`` without one.
    repair_report: RepairReport | None = None
    #: The folder that observations are stored in, ``None`` for a buffer in memory.
    _storage: BufferStorage | None = None

    @cached_property
    def _checkpoints(self) -> CheckpointHistory:
        """The folders that it was saved to or loaded from."""
        return CheckpointHistory()

    @property
    def is_in_memory(self) -> bool:
        """Whether compressed observations are in memory, not in a folder."""
        return self._storage is None

    @property
    def folder(self) -> Path | None:
        """The folder with the compressed observations, ``None`` if they are in memory."""
        return None if self._storage is None else self._storage.folder

    def joint_commit(self, n_steps: int) -> AbstractContextManager[None]:
        """Commit what the block adds to the folder at once, which takes less time than after each ``add``.

        If the process is killed within the block, the folder contains nothing of it. For buffers in memory, those with
        hindsight replay, blocks within another block, and those of as many steps as the buffer has rows or more, this
        does nothing.

        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from sb3_compressed import CompressedReplayBuffer
        >>> buffer = CompressedReplayBuffer(
        ...     100, spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2)
        ... )
        >>> frames = np.zeros((1, 2, 84, 84), np.uint8)
        >>> with buffer.joint_commit(50):
        ...     for step in range(50):
        ...         buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([False]), [{}])

        :param n_steps: the most steps that the block adds
        :raises StorageError: if the folder is closed or open for reading only, or when the block adds more steps
        :raises OSError: if the steps cannot be written; the buffer is then as it was before the block
        """
        storage = self._storage
        if storage is None or n_steps >= self.buffer_size or storage.is_in_joint_commit:
            return nullcontext()
        return JointCommit(storage, self, n_steps)

    def flush(self) -> None:
        """Write everything to the disk, including direct writes to arrays, so that it survives a power cut.

        :raises StorageError: if the buffer is in memory, see :meth:`save_checkpoint`, or its folder is closed or open
            for reading only
        """
        if self._storage is None:
            raise StorageError("flush() is for buffers with storage=<folder>; this one is in memory")
        self._storage.flush(self)

    def close(self) -> None:
        """Flush and release the folder. The buffer can still be sampled, but not added to."""
        if self._storage is not None:
            self._storage.close(self)

    def refresh(self) -> bool:
        """Read what another process has written to the folder since the last call; return whether it wrote anything.

        :raises StorageError: if the buffer does not follow a folder
        """
        if self._storage is None or not self._storage.is_follower:
            raise StorageError("only a buffer that follows a folder can be refreshed; see from_checkpoint")
        return self._storage.refresh(self)

    def save_checkpoint(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Save the buffer to a folder: all of it the first time, then what changed since.

        Saves are atomic: after a crash, the last complete save is still there. Arrays that were assigned to the buffer,
        such as ``rewards`` of float64, are cast to SB3's dtypes before, as a load requires them.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether to replace another buffer in the folder
        :raises StorageError: if the folder contains another buffer or other files, or the buffer could not be loaded
        :raises OSError: if it cannot be written; the folder is as it was
        """
        path = user_path(folder).absolute()
        if self._storage is not None and self._storage.folder.resolve() == path.resolve():
            self.flush()
            return
        restore_formats(self, self._formats, self._new_arrays)
        self._checkpoints.save(self, path, overwrite=overwrite)

    def save_latest(self, folder: str | PathLike[str]) -> None:
        """Save to a folder, or flush a buffer that is in a folder; :meth:`copy_checkpoint` copies the result.

        :param folder: receives what changed since the last save there
        """
        if self._storage is None:
            self.save_checkpoint(folder, overwrite=True)
        else:
            self.flush()

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save or flush to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or the folder is not empty
        :raises OSError: if it cannot be written
        """
        latest = self._storage or self._checkpoints.latest
        if latest is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        latest.store.copy_to(user_path(folder))

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | PathLike[str],
        *,
        buffer_size: int | None = None,
        follow: bool = False,
        repair: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load the buffer in a folder.

        :param buffer_size: number of transitions of the new buffer, ``None`` for that of the saved one; if it is
            smaller, the newest transitions are loaded
        :param follow: whether to read the folder in place instead of loading it, while another process may write to
            it; :meth:`refresh` reads what that has added
        :param repair: whether to exclude damaged transitions instead of raising; :attr:`repair_report` lists them. The
            folder does not change
        :param kwargs: arguments of the constructor that override the stored ones, such as ``device``, or ``env`` for
            hindsight replay
        :raises ValueError: if an argument is invalid
        :raises TypeError: if one is unknown, or of the wrong type
        :raises StorageError: if the folder contains no buffer, or one of another kind
        :raises CorruptStorage: if a file is damaged, or declares more than is plausible, as for
            :func:`~sb3_compressed.load_checkpoint`
        """
        kwargs["buffer_size"] = buffer_size
        return buffer_from_store(cls, open_to_load(folder, kwargs, repair=repair, follow=follow), kwargs, follow=follow)
