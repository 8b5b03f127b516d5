"""The mixins that turn SB3's buffers into compressed ones.

SB3's buffers use ``observations`` and ``next_observations`` only by indexing them. A compressed buffer is therefore its
SB3 counterpart with a :class:`~sb3_compressed.arrays.CompressedArray` for each: adding, sampling, random numbers,
normalization and types are SB3's own code. What remains to be done here:

- construct the buffer without SB3's allocation: the parent gets a placeholder observation space, whose parts have no
  elements, and the real space and arrays are set afterwards;
- validate all arguments of ``add`` before SB3 writes the first of them, so that bad input changes nothing;
- pass encoded observations through SB3's ``add``;
- create tensors on the memory of decoded observations, without a copy;
- apply the two options for what is returned, ``output_dtype`` and ``normalize_images``.

Nearly all dependencies on SB3's internals are here; those on the episodes of hindsight replay are in ``persistence``.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import psutil
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import Batch, BatchArray, BatchPool, sampling
from sb3_compressed.arrays.frame_layout import FrameStack
from sb3_compressed.arrays.pinned_memory import empty_pinned
from sb3_compressed.buffers.arguments import (
    bind_parent_arguments,
    merge_codec_kwargs,
    parent_signature,
    storage_mode_of,
    takes_dicts,
)
from sb3_compressed.buffers.array_attributes import ArrayAttribute, ArrayDict
from sb3_compressed.buffers.compression_plan import placeholder_space, plan_arrays
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import (
    validate_counts,
    validate_infos,
    validate_integer,
    validate_numbers,
    validate_observations,
    validate_per_env,
    validate_tensor,
)
from sb3_compressed.codecs import Codec
from sb3_compressed.dtypes import Key
from sb3_compressed.errors import BufferNotReady, ObservationSpaceError, StorageError
from sb3_compressed.persistence.buffer_from_store import buffer_from_store, open_to_load
from sb3_compressed.persistence.buffer_repair import RepairReport
from sb3_compressed.persistence.buffer_storage import BufferStorage, StorageLocation, StorageMode
from sb3_compressed.persistence.checkpoint import CheckpointHistory
from sb3_compressed.probes import holds, metadata_is_handed_on
from sb3_compressed.renamed import buffer_attributes
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.threads import validate_num_threads
from sb3_compressed.warning import warn_user

if TYPE_CHECKING:  # the mixins precede a buffer of SB3 in the bases of a class; they use BaseBuffer's interface
    from typing_extensions import Self

    _Base = BaseBuffer
else:
    _Base = object

__all__ = ["CompressedBuffer", "CompressedReplay", "CompressedRollout"]

OutputDtype = Literal["raw", "float"]

#: Arguments of SB3's constructors that do not describe the content, or are stored elsewhere.
NOT_STORED_ARGUMENTS = {"observation_space", "action_space", "device", "env"}
#: Whether arrays of slots that NumPy copies can still be recognized as slots.
METADATA_IS_HANDED_ON = holds(metadata_is_handed_on)
#: SB3's method that receives the arrays of a batch. One that replaces it may change or keep them.
NORMALIZE_OBS = BaseBuffer._normalize_obs
#: Packages whose ``add`` only copies observations.
KNOWN_PACKAGES = {"stable_baselines3", "sb3_contrib", "abc", "builtins"}


class CompressedBuffer(_Base):
    """Base class of all compressed buffers: their constructor, and compressed arrays in place of SB3's.

    Takes all arguments of the parent class, by position or name, and:

    :param compression_method: shorthand of a codec, e.g. ``"zstd-5"`` for zstd with level -5 and ``"zstd5"`` for
        level 5, or a codec. ``"auto"`` chooses one, and does not compress observations of less than 1 kB, or float
        observations of one or two dimensions unless ``dtypes`` or ``frame_stack`` is passed. For a Dict space also a
        mapping from its keys
    :param compression_kwargs: keyword arguments of the codec, e.g. ``dict(compresslevel=5)``
    :param dtypes: the result of :func:`~sb3_compressed.find_buffer_dtypes`, or a dtype to store elements in. One that
        cannot represent every value of the space's dtype is the only lossy option, and warns
    :param frame_stack: how to find stacked frames: ``"auto"`` from the data, the number of frames, or ``None``. For a
        Dict space also a mapping from its keys
    :param output_dtype: ``"float"`` for observations as float32 tensors, ``"raw"`` for SB3's dtypes
    :param normalize_images: whether to divide image observations by 255 (as float32), for your own training code.
        SB3's policies do that themselves, when they act and when they train: leave it off with its algorithms
    :param num_threads: number of threads that decode large batches, the calling one included; ``None`` for the number
        of cores that the process may use, up to four
    :param storage: for replay buffers, a folder to store compressed observations in instead of memory. Each ``add`` is
        one transaction: if the process is killed, the folder contains every ``add`` that was completed
    :param storage_mode: what to do if the folder contains a buffer: ``"create"`` raises, ``"resume"`` continues with
        the newest transitions that fit, ``"overwrite"`` replaces it, and ``"repair"`` resumes without damaged
        transitions, with a warning; ``repair_report`` lists them. ``resume=True``, ``overwrite=True`` and
        ``resume=True, repair=True`` are shorthands
    :raises ValueError: if an option is unknown or does not fit the space; the message lists the allowed values
    :raises TypeError: if an argument is unknown, or of the wrong type
    :raises ObservationSpaceError: if the class is for Dict spaces and the space is not one, or the other way round
    """

    obs_shape: Any
    observations: Any = ArrayAttribute()
    next_observations: Any = ArrayAttribute()

    #: Whether all later classes in the MRO are SB3's or sb3-contrib's, which only copy observations, so that ``add``
    #: may pass them encoded.
    passes_encoded_rows: ClassVar[bool] = False
    #: Whether the class is from this package, so that no other code precedes it.
    _is_from_this_package: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_from_this_package = cls.__module__.startswith(f"{__package__}.")
        parents = cls.__mro__[cls.__mro__.index(CompressedBuffer) + 1 :]
        are_known = all(base.__module__.partition(".")[0] in KNOWN_PACKAGES for base in parents)
        cls.passes_encoded_rows = are_known and METADATA_IS_HANDED_ON
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if "__init__" not in vars(cls):
            # What help() and editors show: the parent's arguments, then the options.
            options = [option for option in own if option.kind is option.KEYWORD_ONLY]
            own = [*parent_signature(cls, CompressedBuffer).parameters.values(), *options]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    def __init__(
        self,
        *args: Any,
        compression_method: str | Codec | Mapping[str, str | Codec] = "auto",
        compression_kwargs: Mapping[str, Any] | None = None,
        dtypes: Any = None,
        frame_stack: FrameStack | Mapping[str, FrameStack] = "auto",
        output_dtype: OutputDtype = "raw",
        normalize_images: bool = False,
        num_threads: int | None = None,
        storage: StorageLocation = "memory",
        storage_mode: StorageMode = "create",
        **kwargs: Any,
    ) -> None:
        if output_dtype not in get_args(OutputDtype):
            raise ValueError(f"output_dtype must be one of {get_args(OutputDtype)}, got {output_dtype!r}")
        self.output_dtype = output_dtype
        self.normalize_images = normalize_images
        self.compression_method = compression_method
        self.num_threads = validate_num_threads(num_threads)
        compression_kwargs = merge_codec_kwargs(compression_kwargs, kwargs)
        storage_mode = storage_mode_of(storage_mode, kwargs)

        options = {
            "compression_method": compression_method, "compression_kwargs": compression_kwargs, "dtypes": dtypes,
            "frame_stack": frame_stack, "output_dtype": output_dtype, "normalize_images": normalize_images,
        }  # fmt: skip
        arguments = bind_parent_arguments(type(self), CompressedBuffer, args, kwargs)
        #: Arguments that describe the buffer, by their names; the others may be large, or of this process.
        stored_names = [name for name in arguments if name not in NOT_STORED_ARGUMENTS]
        self.given_arguments = {**{name: arguments[name] for name in stored_names}, **options}
        validate_counts(arguments)
        space = arguments["observation_space"]
        get_obs_shape(space)  # raises NotImplementedError where SB3 does
        needs_dict = takes_dicts(type(self))
        if needs_dict != isinstance(space, spaces.Dict):
            # It begins as SB3's message, which users may match.
            rule = "must be used with Dict obs space only" if needs_dict else "does not support Dict obs spaces"
            raise ObservationSpaceError(
                f"{type(self).__name__} {rule}, got {space}; for Dict spaces use a class with 'Dict' in its name or "
                "CompressedHerReplayBuffer, for others one without"
            )
        on_disk = storage != "memory"
        self._plans = plan_arrays(
            space, compression_method, compression_kwargs or {}, dtypes, frame_stack, on_disk=on_disk
        )
        #: An unwritten array of each key, from which the arrays are created.
        self._new_arrays: dict[Key, CompressedArray] = {}
        arguments = self._adapt_arguments(arguments)
        super().__init__(**{**arguments, "observation_space": placeholder_space(space, self._plans)})
        self._placeholder_shape = self.obs_shape
        self.observation_space = space
        self.obs_shape = get_obs_shape(space)
        self._batch_pool = BatchPool()
        self._install_arrays()
        for array in self._new_arrays.values():
            array.prepare()  # rather than at the first step of the training
        self._open_storage(storage, storage_mode)
        if not on_disk:
            self._warn_of_memory()

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for the parent's constructor."""
        return arguments

    def _open_storage(self, storage: Any, mode: StorageMode) -> None:
        """Store compressed observations as the options select: in memory or in a folder.

        :raises StorageError: if that is not possible
        """
        if storage != "memory" or mode != "create":
            raise StorageError(f"storage is for replay buffers; a {type(self).__name__} is refilled at each rollout")

    # -- arrays ----------------------------------------------------------------------------------------------

    def _install_arrays(self) -> None:
        """Replace the arrays that the parent created for the placeholder space."""
        names = [name for name in ("observations", "next_observations") if self.__dict__.get(name) is not None]
        placeholders = [self.__dict__[name] for name in names]
        if isinstance(placeholders[0], dict):
            arrays = [
                self._arrays_for(key, [placeholder[key] for placeholder in placeholders]) for key in placeholders[0]
            ]
            new: list[Any] = [ArrayDict(zip(placeholders[0], of_name)) for of_name in zip(*arrays)]
        else:
            new = self._arrays_for(None, placeholders)
        self.__dict__.update(zip(names, new))

    def _arrays_for(self, key: Key, placeholders: list[np.ndarray[Any, Any]]) -> list[Any]:
        """Return the arrays of one key: observations and, if there are any, next observations."""
        if key not in self._plans:
            return placeholders
        (rows, n_envs), dtype = placeholders[0].shape[:2], placeholders[0].dtype
        if key not in self._new_arrays:
            self._new_arrays[key] = self._plans[key].new_array(rows, n_envs, dtype, num_threads=self.num_threads)
        return [self._new_arrays[key].new_sharing_frames() for _ in placeholders]

    def _arrays(self) -> list[tuple[Key, Any]]:
        """Return the arrays of observations and next observations with their keys, compressed and plain ones."""
        arrays: list[tuple[Key, Any]] = []
        for name in ("observations", "next_observations"):
            value = self.__dict__.get(name)
            arrays += value.items() if isinstance(value, dict) else [] if value is None else [(None, value)]
        return arrays

    @property
    def observations_nbytes(self) -> int:
        """The memory of all observations in bytes, with Python's overhead; shared payloads count once."""
        arrays = self._arrays()
        nbytes: int = sum(array.nbytes for _, array in arrays if not isinstance(array, CompressedArray))
        for key in {key: None for key, array in arrays if isinstance(array, CompressedArray)}:
            same = [array for other, array in arrays if other == key]  # which share payloads
            nbytes += same[0].store.nbytes(*[array.slots for array in same])
        return nbytes

    @property
    def raw_observations_nbytes(self) -> int:
        """The memory of all observations in SB3's buffer with the same arguments, in bytes."""
        arrays = [array for _, array in self._arrays()]
        return sum(array.nbytes if isinstance(array, np.ndarray) else array.raw_nbytes for array in arrays)

    def _warn_of_memory(self) -> None:
        """Warn as SB3 does if the buffer may not fit into the available memory."""
        if not self._new_arrays:  # SB3 has checked buffers with plain arrays only
            return
        expected = sum(
            self._plans[key].estimated_nbytes(array.shape[0], array.shape[1], array.dtype)
            for key, array in self._new_arrays.items()
        )
        expected += sum(array.nbytes for _, array in self._arrays() if not isinstance(array, CompressedArray))
        expected += sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))
        available = psutil.virtual_memory().available
        if expected > available:
            warn_user(
                f"This system does not have apparently enough memory to store the complete buffer: about "
                f"{expected / 1e9:.2f}GB, estimated from typical sizes of game frames, > {available / 1e9:.2f}GB"
            )

    # -- timing ----------------------------------------------------------------------------------------------

    #: The method that creates a batch.
    _sampling_method: ClassVar[str]

    def start_timers(self) -> tuple[MethodTimer, MethodTimer]:
        """Return timers of the methods that add a step and create a batch, which run until they are removed."""
        return MethodTimer(self, "add"), MethodTimer(self, self._sampling_method)

    def __getstate__(self) -> dict[str, Any]:
        parent = getattr(super(), "__getstate__", None)  # from Python 3.11 on, every object has it
        state = parent() if parent else None
        attributes = self.__dict__ if state is None else state
        return {name: value for name, value in attributes.items() if not isinstance(value, MethodTimer)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = buffer_attributes(state)
        if parent := getattr(super(), "__setstate__", None):  # HER's has one
            parent(state)
        else:
            vars(self).update(state)

    # -- adding ----------------------------------------------------------------------------------------------

    def _encode(self, *observations: Any) -> Any:
        """Return validated observations as SB3 is to copy them: references to payloads instead of images.

        :param observations: the observations of all environments, alone or followed by the next observations
        """
        arrays = self.observations
        if not self.passes_encoded_rows:  # a user's class receives them unencoded
            return observations
        if not isinstance(arrays, dict):
            return arrays.encode_rows(*observations) if isinstance(arrays, CompressedArray) else observations
        encoded: list[dict[str, Any]] = [{} for _ in observations]
        for key, array in arrays.items():
            parts: Any = [observation[key] for observation in observations]
            rows = array.encode_rows(*parts) if isinstance(array, CompressedArray) else parts
            for observation, row in zip(encoded, rows, strict=True):
                observation[key] = row
        return encoded

    # -- batches ---------------------------------------------------------------------------------------------

    def to_torch(self, array: np.ndarray[Any, Any], copy: bool = True) -> th.Tensor:
        """Convert an array to a tensor on the buffer's device.

        :param array: array to convert
        :param copy: whether the tensor must have memory that is not the array's
        """
        if type(array) is not BatchArray or not array.is_owned:
            return super().to_torch(array, copy=copy)
        array.is_owned = False  # the memory belongs to the tensor now
        tensor = th.from_numpy(array)
        device = self.device.type
        return tensor if device == "cpu" else tensor.to(self.device, non_blocking=device == "cuda")

    def _batch(self, make: Callable[[], Any], *, may_be_referenced: bool) -> Any:
        """Return the batch that SB3's code creates, with observations in the requested output format.

        Tensors take over the memory of the decoded arrays, if no other code can refer to them.

        :param make: returns the batch
        :param may_be_referenced: whether an environment receives the arrays and may keep references to them; a user's
            subclass may as well
        """
        is_private = (
            self._is_from_this_package
            and self._normalize_obs is NORMALIZE_OBS
            and "to_torch" not in self.__dict__
            and type(self.__dict__.get("_get_samples")) in (NoneType, MethodTimer)
        )
        if may_be_referenced or not is_private or not self._new_arrays:
            samples = make()
        else:
            outer = sampling.batch
            # Chosen here, since a buffer may be loaded on a machine with another device.
            sampling.batch = Batch(empty_pinned) if self.device.type == "cuda" else self._batch_pool.begin_batch()
            try:
                samples = make()
            finally:
                sampling.batch = outer
        if self.output_dtype == "raw" and not self.normalize_images:
            return samples
        names = [name for name in ("observations", "next_observations") if hasattr(samples, name)]
        return samples._replace(**{name: self._output_observations(getattr(samples, name)) for name in names})

    def _output_observations(self, observations: Any) -> Any:
        if isinstance(observations, dict):
            parts = self.observation_space.spaces  # type: ignore[attr-defined]
            return {key: self._output_tensor(tensor, parts[key]) for key, tensor in observations.items()}
        return self._output_tensor(observations, self.observation_space)

    def _output_tensor(self, tensor: th.Tensor, space: spaces.Space[Any]) -> th.Tensor:
        if self.normalize_images and is_image_space(space):
            return tensor.float() / 255.0  # as SB3's policies do it
        return tensor.float() if self.output_dtype == "float" else tensor


class CompressedReplay(CompressedBuffer):
    """Mixin of compressed replay buffers; it precedes SB3's class in the bases.

    ``optimize_memory_usage=True`` works for every class and with ``handle_timeout_termination=True``, which SB3
    rejects: next observations share their payloads with observations, so both are stored at no extra cost (vectors,
    which are plain arrays, take the memory of both). Where SB3's own class supports it, its variant of sampling is
    used, with the same random numbers.
    """

    #: What was excluded when the buffer was loaded or resumed with a repair, ``None`` without one.
    repair_report: RepairReport | None = None

    _sampling_method = "sample"
    #: The folder that observations are stored in, ``None`` for a buffer in memory.
    _storage: BufferStorage | None = None
    #: The folders that it was saved to, ``None`` for a buffer that was neither saved nor loaded.
    _checkpoints: CheckpointHistory | None = None

    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    #: Types, dtypes and shapes of the arguments of ``add`` that were valid at the last validation; steps with the same
    #: ones are not validated again.
    _validated_kinds: tuple[Any, ...] | None = None

    optimize_memory_usage: bool
    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it

    def _adapt_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            return {**arguments, "optimize_memory_usage": False}
        return arguments

    def _open_storage(self, storage: Any, mode: StorageMode) -> None:
        if isinstance(storage, ArrayStore):  # from from_checkpoint(follow=True)
            self._storage = BufferStorage.follow(self, storage)
        elif storage != "memory":
            self._storage, self.repair_report = BufferStorage.open(self, Path(storage), mode)
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
        storage = self._storage
        if storage is not None:
            storage.require_writable("added")
        if self.handle_timeout_termination or self.copy_info_dict:  # SB3 does not read them otherwise
            validate_infos(infos, self.n_envs)
        try:
            kinds = (
                type(obs), obs.dtype, obs.shape, type(next_obs), next_obs.dtype, next_obs.shape,
                type(action), action.dtype, action.shape, type(reward), reward.dtype, reward.shape,
                type(done), done.dtype, done.shape,
            )  # fmt: skip
        except AttributeError:  # dicts, lists
            kinds = None
        if kinds is None or kinds != self._validated_kinds:
            obs, next_obs, action, reward, done = self._validate_step(kinds, obs, next_obs, action, reward, done)
        if self._new_arrays and self.passes_encoded_rows:
            observations = self.__dict__["observations"]
            encode = observations.encode_rows if type(observations) is CompressedArray else self._encode
            obs, next_obs = encode(obs, next_obs)
        if storage is None:
            super().add(obs, next_obs, action, reward, done, infos)
            return
        # Before add, so that an interrupted step is committed with the next one, and a failed one is undone.
        storage.begin_row(self, done)
        super().add(obs, next_obs, action, reward, done, infos)
        storage.commit_row(self)

    def _validate_step(self, kinds: Any, *given: Any) -> tuple[Any, ...]:
        """Return the arguments of ``add`` as they can be written, or raise; record which need no validation next time.

        :param kinds: their types, dtypes and shapes, ``None`` if they have none
        """
        obs, next_obs, action, reward, done = given
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        done = validate_per_env("done", done, self.n_envs, may_broadcast=False)
        obs = validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs)
        next_obs = validate_observations("next_obs", next_obs, self.observations, self.observation_space, self.n_envs)
        validated = obs, next_obs, action, reward, done
        if kinds and all(map(operator.is_, given, validated)):
            # Any values of the array's own dtype can be written; of another dtype, some may not fit.
            is_of_one_dtype = obs.dtype == next_obs.dtype == self.observations.dtype
            self._validated_kinds = kinds if is_of_one_dtype else None
        return validated

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, in the format that ``output_dtype`` and ``normalize_images`` select.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
            self._validate_sampling(batch_size)
        may_be_referenced = env is not None or isinstance(self, HerReplayBuffer)  # whose environment computes rewards
        return self._batch(partial(super().sample, batch_size, env=env), may_be_referenced=may_be_referenced)

    def _validate_sampling(self, batch_size: Any) -> None:
        """Raise if no batch of that size can be sampled."""
        validate_integer("batch_size", batch_size, 0)
        if batch_size == 0 or isinstance(self, HerReplayBuffer):
            return  # SB3's hindsight buffer raises a clear error itself, until its first episode is over
        if self.size() == 0:
            raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
        if self.full and self.buffer_size == 1 and self.optimize_memory_usage:
            raise BufferNotReady(
                "cannot sample from a buffer of one row with optimize_memory_usage=True, which reserves one row; "
                "increase buffer_size"
            )

    # -- folders ---------------------------------------------------------------------------------------------

    @property
    def is_in_memory(self) -> bool:
        """Whether compressed observations are in memory, not in a folder."""
        return self._storage is None

    @property
    def folder(self) -> Path | None:
        """The folder with the compressed observations, ``None`` if they are in memory."""
        return None if self._storage is None else self._storage.folder

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

        Saves are atomic: a crash leaves the last complete one.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether to replace another buffer in the folder
        :raises StorageError: if the folder contains another buffer or other files
        :raises OSError: if it cannot be written; the folder is as it was
        """
        path = Path(folder).absolute()
        if self._storage is not None and self._storage.folder.resolve() == path.resolve():
            self.flush()
            return
        if self._checkpoints is None:
            self._checkpoints = CheckpointHistory()
        self._checkpoints.save(self, path, overwrite=overwrite)

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save or flush to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or the folder is not empty
        :raises OSError: if it cannot be written
        """
        latest: Any = self._storage or (self._checkpoints and self._checkpoints.latest)
        if not latest:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        latest.store.copy_to(Path(folder))

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
        :raises StorageError: if the folder contains no buffer, or one of another kind
        :raises CorruptStorage: if a file is damaged, or declares more than is plausible, as for
            :func:`~sb3_compressed.load_checkpoint`
        """
        if buffer_size is not None:
            kwargs["buffer_size"] = buffer_size
        store = open_to_load(Path(folder), repair=repair, follow=follow, rows=buffer_size or 0)
        return buffer_from_store(cls, store, kwargs, follow=follow)

    def take_over(self, other: CompressedReplay) -> None:
        """Take over another buffer's content and folder; the other buffer must not be used afterwards."""
        checkpoints = CheckpointHistory.merged(other._checkpoints, self._checkpoints)
        for name in ("_storage", "repair_report", "_validated_kinds"):  # which the other buffer may not have
            vars(self).pop(name, None)
        vars(self).update({**vars(other), "_checkpoints": checkpoints})

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are in memory, and do not write to the folders.
        attributes = super().__getstate__()
        return {name: value for name, value in attributes.items() if name not in ("_storage", "_checkpoints")}


