"""The mixins that turn SB3's buffers into compressed ones: the only file that knows SB3's insides.

SB3's buffers index ``observations`` and ``next_observations`` as arrays and nothing else. So a compressed buffer is
its SB3 counterpart with :class:`~sb3_compressed.CompressedArray` in those places: adding, sampling, random numbers,
normalisation and types are SB3's own code. What is left to do here:

- construction without SB3's allocation: the parent is handed a placeholder observation space, whose parts have no
  elements, and the real space and arrays take their places afterwards;
- looking at everything a caller adds before SB3 writes the first of it, so that bad input changes nothing;
- the two options that concern what comes out, ``output_dtype`` and ``normalize_images``.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import Batch, BatchArray, BatchPool, current, empty_pinned
from sb3_compressed.arrays.frame_layout import FrameStack
from sb3_compressed.buffers.array_attributes import ArrayAttribute, ArrayDict
from sb3_compressed.buffers.compression_plan import placeholder_space, plan_arrays, successor_keys
from sb3_compressed.buffers.parent_signature import classes_with, parent_signature
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import (
    validate_counts,
    validate_infos,
    validate_integer,
    validate_numbers,
    validate_observation,
    validate_per_env,
    validate_tensor,
)
from sb3_compressed.codecs import Codec
from sb3_compressed.dtypes import Key
from sb3_compressed.errors import BufferNotReady, ObservationSpaceError, StorageError
from sb3_compressed.persistence.persistent import Persistent, Storage
from sb3_compressed.probes import holds, metadata_is_handed_on
from sb3_compressed.threads import validate_num_threads
from sb3_compressed.warning import warn_user

if TYPE_CHECKING:  # the mixins stand before a buffer of SB3 in a class's bases; what they use of it is BaseBuffer's
    from stable_baselines3.common.buffers import BaseBuffer as _Base
else:
    _Base = object

try:
    import psutil
except ImportError:  # as in SB3, without it there is no look at the available memory
    psutil = None

__all__ = ["CompressedBuffer", "CompressedReplay", "CompressedRollout"]

OutputDtype = Literal["raw", "float"]

#: Arguments of SB3's constructors that say nothing of the content, or are kept otherwise.
NOT_GIVEN = {"observation_space", "action_space", "device", "env"}
#: Whether NumPy's copies of slots are still known to be slots.
METADATA_IS_HANDED_ON = holds(metadata_is_handed_on)
KNOWN_PACKAGES = {"stable_baselines3", "sb3_contrib", "abc", "builtins"}


class CompressedBuffer(_Base):
    """What every compressed buffer has: the constructor, and compressed arrays in the places of SB3's.

    All of the parent's arguments are taken, by position or name, and besides them:

    :param compression_method: shorthand of a codec, e.g. ``"zstd-5"`` for zstd with the level -5 and ``"zstd5"`` for
        the level 5, or a codec. ``"auto"`` chooses one, and leaves
        observations that are too small or too random to gain anything as they are; of such vectors, replay buffers
        keep next observations only where they are not the observations that follow. For a Dict space also a mapping
        from its keys
    :param compression_kwargs: keyword arguments of the codec, e.g. ``dict(compresslevel=5)``
    :param decompression_kwargs: the same for arguments of a codec that concern decoding
    :param dtypes: what :func:`~sb3_compressed.find_buffer_dtypes` returns, or a dtype to store elements in. One that
        cannot hold every value of the space's dtype is the one way to lose something, and warns
    :param frame_stack: how stacked frames are found: ``"auto"`` from the data, the number of frames, or ``None``. For a
        Dict space also a mapping from its keys
    :param output_dtype: ``"float"`` for observations as float32 tensors, ``"raw"`` for SB3's dtypes
    :param normalize_images: whether image observations are divided by 255 (as float32), for training code of one's
        own. SB3's policies do that themselves, when they act and when they learn: leave it off with its algorithms
    :param num_threads: how many threads decode large batches, 1 for none besides the one that asks; ``None`` for as
        many as there are cores that the process may use, four at most
    :param storage: for replay buffers, a folder to keep compressed observations in instead of in memory; see
        :class:`~sb3_compressed.persistence.persistent.Persistent`
    :param resume: whether to go on with the buffer that the folder holds, the newest that fits
    :param overwrite: whether to begin anew in a folder that holds a buffer
    :param repair: with ``resume``, whether to exclude damaged transitions instead of raising, with a warning;
        ``repair_report`` lists them
    :raises ValueError: if an option is unknown or does not fit the space; the message lists what is allowed
    :raises TypeError: if an argument is unknown, or of the wrong type
    :raises ObservationSpaceError: if the class is for Dict spaces and the space is none, or the other way round
    """

    obs_shape: Any
    observations: Any = ArrayAttribute()
    next_observations: Any = ArrayAttribute()

    #: The keys of plain observations that are kept once.
    _successor_keys: frozenset[Key] = frozenset()
    #: Whether all classes that come after this one are SB3's, which only hand observations on.
    _is_before_sb3: ClassVar[bool] = False
    #: Whether the class is one of this package, so that no other code comes before it.
    _is_ours: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_ours = cls.__module__.startswith(f"{__package__}.")
        behind = cls.__mro__[cls.__mro__.index(CompressedBuffer) + 1 :]
        cls._is_before_sb3 = all(base.__module__.partition(".")[0] in KNOWN_PACKAGES for base in behind)
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if "__init__" not in vars(cls):
            # What help() and editors show: the parent's arguments, then the ones above.
            options = [option for option in own if option.kind is option.KEYWORD_ONLY]
            own = [*parent_signature(cls, CompressedBuffer).parameters.values(), *options]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    def __init__(
        self,
        *args: Any,
        compression_method: str | Codec | Mapping[str, str | Codec] = "auto",
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        dtypes: Any = None,
        frame_stack: FrameStack | Mapping[str, FrameStack] = "auto",
        output_dtype: OutputDtype = "raw",
        normalize_images: bool = False,
        num_threads: int | None = None,
        storage: Storage = "memory",
        resume: bool = False,
        overwrite: bool = False,
        repair: bool = False,
        **kwargs: Any,
    ) -> None:
        if output_dtype not in get_args(OutputDtype):
            raise ValueError(f"output_dtype must be one of {get_args(OutputDtype)}, got {output_dtype!r}")
        self.output_dtype = output_dtype
        self.normalize_images = normalize_images
        self.compression_method = compression_method
        self.num_threads = validate_num_threads(num_threads)

        options = {
            "compression_method": compression_method, "compression_kwargs": compression_kwargs,
            "decompression_kwargs": decompression_kwargs, "dtypes": dtypes, "frame_stack": frame_stack,
            "output_dtype": output_dtype, "normalize_images": normalize_images,
        }  # fmt: skip
        given = self._parent_arguments(args, kwargs, are_changed=False)
        #: Arguments that say what the buffer is, by their names; what else there is may be large, or of this process.
        self.given_arguments = {**{name: given[name] for name in given if name not in NOT_GIVEN}, **options}
        arguments = self._parent_arguments(args, kwargs)
        validate_counts(arguments)
        space = arguments["observation_space"]
        get_obs_shape(space)  # raises NotImplementedError where SB3 does
        takes_dicts = _takes_dicts(type(self))
        if takes_dicts != isinstance(space, spaces.Dict):
            # The beginning is SB3's message, which its users may match.
            rule = "must be used with Dict obs space only" if takes_dicts else "does not support Dict obs spaces"
            raise ObservationSpaceError(
                f"{type(self).__name__} {rule}, got {space}; there are classes with and without 'Dict' in their names, "
                "HER's is for Dict spaces"
            )
        codec_kwargs = {**(compression_kwargs or {}), **(decompression_kwargs or {})}
        if len(codec_kwargs) < len(compression_kwargs or {}) + len(decompression_kwargs or {}):
            raise ValueError(f"an argument is in both compression_kwargs and decompression_kwargs: {codec_kwargs}")
        on_disk = storage != "memory"
        self._plans = plan_arrays(space, compression_method, codec_kwargs, dtypes, frame_stack, on_disk=on_disk)
        self._new_arrays: dict[Key, CompressedArray] = {}  # never written: each array of a key is one like these
        self._successor_keys = frozenset() if on_disk else self._keys_with_successors(space, arguments)
        is_placeholder = {*self._plans, *self._successor_keys}
        super().__init__(**{**arguments, "observation_space": placeholder_space(space, is_placeholder)})
        self._placeholder_shape = self.obs_shape
        self.observation_space = space
        self.obs_shape = get_obs_shape(space)
        self._batch_pool = BatchPool()
        self._put_arrays()
        for array in self._new_arrays.values():
            array.prepare()  # rather than at the first step of the training
        self._open_storage(storage, resume=resume, overwrite=overwrite, repair=repair)
        if not on_disk:
            self._warn_of_memory()

    def _open_storage(self, storage: Any, *, resume: bool, overwrite: bool, repair: bool) -> None:
        """Keep compressed observations where the options say.

        :raises ValueError: if that is not possible
        """
        if storage != "memory" or resume or overwrite or repair:
            raise StorageError(
                f"storage is for replay buffers; a {type(self).__name__} is filled anew with each rollout"
            )

    def _parent_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, are_changed: bool = True
    ) -> dict[str, Any]:
        """Return the arguments for the parent's constructor by their names.

        :param are_changed: whether as the parent is to get them, or as they were given
        :raises TypeError: as a call of the constructor would
        """
        signature = parent_signature(type(self), CompressedBuffer)
        try:
            return signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            unknown = [name for name in kwargs if name not in signature.parameters]
            hint = _hint_at_classes(unknown[0], type(self)) if unknown else ""
            raise TypeError(f"{type(self).__name__}: {error}{hint}") from None

    # -- arrays ----------------------------------------------------------------------------------------------

    def _keys_with_successors(self, space: spaces.Space[Any], arguments: Mapping[str, Any]) -> frozenset[Key]:
        """Return which parts of a space are plain observations with next observations that need not be kept twice."""
        return frozenset()

    def _put_arrays(self) -> None:
        """Put arrays of the real shapes in the places of those the parent made for the placeholder space."""
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

    def _arrays_for(self, key: Key, made_by_parent: list[np.ndarray[Any, Any]]) -> list[Any]:
        """Return what takes the places of the parent's observations and, if there are any, next observations."""
        (rows, n_envs), dtype = made_by_parent[0].shape[:2], made_by_parent[0].dtype
        if key in self._successor_keys:
            from sb3_compressed.arrays.successors import successor_arrays  # imports numba

            shape = self.obs_shape if key is None else self.obs_shape[key]
            return [*successor_arrays((rows, n_envs, *shape), dtype)]
        if key not in self._plans:
            return made_by_parent
        if key not in self._new_arrays:
            self._new_arrays[key] = self._plans[key].new_array(rows, n_envs, dtype, num_threads=self.num_threads)
        return [self._new_arrays[key].empty_like() for _ in made_by_parent]

    def _arrays(self) -> list[tuple[Key, Any]]:
        """Return the arrays of observations and next observations with their keys, compressed and plain ones."""
        found: list[tuple[Key, Any]] = []
        for name in ("observations", "next_observations"):
            value = self.__dict__.get(name)
            found += value.items() if isinstance(value, dict) else [] if value is None else [(None, value)]
        return found

    @property
    def observations_nbytes(self) -> int:
        """The memory that all observations take, in bytes, Python's overhead included, what is shared once."""
        arrays = self._arrays()
        nbytes: int = sum(array.nbytes for _, array in arrays if not isinstance(array, CompressedArray))
        for key in {key: None for key, array in arrays if isinstance(array, CompressedArray)}:
            same = [array for other, array in arrays if other == key]  # which share payloads
            nbytes += same[0].store.nbytes(*[array.slots for array in same])
        return nbytes

    @property
    def raw_observations_nbytes(self) -> int:
        """The memory that all observations take in the SB3 buffer of the same arguments, in bytes."""
        arrays = [array for _, array in self._arrays()]
        return sum(array.nbytes if isinstance(array, np.ndarray) else array.raw_nbytes for array in arrays)

    # -- measuring -------------------------------------------------------------------------------------------

    #: The method that makes a batch.
    _sampling_method: ClassVar[str]

    def meter(self) -> tuple[MethodTimer, MethodTimer]:
        """Measure from now on what it takes to add a step and to make a batch, until the meters are removed."""
        return MethodTimer(self, "add"), MethodTimer(self, self._sampling_method)

    def __getstate__(self) -> dict[str, Any]:
        parent = getattr(super(), "__getstate__", None)  # from Python 3.11 on, every object has it
        state = parent() if parent else None
        attributes = self.__dict__ if state is None else state
        return {name: value for name, value in attributes.items() if not isinstance(value, MethodTimer)}

    # -- warnings --------------------------------------------------------------------------------------------

    def _warn_of_memory(self) -> None:
        if psutil is None:
            return
        if not self._new_arrays and not self._successor_keys:
            return  # SB3 has looked at all of it
        expected = sum(
            self._plans[key].estimated_nbytes(array.shape[0], array.shape[1], array.dtype)
            for key, array in self._new_arrays.items()
        )
        expected += sum(array.nbytes for _, array in self._arrays() if not isinstance(array, CompressedArray))
        expected += sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))
        available = psutil.virtual_memory().available
        if expected > available:
            how = ", estimated from what codecs make of game frames," if self._new_arrays else ""
            warn_user(
                f"This system does not have apparently enough memory to store the complete buffer: about "
                f"{expected / 1e9:.2f}GB{how} > {available / 1e9:.2f}GB"
            )

    # -- the door --------------------------------------------------------------------------------------------

    def _encoded(self, *observations: Any) -> Any:
        """Return checked observations as they are handed to SB3, which copies references then instead of images.

        A user's class in between gets to see what they were before.

        :param observations: one, or one and that which follows it
        """
        arrays = self.observations
        if not METADATA_IS_HANDED_ON:  # SB3's copies of slots would not be known as such
            return observations
        if self._is_before_sb3 and isinstance(arrays, CompressedArray):
            return arrays.encode_rows(*observations)
        if not self._is_before_sb3 or not isinstance(arrays, dict):
            return observations
        encoded: list[dict[str, Any]] = [{} for _ in observations]
        for key, array in arrays.items():
            parts: Any = [observation[key] for observation in observations]
            rows = array.encode_rows(*parts) if isinstance(array, CompressedArray) else parts
            for observation, row in zip(encoded, rows, strict=True):
                observation[key] = row
        return encoded

    def _checked_observation(self, obs: Any, name: str = "obs") -> Any:
        """Return an observation of all environments as it can be written to a row of the arrays, or raise."""
        space = self.observation_space
        if not isinstance(space, spaces.Dict):
            is_number = isinstance(space, spaces.Discrete)
            return validate_observation(name, obs, self.observations, self.n_envs, is_number=is_number)
        missing = set(self.observations) - set(obs) if isinstance(obs, Mapping) else set(self.observations)
        if missing:
            keys = sorted(self.observations)
            raise ValueError(f"{name} must be a dict with the keys {keys}, {sorted(missing)} are missing")
        # A new dict, since SB3 writes into the one it is given.
        return {
            key: validate_observation(
                f"{name}[{key!r}]", obs[key], array, self.n_envs, is_number=isinstance(space[key], spaces.Discrete)
            )
            for key, array in self.observations.items()
        }

    # -- the way out -----------------------------------------------------------------------------------------

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

    def _batch(self, make: Callable[[], Any], *, is_seen: bool) -> Any:
        """Return the batch that SB3's code creates, with observations in the requested output format.

        Tensors take over the memory of the decoded arrays, if no other code can refer to them.

        :param make: returns the batch
        :param is_seen: whether an environment receives the arrays; a user's subclass may as well
        """
        if is_seen or not self._is_ours or not self._new_arrays:
            samples = make()
        else:
            outer = current.batch
            # Chosen here, since a buffer may be loaded on a machine with another device.
            current.batch = Batch(empty_pinned) if self.device.type == "cuda" else self._batch_pool.begin_batch()
            try:
                samples = make()
            finally:
                current.batch = outer
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


