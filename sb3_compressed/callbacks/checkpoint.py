"""``BufferCheckpointCallback``: saves model and buffer during training, and finds the newest that is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from os import PathLike
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed.buffers.mixin import CompressedReplay
from sb3_compressed.buffers.persistent import PLACE
from sb3_compressed.errors import StorageError

__all__ = ["BufferCheckpointCallback", "latest_checkpoint"]

#: A checkpoint that is replaced counts until the one in its place is there.
REPLACED = ".replaced"
NAME = re.compile(r"step_([0-9]{10,})(\.replaced)?")
UNFINISHED = "unfinished"
#: Where the newest state of a buffer in memory is, to which every save adds what changed.
NEWEST = "newest-buffer"
#: What a checkpoint tells of itself, as the how manieth it is of all that were saved to its folder.
ABOUT = "checkpoint.json"


class BufferCheckpointCallback(BaseCallback):
    """Saves the model and its compressed replay buffer from time to time, consistent with each other.

    Every checkpoint is a folder ``step_<number of steps>`` with ``model.zip``, the folder ``buffer``,
    ``checkpoint.json`` with its number, and ``vecnormalize.pkl`` if the environment is normalised. It gets its name
    when it is complete, so there is no moment at which a kill would leave a half one. Checkpoints share the files of
    buffers where the file system has links, among themselves and with the folder ``newest-buffer``: only what was added
    since the last one is written. They are saved between rollouts, when all steps are in the buffer.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer, latest_checkpoint
    >>> callback = BufferCheckpointCallback(50_000, "checkpoints", keep=2)
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer)

    ``model.learn(1_000_000, callback=callback)``, and after a crash, in a new process: ::

        newest = latest_checkpoint("checkpoints")
        model = DQN.load(newest / "model", env=env)
        model.replay_buffer = CompressedReplayBuffer.from_checkpoint(newest / "buffer", device=model.device)
        model.learn(1_000_000 - model.num_timesteps, callback=callback, reset_num_timesteps=False)

    :param save_freq: environment steps between two checkpoints
    :param path: folder for them
    :param keep: how many are kept; older ones are deleted
    :param verbose: 1 to print a line for each
    :raises ValueError: if a number is not positive
    """

    def __init__(self, save_freq: int, path: str | PathLike[str], keep: int = 1, verbose: int = 0) -> None:
        super().__init__(verbose)
        if save_freq < 1 or keep < 1:
            raise ValueError(f"save_freq and keep must be positive, got {save_freq} and {keep}")
        self.save_freq = save_freq
        self.path = Path(path).absolute()  # wherever the process goes
        self.keep = keep
        self._last_save = 0

    def _init_callback(self) -> None:
        self._buffer()  # raises before the training rather than after hours
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in self.path.glob(f"*.{UNFINISHED}"):
            shutil.rmtree(folder)

    def _on_training_start(self) -> None:
        self._last_save = self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps - self._last_save >= self.save_freq:
            self.save()

    def _on_training_end(self) -> None:
        if self.num_timesteps > self._last_save:
            self.save()

    def save(self) -> Path:
        """Save a checkpoint now and return its folder.

        :raises OSError: if the disk does not take it; earlier checkpoints are as they were
        """
        begin = time.perf_counter()
        folder = self.path / f"step_{self.num_timesteps:010}"
        unfinished = folder.with_suffix(f".{UNFINISHED}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        self._save_model(unfinished / "model.zip")
        normalized = self.model.get_vec_normalize_env()
        if normalized is not None:
            normalized.save(str(unfinished / "vecnormalize.pkl"))
        number = max(map(_number, _checkpoints(self.path)), default=0) + 1
        (unfinished / ABOUT).write_text(json.dumps({"number": number, "num_timesteps": self.num_timesteps}) + "\n")
        for file in unfinished.iterdir():
            _flush(file)
        buffer = self._buffer()
        if buffer.is_in_memory:
            buffer.save_checkpoint(self.path / NEWEST, overwrite=True)
        else:
            buffer.flush()
        buffer.copy_checkpoint(unfinished / "buffer")
        _flush(unfinished)
        if folder.exists():  # of a run that went on from an earlier step, or of another one
            _delete(folder.with_suffix(REPLACED))
            folder.rename(folder.with_suffix(REPLACED))
        unfinished.rename(folder)
        _flush(self.path)
        _delete(folder.with_suffix(REPLACED))
        for old in _checkpoints(self.path)[: -self.keep]:
            _delete(old)
        self._last_save = self.num_timesteps
        seconds = time.perf_counter() - begin
        self.logger.record("checkpoint/seconds", seconds)
        if self.verbose >= 1:
            print(f"{folder}: {buffer.size() * buffer.n_envs:,} transitions and the model in {seconds:.2f} s")
        return folder

    def _save_model(self, path: Path) -> None:
        """Save the model without the place where its buffer is: it can be loaded while others use that, or nobody."""
        model: Any = self.model
        options = model.replay_buffer_kwargs
        model.replay_buffer_kwargs = {name: value for name, value in options.items() if name not in PLACE}
        try:
            model.save(path)
        finally:
            model.replay_buffer_kwargs = options

    def _buffer(self) -> CompressedReplay:
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, CompressedReplay):
            raise StorageError(
                f"{type(self).__name__} saves compressed replay buffers, and this model has "
                f"{'none' if buffer is None else f'a {type(buffer).__name__}'}; pass replay_buffer_class to the model"
            )
        return buffer


def latest_checkpoint(path: str | PathLike[str]) -> Path | None:
    """Return the checkpoint that a :class:`BufferCheckpointCallback` completed last, ``None`` if there is none."""
    return next(reversed(_checkpoints(Path(path))), None)


def _checkpoints(path: Path) -> list[Path]:
    """Return all complete checkpoints in the order in which they were saved, whatever runs they are of."""
    return sorted((each for each in path.glob("step_*") if NAME.fullmatch(each.name)), key=_number)


def _number(folder: Path) -> int:
    return int(json.loads((folder / ABOUT).read_text())["number"])


def _delete(folder: Path) -> None:
    """Delete a checkpoint, of which no part is taken for a whole one meanwhile."""
    if folder.exists():
        doomed = folder.with_suffix(f".deleted.{UNFINISHED}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _flush(path: Path) -> None:
    """Return when a file, or the names in a folder, outlive a power cut, where the operating system can say so."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
