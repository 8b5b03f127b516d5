"""The mixin that lets a replay buffer outlive its process: storage in a folder, and checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_repair import RepairReport, repair_store
from sb3_compressed.persistence.checkpoint import (
    Change,
    Checkpoint,
    bind,
    changed_chunks,
    checksums_of,
    fitted,
    load_into,
    open_storage,
    open_to_load,
    refuse_other,
    restore,
)
from sb3_compressed.persistence.ring_resize import EPISODE_BEGINS
from sb3_compressed.storage.array_store import RING_ROWS, ArrayStore
from sb3_compressed.storage.damaged_store import DamagedStore
from sb3_compressed.storage.log import log_fingerprint
from sb3_compressed.storage.metadata_schema import check_buffer

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import BaseBuffer as _Base
    from typing_extensions import Self
else:
    _Base = object

__all__ = ["PLACE", "Persistent", "ReadOnlyStorage", "Storage"]

_Buffer = TypeVar("_Buffer", bound="Persistent")

Storage = str | PathLike[str]
"""Where slots are kept: ``"memory"``, or a folder."""


@dataclass(frozen=True)
class ReadOnlyStorage:
    """Storage that another process may be writing to.

    :param store: the folder, open for reading
    """

    store: ArrayStore


class Persistent(_Base):
    """A replay buffer that can be kept in a folder.

    With ``storage=<folder>``, compressed observations live there from the first ``add``, which is one transaction:
    killed at any moment, the process leaves a folder with all that was added before. In memory are 16 bytes a
    transition and SB3's own arrays of actions, rewards, dones and timeouts. With ``storage="memory"``, the default,
    :meth:`save_checkpoint` writes the same format, each time what changed since the last.
    """

    #: What was excluded when the buffer was loaded or resumed with ``repair=True``, ``None`` without.
    repair_report: RepairReport | None = None
    _store: ArrayStore | None = None
    _checkpoint: Checkpoint | None = None
    #: How the folders that it was saved to were left.
    _saved: Mapping[Path, tuple[int, ...]] = MappingProxyType({})
    #: Rows that were added and could not be committed.
    _uncommitted: list[Change]
    _checksums: dict[str, list[int]]
    #: What does not change: names of the arrays with a row for each step, and the arrays that tell of their streams.
    _row_names: list[str]
    _plain_names: list[str]
    _last_arrays: dict[str, CompressedArray]
    #: The compressed arrays with their names.
    _slotted: list[tuple[str, CompressedArray]]
    #: How many rows were added since the last flush.
    _n_new_rows: int
    #: What the last ``add`` changed, as it was before.
    _before: tuple[list[tuple[NDArray[Any], int, NDArray[Any]]], int, bool, int, int]

    _is_before_sb3: ClassVar[bool]
    optimize_memory_usage: bool
    given_arguments: dict[str, Any]

    def _open_storage(self, storage: Any, *, resume: bool, overwrite: bool, repair: bool) -> None:
        if isinstance(storage, ReadOnlyStorage):
            self._follow(storage.store)
        elif storage != "memory":
            store, self.repair_report = open_storage(
                self, Path(storage), resume=resume, overwrite=overwrite, repair=repair
            )
            self._use(store)
        elif resume or overwrite or repair:
            raise StorageError("resume, overwrite and repair are for storage=<folder>, got storage='memory'")

    def _use(self, store: ArrayStore) -> None:
        self._store, self._uncommitted, self._n_new_rows = store, [], 0
        self._plain_names = [name for name, plan in store.specs.items() if not plan.is_table and "/" not in name]
        self._row_names = [name for name in store.specs if name != EPISODE_BEGINS]
        self._last_arrays = buffer_state.last_of_streams(self)
        arrays = buffer_state.named_arrays(self).items()
        # Where a class of a user's own comes before SB3's, every row is written directly: flush() stores the others.
        self._slotted = [
            (name, array) for name, array in arrays if isinstance(array, CompressedArray) and self._is_before_sb3
        ]
        self._checksums = checksums_of(store.arrays)

    def _follow(self, store: ArrayStore) -> None:
        refuse_other(store, self)
        arrays, values = fitted(store, self)
        if arrays is not store.arrays:
            raise StorageError(f"a buffer that follows {store.log.folder} has to have its size")
        bind(self, store, writable=False)
        restore(self, store, values)
        self._store = store

    # -- what changes ----------------------------------------------------------------------------------------

    def _check_storage(self) -> None:
        """Raise if nothing can be added because of where it would go."""
        if self._store is not None and not self._store.log.is_writable:
            raise StorageError(f"{self._store.log.folder} is not open for writing here; nothing was added")

    def _expect_row(self, done: Any) -> None:
        """Remember what the next ``add`` changes: it is to be committed, or undone.

        :param done: whether episodes end with it, ``(n_envs,)``
        """
        row = self.pos
        for name, array in self._slotted:  # what was written directly since
            if len(rows := array.take_direct_writes()):
                self._uncommitted += [(name, int(each), int(each) + 1) for each in rows]
        changes: list[Change] = [(RING_ROWS, row, row + 1)]
        if self.optimize_memory_usage:  # the next observation is in the row behind
            behind = (row + 1) % self.buffer_size
            changes += [(name, behind, behind + 1) for name in self._row_names if buffer_state.is_observation(name)]
        changes += hindsight_changes(self, row, done)
        self._before = self._values_of(changes), row, self.full, len(self._uncommitted), self._n_new_rows
        self._n_new_rows += 1
        self._uncommitted += changes

    def _values_of(self, changes: list[Change]) -> list[tuple[NDArray[Any], int, NDArray[Any]]]:
        """Return copies of the rows that are to be changed, each with its array and where it begins."""
        assert self._store is not None
        arrays = self._store.arrays
        return [
            (arrays[each], first, arrays[each][first:last].copy())
            for name, first, last in changes
            for each in (self._row_names if name == RING_ROWS else [name])
        ]

    def _undo_row(self) -> None:
        """Be as before the last ``add``, which could not be committed."""
        values, self.pos, self.full, n_uncommitted, self._n_new_rows = self._before
        for array, first, rows in values:
            array[first : first + len(rows)] = rows
        del self._uncommitted[n_uncommitted:]

    def _commit(self) -> None:
        """Commit all that is not committed yet.

        :raises OSError: if the disk does not take it; the buffer is as it was before the last ``add`` then
        """
        store, arrays = self._store, self._last_arrays
        assert store is not None
        self._take_in_rebound()
        try:
            # What an interrupted add left is there twice.
            store.commit(
                dict.fromkeys(self._uncommitted), buffer_state.values(self, arrays), buffer_state.codecs(self, arrays)
            )
        except Exception:
            self._undo_row()
            raise
        self._uncommitted = []

    def _take_in_rebound(self) -> None:
        """Write arrays that a user put in the places of the stored ones, as in ``buffer.rewards = ...``, to those."""
        assert self._store is not None
        for name in self._plain_names:
            stored, given = self._store.arrays[name], getattr(self, name)
            if given is not stored:
                stored[...] = given
                setattr(self, name, stored)
                self._uncommitted.append((name, 0, len(stored)))

    def _new_rows(self) -> list[Change]:
        """Return what adds may have changed since the last flush: they commit it, and it can be written over since."""
        n_rows, rows = self.buffer_size, min(self._n_new_rows + 1, self.buffer_size)  # and the one that is next
        first = (self.pos + 1 - rows) % n_rows
        spans = [(first, min(first + rows, n_rows)), (0, max(first + rows - n_rows, 0))]
        changes: list[Change] = [(name, *span) for name in self._row_names for span in spans if span[0] < span[1]]
        if self._n_new_rows and "ep_length" in self._plain_names:  # episodes reach further back
            changes += [(name, 0, len(getattr(self, name))) for name in ("ep_start", "ep_length", EPISODE_BEGINS)]
        return changes

    @property
    def is_in_memory(self) -> bool:
        """Whether compressed observations are in memory, not in a folder."""
        return self._store is None

    @property
    def folder(self) -> Path | None:
        """The folder that compressed observations are in, ``None`` if they are in memory."""
        return None if self._store is None else self._store.log.folder

    def take_over(self, other: Persistent) -> None:
        """Be what another buffer of the same kind is, content and folder, which is not used any more then."""
        vars(self).update(vars(other))
        self._checkpoint = None  # of the arrays there were; how it left its folders is known still

    def flush(self) -> None:
        """Make all that is in the folder outlive a power cut, and with it what was written to arrays directly.

        :raises StorageError: if the buffer is in memory; see :meth:`save_checkpoint`
        """
        store = self._writable_store("flush")
        self._take_in_rebound()
        checksums = checksums_of(store.arrays)
        changes = [*self._uncommitted, *self._new_rows(), *changed_chunks(store.arrays, self._checksums, checksums)]
        store.commit(changes, buffer_state.values(self), buffer_state.codecs(self))
        store.flush()
        self._uncommitted, self._checksums, self._n_new_rows = [], checksums, 0

    def close(self) -> None:
        """Flush and let go of the folder. What is in the buffer can still be sampled, nothing can be added."""
        if self._store is not None:
            if self._store.log.is_writable:
                self.flush()
            self._store.close()

    def refresh(self) -> bool:
        """Take in what the process that writes to the folder has added since; return whether that is anything.

        :raises StorageError: if the buffer does not follow a folder
        """
        store = self._store
        if store is None or store.log.is_writable:
            raise StorageError("only a buffer that follows a folder can be refreshed; see from_checkpoint")
        is_new = True
        try:
            is_new = store.refresh()
        finally:  # what it took in before anything went wrong belongs together, too
            if is_new:
                restore(self, store, store.values)
        return is_new

    def _writable_store(self, name: str) -> ArrayStore:
        if self._store is None:
            raise StorageError(f"{name}() is for buffers with storage=<folder>; this one is in memory")
        return self._store

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Save the buffer to a folder: all of it the first time, then what changed since.

        A kill at any moment leaves the folder with the last state that was saved whole.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether it may take the place of another buffer that is in the folder
        :raises StorageError: if the folder holds another buffer or other files
        :raises OSError: if the disk does not take it; the folder is as it was
        """
        path = Path(folder).absolute()
        if self._store is not None and self._store.log.folder.resolve() == path.resolve():
            self.flush()
            return
        checkpoint, self._checkpoint = self._checkpoint, None  # unless all goes well
        if checkpoint is not None and checkpoint.is_of(self, path):
            try:
                self._save(checkpoint)
                return
            except StorageError:  # somebody else wrote to it
                if not overwrite:
                    raise
        place = path.resolve()
        is_as_left = place in self._saved and log_fingerprint(path) == self._saved[place]
        self._save(Checkpoint.new(self, path, overwrite=overwrite or is_as_left))

    def _save(self, checkpoint: Checkpoint) -> None:
        try:
            checkpoint.save(self)
            self._checkpoint = checkpoint
        finally:
            if checkpoint.left_at is not None:
                self._saved = {**self._saved, checkpoint.store.log.folder.resolve(): checkpoint.left_at}

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy what was saved or flushed last to a new folder, with links to the same files where there can be links.

        :raises StorageError: if nothing was saved yet, or the folder is not empty
        :raises OSError: if the disk does not take it
        """
        store = self._checkpoint.store if self._store is None and self._checkpoint is not None else self._store
        if store is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        store.copy_to(Path(folder))

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
        """Return the buffer that a folder holds.

        :param buffer_size: the number of transitions it is to have room for, if not as many as there; of more than
            that, the newest are loaded
        :param follow: whether to read the folder in place instead of loading it, while another process may write to
            it; :meth:`refresh` takes in what that has added
        :param repair: whether to exclude damaged transitions instead of raising; :attr:`repair_report` lists them. The
            folder stays as it is
        :param kwargs: arguments of the constructor in the places of those stored, as ``device``, or ``env`` for
            hindsight replay
        :raises StorageError: if the folder holds no buffer, or one of another kind
        :raises CorruptStorage: if a file is damaged, or declares more than there can be, as for
            :func:`~sb3_compressed.load_checkpoint`
        """
        if buffer_size is not None:
            kwargs["buffer_size"] = buffer_size
        store = open_to_load(Path(folder), repair=repair, follow=follow, rows=buffer_size or 0)
        return cls.of_store(store, kwargs, follow=follow)

    @classmethod
    def of_store(cls, store: ArrayStore, given: Mapping[str, Any], *, follow: bool = False) -> Self:
        """Return the buffer that an open store holds; see :meth:`from_checkpoint`.

        :param store: it is the buffer's then, and closed if that cannot be made
        :param given: arguments of the constructor in the places of those stored
        """
        report = None
        try:
            if isinstance(store, DamagedStore):
                report = repair_store(store)
            if PLACE & set(given):
                raise StorageError(
                    f"what a folder holds is loaded into memory: pass {', '.join(sorted(PLACE & set(given)))} to "
                    "the constructor, with resume=True to go on in that folder"
                )
            arguments = {**cls._arguments_of(store, given), **given}
            needed = [
                name
                for name, parameter in inspect.signature(cls).parameters.items()
                if parameter.default is parameter.empty
                and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                and name not in arguments
            ]
            if needed:
                raise StorageError(f"a {cls.__name__} cannot be loaded without {', '.join(needed)}, pass that, too")
            if follow:
                return _made(cls, store, {**arguments, "storage": ReadOnlyStorage(store)})
            buffer = _made(cls, store, arguments)
            checkpoint = load_into(buffer, store)
            buffer.repair_report = report
            if report is None:
                buffer._checkpoint = checkpoint
            else:  # the next save there is of the whole buffer
                buffer._saved = {store.log.folder.resolve(): log_fingerprint(store.log.folder) or ()}
        except BaseException:
            store.close()
            raise
        return buffer

    @classmethod
    def _arguments_of(cls, store: ArrayStore, given: Collection[str]) -> dict[str, Any]:
        """Return the arguments for the constructor that a store tells of.

        :param given: names of those that take their places
        :raises StorageError: if the class has others
        """
        if not store.metadata:
            raise StorageError(f"{store.log.folder} holds no buffer: the first save to it was not completed")
        check_buffer(store.metadata, {name: plan.shape for name, plan in store.specs.items()}, store.log.folder, given)
        try:
            told = buffer_state.arguments_of(store.metadata, given)
        except CorruptStorage as error:
            raise CorruptStorage(f"{store.log.folder}: what it says of its buffer makes no sense: {error}") from error
        # A constructor that passes **kwargs on takes the arguments of its parent, too.
        taken: set[str] = set()
        constructors = [
            inspect.signature(vars(base)["__init__"]) for base in cls.__mro__[:-1] if "__init__" in vars(base)
        ]
        for constructor in constructors:
            taken.update(constructor.parameters)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in constructor.parameters.values()):
                break
        defaults = {
            name: parameter.default
            for constructor in reversed(constructors)
            for name, parameter in constructor.parameters.items()
        }
        others = sorted(set(told) - taken)
        is_default = {
            name: type(told[name]) is type(default) and told[name] == default
            for name, default in defaults.items()
            if name in others
        }
        wrong = [name for name in others if not is_default.get(name)] or sorted(NOT_TOLD & set(told))
        if wrong:
            raise StorageError(
                f"{store.log.folder} was saved by {store.metadata.get('class')} with the arguments "
                f"{', '.join(sorted(told))}; {cls.__name__} does not take {', '.join(wrong)}"
            )
        return {name: value for name, value in told.items() if name in taken}

    def __getstate__(self) -> dict[str, Any]:
        attributes: Any = super().__getstate__()
        return {name: value for name, value in attributes.items() if name not in OF_FOLDERS}


#: Attributes that copies and pickles do not have: they are in memory, whole, and the folder goes its own way.
OF_FOLDERS = {"_store", "_checkpoint", "_saved", "_uncommitted", "_checksums", "_last_arrays", "_n_new_rows"}
OF_FOLDERS |= {"_row_names", "_plain_names", "_slotted", "_before"}
#: Arguments that say where a buffer is, which is no matter of what is stored.
PLACE = {"storage", "resume", "overwrite", "repair"}
#: What a folder must not say of the buffer that is made of it: a stranger's would reach for other folders.
NOT_TOLD = PLACE | {"device", "env", "num_threads"}


def _made(cls: type[_Buffer], store: ArrayStore, arguments: dict[str, Any]) -> _Buffer:
    """Return a buffer of which a store told the arguments.

    :raises CorruptStorage: if they make no sense
    """
    try:
        return cls(**arguments)
    except (StorageError, OSError):
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, MemoryError, AssertionError) as error:
        raise CorruptStorage(f"{store.log.folder}: no {cls.__name__} can be made of what it says: {error}") from error


def hindsight_changes(buffer: Any, row: int, done: Any) -> list[Change]:
    """Return what an ``add`` changes of a buffer with hindsight besides the row, called before it.

    Lengths are set where an episode ends, and to zero where one begins to be overwritten.
    """
    ep_length = vars(buffer).get("ep_length")
    if ep_length is None:
        return []
    n_rows = buffer.buffer_size
    # SB3 does not take it modulo the rows where an episode goes over the end of the ring.
    overwritten = np.flatnonzero(ep_length[row] > 0)
    spans = [(row, int(buffer.ep_start[row, env] + ep_length[row, env]) - row) for env in overwritten]
    starts = buffer._current_ep_start
    spans += [(int(starts[env]), (row + 1 - int(starts[env])) % n_rows or n_rows) for env in np.flatnonzero(done)]
    changes: list[Change] = [("_current_ep_start", 0, len(starts))]
    for first, length in spans:
        last = first + min(max(length, 0), n_rows)
        changes.append(("ep_length", first, min(last, n_rows)))
        if last > n_rows:
            changes.append(("ep_length", 0, last - n_rows))
    return changes
