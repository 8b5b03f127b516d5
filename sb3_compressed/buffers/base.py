"""``CompressedBuffer``: the common part of the mixins that turn SB3's buffers into compressed ones.

A compressed buffer is its SB3 counterpart with a :class:`~sb3_compressed.arrays.CompressedArray` for each array of
observations, and short methods of its own that write a step and read a batch. Normalization, and drawing rows without a
sampler, are SB3's code. This file

- constructs the buffer without SB3's allocation (:mod:`.allocation`), and replaces its arrays of observations;
- validates the steps that are added;
- applies the two options for what is returned, ``output_dtype`` and ``normalize_images``.

:mod:`.replay` and :mod:`.rollout` implement ``add`` and ``_get_samples``; :mod:`.observations` encodes, writes and
reads observations, :mod:`.tensors` turns arrays into tensors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, RolloutBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.arrays.device_log import require_decodable
from sb3_compressed.arrays.frame_layout import FrameStack
from sb3_compressed.buffers.arguments import (
    bind_parent_arguments,
    merge_codec_kwargs,
    parent_signature,
    require_storable,
    takes_dicts,
)
from sb3_compressed.buffers.array_attributes import ArrayAttribute, ArrayDict
from sb3_compressed.buffers.array_factory import ArrayFactory
from sb3_compressed.buffers.array_formats import ArrayFormats, formats_of
from sb3_compressed.buffers.compression_plan import CompressionPlan, plan_arrays
from sb3_compressed.buffers.memory_statistics import statistics_of
from sb3_compressed.buffers.parent_methods import (
    Methods,
    record_parents,
    require_reimplemented,
    warn_of_replaced,
)
from sb3_compressed.buffers.pickling import attributes_to_pickle
from sb3_compressed.buffers.tensors import OutputDtype, output_tensors
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.buffers.validation import is_unchanged, validated_counts
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.auto import is_auto
from sb3_compressed.common.memory_warning import warn_of_estimate
from sb3_compressed.common.spaces import Key, ObservationFormats, space_formats
from sb3_compressed.common.threads import validate_num_threads
from sb3_compressed.errors import ObservationSpaceError, old_pickle
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_storage import StorageLocation, StorageMode
from sb3_compressed.samplers import Sampler

__all__ = ["CompressedBuffer", "Methods"]

#: Arguments of SB3's constructors that do not describe the content, or are stored elsewhere.
NOT_STORED_ARGUMENTS = {"observation_space", "action_space", "device", "env"}
#: Options that describe the buffer, too; all others are stored elsewhere, or are of this process.
STORED_OPTIONS = (
    "compression_method", "compression_kwargs", "dtypes", "frame_stack", "output_dtype", "normalize_images",
)  # fmt: skip


class CompressedBuffer(BaseBuffer):
    """Base class of all compressed buffers: their constructor, and compressed arrays in place of SB3's.

    Takes all arguments of the parent class, by position or name, and:

    :param compression_method: shorthand of a codec, e.g. ``"zstd-5"`` for zstd with level -5 and ``"zstd5"`` for
        level 5, or a codec. ``"auto"`` stores each frame as differences from others if these are small, otherwise as
        the smallest of these, a block of LZ4, packed differences and the uncompressed frame. It does not compress
        observations of less than 1 kB, or float observations of one or two dimensions unless ``dtypes`` or
        ``frame_stack`` is passed. For a Dict space also a mapping from its keys
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
    :param storage: where compressed observations are: ``"memory"``, ``"device"`` for the memory of the buffer's
        ``device``, which then decodes batches, or for replay buffers a folder. There each ``add`` is one transaction:
        if the process is killed, the folder contains every ``add`` that was completed
    :param storage_mode: what to do if the folder contains a buffer: ``"create"`` raises, ``"resume"`` continues with
        the newest transitions that fit, ``"overwrite"`` replaces it, and ``"repair"`` resumes without damaged
        transitions, with a warning; ``repair_report`` lists them, except those of damaged commits at the very end
    :param sampler: for replay buffers, which transitions a batch consists of: ``"uniform"`` for SB3's own sampling,
        another name of :func:`~sb3_compressed.samplers.available_samplers`, or a
        :class:`~sb3_compressed.samplers.Sampler`, which is copied
    :raises ValueError: if an option is unknown or does not fit the space; the message lists the allowed values
    :raises TypeError: if an argument is unknown, or of the wrong type
    :raises ObservationSpaceError: if the class is for Dict spaces and the space is not one, or the other way round
    """

    #: The formats of the arrays that the constructor has created.
    _formats: ArrayFormats
    #: The real ``obs_shape`` while SB3's constructor allocates arrays, see :mod:`.allocation`; ``None`` otherwise.
    _real_obs_shape: Any = None
    #: For each key with compressed observations, an unwritten array of that format.
    _new_arrays: dict[Key, CompressedArray]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    observations: Any = ArrayAttribute()

    #: The methods of SB3 and sb3-contrib that these classes implement themselves and never call.
    REIMPLEMENTED: ClassVar[Methods] = ()
    #: Whether observations are stored for one update.
    _is_short_lived: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _require_own_observations(cls)
        record_parents(cls)
        require_reimplemented(cls, CompressedBuffer, cls.REIMPLEMENTED)
        owner = next(each for each in cls.__mro__ if "__init__" in vars(each))
        if owner is cls or not issubclass(owner, CompressedBuffer):  # that of a mixin of a user
            cls.__init__ = _recording_formats(cls.__init__)  # type: ignore[method-assign]
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if owner is not cls:
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
        sampler: str | Sampler = "uniform",
        **kwargs: Any,
    ) -> None:
        compression_kwargs = merge_codec_kwargs(compression_kwargs, kwargs)
        require_storable(type(self), storage, storage_mode)
        arguments = validated_counts(bind_parent_arguments(type(self), CompressedBuffer, args, kwargs))
        options = {
            "compression_method": compression_method, "compression_kwargs": compression_kwargs, "dtypes": dtypes,
            "frame_stack": frame_stack, "output_dtype": output_dtype, "normalize_images": normalize_images,
        }  # fmt: skip
        self._set_options(arguments, options, num_threads, storage)
        self._construct_parent(arguments)
        for array in self._array_factory.newest.values():
            array.prepare()  # rather than at the first step of the training
        self._set_sampler_and_storage(sampler, storage, storage_mode)
        self._record_formats()
        if storage == "memory" or (self._is_on_device and self.device.type != "cuda"):
            self._warn_of_memory()

    def _set_default_options(self, arguments: Mapping[str, Any]) -> None:
        """Set everything that the constructor of the parent class needs, without options.

        :param arguments: the arguments of that constructor
        """
        defaults = CompressedBuffer.__init__.__kwdefaults__ or {}
        options = {name: defaults[name] for name in STORED_OPTIONS}
        self._set_options(arguments, options, defaults["num_threads"], defaults["storage"])

    def _set_options(
        self,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
        num_threads: int | None,
        storage: StorageLocation,
    ) -> None:
        """Set everything that the constructor of the parent class needs.

        :param arguments: the arguments of that constructor
        :param options: those of :data:`STORED_OPTIONS`
        """
        warn_of_replaced(type(self), self.REIMPLEMENTED)
        self.output_dtype = options["output_dtype"]
        if self.output_dtype not in get_args(OutputDtype):
            raise ValueError(f"output_dtype must be one of {get_args(OutputDtype)}, got {self.output_dtype!r}")
        self.normalize_images = options["normalize_images"]
        self.num_threads = validate_num_threads(num_threads)
        self.compression_method = options["compression_method"]
        stored_names = [name for name in arguments if name not in NOT_STORED_ARGUMENTS]
        #: Arguments that describe the buffer, by their names; the others may be large, or of this process.
        self.given_arguments = {**{name: arguments[name] for name in stored_names}, **options}
        space = arguments["observation_space"]
        _require_supported(type(self), space)
        self._is_on_device = storage == "device"
        formats = space_formats(space)
        on_disk = storage not in ("memory", "device")
        plans = self._planned(formats, on_disk=on_disk)
        if self._is_on_device:
            for plan in plans.values():
                require_decodable(plan.codec)
        self._array_factory = ArrayFactory(
            plans, formats, self.num_threads, may_be_flat=self._is_short_lived, has_fixed_formats=on_disk
        )
        self._batch_pool = BatchPool()

    def _planned(self, formats: ObservationFormats, *, on_disk: bool) -> dict[Key, CompressionPlan]:
        """Return how observations of some formats are compressed with the options of this buffer."""
        names = "compression_method", "compression_kwargs", "dtypes", "frame_stack"
        options = {name: self.given_arguments[name] for name in names}
        return plan_arrays(formats, **options, on_disk=on_disk, is_short_lived=self._is_short_lived)

    def _construct_parent(self, arguments: dict[str, Any]) -> None:
        """Call the constructor of the parent class."""
        super().__init__(**arguments)

    def _set_sampler_and_storage(
        self, sampler: str | Sampler, storage: StorageLocation, storage_mode: StorageMode
    ) -> None:
        """Select which transitions a batch consists of, and where observations are stored.

        :raises ValueError: if the sampler is unknown, or the buffer returns each transition once
        """
        if sampler != "uniform":
            raise ValueError(f"sampler is for replay buffers; a {type(self).__name__} returns each transition once")

    # -- arrays ----------------------------------------------------------------------------------------------

    #: The attributes with observations that SB3's class has.
    observation_attributes: ClassVar[tuple[str, ...]] = ("observations",)

    def _observation_formats(self) -> ObservationFormats:
        """Return the shape and the dtype of the observations of each key, as SB3 allocates them now."""
        space, shape = self.observation_space, self._real_obs_shape
        if shape is None:
            shape = self.obs_shape
        if isinstance(space, spaces.Dict):
            return {key: (tuple(part), np.dtype(space[key].dtype)) for key, part in shape.items()}
        return {None: (tuple(shape), np.dtype(space.dtype))}

    def _new_observations(self) -> Any:
        """Return an unwritten array of observations for the present sizes and space, or a dict of arrays."""
        factory, formats = self._array_factory, self._observation_formats()
        factory.rows = self.buffer_size, self.n_envs
        if factory.formats != formats:
            factory.plans = self._planned(formats, on_disk=factory.has_fixed_formats)
            factory.formats = formats
        arrays: dict[Any, Any] = {
            key: factory.new_array(key, *each) if key in factory.plans else np.zeros((*factory.rows, *each[0]), each[1])
            for key, each in formats.items()
        }
        if None in arrays:
            return arrays[None]
        return ArrayDict(arrays, factory) if factory.plans else arrays

    def _record_formats(self) -> None:
        """Record the formats of the present arrays, which the constructor creates."""
        self._formats = formats_of(self)
        self._new_arrays = dict(self._array_factory.newest)

    def __repr__(self) -> str:
        statistics = statistics_of(self)
        n, nbytes = max(statistics.transitions, 1), statistics.device_memory_nbytes
        on_device = f" ({nbytes / 1e6:,.1f} MB of {self.device})" if nbytes else ""
        streams = [
            f"{'' if key is None else f'{key}: '}{_describe_storage(array)}"
            for key, array in dict(buffer_state.observation_arrays(self)).items()
        ]
        return (
            f"<{type(self).__name__}: {statistics.transitions:,} of {self.buffer_size * self.n_envs:,} transitions, "
            f"{statistics.memory_nbytes / 1e6:,.1f} MB{on_device}, {statistics.memory_nbytes / n:,.0f} B a transition"
            f"{''.join(f'; {stream}' for stream in streams)}>"
        )

    @property
    def observations_nbytes(self) -> int:
        """The memory of all observations in bytes; shared payloads count once."""
        arrays = buffer_state.observation_arrays(self)
        nbytes: int = sum(array.nbytes for _, array in arrays if not isinstance(array, CompressedArray))
        for key in {key: None for key, array in arrays if isinstance(array, CompressedArray)}:
            same = [array for other, array in arrays if other == key]  # which share payloads
            nbytes += same[0].stream.nbytes(*[array.references for array in same])
        return nbytes

    @property
    def raw_observations_nbytes(self) -> int:
        """The memory of all observations in SB3's buffer with the same arguments, in bytes."""
        return buffer_state.raw_observations_nbytes(self)

    def _warn_of_memory(self) -> None:
        """Warn as SB3 does if the buffer may not fit into the available memory."""
        factory = self._array_factory
        if not factory.newest:  # if all arrays are plain, SB3 has checked already
            return
        expected = sum(
            factory.plans[key].estimated_nbytes(array.shape[0], array.shape[1], array.dtype)
            for key, array in factory.newest.items()
        )
        expected += sum(
            array.nbytes for _, array in buffer_state.observation_arrays(self) if not isinstance(array, CompressedArray)
        )
        expected += sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))
        warn_of_estimate(expected)

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
        return attributes_to_pickle(attributes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_array_factory" not in state:
            raise old_pickle()
        if parent := getattr(super(), "__setstate__", None):  # HER's has one
            parent(state)
        else:
            vars(self).update(state)

    # -- adding ----------------------------------------------------------------------------------------------

    def _validate_step(
        self, kinds: tuple[Any, ...] | None, observations: tuple[Any, ...], others: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return the arguments of ``add`` as they can be written, or raise; record which need no validation next time.

        :param kinds: their types, dtypes and shapes, ``None`` if they have none
        :param observations: those that are observations
        :param others: the arguments after them
        """
        self._require_one_stream()
        validated = self._validated_arguments(*observations, *others)
        if kinds and all(map(is_unchanged, (*observations, *others), validated)):
            arrays = self.observations
            if isinstance(arrays, dict):
                written = [(observation[key], array) for observation in observations for key, array in arrays.items()]
            else:
                written = [(observation, arrays) for observation in observations]
            # Any values of the array's own dtype can be written; of another dtype, some may not fit.
            is_of_one_dtype = all(value.dtype == array.dtype for value, array in written)
            self._array_factory.valid_kinds = kinds if is_of_one_dtype else None
        return validated

    def _require_one_stream(self) -> None:
        """Raise if observations and next observations, which are encoded together, have different formats.

        :raises ValueError: then
        """
        first: dict[Key, CompressedArray] = {}
        for key, array in buffer_state.observation_arrays(self):
            if isinstance(array, CompressedArray):
                first.setdefault(key, array).require_same_stream(array)

    def _validated_arguments(self, *given: Any) -> tuple[Any, ...]:
        """Return the arguments of ``add`` as they can be written, or raise."""
        raise NotImplementedError

    # -- batches ---------------------------------------------------------------------------------------------

    def _output(self, samples: Any) -> Any:
        """Return a batch with observations in the requested output format."""
        if self.output_dtype == "raw" and not self.normalize_images:
            return samples
        convert = partial(
            output_tensors,
            space=self.observation_space,
            dtype=self.output_dtype,
            normalize_images=self.normalize_images,
        )
        names = [name for name in ("observations", "next_observations") if hasattr(samples, name)]
        return samples._replace(**{name: convert(getattr(samples, name)) for name in names})


def _recording_formats(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that records the formats of a buffer's arrays, after those of its parents have."""

    @functools.wraps(constructor)
    def construct(self: CompressedBuffer, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        self._record_formats()

    return construct


def _require_own_observations(cls: type[CompressedBuffer]) -> None:
    """Raise if a class stores observations elsewhere, by a property: they would not be compressed.

    :raises TypeError: then
    """
    for name in ("observations",) if issubclass(cls, RolloutBuffer) else ("observations", "next_observations"):
        if isinstance(inspect.getattr_static(cls, name, None), property):
            raise TypeError(
                f"{cls.__name__}.{name} must not be a property, since add and sample use the compressed arrays of the "
                "buffer: give the property another name"
            )


def _describe_storage(array: Any) -> str:
    """Return how an array stores observations, for ``repr`` of a buffer."""
    if not isinstance(array, CompressedArray):
        return "uncompressed"
    codec = "auto" if is_auto(array.codec) else repr(array.codec)
    return f"{array.n_frames} {'frames' if array.n_frames > 1 else 'frame'}, {codec}"


def _require_supported(cls: type[CompressedBuffer], space: spaces.Space[Any]) -> None:
    """Raise if a class is for Dict spaces and the space is not one, or the other way round.

    :raises ObservationSpaceError: then
    :raises NotImplementedError: where SB3 does
    """
    get_obs_shape(space)
    needs_dict = takes_dicts(cls)
    if needs_dict != isinstance(space, spaces.Dict):
        # It begins as SB3's message, which users may match.
        rule = "must be used with Dict obs space only" if needs_dict else "does not support Dict obs spaces"
        raise ObservationSpaceError(
            f"{cls.__name__} {rule}, got {space}; use {_class_for(cls, needs_dict=not needs_dict)}"
        )


def _class_for(cls: type[CompressedBuffer], *, needs_dict: bool) -> str:
    """Return the name of the class of this package to use instead of ``cls``, for Dict spaces or others."""
    if not issubclass(cls, RolloutBuffer):
        return f"Compressed{'Dict' if needs_dict else ''}ReplayBuffer"
    names = " ".join(base.__name__ for base in cls.__mro__ if base.__module__.startswith("sb3_contrib"))
    algorithm = next((each for each in ("Maskable", "Recurrent") if each in names), "")
    return f"Compressed{algorithm}{'Dict' if needs_dict else ''}RolloutBuffer"
