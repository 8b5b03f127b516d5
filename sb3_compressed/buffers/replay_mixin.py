"""``CompressedReplay``: the mixin that turns SB3's replay buffers into compressed ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import BatchPool, sampling
from sb3_compressed.buffers.buffer_from_store import buffer_from_store, open_to_load
from sb3_compressed.buffers.buffer_lock import new_lock
from sb3_compressed.buffers.prefetch import Prefetcher, Prefetching
from sb3_compressed.buffers.sampled_replay import SampledReplay
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import (
    kind_of,
    validate_infos,
    validate_integer,
    validate_numbers,
    validate_observations,
    validate_per_env,
    validated_buffer_size,
)
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence.buffer_repair import RepairReport
from sb3_compressed.persistence.buffer_storage import BufferStorage, StorageMode
from sb3_compressed.persistence.checkpoint import CheckpointHistory
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.storage.array_store import ArrayStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompressedReplay"]

#: Attributes that copies and pickles do not share.
NOT_COPIED = {"_storage", "_checkpoints", "_lock"}


class CompressedReplay(Prefetching, SampledReplay):
    """Mixin of compressed replay buffers; it precedes SB3's class in the bases.

    Threads may share a buffer: one can sample or save while another one adds.

    Every class accepts ``optimize_memory_usage=True``, also with ``handle_timeout_termination=True``, which SB3
    rejects. Images need no extra memory for next observations, which share their payloads with observations; vectors,
    which are plain arrays, take the memory of both. SB3's own variant, with its random numbers, is used only with
    ``handle_timeout_termination=False``, and only where SB3's class supports it.
    """

    #: What was excluded when the buffer was loaded or resumed with a repair, ``None`` without one.
    repair_report: RepairReport | None = None

    _sampling_method = "sample"
    #: The folder that observations are stored in, ``None`` for a buffer in memory.
    _storage: BufferStorage | None = None
    #: Whether SB3 reads observations and next observations of the same rows.
    _reads_same_rows: ClassVar[bool] = True
    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            return {**arguments, "optimize_memory_usage": False}
        return arguments

    def _set_prefetch(self, n_batches: int) -> None:
        validate_integer("prefetch", n_batches, 0)
        if not n_batches:
            return
        if isinstance(self, HerReplayBuffer) or not self._is_from_this_package:
            raise ValueError(
                f"prefetch={n_batches} is not possible for {type(self).__name__}: "
                + (
                    "its environment computes rewards from observations, so these are needed at once"
                    if isinstance(self, HerReplayBuffer)
                    else "a class from outside this package may use observations while a batch is drawn"
                )
            )
        self._prefetcher = Prefetcher(n_batches)
        self._batch_pool = BatchPool(2 + n_batches)

    def _open_storage(self, storage: Any, mode: StorageMode) -> None:
        self._lock = new_lock()
        if isinstance(storage, ArrayStore):  # from from_checkpoint(follow=True)
            self._storage = BufferStorage.follow(self, storage)
        elif storage != "memory":
            self._storage, self.repair_report = BufferStorage.open(self, user_path(storage), mode)
        elif mode not in get_args(StorageMode):
            raise StorageError(f"storage_mode must be one of {get_args(StorageMode)}, got {mode!r}")
        elif mode != "create":
            raise StorageError("resume, overwrite and repair are for storage=<folder>, got storage='memory'")

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param next_obs: the next observations; at the end of an episode, its terminal observations
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param done: whether an episode ended, ``(n_envs,)``
        :param infos: one info dict for each environment; ignored with ``handle_timeout_termination=False``, unless
            ``copy_info_dict=True``
        :raises ValueError: if an argument does not fit; the buffer is then as it was
        :raises TypeError: if an argument is not numeric; likewise
        """
        with self._lock:
            storage = self._storage
            if storage is not None:
                storage.require_writable("added")
            if self.handle_timeout_termination or self.copy_info_dict:  # SB3 does not read them otherwise
                validate_infos(infos, self.n_envs)
            try:
                kinds = (
                    kind_of(obs), kind_of(next_obs), type(action), action.dtype, action.shape,
                    type(reward), reward.dtype, reward.shape, type(done), done.dtype, done.shape,
                )  # fmt: skip
            except AttributeError:  # lists
                kinds = None
            if kinds is None or kinds != self._validated_kinds:
                given = (obs, next_obs), (action, reward, done)
                obs, next_obs, action, reward, done = self._validate_step(kinds, *given)
            if self._new_arrays and self.passes_encoded_rows:
                observations = self.__dict__["observations"]
                encode = observations.encode_rows if type(observations) is CompressedArray else self._encode
                obs, next_obs = encode(obs, next_obs)
            elif type(obs) is dict:
                obs, next_obs = dict(obs), dict(next_obs)  # SB3 writes into them
            if storage is None:
                super().add(obs, next_obs, action, reward, done, infos)
            else:
                # Before add, so that an interrupted step is committed with the next one, and a failed one is undone.
                storage.begin_row(self, done)
                super().add(obs, next_obs, action, reward, done, infos)
                storage.commit_row(self)
            if self._bound_sampler is not None:
                self._bound_sampler.n_written += 1

    def _validated_step(self, *given: Any) -> tuple[Any, ...]:
        obs, next_obs, action, reward, done = given
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        done = validate_per_env("done", done, self.n_envs, may_broadcast=False)
        obs = validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs)
        next_obs = validate_observations("next_obs", next_obs, self.observations, self.observation_space, self.n_envs)
        return obs, next_obs, action, reward, done

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, in the format that ``output_dtype`` and ``normalize_images`` select.

        With a sampler, the batch has two more fields after SB3's: ``weights``, importance weights ``(batch_size, 1)``
        of float32, and ``indices``, the numbers of the transitions for :meth:`update_priorities`, ``(batch_size,)`` of
        int64 in NumPy.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalize observations and rewards with; no batches are then prefetched
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative, or a sampler returns indices that may not be drawn
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        prefetcher = self._prefetcher
        if prefetcher is not None and env is None and self._new_arrays and sampling.deferred is None:
            samples = prefetcher.sample(partial(type(self).sample, self, batch_size), batch_size, self.device)
            return self._output(samples)
        with self._lock:
            if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
                self._validate_sampling(batch_size)
            if self._bound_sampler is not None:
                return self._samples_of(self._draw(batch_size), env)
            # The environment of hindsight replay computes rewards from observations.
            may_be_referenced = env is not None or isinstance(self, HerReplayBuffer)
            return self._batch(partial(super().sample, batch_size, env=env), may_be_referenced=may_be_referenced)

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does."""
        self.discard_prefetched()
        with self._lock:
            super().reset()

    def _partners(self) -> dict[int, CompressedArray]:
        """Return the observations by the ids of the next observations, which SB3 reads before."""
        attributes = self.__dict__
        first, second = attributes.get("next_observations"), attributes["observations"]
        if first is None or not self._reads_same_rows:
            return {}
        pairs = [(first[key], second[key]) for key in second] if isinstance(second, dict) else [(first, second)]
        return {id(array): partner for array, partner in pairs if type(array) is CompressedArray}

    # -- folders ---------------------------------------------------------------------------------------------

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

    @contextmanager
    def joint_commit(self, n_steps: int) -> Iterator[None]:
        """Commit what the block adds to the folder at once, which takes less time than after each ``add``.

        If the process is killed within the block, the folder contains nothing of it. For buffers in memory, those with
        hindsight replay, and blocks of more steps than the buffer has rows, this does nothing.

        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from sb3_compressed import CompressedReplayBuffer
        >>> buffer = CompressedReplayBuffer(100, spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2))
        >>> frames = np.zeros((1, 2, 84, 84), np.uint8)
        >>> with buffer.joint_commit(50):
        ...     for step in range(50):
        ...         buffer.add(frames, frames, np.array([1]), np.array([0.5]), np.array([False]), [{}])

        :param n_steps: the most steps that the block adds
        :raises StorageError: if the folder is closed or open for reading only, or when the block adds more steps
        :raises OSError: if the steps cannot be written; the buffer is then as it was before the block
        """
        storage = self._storage
        if storage is None or isinstance(self, HerReplayBuffer) or n_steps >= self.buffer_size:
            yield
            return
        storage.require_writable("added")
        with storage.joint_commit(self, n_steps):
            yield

    def flush(self) -> None:
        """Write everything to the disk, including direct writes to arrays, so that it survives a power cut.

        :raises StorageError: if the buffer is in memory, see :meth:`save_checkpoint`, or its folder is closed or open
            for reading only
        """
        if self._storage is None:
            raise StorageError("flush() is for buffers with storage=<folder>; this one is in memory")
        with self._lock:
            self._storage.flush(self)

    def close(self) -> None:
        """Flush and release the folder. The buffer can still be sampled, but not added to."""
        self.discard_prefetched()
        if self._storage is not None:
            with self._lock:
                self._storage.close(self)

    def refresh(self) -> bool:
        """Read what another process has written to the folder since the last call; return whether it wrote anything.

        :raises StorageError: if the buffer does not follow a folder
        """
        if self._storage is None or not self._storage.is_follower:
            raise StorageError("only a buffer that follows a folder can be refreshed; see from_checkpoint")
        with self._lock:
            return self._storage.refresh(self)

    def save_checkpoint(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Save the buffer to a folder: all of it the first time, then what changed since.

        Saves are atomic: after a crash, the last complete save is still there.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether to replace another buffer in the folder
        :raises StorageError: if the folder contains another buffer or other files
        :raises OSError: if it cannot be written; the folder is as it was
        """
        path = user_path(folder).absolute()
        if self._storage is not None and self._storage.folder.resolve() == path.resolve():
            self.flush()
            return
        with self._lock:
            self._checkpoints.save(self, path, overwrite=overwrite)

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save or flush to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or the folder is not empty
        :raises OSError: if it cannot be written
        """
        latest = self._storage or self._checkpoints.latest
        if latest is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        with self._lock:
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
        rows = validated_buffer_size(kwargs)
        store = open_to_load(user_path(folder), repair=repair, follow=follow, rows=rows)
        return buffer_from_store(cls, store, kwargs, follow=follow)

    def take_over(self, other: CompressedReplay) -> None:
        """Take over another buffer's content and folder; the other buffer must not be used afterwards.

        A sampler is taken over with its priorities. If the other buffer has none, this one's begins anew.
        """
        replaced = self._bound_sampler
        other._checkpoints.include(self._checkpoints)
        self.discard_prefetched()
        for name in vars(self).keys() | vars(other).keys():  # of only this one: the other has the default of the class
            is_timer = any(isinstance(vars(each).get(name), MethodTimer) for each in (self, other))
            if hasattr(other, name) and not is_timer and name not in ("_prefetcher", "_batch_pool", "_lock"):
                vars(self)[name] = getattr(other, name)
        if replaced is not None:
            bound = self._bound_sampler
            if bound is None:
                bound = BoundSampler(copy.deepcopy(replaced.configured), self.buffer_size, self.n_envs)
            self._bound_sampler = bound.after(replaced)

    def __copy__(self) -> Self:
        if self._storage is not None:  # a shallow copy would write to the arrays of the folder
            return copy.deepcopy(self)
        shallow = type(self).__new__(type(self))
        shallow.__setstate__(self.__getstate__())
        if self._prefetcher is not None:
            shallow._prefetcher = copy.copy(self._prefetcher)  # with a queue of its own
        shallow._bound_sampler = copy.deepcopy(self._bound_sampler)  # of the shared arrays, both may write other rows
        return shallow

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are in memory, and do not write to the folders.
        attributes = super().__getstate__()
        return {name: value for name, value in attributes.items() if name not in NOT_COPIED}
