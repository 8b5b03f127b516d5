"""``BufferStorage``: the folder in which a replay buffer stores its observations, with ``storage=<folder>``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numpy.typing import NDArray

from sb3_compressed.arrays.array_replacement import assign_values
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_folder import BufferFolder, checksums_of
from sb3_compressed.persistence.buffer_repair import RepairReport, repair_store
from sb3_compressed.persistence.replay_buffer_like import ReplayBufferLike
from sb3_compressed.persistence.restoring import bind, fit_arrays, restore_values
from sb3_compressed.persistence.sampler_state import is_sampler_array, load_sampler, stored_config
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import RING_ROWS, Change, CommitWriter
from sb3_compressed.storage.lock import FolderLock

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["STORAGE_ARGUMENTS", "BufferStorage", "JointCommit", "StorageLocation", "StorageMode"]

StorageLocation = str | PathLike[str]
"""Where slots are stored: ``"memory"``, ``"device"``, or a folder."""

StorageMode = Literal["create", "resume", "overwrite", "repair"]
"""What to do with a buffer that the folder contains: raise, continue it, replace it, or continue it after a repair."""

#: Arguments of buffers that are about the folder, not about the content.
STORAGE_ARGUMENTS = frozenset({"storage", "storage_mode"})


class StateBefore(NamedTuple):
    """What undoing an ``add``, or a block of them, restores.

    :param rows: copies of the rows that it changes: the array, where they begin, and their content
    :param pos: of the buffer
    :param full: of the buffer
    :param n_uncommitted: the number of changes that were not committed
    """

    rows: list[tuple[NDArray[Any], int, NDArray[Any]]]
    pos: int
    full: bool
    n_uncommitted: int


class BufferStorage:
    """The folder that contains the arrays of a replay buffer, and the changes that are not committed to it yet.

    Each ``add`` is one transaction, between :meth:`begin_row` and :meth:`commit_row`: if the process is
    killed, the folder contains every ``add`` that was completed. The buffer is an argument of each method, since a
    reference to it would be a cycle and delay the release of a deleted buffer's folder.

    :param buffer: the buffer, whose arrays become those of the store
    :param store: the open folder
    :param values: its values
    :param repair_report: what was excluded when it was opened with a repair
    """

    def __init__(
        self,
        buffer: ReplayBufferLike,
        store: ArrayStore,
        values: dict[str, Any],
        repair_report: RepairReport | None = None,
    ) -> None:
        store.log.prepare()
        bind(buffer, store)
        restore_values(buffer, store, values)
        self.store = store
        self.repair_report = repair_report
        #: Whether another process may write to the folder, and this one only reads it.
        self.is_follower = not store.log.is_writable
        #: Rows that were changed and are not committed.
        self._uncommitted: list[Change] = []
        #: How many more rows :class:`JointCommit` commits, ``None`` outside of it.
        self._n_joint_rows: int | None = None
        #: The row that was written next at the last commit.
        self._committed_pos = buffer.pos
        #: The last step of the store at the last flush.
        self._flushed_step = store.step
        #: The state before the last ``add``, or block of :class:`JointCommit`.
        self._before = StateBefore([], 0, False, 0)
        # Looked up once, since that takes time and they do not change.
        self._arrays = buffer_state.named_arrays(buffer)
        self._slotted = {name: each for name, each in self._arrays.items() if store.specs[name].is_table}
        self._buffer_folder = BufferFolder(buffer, store, store.arrays, is_saved=not self.is_follower)

    @classmethod
    def open(cls, buffer: ReplayBufferLike, location: StorageLocation | ArrayStore, mode: StorageMode) -> BufferStorage:
        """Open a folder for a new buffer, and load into the buffer what the folder contains.

        :param location: the folder, or an open store that the buffer follows
        :raises StorageError: if the folder contains a buffer and the mode is ``"create"``, or a buffer of another kind
        :raises CorruptStorage: if the folder is damaged
        """
        if isinstance(location, ArrayStore):
            return cls._follow(buffer, location)
        folder = user_path(location)
        lock = FolderLock(folder)
        try:
            if mode in ("create", "overwrite"):
                return cls._create(buffer, folder, lock, overwrite=mode == "overwrite")
            return cls._resume(buffer, folder, lock, repair=mode == "repair")
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _create(cls, buffer: ReplayBufferLike, folder: Path, lock: FolderLock, *, overwrite: bool) -> BufferStorage:
        values, _ = buffer_state.values_and_codecs(buffer, buffer_state.last_arrays(buffer))
        metadata, specs = buffer_state.metadata(buffer), buffer_state.array_specs(buffer)
        writer = CommitWriter.create(folder, metadata, specs, values, overwrite=overwrite, lock=lock)
        return cls(buffer, writer.store, values)

    @classmethod
    def _resume(cls, buffer: ReplayBufferLike, folder: Path, lock: FolderLock, *, repair: bool) -> BufferStorage:
        store = ArrayStore.open(folder, lock=lock, rows=buffer.buffer_size, repair=repair)
        try:
            report = repair_store(store) if repair else None
            arrays, values = fit_arrays(store, buffer)
            old, n_kept = len(store.arrays["actions"]), buffer.buffer_size if values["full"] else values["pos"]
            n_stored = old - buffer.optimize_memory_usage if store.values["full"] else store.values["pos"]
            n_removed = n_stored - n_kept
            if buffer.buffer_size < old and n_removed > 0:
                warn_user(
                    f"{folder}: the oldest {n_removed * buffer.n_envs:,} transitions do not fit into buffer_size="
                    f"{buffer.buffer_size * buffer.n_envs} and are removed"
                )
            if "sampler" in store.values and "sampler" not in values:
                ours = "'uniform'" if buffer.bound_sampler is None else repr(buffer.bound_sampler.configuration)
                warn_user(
                    f"{folder} contains the state of the sampler {stored_config(store)}, which is removed "
                    f"since this buffer has sampler={ours}"
                )
            if arrays is not store.arrays or report is not None:
                metadata, specs = buffer_state.metadata(buffer), buffer_state.array_specs(buffer)
                CommitWriter(store).replace_content(metadata, specs, arrays, values, store.read_codecs())
            return cls(buffer, store, values, report)
        except BaseException:
            store.close()
            raise

    @classmethod
    def _follow(cls, buffer: ReplayBufferLike, store: ArrayStore) -> BufferStorage:
        """Read a folder in place, to which another process may be writing.

        :param store: the folder, open for reading
        :raises StorageError: if it contains no buffer, or a buffer of another kind or size
        """
        _, values = fit_arrays(store, buffer)
        if len(store.arrays["actions"]) != buffer.buffer_size:
            raise StorageError(f"a buffer that follows {store.log.folder} must have its size")
        return cls(buffer, store, values)

    @property
    def folder(self) -> Path:
        """The folder."""
        return self.store.log.folder

    def require_writable(self, participle: str) -> None:
        """Raise if the folder is closed or open for reading only.

        :param participle: what was not done, for the message, such as ``"added"``
        """
        if not self.store.log.is_writable:
            raise StorageError(f"{self.folder} is closed or open for reading only; nothing was {participle}")

    def begin_row(self, buffer: ReplayBufferLike, done: Any) -> None:
        """Record what the next ``add`` changes, before it does.

        A row that is not written whole, or whose commit fails, is undone.

        :param done: whether episodes end with it, ``(n_envs,)``
        """
        if self.is_in_joint_commit:
            self.count_joint_rows(1)
            return
        self._take_direct_writes(buffer)
        changes = self._ring_changes(buffer, buffer.pos, 1)
        if (episodes := buffer.episodes) is not None:
            changes += episodes.changes_of_row(buffer.pos, done)
        self._before = self._state_before(buffer, changes)
        self._uncommitted += changes

    @property
    def is_in_joint_commit(self) -> bool:
        """Whether a block of :class:`JointCommit` is running."""
        return self._n_joint_rows is not None

    def count_joint_rows(self, n_rows: int) -> None:
        """Count rows that are about to be added in a block of :class:`JointCommit`.

        :raises StorageError: if these are more than it announced
        """
        if self._n_joint_rows is None or n_rows > self._n_joint_rows:
            raise StorageError("a block of joint_commit added more steps than it announced")
        self._n_joint_rows -= n_rows

    def _take_direct_writes(self, buffer: ReplayBufferLike) -> None:
        # Rows in a shorter ring would be committed with a position of the whole one.
        buffer_state.require_buffer_size(buffer, self.store.n_ring_rows, f"nothing was added to {self.folder}")
        # Rows that were added by SB3's own method, as by ReplayBuffer.add(buffer, ...).
        if n_rows := (buffer.pos - self._committed_pos) % buffer.buffer_size:
            self._uncommitted += self._ring_changes(buffer, self._committed_pos, n_rows)
            if buffer.episodes is not None:
                self._uncommitted += buffer.episodes.all_changes()
        # After a whole lap of such steps, pos is as before. Their observations tell which rows they wrote.
        rows = {int(row) for array in self._slotted.values() for row in array.take_direct_writes()}
        self._uncommitted += [(name, row, row + 1) for row in sorted(rows) for name in self.store.ring_names]

    def _ring_changes(self, buffer: ReplayBufferLike, row: int, n_rows: int) -> list[Change]:
        """Return what adding rows from ``row`` on changes."""
        changes: list[Change] = [(RING_ROWS, *span) for span in _spans(row, n_rows, buffer.buffer_size)]
        if changes and buffer.optimize_memory_usage:  # the last next observation is in the following row
            following = (row + n_rows) % buffer.buffer_size
            names = [name for name in self.store.ring_names if buffer_state.is_observation(name)]
            changes += [(name, following, following + 1) for name in names]
        return changes

    def joint_commit(self, buffer: ReplayBufferLike, n_rows: int) -> AbstractContextManager[None]:
        """Return a block of :class:`JointCommit`; one that does nothing within another, or for too many rows."""
        if n_rows >= buffer.buffer_size or self.is_in_joint_commit:
            return nullcontext()
        return JointCommit(self, buffer, n_rows)

    def begin_joint_rows(self, buffer: ReplayBufferLike, n_rows: int) -> None:
        """Begin a block of :class:`JointCommit`."""
        self.require_writable("added")
        self.take_replaced_arrays(buffer)
        self._take_direct_writes(buffer)
        self._before = self._state_before(buffer, self._ring_changes(buffer, buffer.pos, n_rows))
        self._n_joint_rows = n_rows

    def end_joint_rows(self, buffer: ReplayBufferLike, *, is_complete: bool) -> None:
        """End the block, unless it has ended; commit its rows, or undo them after an exception.

        :raises OSError: if they cannot be written; the buffer is then as it was before the block
        """
        if not self.is_in_joint_commit:
            return
        if not is_complete:
            self._undo(buffer)
            self._n_joint_rows = None  # after Ctrl-C, this is repeated only while the block has not ended
            return
        n_added = (buffer.pos - self._before.pos) % buffer.buffer_size
        self._uncommitted += self._ring_changes(buffer, self._before.pos, n_added)
        self._n_joint_rows = None
        self.commit_row(buffer)
        if buffer.bound_sampler is not None:  # not before: rows of a commit that fails are undone
            buffer.bound_sampler.add_rows(buffer, n_added)

    def _state_before(self, buffer: ReplayBufferLike, changes: list[Change]) -> StateBefore:
        """Return the present state, with copies of the rows that are changed next."""
        arrays = self.store.arrays
        rows = [
            (arrays[each], first, arrays[each][first:last].copy())
            for name, first, last in changes
            for each in (self.store.ring_names if name == RING_ROWS else [name])
        ]
        return StateBefore(rows, buffer.pos, buffer.full, len(self._uncommitted))

    def undo_row(self, buffer: ReplayBufferLike) -> None:
        """Restore the state before the last ``add``, which failed; in a block of :class:`JointCommit`, its end does."""
        if not self.is_in_joint_commit:
            self._undo(buffer)

    def _undo(self, buffer: ReplayBufferLike) -> None:
        before = self._before
        for array, first, content in before.rows:
            array[first : first + len(content)] = content
        buffer.pos, buffer.full = before.pos, before.full
        del self._uncommitted[before.n_uncommitted :]
        if buffer.bound_sampler is not None:
            buffer.bound_sampler.synchronize(buffer)

    def commit_row(self, buffer: ReplayBufferLike) -> None:
        """Commit everything that is not committed yet.

        :raises OSError: if it cannot be written; the buffer is then as it was before the last ``add``
        """
        if self._n_joint_rows is not None:
            return
        self.take_replaced_arrays(buffer)
        try:
            # After an interrupted add, changes may be listed twice.
            self._buffer_folder.commit(buffer, dict.fromkeys(self._uncommitted))
        except Exception:
            self.undo_row(buffer)
            raise
        self._uncommitted, self._committed_pos = [], buffer.pos

    def take_replaced_arrays(self, buffer: ReplayBufferLike) -> None:
        """Copy arrays that replaced those of the folder, as after ``buffer.rewards = array``, to these.

        :raises ValueError: if their shape or a value does not fit
        :raises TypeError: if they are not numeric
        """
        given = {name: buffer_state.get_array(buffer, name) for name in self._arrays}
        replaced = [name for name, own in self._arrays.items() if given[name] is not own]
        # Users release the memory of observations by None or del; here they take none.
        copied = {name: self._arrays[name] for name in replaced if given[name] is not None or name not in self._slotted}
        assign_values(copied, given)
        for name in replaced:
            buffer_state.put_array(buffer, name, self._arrays[name])
            if name not in self._slotted:
                self._uncommitted.append((name, 0, len(self._arrays[name])))

    def _new_rows(self, buffer: ReplayBufferLike) -> list[Change]:
        """Return the rows that were added since the last flush, which may have been written to directly since."""
        n_rows = buffer.buffer_size
        n_added = self.store.step_at(buffer.pos, n_rows) - self._flushed_step
        n_new = min(n_added + 1, n_rows)  # and the next one
        spans = _spans((buffer.pos + 1 - n_new) % n_rows, n_new, n_rows)
        changes: list[Change] = [(name, *span) for name in self.store.ring_names for span in spans]
        if n_added and buffer.episodes is not None:  # episodes begin in earlier rows
            changes += buffer.episodes.all_changes()
        return changes

    def flush(self, buffer: ReplayBufferLike) -> None:
        """Write everything to the disk, including direct writes to arrays.

        :raises StorageError: if the folder is closed or open for reading only, or within a block of
            :class:`JointCommit`, whose rows may be undone
        """
        self.require_writable("flushed")
        if self.is_in_joint_commit:
            raise StorageError("a block of joint_commit cannot be flushed; flush after it")
        self.take_replaced_arrays(buffer)
        buffer_state.require_loadable(buffer, self.folder)
        self._buffer_folder.save(buffer, [*self._uncommitted, *self._new_rows(buffer)])
        self._uncommitted, self._committed_pos = [], buffer.pos
        self._flushed_step = self.store.step

    def close(self, buffer: ReplayBufferLike) -> None:
        """Flush and release the folder; the buffer can still be sampled."""
        if self.store.log.is_writable:
            self.flush(buffer)
        self._buffer_folder.close()

    def refresh(self, buffer: ReplayBufferLike) -> bool:
        """Read what another process has written since the last call; return whether it wrote anything.

        :raises StorageError: if an array of the buffer was replaced, which would keep its content
        """
        for name, own in self._arrays.items():
            array = buffer_state.get_array(buffer, name)
            # Users release the memory of observations by None or del.
            if array is not own and (array is not None or name not in self._slotted):
                raise StorageError(
                    f"{name} was replaced, so it would not show what is read from {self.folder}: change "
                    "copy.deepcopy(buffer) instead, which follows no folder"
                )
        is_new = True
        step, sampler = self.store.step, self._stored_sampler()
        try:
            is_new = self.store.refresh()
        finally:  # what was read before an error is consistent
            if is_new:
                is_loaded = self._stored_sampler() != sampler and load_sampler(buffer, self.store)
                if not is_loaded and buffer.bound_sampler is not None:
                    buffer.bound_sampler.n_unreported = max(self.store.step - step, 0)
                restore_values(buffer, self.store, self.store.values)
        return is_new

    def _stored_sampler(self) -> tuple[Any, dict[str, list[int]]]:
        """Return the values of a sampler's state in the folder, and the checksums of its arrays."""
        arrays = {name: array for name, array in self.store.arrays.items() if is_sampler_array(name)}
        return self.store.values.get("sampler"), checksums_of(arrays)


class JointCommit:
    """A block whose rows are committed together; after an exception, all of them are undone.

    It is no generator, since Ctrl-C between that and the block would leave it open, and what is added later without a
    commit.

    :param storage: the folder
    :param buffer: the buffer
    :param n_rows: the most rows that are added, fewer than in the buffer; not for hindsight replay
    """

    def __init__(self, storage: BufferStorage, buffer: ReplayBufferLike, n_rows: int) -> None:
        self._storage, self._buffer, self._n_rows = storage, buffer, n_rows

    def __enter__(self) -> None:
        try:
            self._storage.begin_joint_rows(self._buffer, self._n_rows)
        except BaseException:
            self._storage.end_joint_rows(self._buffer, is_complete=False)
            raise

    def __exit__(self, error: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            self._storage.end_joint_rows(self._buffer, is_complete=error is None)
        except KeyboardInterrupt:
            self._storage.end_joint_rows(self._buffer, is_complete=False)
            raise


def _spans(first: int, n: int, n_rows: int) -> list[tuple[int, int]]:
    """Return the begin and the end of ``n`` rows of a ring from a row on, in one part or two."""
    last = first + n
    return [span for span in ((first, min(last, n_rows)), (0, last - n_rows)) if span[0] < span[1]]
