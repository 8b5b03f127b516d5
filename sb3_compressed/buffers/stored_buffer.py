"""``StoredBuffer``: the replay buffer in a folder, for a description of it without importing SB3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.compression_plan import plan_arrays, without_old_auto
from sb3_compressed.codecs.registry import AUTO
from sb3_compressed.common.spaces import Key, space_dtype, space_parts
from sb3_compressed.errors import StorageError
from sb3_compressed.persistence import buffer_state
from sb3_compressed.persistence.buffer_state import OBSERVATIONS, PLAIN
from sb3_compressed.persistence.restoring import bind, fit_arrays, require_buffer, restore_values
from sb3_compressed.persistence.sampler_state import stored_config
from sb3_compressed.samplers import Sampler
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.samplers.config import sampler_from_config
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.metadata_schema import check_buffer
from sb3_compressed.storage.spaces import argument_from_data, space_from_data

__all__ = ["StoredBuffer", "open_to_describe"]

#: Names of the classes whose folders it reads, those in ``replay.py``.
CLASSES = (
    "CompressedDictReplayBuffer",
    "CompressedHerReplayBuffer",
    "CompressedNStepReplayBuffer",
    "CompressedReplayBuffer",
)


class StoredBuffer:
    """The content of a replay buffer's folder, by the names that it has in the buffer's own class.

    It is for :func:`~sb3_compressed.buffers.description.describe` and :func:`~sb3_compressed.datasets.trajectories`; it
    can be neither sampled nor added to. Neither SB3 nor torch is imported.

    :param store: the folder, open for reading
    :ivar class_name: name of the buffer's class
    :raises StorageError: if the folder contains no buffer, or one of a class from outside this package
    :raises CorruptStorage: if its content is invalid
    """

    is_in_memory = False
    observations: Any
    actions: NDArray[Any]
    rewards: NDArray[Any]
    dones: NDArray[Any]
    timeouts: NDArray[Any]

    def __init__(self, store: ArrayStore) -> None:
        require_buffer(store)
        self._store = store
        metadata, folder = store.metadata, store.log.folder
        check_buffer(metadata, {name: spec.shape for name, spec in store.specs.items()}, folder)
        self.class_name = metadata["class"]
        if self.class_name not in CLASSES:
            raise StorageError(f"{folder} contains a {self.class_name}, which is not from this package")
        self.observation_space = space_from_data(metadata["observation_space"])
        self.action_space = space_from_data(metadata["action_space"])
        stored = metadata["arguments"].items()
        arguments = without_old_auto({name: argument_from_data(value) for name, value in stored if name != "sampler"})
        self.given_arguments = arguments
        self.n_envs = arguments.get("n_envs", 1)
        self.buffer_size = max(arguments["buffer_size"] // self.n_envs, 1)
        self.pos, self.full = 0, False
        self.bound_sampler = self._new_sampler(store)
        self._install_arrays(store)
        #: Whether next observations are those of the following row.
        self.optimize_memory_usage = "next_observations" not in vars(self)
        _, values = fit_arrays(store, self)
        bind(self, store)
        restore_values(self, store, values)

    def _new_sampler(self, store: ArrayStore) -> BoundSampler | None:
        """Return the sampler that is stored, ``None`` for SB3's own sampling and for users' classes."""
        config = stored_config(store)
        if config is None or "class" in config:
            return None
        return BoundSampler(sampler_from_config(config), self.buffer_size, self.n_envs)

    def _install_arrays(self, store: ArrayStore) -> None:
        """Set the arrays that the buffer's class has, compressed ones without content."""
        given = self.given_arguments
        plans = plan_arrays(
            self.observation_space,
            given.get("compression_method", AUTO),
            given.get("compression_kwargs") or {},
            given.get("dtypes"),
            given.get("frame_stack", AUTO),
            on_disk=True,
        )
        new_arrays: dict[Key, CompressedArray] = {}
        for name in OBSERVATIONS:
            arrays: dict[Key, Any] = {}
            for key, space in space_parts(self.observation_space).items():
                stored_name = name if key is None else f"{name}/{key}"
                if stored_name not in store.arrays:
                    continue
                if key in plans:
                    if key not in new_arrays:
                        dtype = space_dtype(space)
                        new_arrays[key] = plans[key].new_array(self.buffer_size, self.n_envs, dtype, num_threads=1)
                    arrays[key] = new_arrays[key].new_sharing_frames()
                else:
                    arrays[key] = store.arrays[stored_name]
            if arrays:
                vars(self)[name] = arrays.get(None, arrays)
        for name in PLAIN:
            if name in store.arrays:
                vars(self)[name] = store.arrays[name]
        if self.episodes is not None:  # info dicts of SB3's hindsight replay, whose references take memory
            self.infos = np.broadcast_to(np.array(None), (self.buffer_size, self.n_envs))
        for name in ("rewards", "dones"):
            found = getattr(vars(self).get(name), "shape", None)
            if found != (self.buffer_size, self.n_envs):
                raise StorageError(f"{store.log.folder}: {name} must be {(self.buffer_size, self.n_envs)}, got {found}")

    @property
    def sampler(self) -> Sampler | None:
        """The sampler, ``None`` for SB3's own sampling."""
        return None if self.bound_sampler is None else self.bound_sampler.sampler

    @property
    def episodes(self) -> EpisodeTable | None:
        """The episodes of hindsight replay, ``None`` for other buffers."""
        return EpisodeTable.among(vars(self))

    @property
    def raw_observations_nbytes(self) -> int:
        """The memory of all observations in SB3's buffer with the same arguments, in bytes."""
        return buffer_state.raw_observations_nbytes(self)

    def _arrays(self) -> list[tuple[Key, Any]]:
        return buffer_state.observation_arrays(self)

    def close(self) -> None:
        """Close the folder."""
        self._store.close()

    def size(self) -> int:
        """Return the number of rows that were written."""
        return self.buffer_size if self.full else self.pos


def open_to_describe(folder: Path) -> Any:
    """Open the buffer in a folder to describe it in place, even while a process writes to it; little of it is read.

    :return: a :class:`StoredBuffer`; what that cannot read is opened by its class, whose error messages are complete
    :raises StorageError: as :func:`~sb3_compressed.load_checkpoint`
    :raises CorruptStorage: if what must be read is damaged
    """
    store = ArrayStore.open(folder)
    try:
        return StoredBuffer(store)
    except Exception:  # whatever is unusual about the folder
        store.close()
    from sb3_compressed.buffers.loading import open_to_read  # imports SB3

    return open_to_read(folder)
