"""``MixedReplayBuffer``: batches from several replay buffers, such as online data and demonstrations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.utils import get_device

from sb3_compressed.buffers.buffer_from_store import buffer_from_store, loadable_class, open_to_load
from sb3_compressed.buffers.mixed_checkpoint import new_checkpoint, part_folder, read_manifest, write_manifest
from sb3_compressed.buffers.mixed_source import MixedSource
from sb3_compressed.buffers.n_step import CompressedNStepReplayBuffer
from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplay, CompressedReplayBuffer
from sb3_compressed.buffers.tensors import torch_device
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.errors import BufferNotReady, CorruptStorage, StorageError
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.samplers.td_errors import validated_td_errors

__all__ = ["MixedReplayBuffer"]

Folder = str | PathLike[str]

#: Index of transitions of buffers without priorities.
NO_PRIORITY = -1
#: Digits of the number of rows that a buffer contributes, as 0.1 * 30 = 3.0000000000000004.
N_DIGITS = 9
#: Attributes that all buffers have in common, and what they are in buffers without them.
COMMON = {
    "observation_space": None, "action_space": None,
    "n_steps": 1, "gamma": None, "output_dtype": "raw", "normalize_images": False,
}  # fmt: skip
#: Attributes of the online buffer with which demonstrations are opened, if its class takes them.
OF_DEMONSTRATIONS = "device", "num_threads", "output_dtype", "normalize_images", "n_steps", "gamma", "env"
#: Arguments of :meth:`MixedReplayBuffer.from_checkpoint` that are those of the online buffer.
OF_ONLINE_ALONE = "buffer_size", "sampler"
#: Attributes and methods that are those of the online buffer.
OF_ONLINE = (
    # of SB3's buffers
    "size", "extend", "reset", "buffer_size", "observation_space", "action_space", "obs_shape", "action_dim", "n_envs",
    "pos", "full", "observations", "next_observations", "actions", "rewards", "dones", "timeouts",
    "optimize_memory_usage", "handle_timeout_termination", "n_steps", "gamma",
    # of compressed buffers
    "sampler", "n_skipped_updates", "output_dtype", "normalize_images", "num_threads", "folder", "flush",
    "observations_nbytes", "raw_observations_nbytes",
)  # fmt: skip


class MixedReplayBuffer(ReplayBuffer):
    """Samples from several replay buffers by weights. Transitions are added to the first one, the online buffer.

    As an argument of a model, with the folders of the other buffers:

    >>> import tempfile
    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer, MixedReplayBuffer
    >>> folder = tempfile.mkdtemp()
    >>> expert = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=500
    ... )
    >>> expert.learn(500).replay_buffer.save_checkpoint(folder)
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     batch_size=32,
    ...     learning_starts=0,
    ...     replay_buffer_class=MixedReplayBuffer,
    ...     replay_buffer_kwargs=dict(demonstrations=folder, share=0.25),
    ... )
    >>> model.learn(100).replay_buffer.sample(32).sources.tolist().count(1)
    8

    :meth:`from_buffers` mixes existing buffers, this package's or SB3's own.

    Each batch has exactly ``batch_size`` rows, ordered by buffer. A buffer contributes ``batch_size`` times its weight,
    rounded up or down at random such that the mean is exact; one random number is drawn for that. Buffers from which
    nothing can be sampled yet are left out, so training can begin with demonstrations only. Batches have the additional
    field ``sources``: the buffer of each row, an array ``(batch_size,)`` of int64. If a buffer has priorities, they
    also have ``weights``, which are 1 for rows of the others, and ``indices`` for :meth:`update_priorities`.

    The attributes and methods of a replay buffer, such as ``size()``, ``pos`` and ``rewards``, are those of the online
    buffer; :attr:`online` has all others, such as ``iterate`` and ``sample_sequences``. Checkpoints and pickles, and so
    ``save_replay_buffer``, contain the weights and all buffers but demonstrations that are read in place, of which
    pickles contain the paths. Their priorities begin anew.

    :param buffer_size: number of transitions of the online buffer
    :param observation_space: observation space of all buffers
    :param action_space: action space of all buffers
    :param device: device of the batches
    :param n_envs: number of environments of the online buffer
    :param demonstrations: folder of a saved replay buffer, or several; they are read in place and never written to
    :param share: the part of each batch that is from the demonstrations, one number for each folder
    :param buffer_class: class of the online buffer and the demonstrations; by default the compressed one for the space,
        with n-step returns if ``n_steps`` is passed
    :param kwargs: arguments of the online buffer
    :ivar buffers: the buffers, the online one first
    :raises ValueError: if shares, spaces, n-step returns or output formats do not fit each other
    :raises TypeError: if a demonstration is not a folder
    :raises StorageError: if a folder contains no replay buffer of this kind
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        *,
        demonstrations: Folder | Sequence[Folder],
        share: float | Sequence[float] = 0.25,
        buffer_class: type[ReplayBuffer] | None = None,
        **kwargs: Any,
    ) -> None:
        folders = _listed(demonstrations)
        for folder in folders:
            if not isinstance(folder, str | PathLike):
                raise TypeError(
                    f"demonstrations must be folders, got a {type(folder).__name__}: SB3 saves replay_buffer_kwargs "
                    "with each model. Pass the folder that the buffer was saved to, or mix existing buffers with "
                    "MixedReplayBuffer.from_buffers([online, demonstrations], weights=...)"
                )
        shares = [share] if isinstance(share, float | int) else [*share]
        weights = _normalized([1 - sum(shares), *shares], 1 + len(folders))
        if buffer_class is None:
            if isinstance(observation_space, spaces.Dict):
                buffer_class = CompressedDictReplayBuffer
            else:
                buffer_class = CompressedNStepReplayBuffer if "n_steps" in kwargs else CompressedReplayBuffer
        online = buffer_class(buffer_size, observation_space, action_space, device=device, n_envs=n_envs, **kwargs)
        others = [_read_in_place(folder, online) for folder in folders]
        self._mix([online, *others], weights)

    @classmethod
    def from_buffers(cls, buffers: Sequence[ReplayBuffer], weights: Sequence[float]) -> MixedReplayBuffer:
        """Return a mix of existing buffers.

        Assign it to ``model.replay_buffer``.

        :param buffers: the buffers; only the first one is written to
        :param weights: the part of each batch that is from each buffer, relative to their sum
        :raises ValueError: if weights, spaces, n-step returns or output formats do not fit each other
        :raises TypeError: if they are not replay buffers
        """
        mixed = cls.__new__(cls)
        mixed._mix(buffers, weights)
        return mixed

    def _mix(self, buffers: Sequence[ReplayBuffer], weights: Sequence[float] | NDArray[np.float64]) -> None:
        _validate_buffers(buffers)
        self.buffers = tuple(buffers)
        self._weights = _normalized(weights, len(buffers))
        self.device = buffers[0].device

    # -- buffers ---------------------------------------------------------------------------------------------

    @property
    def weights(self) -> NDArray[np.float64]:
        """The part of each batch that is from each buffer; the sum is 1.

        Others can be assigned during a training, for example from a callback, relative to their sum. They apply from
        the next batch on.

        :raises ValueError: if they are not one number for each buffer, negative, or all 0
        """
        return np.array(self._weights)

    @weights.setter
    def weights(self, weights: Sequence[float] | NDArray[np.float64]) -> None:
        self._weights = _normalized(weights, len(self.buffers))

    @property
    def online(self) -> ReplayBuffer:
        """The buffer that transitions are added to."""
        try:
            return self.buffers[0]
        except AttributeError:
            raise TypeError(
                f"{type(self).__name__} skips the constructor of MixedReplayBuffer, which creates its buffers: call "
                "super().__init__(), or mix existing buffers with from_buffers()"
            ) from None

    @property
    def device(self) -> th.device:
        """The device of the batches."""
        return self.online.device

    @device.setter
    def device(self, device: th.device | str | None) -> None:
        for buffer in self.buffers:
            buffer.device = get_device(device) if device is not None else None  # type: ignore[assignment]

    if TYPE_CHECKING:  # all names in OF_ONLINE

        def __getattr__(self, name: str) -> Any: ...

    # -- SB3's interface -------------------------------------------------------------------------------------

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a transition of every environment to the online buffer."""
        self.online.add(*args, **kwargs)

    def __repr__(self) -> str:
        weights = ", ".join(f"{weight:g}" for weight in self._weights)
        return f"<{type(self).__name__}: {weights} of each batch from {', '.join(map(repr, self.buffers))}>"

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch from all buffers.

        :param batch_size: number of transitions to sample
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :return: SB3's samples with the additional fields ``sources`` and, with priorities, ``weights`` and ``indices``
        :raises BufferNotReady: if nothing was added to any buffer with a positive weight yet
        :raises ValueError: if ``batch_size`` is negative
        :raises TypeError: if it is not an integer
        """
        has_samplers = any(getattr(buffer, "sampler", None) is not None for buffer in self.buffers)
        parts: list[dict[str, Any]] = []
        for number, n in self._counts(batch_size).items():
            samples: Any = self.buffers[number].sample(n, env=env)
            part = samples._asdict()
            weights, indices = part.pop("weights", None), part.pop("indices", None)
            part["sources"] = np.full(n, number, dtype=np.int64)
            if has_samplers:  # in all batches, also those without rows of such a buffer
                no_priorities = np.full(n, NO_PRIORITY, dtype=np.int64)
                part["weights"] = th.ones_like(samples.rewards, dtype=th.float32) if weights is None else weights
                part["indices"] = no_priorities if indices is None else indices * len(self.buffers) + number
            parts.append(part)
        mixed = {name: self._concatenated([part[name] for part in parts]) for name in parts[0]}
        return _samples_type(tuple(mixed))(**mixed)

    def _counts(self, batch_size: int) -> dict[int, int]:
        """Return how many rows of a batch are from each buffer that it is from, by the number of the buffer."""
        validate_integer("batch_size", batch_size, 0)
        are_ready = [*map(_can_be_sampled, self.buffers)]
        weights = np.where(are_ready, self._weights, 0)
        if not weights.any():
            raise BufferNotReady(
                "cannot sample: nothing was added yet to the buffers with positive weights, "
                f"which are {self._weights.tolist()}"
            )
        # Systematic sampling: the expected number of rows of the first buffers, and a common random offset.
        bounds = np.cumsum(weights) / weights.sum() * batch_size
        offset = np.random.random() if np.count_nonzero(weights) > 1 else 0.0  # noqa: NPY002  # what SB3 draws from
        ends = np.floor(np.round(bounds, N_DIGITS) + offset).astype(np.int64)
        ends[np.flatnonzero(weights)[-1] :] = batch_size
        counts = dict(enumerate(np.diff(ends, prepend=0).tolist()))
        return {number: n for number, n in counts.items() if n} or {0: 0}

    def _concatenated(self, parts: list[Any]) -> Any:
        """Return one field of the batches of several buffers."""
        if parts[0] is None or len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        device = torch_device(self.device)
        return tree_map(lambda *tensors: th.cat([tensor.to(device) for tensor in tensors]), *parts)

    def update_priorities(self, indices: ArrayLike, td_errors: ArrayLike | th.Tensor) -> int:
        """Update the priorities of transitions in the buffers that they were sampled from.

        :param indices: the field ``indices`` of a batch, ``(batch_size,)``
        :param td_errors: TD errors of these transitions, ``(batch_size,)`` or ``(batch_size, 1)``; those of buffers
            without priorities are ignored
        :return: number of transitions that were overwritten since
        :raises ValueError: if shapes do not fit, a TD error is not finite, or there is no such transition; no priority
            is changed then
        :raises TypeError: if indices are not integers
        """
        encoded, errors = validated_td_errors(indices, td_errors)
        if not any(map(_has_priorities, self.buffers)):
            raise TypeError("update_priorities() is for buffers with a sampler, such as sampler='prioritized'")
        numbers, sources = np.divmod(encoded, len(self.buffers))
        sources[encoded == NO_PRIORITY] = NO_PRIORITY
        updates: list[tuple[Any, NDArray[Any], NDArray[Any]]] = [
            (buffer, numbers[sources == number], errors[sources == number])
            for number, buffer in enumerate(self.buffers)
            if _has_priorities(buffer) and number in sources
        ]
        if len(updates) > 1:  # all are valid before any is applied
            updates.sort(key=lambda update: hasattr(update[0], "_bound_sampler"))  # distributed ones validate first
            for buffer, *update in updates:
                if hasattr(buffer, "_bound_sampler"):
                    buffer._bound_sampler.validated_update(buffer, *update)
        return sum(buffer.update_priorities(*update) for buffer, *update in updates)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, folder: Folder, *, overwrite: bool = False) -> None:
        """Save the weights and all buffers to a folder.

        Demonstrations that are read in place are not copied. Each save writes everything, unlike those of
        :class:`~sb3_compressed.BufferCheckpointCallback`. Until it is complete, the folder is named
        ``<folder>.unfinished``, and while it replaces another one, that is ``<folder>.replaced``.

        :param folder: a new or empty folder
        :param overwrite: whether to replace a mixed buffer in the folder, when the new one is complete
        :raises StorageError: if a buffer cannot be saved, see :meth:`saved_buffers`, or the folder is not empty
        :raises OSError: if it cannot be written
        """
        saved = self.saved_buffers()
        with new_checkpoint(user_path(folder).absolute(), overwrite=overwrite) as unfinished:
            for number, buffer in saved.items():
                buffer.save_checkpoint(part_folder(unfinished, number), overwrite=True)  # as after a failed save
            self.write_manifest(unfinished)

    def write_manifest(self, folder: Path) -> None:
        """Complete a checkpoint that has a part for each of :meth:`saved_buffers`."""
        saved = self.saved_buffers()
        classes = [type(saved[number]).__name__ if number in saved else None for number in range(len(self.buffers))]
        write_manifest(folder, self._weights.tolist(), classes)

    def saved_buffers(self) -> dict[int, CompressedReplay]:
        """Return the buffers that checkpoints contain, by number: all but demonstrations that are read in place.

        :raises StorageError: if one could not be loaded: one of SB3's or your own class, or a distributed one
        """
        found: dict[int, Any] = {
            number: buffer for number, buffer in enumerate(self.buffers) if self._read_from(buffer) is None
        }
        for number, buffer in found.items():
            if type(buffer) is not loadable_class(type(buffer).__name__):
                raise StorageError(
                    f"a mixed buffer cannot be saved if buffer {number} is a {type(buffer).__name__}, which is no "
                    "local replay buffer of this package"
                )
        return found

    def _read_from(self, buffer: Any) -> Path | None:
        """Return the folder of demonstrations that are read in place, ``None`` for other buffers."""
        storage = getattr(buffer, "_storage", None)
        return storage.folder if storage is not None and storage.is_follower and buffer is not self.online else None

    @classmethod
    def from_checkpoint(
        cls,
        folder: Folder,
        *,
        demonstrations: Folder | Sequence[Folder] = (),
        **kwargs: Any,
    ) -> MixedReplayBuffer:
        """Load the buffers in a folder.

        :param demonstrations: folders of the demonstrations that were read in place, in the same order; their
            priorities begin anew
        :param kwargs: arguments that override the stored ones: ``buffer_size`` and ``sampler`` those of the online
            buffer, all others, such as ``device``, those of all buffers; ``env`` of hindsight replay; ``repair=True``
            as in :func:`~sb3_compressed.load_checkpoint`
        :raises ValueError: if the number of demonstrations is wrong, or they do not fit the other buffers
        :raises StorageError: if the folder contains no complete checkpoint of a mixed buffer
        :raises CorruptStorage: if a file is damaged
        """
        if kwargs.get("follow"):
            raise StorageError(f"{folder} contains a mixed buffer, which cannot be followed; follow one of its parts")
        path = user_path(folder).absolute()
        weights, classes = read_manifest(path)
        folders = _listed(demonstrations)
        if len(folders) != classes.count(None):
            raise ValueError(
                f"{path} was saved with {classes.count(None)} folders of demonstrations that are read in place, pass "
                f"them as demonstrations=; got {len(folders)}"
            )
        buffers: list[ReplayBuffer] = []
        for number, name in enumerate(classes):
            if name is None:
                buffers.append(_read_in_place(folders.pop(0), buffers[0]))
            else:
                buffers.append(_loaded(part_folder(path, number), name, kwargs))
            kwargs = {key: value for key, value in kwargs.items() if key not in OF_ONLINE_ALONE}
        return cls.from_buffers(buffers, weights)

    def close(self) -> None:
        """Flush and close the folders of all buffers."""
        for buffer in self.buffers:
            if isinstance(buffer, CompressedReplay):
                buffer.close()

    def start_timers(self) -> tuple[MethodTimer, MethodTimer]:
        """Return timers of ``add`` and ``sample``, which run until they are removed."""
        return MethodTimer(self, "add"), MethodTimer(self, "sample")

    def __getstate__(self) -> dict[str, Any]:
        sources = [
            MixedSource(buffer) if (folder := self._read_from(buffer)) is None else MixedSource(folder=folder)
            for buffer in self.buffers
        ]
        return {"_sources": sources, "_weights": self._weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers: list[ReplayBuffer] = []
        for source in state["_sources"]:
            buffers.append(source.buffer if source.folder is None else _read_in_place(source.folder, buffers[0]))
        self._mix(buffers, state["_weights"])


def _of_online(name: str) -> property:
    """Return a property for an attribute or a method of the online buffer."""
    return property(
        lambda mixed: getattr(mixed.online, name),
        lambda mixed, value: setattr(mixed.online, name, value),
        doc=f"``{name}`` of the online buffer.",
    )


for _name in OF_ONLINE:
    setattr(MixedReplayBuffer, _name, _of_online(_name))


def _normalized(weights: Sequence[float] | NDArray[np.float64], n_buffers: int) -> NDArray[np.float64]:
    """Return the weights of some buffers with the sum 1.

    :raises ValueError: if they are not one number for each buffer, negative, or all 0
    """
    relative = np.array([*weights], dtype=np.float64)
    if relative.shape != (n_buffers,) or not 0 < relative.sum() < np.inf or (relative < 0).any():
        raise ValueError(
            f"weights of the online buffer and of the others, their shares, must be {n_buffers} numbers, none negative "
            f"and not all 0, got {weights}"
        )
    return np.asarray(relative / relative.sum())


def _validate_buffers(buffers: Sequence[ReplayBuffer]) -> None:
    """Raise if batches of these buffers cannot be concatenated."""
    if not buffers:
        raise ValueError("a MixedReplayBuffer needs at least one buffer")
    for number, buffer in enumerate(buffers):
        if not isinstance(buffer, ReplayBuffer) or isinstance(buffer, MixedReplayBuffer):
            raise TypeError(f"buffer {number} must be a replay buffer that is not mixed, got a {type(buffer).__name__}")
        for name, default in COMMON.items():
            value, expected = (getattr(each, name, default) for each in (buffer, buffers[0]))
            if value != expected:
                raise ValueError(
                    f"all buffers must have the same {name}: that of buffer {number} is {value!r}, that of the online "
                    f"buffer {expected!r}. Record demonstrations with the arguments and wrappers of the training, such "
                    "as SB3's VecTransposeImage"
                )


def _can_be_sampled(buffer: ReplayBuffer) -> bool:
    episodes = EpisodeTable.of(buffer)
    return buffer.size() > 0 if episodes is None else bool(episodes.is_complete.any())


def _has_priorities(buffer: ReplayBuffer) -> bool:
    return getattr(getattr(buffer, "sampler", None), "has_priorities", False)


@cache
def _samples_type(names: tuple[str, ...]) -> Any:
    """Return a type of batches with these fields."""
    return NamedTuple("MixedReplayBufferSamples", [(name, Any) for name in names])


def _listed(folders: Folder | Sequence[Folder]) -> list[Any]:
    return [*folders] if isinstance(folders, list | tuple) else [folders]


def _read_in_place(folder: Folder, online: ReplayBuffer) -> Any:
    """Open a folder of demonstrations as a buffer like the online one."""
    if not isinstance(online, CompressedReplay):
        raise TypeError(
            f"demonstrations are opened as the class of the online buffer, and {type(online).__name__} cannot read "
            "folders; pass a buffer_class of sb3_compressed"
        )
    taken = inspect.signature(type(online)).parameters
    options = {name: getattr(online, name) for name in OF_DEMONSTRATIONS if name in taken}
    sampler = "uniform" if online.bound_sampler is None else online.bound_sampler.configuration
    given = {**options, "sampler": sampler}
    store = open_to_load(user_path(folder).absolute(), given, follow=True)
    return buffer_from_store(type(online), store, given, follow=True, of_user=False)


def _loaded(folder: Path, name: str, given: dict[str, Any]) -> Any:
    """Load a buffer of a checkpoint.

    :param name: name of its class
    :param given: arguments of the caller; ``env`` is only for classes that take it
    :raises CorruptStorage: if there is no such class, or the folder is a link
    """
    cls: type[CompressedReplay] | None = loadable_class(name)
    if cls is None or folder.is_symlink():
        raise CorruptStorage(f"{folder} is a link, or no {name} of this package")
    takes_env = "env" in inspect.signature(cls).parameters
    return cls.from_checkpoint(folder, **{key: value for key, value in given.items() if key != "env" or takes_env})
