"""``BufferCheckpointCallback``: saves the model and its replay buffer during training."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed.buffers.mixed import MixedReplayBuffer
from sb3_compressed.buffers.mixed_checkpoint import part_folder
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.callbacks.checkpoint_folder import (
    NEWEST,
    REPLACED,
    latest_checkpoint,
    list_checkpoints,
    write_manifest,
)
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import ShardUnavailable, StorageError
from sb3_compressed.persistence.buffer_storage import STORAGE_ARGUMENTS
from sb3_compressed.storage.files import UNFINISHED, flush_path
from sb3_compressed.storage.lock import FolderInUse, FolderLock

__all__ = ["BufferCheckpointCallback", "latest_checkpoint"]

logger = logging.getLogger(__name__)


class BufferCheckpointCallback(BaseCallback):
    """Saves the model and its compressed replay buffer periodically, consistent with each other.

    Every checkpoint is a folder ``step_<number of steps>`` with ``model.zip``, the folder ``buffer``,
    ``checkpoint.json`` with its sequence number, and ``vecnormalize.pkl`` if the environment is normalized. Saves are
    atomic: a checkpoint gets its name when it is complete. Checkpoints share buffer files with each other and with the
    folder ``newest-buffer`` (of a mixed buffer one for each part) through hard links where the file system supports
    them, so a save writes only what was added since the last one. Checkpoints are saved between rollouts, when all
    steps are in the buffer.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, latest_checkpoint
    >>> callback = BufferCheckpointCallback(50_000, "checkpoints", keep=2)
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer)

    Train with ``model.learn(1_000_000, callback=callback)``. After a crash, in a new process: ::

        newest = latest_checkpoint("checkpoints")
        model = DQN.load(newest / "model", env=env)
        model.replay_buffer = load_checkpoint(newest / "buffer", device=model.device)
        callback = BufferCheckpointCallback(50_000, "checkpoints", keep=2, resume=True)
        model.learn(1_000_000 - model.num_timesteps, callback=callback, reset_num_timesteps=False)

    A folder belongs to one run, and is locked while the run trains. A callback that is passed to ``learn`` again
    continues its run; a new callback does so with ``resume=True``. Damaged checkpoints and unrelated folders are
    skipped with a warning, and renamed if a checkpoint needs their name.

    SB3 does not notify callbacks of exceptions, Ctrl-C included, so the folder of a training that ended with one stays
    locked for others until :meth:`close`, or until its process ends. The same callback can go on.

    Pass the callback to ``learn`` alone or in a list. Callbacks that trigger other callbacks, such as
    ``EveryNTimesteps`` and ``EvalCallback``, do not notify them of rollouts.

    ``learn`` raises :class:`~sb3_compressed.StorageError` before training if the folder is in use or contains another
    run, if the model has no compressed replay buffer, or if the model does not continue the run: with ``resume=True``,
    it must have at least as many steps as the oldest checkpoint, and ``learn`` sets them to 0 unless called with
    ``reset_num_timesteps=False``.

    If a shard of a distributed buffer fails or does not answer during a save, the failure is logged, and the next
    attempt is after another ``save_freq`` steps. Only at the end of the training is it an error.

    :param save_freq: environment steps between two checkpoints
    :param path: folder of the checkpoints
    :param keep: number of checkpoints to keep; older ones are deleted
    :param verbose: 1 to print a line per checkpoint
    :param resume: whether to continue the run in the folder; a missing or empty folder starts a new run
    :param overwrite: whether to start a new run in a folder with another one, whose checkpoints are deleted when the
        first checkpoint of the new run is complete
    :raises ValueError: if a number is not positive, or both ``resume`` and ``overwrite`` are true
    :raises TypeError: if a number is not an integer
    """

    def __init__(
        self,
        save_freq: int,
        path: str | PathLike[str],
        keep: int = 1,
        verbose: int = 0,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__(verbose)
        validate_integer("save_freq", save_freq, 1)
        validate_integer("keep", keep, 1)
        if resume and overwrite:
            raise ValueError("resume=True continues the run in a folder, overwrite=True replaces it: pass one of them")
        self.save_freq = save_freq
        self.path = user_path(path).absolute()  # the working directory may change
        self.keep = keep
        self.resume = resume
        self.overwrite = overwrite
        self._last_save = self._last_attempt = 0
        #: Whether the run has begun, also in an earlier training with this callback.
        self._has_begun = False
        #: Checkpoints of the run that this one replaces, until its first one is complete.
        self._replaced: set[Path] = set()
        self._trained_model: Any = None
        self._lock: FolderLock | None = None

    def _init_callback(self) -> None:
        self._check_has_no_parent()
        buffer = self._buffer()  # raises before training
        if isinstance(buffer, MixedReplayBuffer):
            buffer.saved_buffers()  # likewise
        self._acquire()
        try:
            self._check_model()
        except BaseException:
            self.close()
            raise
        self._trained_model = self.model
        self._remove_unfinished()

    def _on_training_start(self) -> None:
        self._last_save = self._last_attempt = self.num_timesteps

    def _on_step(self) -> bool:
        self._check_has_no_parent()
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps - self._last_attempt < self.save_freq:
            return
        self._last_attempt = self.num_timesteps
        try:
            self.save()
        except ShardUnavailable as error:  # Ray restarts shards, so a later save may succeed, unlike after other errors
            logger.warning(
                "no checkpoint was saved at step %d, the next attempt is in %d steps: %s",
                self.num_timesteps, self.save_freq, error,
            )  # fmt: skip

    def _on_training_end(self) -> None:
        try:
            if self.num_timesteps > self._last_save:
                self.save()
        finally:
            self.close()

    def save(self) -> Path:
        """Save a checkpoint now and return its folder.

        :raises OSError: if writing fails; earlier checkpoints are unchanged
        :raises StorageError: if another run has taken over the folder, or before the first training
        """
        if not hasattr(self, "model"):
            raise StorageError("there is no model to save yet; pass the callback to learn() first")
        is_between_trainings = self._acquire()
        try:
            return self._save()
        finally:
            if is_between_trainings:
                self.close()

    def _save(self) -> Path:
        begin = time.perf_counter()
        folder = self.path / f"step_{self.num_timesteps:010}"
        unfinished = folder.with_suffix(f".{UNFINISHED}")
        self._remove_unfinished()
        unfinished.mkdir()
        self._save_model(unfinished / "model.zip")
        normalized = self.model.get_vec_normalize_env()
        if normalized is not None:
            normalized.save(str(unfinished / "vecnormalize.pkl"))
        before, _ = list_checkpoints(self.path)
        number = before[-1].number + 1 if before else 1
        write_manifest(unfinished, number, self.num_timesteps)
        for file in unfinished.iterdir():
            flush_path(file)
        buffer = self._buffer()
        self._save_buffer(buffer, unfinished / "buffer")
        flush_path(unfinished)
        own = {each.folder for each in before}
        replaced = folder.with_suffix(REPLACED)
        _rename_other(folder, own)
        if folder in own:  # the run was resumed from an earlier step
            _rename_other(replaced, own)
            if replaced in own:
                _delete(replaced)
            folder.rename(replaced)
        unfinished.rename(folder)
        flush_path(self.path)
        self._last_save = self.num_timesteps
        if folder in own:
            _delete(replaced)
        self._replaced.discard(folder)
        self._delete_old()
        seconds = time.perf_counter() - begin
        self.logger.record("checkpoint/seconds", seconds)
        if self.verbose >= 1:
            print(f"{folder}: {buffer.size() * buffer.n_envs:,} transitions and the model in {seconds:.2f} s")
        return folder

    def _save_buffer(self, buffer: Any, folder: Path) -> None:
        """Save a buffer to the folders of its latest state, and copy these to a new folder."""
        parts = {self.path / NEWEST: (buffer, folder)}
        if isinstance(buffer, MixedReplayBuffer):
            folder.mkdir()
            parts = {
                self.path / f"{NEWEST}-{number}": (part, part_folder(folder, number))
                for number, part in buffer.saved_buffers().items()
            }
        for newest, (part, copy) in parts.items():
            part.save_latest(newest)
            part.copy_checkpoint(copy)
        if isinstance(buffer, MixedReplayBuffer):
            buffer.write_manifest(folder)

    def _remove_unfinished(self) -> None:
        """Remove what killed processes, and saves that have failed, have left."""
        for folder in [*self.path.glob(f"step_[0-9]*.{UNFINISHED}")]:
            _delete(folder)

    def _delete_old(self) -> None:
        """Delete old checkpoints, and all of a run that this one replaces."""
        checkpoints, _ = list_checkpoints(self.path)
        newest = [each.folder for each in checkpoints if each.folder not in self._replaced][-self.keep :]
        for each in checkpoints:
            if each.folder not in newest:
                _delete(each.folder)
        self._replaced = set()

    # -- validation --------------------------------------------------------------------------------------------

    def _check_has_no_parent(self) -> None:
        """Raise if another callback triggers this one.

        ``CallbackList`` sets the parent only after ``init_callback``, so this is checked again during training.

        :raises StorageError: if this callback has a parent; the folder is released
        """
        if self.parent is not None:
            self.close()
            parent, name = type(self.parent).__name__, type(self).__name__
            raise StorageError(
                f"{name} would never save as a child of {parent}, which does not notify it of rollouts; pass a new "
                f"{name} to learn() alone or in a list, as in callback=[{name}(...), {parent}(...)]"
            )

    def _check_model(self) -> None:
        """Raise if a model that does not continue the run would replace its checkpoints.

        :raises StorageError: with advice on how to resume
        """
        if self.model is self._trained_model:
            return
        checkpoints, _ = list_checkpoints(self.path)
        own = [each for each in checkpoints if each.folder not in self._replaced]
        oldest = min(own, key=lambda each: each.num_timesteps, default=None)
        if oldest is None or not oldest.num_timesteps:
            return
        problem = ""
        if self.model.num_timesteps < oldest.num_timesteps:
            problem = f"this model has {self.model.num_timesteps} steps and does not continue that run"
        elif not self._buffer().size():  # its checkpoints would replace those that have the transitions
            problem = "the replay buffer of this model is empty"
        if problem:
            raise StorageError(
                f"{self.path} contains {oldest.folder.name}, but {problem}. With newest = latest_checkpoint("
                f'{str(self.path)!r}), load its model with DQN.load(newest / "model", env=env) and its buffer with '
                'model.replay_buffer = load_checkpoint(newest / "buffer"), and pass reset_num_timesteps=False to '
                "learn(); or pass overwrite=True to start a new run"
            )

    # -- lock --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the folder for other runs, like the end of a training. The next save locks it again."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _acquire(self) -> bool:
        """Lock the folder for this run; return whether it was not locked yet.

        :raises StorageError: if it is in use, or belongs to another run
        """
        if self._lock is not None and self._lock.is_owned:
            return False
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.path)
        try:
            self._lock.acquire()
        except FolderInUse as error:
            raise StorageError(
                f"{self.path} is locked by process {error.owner}; give each training its own path. If that training "
                "ended with an exception, call callback.close() of its callback, or end its process"
            ) from None
        try:
            self._begin_run()
        except BaseException:
            self._lock.release()
            raise
        return True

    def _begin_run(self) -> None:
        """Begin or continue a run, unless an earlier training with this callback did.

        :raises StorageError: if the folder contains another run
        """
        if self._has_begun:
            return
        checkpoints, damaged = list_checkpoints(self.path)
        newest = [self.path / name for name in (NEWEST, f"{NEWEST}-0") if (self.path / name).exists()]
        existing = [*(each.folder for each in checkpoints), *damaged, *newest]
        if existing and not (self.resume or self.overwrite):
            raise StorageError(
                f"{self.path} contains {existing[0].name} of another run: pass resume=True to continue that run "
                "from its latest_checkpoint, overwrite=True to replace it, or another path"
            )
        self._replaced = {each.folder for each in checkpoints} if self.overwrite else set()
        self._has_begun = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def _save_model(self, path: Path) -> None:
        """Save the model without the folder of its buffer, so that loading it does not open that folder."""
        model: Any = self.model
        options = model.replay_buffer_kwargs
        model.replay_buffer_kwargs = {name: value for name, value in options.items() if name not in STORAGE_ARGUMENTS}
        try:
            model.save(path)
        finally:
            model.replay_buffer_kwargs = options

    def _buffer(self) -> CompressedReplay | MixedReplayBuffer:
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if not (isinstance(buffer, MixedReplayBuffer) or hasattr(buffer, "copy_checkpoint")):  # also distributed ones
            raise StorageError(
                f"{type(self).__name__} needs a compressed replay buffer, but this model "
                f"{'has none' if buffer is None else f'uses {type(buffer).__name__}'}; pass a class of sb3_compressed "
                "to the model as replay_buffer_class"
            )
        compressed: CompressedReplay | MixedReplayBuffer = buffer
        return compressed


def _rename_other(folder: Path, own: Collection[Path]) -> None:
    """Rename a folder that is not one of a run's own checkpoints."""
    if folder in own or not os.path.lexists(folder):
        return
    other = folder.with_name(f"{folder.name}.other-{secrets.token_hex(4)}")
    folder.rename(other)
    warn_user(f"renamed {folder}, which is not a readable checkpoint of this run, to {other.name}")


def _delete(folder: Path) -> None:
    """Delete a checkpoint after renaming it, so that a partly deleted one is never read.

    Windows deletes no file that is open, through any of its links; what is left is deleted after the next save.
    """
    deleted = folder.with_name(f"{folder.name.partition('.')[0]}.deleted-{secrets.token_hex(4)}.{UNFINISHED}")
    try:
        folder.rename(deleted)
    except PermissionError as error:
        logger.warning("%s is deleted after a later save, since a program has opened it: %s", folder, error)
        return
    if deleted.is_symlink():
        deleted.unlink()
    else:
        shutil.rmtree(deleted, ignore_errors=True)
        if deleted.exists():
            logger.warning("%s cannot be deleted yet, so it takes space until a later save deletes it", deleted)
