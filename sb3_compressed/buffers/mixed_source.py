"""``MixedSource``: a buffer that a :class:`.MixedReplayBuffer` samples from, and how checkpoints contain it."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from sb3_compressed.buffers import replay
from sb3_compressed.buffers.mixed_checkpoint import part_folder
from sb3_compressed.buffers.replay import CompressedReplay
from sb3_compressed.buffers.stored_buffer import CLASSES
from sb3_compressed.errors import CorruptStorage
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.samplers.config import sampler_to_config

__all__ = ["MixedSource", "load_part", "reason_not_to_save"]


class MixedSource:
    """A buffer that is sampled from.

    :param buffer: the buffer
    :param folder: the folder that it was opened from, ``None`` if it was passed
    :param options: further arguments that it was opened with
    """

    #: The state of the sampler in a pickle, with the step of the folder; see :meth:`reopened`.
    _saved: tuple[int, BoundSampler] | None = None

    def __init__(self, buffer: ReplayBuffer, folder: Path | None = None, options: dict[str, Any] | None = None) -> None:
        self.buffer = buffer
        self.folder = folder
        self.options = options or {}

    @classmethod
    def open(cls, folder: Path, online: ReplayBuffer, options: dict[str, Any]) -> MixedSource:
        """Open a folder to read it in place, as a buffer like the online one."""
        if not isinstance(online, CompressedReplay):
            raise TypeError(
                f"demonstrations are opened as the class of the online buffer, and {type(online).__name__} cannot read "
                "folders; pass a buffer_class of sb3_compressed"
            )
        given = {**options, "output_dtype": online.output_dtype, "normalize_images": online.normalize_images}
        if isinstance(online, NStepReplayBuffer):
            given |= {"n_steps": online.n_steps, "gamma": online.gamma}
        buffer = type(online).from_checkpoint(
            folder, follow=True, device=online.device, num_threads=online.num_threads, **given
        )
        return cls(buffer, folder, options)

    def reopened(self, online: ReplayBuffer) -> MixedSource:
        """Return one whose folder was opened again; the state of its sampler continues if the folder is unchanged."""
        if self.folder is None:
            return self
        source = MixedSource.open(self.folder, online, self.options)
        buffer: Any = source.buffer
        saved = copy.deepcopy(self._sampler_state())
        if saved is not None and buffer.sampler is not None:
            step, bound = saved
            if (step, bound.n_rows, bound.n_envs) == (buffer._storage.store.step, buffer.buffer_size, buffer.n_envs):
                buffer._bound_sampler = bound
        return source

    def _sampler_state(self) -> tuple[int, BoundSampler] | None:
        """Return the sampler of a buffer in a folder, and the step of the folder that it belongs to."""
        if self.buffer is None:  # unpickled
            return self._saved
        buffer: Any = self.buffer
        return None if buffer.sampler is None else (buffer._storage.store.step, buffer._bound_sampler)

    def __getstate__(self) -> dict[str, Any]:
        if self.folder is None:
            return vars(self)
        return {**vars(self), "buffer": None, "_saved": self._sampler_state()}


def reason_not_to_save(buffer: Any, *, is_online: bool) -> str:
    """Return why a buffer could not be loaded from the checkpoint of a mixed buffer, empty if it could."""
    if not any(type(buffer) is getattr(replay, name) for name in CLASSES):
        return f"is a {type(buffer).__name__}, which is no local replay buffer of this package"
    if buffer._storage is not None and buffer._storage.is_follower:
        return f"follows {buffer.folder}: load that folder into memory, or pass it as demonstrations="
    if not is_online and buffer.sampler is not None and "class" in sampler_to_config(buffer.sampler):
        return f"has the sampler {type(buffer.sampler).__name__}, which is not from this package"
    return ""


def load_part(folder: Path, number: int, name: str | None, given: dict[str, Any], sampler: Any = None) -> Any:
    """Load a buffer of a checkpoint.

    :param name: name of its class
    :param given: arguments of the caller; ``env`` is only for classes that take it
    :raises CorruptStorage: if there is no such class, or the folder of the buffer is a link
    """
    path = part_folder(folder, number)
    if name not in CLASSES or path.is_symlink():
        raise CorruptStorage(f"{path} is a link, or no {name} of this package")
    cls: Any = getattr(replay, name)
    takes_env = "env" in inspect.signature(cls).parameters
    options = {key: value for key, value in given.items() if key != "env" or takes_env}
    return cls.from_checkpoint(path, **options, **({} if sampler is None else {"sampler": sampler}))