class CompressedReplay(Persistent, CompressedBuffer):
    """A compressed replay buffer, in front of one of SB3's.

    ``optimize_memory_usage=True`` works for every class and with ``handle_timeout_termination=True``, which SB3
    refuses: next observations share their payloads with observations, so both are kept and cost no more. Only where
    SB3's own class supports it, its variant of sampling is used, with the same random numbers.
    """

    _sampling_method = "sample"

    #: Whether the parent implements ``optimize_memory_usage`` (without ``handle_timeout_termination``).
    _parent_optimizes: ClassVar[bool] = False

    #: Types, dtypes and shapes of arguments of ``add`` that need not be looked at closer, as nearly all that come have
    #: them.
    _passed: tuple[Any, ...] | None = None

    handle_timeout_termination: bool
    copy_info_dict: bool = False  # only SB3's hindsight buffer sets it

    def _parent_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, are_changed: bool = True
    ) -> dict[str, Any]:
        arguments = super()._parent_arguments(args, kwargs, are_changed=are_changed)
        if not are_changed:
            return arguments
        handles_timeouts = arguments.get("handle_timeout_termination", True)
        if arguments.get("optimize_memory_usage") and (handles_timeouts or not self._parent_optimizes):
            arguments["optimize_memory_usage"] = False
        return arguments

    def _keys_with_successors(self, space: spaces.Space[Any], arguments: Mapping[str, Any]) -> frozenset[Key]:
        if arguments.get("optimize_memory_usage"):  # there are no next observations
            return frozenset()
        return successor_keys(space, self._plans, arguments["buffer_size"])

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as SB3's buffer does.

        :param obs: observations ``(n_envs, *obs_shape)``, or a dict of them
        :param next_obs: the observations that followed, at an episode's end its last ones
        :param action: actions ``(n_envs, action_dim)``
        :param reward: rewards ``(n_envs,)``
        :param done: whether an episode ended, ``(n_envs,)``
        :param infos: one info dict for each environment; ignored with ``handle_timeout_termination=False``, unless
            ``copy_info_dict=True``
        :raises ValueError: if something does not fit; the buffer is then as it was
        :raises TypeError: if something has no numbers; the same
        """
        self._check_storage()
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
        if kinds is None or kinds != self._passed:
            obs, next_obs, action, reward, done = self._checked_step(kinds, obs, next_obs, action, reward, done)
        if self._new_arrays:
            obs, next_obs = self._encoded(obs, next_obs)
        if self._store is None:
            super().add(obs, next_obs, action, reward, done, infos)
            return
        self._expect_row(done)  # before, so that no interrupt makes it forgotten
        super().add(obs, next_obs, action, reward, done, infos)
        self._commit()

    def _checked_step(self, kinds: Any, *given: Any) -> tuple[Any, ...]:
        """Return the arguments of ``add`` as they can be written, or raise; remember what need not be looked at again.

        :param kinds: their types, dtypes and shapes, ``None`` if they have none
        """
        obs, next_obs, action, reward, done = given
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        done = validate_per_env("done", done, self.n_envs, may_broadcast=False)
        obs = self._checked_observation(obs)
        next_obs = self._checked_observation(next_obs, "next_obs")
        checked = obs, next_obs, action, reward, done
        if kinds and all(map(operator.is_, given, checked)):
            # Of one dtype, any values can be written; of another one, some may not fit.
            is_of_one_dtype = obs.dtype == next_obs.dtype == self.observations.dtype
            self._passed = kinds if is_of_one_dtype else None
        return checked

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does, with observations in the configured output dtype.

        :param batch_size: number of transitions to sample, 0 for an empty batch
        :param env: a ``VecNormalize`` to normalise observations and rewards with
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is negative
        :raises TypeError: if it is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        if type(batch_size) is not int or batch_size < 1 or self.pos == 0 or self.buffer_size == 1:
            self._validate_sampling(batch_size)
        is_seen = env is not None or isinstance(self, HerReplayBuffer)  # whose environment computes rewards
        return self._batch(partial(super().sample, batch_size, env=env), is_seen=is_seen)

    def _validate_sampling(self, batch_size: Any) -> None:
        """Raise if no batch of that size can be sampled."""
        validate_integer("batch_size", batch_size, 0)
        if batch_size == 0 or isinstance(self, HerReplayBuffer):
            return  # SB3's hindsight buffer raises a clear error itself, until its first episode is over
        if self.size() == 0:
            raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
        if self.full and self.buffer_size == 1 and self.optimize_memory_usage:
            raise BufferNotReady(
                "cannot sample from a buffer of one row with optimize_memory_usage=True, which keeps one row back; "
                "increase buffer_size"
            )


class CompressedRollout(CompressedBuffer):
    """A compressed rollout buffer, in front of one of SB3's or sb3-contrib's."""

    _sampling_method = "_get_samples"  # a generator yields the batches, and between them the training goes on

    def reset(self) -> None:
        """Empty the buffer for the next rollout, as SB3's buffer does."""
        if (
            "_placeholder_shape" not in self.__dict__
        ):  # called by the parent's constructor, where the space is placeholder
            super().reset()
            return
        shape = self.obs_shape
        self.obs_shape = self._placeholder_shape
        try:
            super().reset()
        finally:
            self.obs_shape = shape
        self._put_arrays()

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
        :param kwargs: what the parent takes besides, as ``action_masks`` or ``lstm_states``, and looks at itself
        :raises ValueError: if something does not fit; the step does not count then
        :raises TypeError: if something has no numbers; the same
        :raises IndexError: if the buffer is full; call :meth:`reset`
        """
        if self.full:
            raise IndexError(f"the rollout buffer is full after {self.buffer_size} steps; call reset() first")
        action = validate_numbers("action", action, self.n_envs * self.action_dim, self.n_envs)
        reward = validate_per_env("reward", reward, self.n_envs)
        episode_start = validate_per_env("episode_start", episode_start, self.n_envs)
        value = validate_tensor("value", value, self.n_envs)
        log_prob = validate_tensor("log_prob", log_prob, self.n_envs)
        obs = self._checked_observation(obs)
        super().add(*self._encoded(obs), action, reward, episode_start, value, log_prob, **kwargs)

    def get(self, batch_size: int | None = None) -> Any:
        """Return a generator of batches in random order, as SB3's buffer does.

        :param batch_size: number of steps in a batch, ``None`` for all in one
        :raises BufferNotReady: if the buffer is not full
        :raises ValueError: if ``batch_size`` is not positive; SB3 yields batches for ever then
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
        return self._batch(make, is_seen=False)


def _takes_dicts(cls: type) -> bool:
    """Return whether a buffer class is for Dict spaces."""
    return issubclass(cls, DictReplayBuffer | DictRolloutBuffer)


def _hint_at_classes(argument: str, cls: type) -> str:
    """Return which compressed classes take an argument that ``cls`` does not, as the end of an error message."""
    takers = classes_with(argument, CompressedBuffer)
    if not takers:
        return ""
    hint = f"; {', '.join(taker.__name__ for taker in takers)} {'takes' if len(takers) == 1 else 'take'} it"
    if _takes_dicts(cls) not in map(_takes_dicts, takers):
        hint += f", for observation spaces that are {'not ' if _takes_dicts(cls) else ''}Dict spaces"
    return hint