class CompressedRollout(CompressedBuffer):
    """Mixin of compressed rollout buffers; it precedes SB3's or sb3-contrib's class in the bases."""

    _sampling_method = "_get_samples"  # get() is a generator, and training runs between its batches

    def reset(self) -> None:
        """Empty the buffer for the next rollout, as SB3's buffer does."""
        if "_placeholder_shape" not in self.__dict__:  # called by the parent's constructor, with the placeholder space
            super().reset()
            return
        shape = self.obs_shape
        self.obs_shape = self._placeholder_shape
        try:
            super().reset()
        finally:
            self.obs_shape = shape
        self._install_arrays()

    def add(
        self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any, **kwargs: Any
    ) -> None:
        """Add a step of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param episode_start: whether an episode starts with this step, ``(n_envs,)``
        :param value: estimated values of the observations, a tensor of ``n_envs`` elements
        :param log_prob: log probabilities of the actions, a tensor of ``n_envs`` elements
        :param kwargs: further arguments of the parent, such as ``action_masks`` or ``lstm_states``, which are passed on
            without validation
        :raises ValueError: if an argument does not fit; the step then does not count
        :raises TypeError: if an argument is not numeric; likewise
        :raises IndexError: if the buffer is full; call :meth:`reset`
        """
        if self.full:
            raise IndexError(f"the rollout buffer is full after {self.buffer_size} steps; call reset() first")
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        episode_start = validate_per_env("episode_start", episode_start, self.n_envs)
        value = validate_tensor("value", value, self.n_envs)
        log_prob = validate_tensor("log_prob", log_prob, self.n_envs)
        obs = validate_observations("obs", obs, self.observations, self.observation_space, self.n_envs)
        super().add(*self._encode(obs), action, reward, episode_start, value, log_prob, **kwargs)

    def get(self, batch_size: int | None = None) -> Any:
        """Return a generator of batches in random order, as SB3's buffer does.

        :param batch_size: number of steps in a batch, ``None`` for all in one
        :raises BufferNotReady: if the buffer is not full
        :raises ValueError: if ``batch_size`` is not positive, with which SB3 would yield batches forever
        :raises TypeError: if it is not an integer
        """
        if not self.full:
            raise BufferNotReady(
                f"Rollout buffer must be full before sampling from it: it has {self.pos} of {self.buffer_size} steps"
            )
        if batch_size is not None:
            validate_integer("batch_size", batch_size, 1)
        return super().get(batch_size)  # type: ignore[misc]  # BaseBuffer has none

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        make = partial(super()._get_samples, *args, **kwargs)  # type: ignore[safe-super]
        return self._batch(make, may_be_referenced=False)
