"""``DistributedReplayBuffer``: a replay buffer whose transitions are in shards, on this machine or many."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import time
import uuid
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from sb3_compressed.arrays.batch_pool import BatchPool
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.buffers.arguments import storage_mode_of
from sb3_compressed.buffers.validation import validate_infos, validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.threads import validate_num_threads
from sb3_compressed.common.warning import warn_user
from sb3_compressed.distributed.checkpoint_manifest import (
    NEWEST,
    Manifest,
    is_unfinished,
    new_cut,
    read_manifest,
    remove_other_cuts,
    remove_other_rings,
)
from sb3_compressed.distributed.encoded_rows import OBSERVATIONS, layout_of, stored_dtype
from sb3_compressed.distributed.ray_session import connect
from sb3_compressed.distributed.ring_quotas import RingQuotas
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.sample_pipeline import Part, SamplePipeline
from sb3_compressed.distributed.shard import PriorityUpdates, ShardStatus
from sb3_compressed.distributed.shard_group import ShardGroup, ShardView
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.errors import CheckpointNotFound, CorruptPayload, CorruptStorage, ShardTimeout, StorageError
from sb3_compressed.persistence.buffer_state import is_observation, named_arrays
from sb3_compressed.persistence.buffer_storage import StorageLocation, StorageMode
from sb3_compressed.samplers import PrioritizedSampler, RecentSampler, Sampler, get_sampler
from sb3_compressed.storage.files import flush_path
from sb3_compressed.storage.lock import FolderLock

__all__ = ["DistributedReplayBuffer", "DistributedStatistics"]

#: Arguments of hindsight replay.
HINDSIGHT = {"env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"}
#: What can be done with shards in a folder.
STORAGE_MODES = ("create", "resume", "overwrite")
#: Seconds to wait for acknowledgements while all shards are empty, before they are requested again.
SENDING_TIME = 0.1
#: Numbers of transitions: the shard, its epoch, the ring, and the number in the ring.
SHARD_BITS, EPOCH_BITS, RING_BITS, NUMBER_BITS = 10, 8, 10, 35
#: How the names of the writers begin that add() uses.
LEARNER = "learner-"


class DistributedStatistics(NamedTuple):
    """The state of a distributed buffer.

    :param n_transitions: number of transitions in all shards
    :param n_inserted: number of transitions inserted since the shards were started; restarts do not reset it
    :param n_sampled: number of transitions that :meth:`DistributedReplayBuffer.sample` returned
    :param n_lost: number of transitions that restarts of shards lost, or that were dropped after a timeout
    :param n_restarts: number of restarts of shards
    :param n_failed: number of requests that failed
    :param n_late: number of requests that were not answered in time
    :param n_bytes_inserted: bytes of the segments that shards received, with codecs
    :param n_bytes_sampled: bytes of the samples that shards sent, with codecs
    :param staleness: how many batches before its use the last batch was requested
    :param staleness_seconds: how many seconds before its use the last batch was requested
    :param waited: seconds that batches waited for shards
    """

    n_transitions: int
    n_inserted: int
    n_sampled: int
    n_lost: int
    n_restarts: int
    n_failed: int
    n_late: int
    n_bytes_inserted: int
    n_bytes_sampled: int
    staleness: int
    staleness_seconds: float
    waited: float


class DistributedReplayBuffer(ReplayBuffer):
    """A replay buffer for SB3 whose transitions are in shards: processes on this machine or on many.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed.distributed import DistributedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=DistributedReplayBuffer,
    ...     replay_buffer_kwargs=dict(n_shards=2),
    ... )  # doctest: +SKIP

    Observations are encoded where they are added, stored and sent as payloads, and decoded in the learner. Each writer
    has a ring of its own in one shard: this buffer, whose :meth:`add` is that of SB3, and any number of others, see
    :meth:`writer` and :class:`~sb3_compressed.distributed.Collectors`. Fast writers have
    larger rings, so that all rings together contain the newest transitions. Batches are drawn uniformly from all
    transitions, or in proportion to their priorities.

    Unlike SB3's buffer, it draws random numbers of its own, transitions can be sampled after a segment of them was
    added, and batches are requested before they are needed.

    :param buffer_size: number of transitions in all shards
    :param observation_space: observation space, also a Dict space
    :param action_space: action space
    :param device: device of the tensors
    :param n_envs: number of environments that :meth:`add` receives
    :param optimize_memory_usage: accepted for compatibility; next observations share frames with observations anyway
    :param handle_timeout_termination: as in SB3
    :param n_shards: number of shards. Each environment of :meth:`add` and each other writer has its place in one of
        them, so more shards than these stay empty
    :param storage: a folder that all nodes reach, to store observations in, ``"memory"`` for none
    :param storage_mode: what to do if the folder contains shards: ``"create"`` raises, ``"resume"`` continues, and
        ``"overwrite"`` replaces them
    :param sampler: ``"uniform"``, ``"prioritized"``, ``"recent"``, or a configured sampler of these
    :param n_steps: number of steps of n-step returns, 1 for none
    :param gamma: discount factor of n-step returns
    :param prefetch: how many batches are requested before they are needed; 0 for none
    :param timeout: seconds after which a shard that does not answer is left out, until it answers
    :param segment_length: number of steps that are sent to a shard together
    :param name: on a cluster, a name for shards that outlive the learner: one that is started again with the same name
        continues with them
    :param lease: seconds after which these shards end if no learner has called them; they flush their folders
    :param address: of a Ray cluster, such as ``"auto"``; ``None`` uses the connection of this process or
        ``RAY_ADDRESS``, if there is one, and starts Ray on this machine otherwise
    :param ray_options: options of the shards' actors, such as ``dict(num_cpus=1)``
    :param num_threads: number of threads that decode a batch, as for other buffers
    :param output_dtype: as for other buffers
    :param normalize_images: as for other buffers
    :param compression: other compression options of buffers: ``compression_method``, ``compression_kwargs``,
        ``dtypes``, ``frame_stack``
    :raises ValueError: if an argument is invalid, or for hindsight replay, which is not supported
    :raises StorageError: if the folder contains shards that are not to be continued, or more than ``n_shards``
    :raises ShardTimeout: if a shard does not answer, or does not start, such as if no node has the resources that
        ``ray_options`` request
    :raises RuntimeError: if another learner uses the shards of that name
    :raises ImportError: without Ray
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_shards: int = 1,
        storage: StorageLocation = "memory",
        storage_mode: StorageMode = "create",
        sampler: str | Sampler = "uniform",
        n_steps: int = 1,
        gamma: float = 0.99,
        prefetch: int = 16,
        timeout: float = 10.0,
        segment_length: int = 64,
        name: str | None = None,
        lease: float = 600.0,
        address: str | None = None,
        ray_options: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        output_dtype: str = "raw",
        normalize_images: bool = False,
        **compression: Any,
    ) -> None:
        for argument, value, least in (
            ("buffer_size", buffer_size, 1), ("n_envs", n_envs, 1), ("n_shards", n_shards, 1), ("n_steps", n_steps, 1),
            ("prefetch", prefetch, 0), ("segment_length", segment_length, 1),
        ):  # fmt: skip
            validate_integer(argument, value, least)
        for argument, seconds in (("timeout", timeout), ("lease", lease)):
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{argument} must be a positive number of seconds, got {seconds!r}")
        if n_shards >= 1 << SHARD_BITS:
            raise ValueError(f"n_shards must be less than {1 << SHARD_BITS}, got {n_shards}")
        if hindsight := sorted(HINDSIGHT & set(compression)):
            raise ValueError(
                f"hindsight replay cannot be distributed, since its rewards are computed by an environment while a "
                f"batch is sampled; got {', '.join(hindsight)}. Use CompressedHerReplayBuffer"
            )
        storage_mode = storage_mode_of(storage_mode, compression)
        if storage_mode not in STORAGE_MODES:
            raise StorageError(f"storage_mode must be one of {STORAGE_MODES}, got {storage_mode!r}")
        configured = get_sampler(sampler)
        if not isinstance(configured, PrioritizedSampler | RecentSampler | None):
            raise ValueError(
                f"sampler must be 'uniform', 'prioritized' or 'recent', got {sampler!r}: others know nothing of the "
                "transitions in other shards"
            )
        if n_steps > 1 and isinstance(observation_space, spaces.Dict):
            raise ValueError(f"SB3 has no n-step returns for Dict observations, got n_steps={n_steps}")
        placeholder = spaces.Box(0, 1, (0,), np.float32)
        super().__init__(n_envs, placeholder, action_space, device, n_envs)
        self.observation_space, self.obs_shape = observation_space, get_obs_shape(observation_space)  # type: ignore[assignment]
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.handle_timeout_termination = handle_timeout_termination
        for attribute in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            del vars(self)[attribute]  # they are in the shards
        self.n_steps, self.gamma, self.sampler = n_steps, gamma, configured
        self.output_dtype, self.normalize_images = output_dtype, normalize_images
        self.num_threads = validate_num_threads(num_threads)
        self._n_transitions_most = buffer_size
        self._segment_length, self._timeout = segment_length, timeout
        self._spec = RingSpec(
            observation_space, action_space,
            {"handle_timeout_termination": handle_timeout_termination, **compression},
            "uniform" if configured is None else configured, n_steps, gamma,
        )  # fmt: skip
        #: Validates what is added. It raises for invalid options here.
        self._template = self._spec.staging(1, n_envs, 1)
        arrays = {name: array for name, array in named_arrays(self._template).items() if is_observation(name)}
        #: Of each array of observations, the shape of an item, the dtype that it is stored in, and that of the space.
        self._formats = {name: (array.shape[2:], stored_dtype(array), array.dtype) for name, array in arrays.items()}
        connect(address)
        seed, rng_seed = np.random.randint(2**31, size=2)  # noqa: NPY002  # which SB3 seeds
        folder = None if storage == "memory" else user_path(storage).absolute()
        self._group = ShardGroup(
            n_shards,
            self._spec,
            max(buffer_size // n_envs, 2),
            folder,
            uuid.uuid4().hex,
            storage_mode,
            int(seed),
            ray_options or {},
            name,
            lease,
            timeout,
        )
        if self._group.n_transitions > buffer_size:
            warn_user(
                f"the shards of {name or storage} contain {self._group.n_transitions} transitions, but "
                f"buffer_size={buffer_size}: the oldest of each writer are removed"
            )
        self._pipeline = SamplePipeline(
            self._group, prefetch, timeout, np.random.default_rng(rng_seed), self._send_staged, self._take_updates
        )
        #: The number of environments and the shard of each writer.
        self._writers: dict[str, tuple[int, int]] = {}
        sizes: dict[str, int] = {}
        for shard, rings in enumerate(self._group.call("rings")):  # of a run that is continued
            self._writers |= {each: (n, shard) for each, (n, _) in rings.items()}
            sizes |= {each: size for each, (_, size) in rings.items()}
        #: How many transitions had been inserted when :attr:`_quotas` was last updated.
        self._n_inserted_before = 0
        #: How the buffer is divided among the rings.
        self._quotas = self._new_quotas(self._writers, sizes)
        self._group.resize(self._rows(self._quotas, self._writers))
        self._is_closed = False
        self._local: list[tuple[slice, ReplayWriter]] = []
        self._batch_pool = BatchPool()
        self._n_draws = 0
        #: The folder that the buffer was saved to.
        self._saved: Path | None = None
        #: The folders and cuts of all checkpoints that it was saved to or loaded from.
        self._cuts: set[tuple[Path, str]] = set()
        self._updates: dict[tuple[int, str], list[tuple[NDArray[Any], ...]]] = {}
        #: Number of transitions that :meth:`sample` has returned.
        self.n_sampled = 0
        #: How many updates of priorities were skipped since their transitions were lost with a shard.
        self._n_lost_updates = 0

    # -- writing ---------------------------------------------------------------------------------------------

    def _new_quotas(self, writers: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> RingQuotas:
        """Return how the buffer is divided among writers.

        :param writers: the number of environments and the shard of each
        :param sizes: how many transitions each ring contains
        """
        return RingQuotas(
            self._n_transitions_most, self._segment_length, _by_process({name: n for name, (n, _) in writers.items()}),
            _by_process(sizes), _by_process(self._group.n_inserted_by),
        )  # fmt: skip

    def _rows(self, quotas: RingQuotas, writers: Iterable[str]) -> dict[str, int]:
        """Return the number of rows of the ring of each writer."""
        return {name: quotas.rows[_process(name)] for name in writers}

    def _update_quotas(self) -> None:
        """Divide the buffer among all writers again if their speeds have changed."""
        n_new = self._group.n_inserted - self._n_inserted_before
        if n_new >= self._quotas.interval:
            self._n_inserted_before += n_new
            if self._quotas.record(_by_process(self._group.n_inserted_by)):
                idle = [name for name in self._writers if _process(name) in self._quotas.idle]
                self._group.request_resize(self._rows(self._quotas, self._writers), idle)

    def writer(self, name: str, n_envs: int, *, timeout: float | None = None) -> ReplayWriter:
        """Return a writer of transitions for another process, such as an actor of Ray.

        The buffer is divided among the rings of all writers by how fast they add. If it is full, existing rings become
        smaller, so create all writers before you use them.

        :param name: names the ring; a new writer of the same name continues it
        :param n_envs: number of environments
        :param timeout: seconds after which it drops rows if its shard does not answer; ``None`` to wait until it does
        :raises ShardUnavailable: if a shard fails or does not answer
        :raises ValueError: if the ring of that name has another number of environments, or the name is one of those of
            the learner's own writers
        """
        validate_integer("n_envs", n_envs, 1)
        if name.startswith(LEARNER):
            raise ValueError(f"names that begin with {LEARNER!r} are those of the learner's own writers, got {name!r}")
        self._register({name: n_envs})
        return self._new_writer(name, timeout=timeout)

    def _register(self, writers: Mapping[str, int]) -> None:
        """Include writers, each with its number of environments.

        :raises ShardUnavailable: if a shard fails or does not answer; the writers are as they were
        """
        all_writers, quotas = dict(self._writers), copy.deepcopy(self._quotas)
        for name, n_envs in writers.items():
            known, shard = all_writers.get(name, (n_envs, len(all_writers) % len(self._group.shards)))
            if known != n_envs:
                raise ValueError(f"the ring of {name!r} has {known} environments, got n_envs={n_envs}")
            n_rings = sum(each == shard for _, each in all_writers.values())
            if name not in all_writers and n_rings == 1 << RING_BITS:
                raise ValueError(f"a shard can have the rings of {n_rings} writers at most; pass a larger n_shards")
            all_writers[name] = n_envs, shard
        self.flush()
        self._group.refresh_all()  # so that rings keep what has arrived
        n_envs_of = {name: n for name, (n, _) in all_writers.items()}
        quotas.include(_by_process(n_envs_of), _by_process(self._group.n_inserted_by))
        self._group.resize(self._rows(quotas, all_writers))
        self._writers, self._quotas = all_writers, quotas

    def _new_writer(self, name: str, **options: Any) -> ReplayWriter:
        n_envs, shard = self._writers[name]
        return ReplayWriter(
            self._group.shards[shard].actor, self._spec, name, n_envs, self._segment_length,
            shard_name=f"shard {shard}", **options,
        )  # fmt: skip

    @staticmethod
    def _parts(n_parts: int) -> dict[str, slice]:
        """Return the names of writers and which environments each gets."""
        return {f"{LEARNER}{part}": slice(part, None, n_parts) for part in range(n_parts)}

    def _open(self) -> list[tuple[slice, ReplayWriter]]:
        """Divide the environments among the shards, and return which of them each writer gets.

        Rings of a checkpoint or of an earlier run are continued if they fit, whatever the number of shards is.
        """
        parts = self._parts(sum(name.startswith(LEARNER) for name in self._writers))
        expected = {name: len(range(self.n_envs)[part]) for name, part in parts.items()}
        if not parts or any(self._writers.get(name, (0, 0))[0] != n_envs for name, n_envs in expected.items()):
            parts = self._parts(min(len(self._group.shards), self.n_envs))
        self._register({name: len(range(self.n_envs)[part]) for name, part in parts.items()})
        local = [
            (part, self._new_writer(name, timeout=self._timeout, num_threads=self.num_threads))
            for name, part in parts.items()
        ]
        for _, writer in local:  # all of them, before one of them adds its part of a row
            writer.open()
        self._local = local
        return local

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as SB3's buffer does.

        It can be sampled when its segment was sent, see ``segment_length``.

        :raises ValueError: if an argument does not fit; nothing is added then
        :raises ShardUnavailable: at the first call, if a shard fails or does not answer; nothing is added then
        """
        self._require_open()
        local = self._local or self._open()
        if len(local) == 1:
            local[0][1].add(obs, next_obs, action, reward, done, infos)
        else:
            if self.handle_timeout_termination:
                validate_infos(infos, self.n_envs)
            # Before a writer adds the first of it.
            obs, next_obs, action, reward, done = self._template._validated_step(obs, next_obs, action, reward, done)
            for part, writer in local:
                writer.add(
                    _selected(obs, part), _selected(next_obs, part), np.asarray(action)[part], np.asarray(reward)[part],
                    np.asarray(done)[part], infos[part],
                )  # fmt: skip
        for _, writer in local:
            self.record_statuses(writer.name, writer.take_statuses())

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the buffer is closed, and its shards have ended")

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that was added, and wait until shards have it. Updates of priorities are sent as well.

        :param timeout: seconds after which it returns in any case; ``None`` to raise after the timeout of the buffer
        :raises ShardTimeout: if a shard has not acknowledged everything by then; the rest stays staged
        """
        for shard, view in enumerate(self._group.shards):
            for updates in self._take_updates(shard):
                self._group.send(view, "update_priorities", *updates)
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        for _, writer in self._local:
            writer.flush(max(deadline - time.monotonic(), 0))
            self.record_statuses(writer.name, writer.take_statuses())
            if writer.n_staged and timeout is None:
                raise ShardTimeout(
                    f"shard {self._writers[writer.name][1]} has not acknowledged {writer.n_staged} transitions for "
                    f"{self._timeout:g} s"
                )

    def _send_staged(self) -> None:
        """Send what was added, without waiting for shards that do not answer."""
        self.flush(SENDING_TIME)

    def record_statuses(self, name: str, statuses: Sequence[ShardStatus]) -> None:
        """Record the states of a shard in its replies to a writer, ``writer.take_statuses()``.

        The learner counts transitions of other processes only when it receives such a state, or when it samples.

        :param name: the name of the writer
        """
        for status in statuses:
            self._group.update(self._group.shards[self._writers[name][1]], status)
            self._update_quotas()

    def silent_shards(self) -> list[int]:
        """Return the numbers of the shards that do not answer within the timeout."""
        self._group.refresh(self._timeout)
        return [index for index, view in enumerate(self._group.shards) if view.probe is not None]

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does. What other processes have staged is added afterwards.

        :raises ShardUnavailable: if a shard fails or does not answer; reset again then, since others may be empty
        """
        super().reset()
        if "_group" not in vars(self):  # in SB3's constructor
            return
        self._require_open()
        self._pipeline.discard()
        self._local, self._updates = [], {}
        self._group.call("reset")
        self._quotas = self._new_quotas(self._writers, {})
        self._group.resize(self._rows(self._quotas, self._writers))
        self._group.refresh_all()
        self._group.renumber()

    # -- sampling --------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Return the number of transitions in all shards and on the way to them, divided by ``n_envs``."""
        return self.n_transitions // self.n_envs

    @property
    def n_transitions(self) -> int:
        """Number of transitions in all shards and on the way to them, as far as this process knows."""
        for _, writer in self._local:
            with contextlib.suppress(OSError):  # what could not be written is sent again
                writer.poll()
            self.record_statuses(writer.name, writer.take_statuses())
        n_staged = sum(writer.n_staged for _, writer in self._local)
        return min(self._group.n_transitions + n_staged, self._quotas.n_transitions)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does.

        :param batch_size: number of transitions
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :raises BufferNotReady: if no shard has a transition
        :raises ValueError: if rewards of n-step returns are to be normalized
        """
        self._require_open()
        validate_integer("batch_size", batch_size, 1)
        if env is not None and self.n_steps > 1 and env.norm_reward:
            raise ValueError(
                "rewards of n-step returns are summed in the shards, so VecNormalize must have norm_reward=False"
            )
        self._update_quotas()
        parts = self._pipeline.next(batch_size)
        self.n_sampled += batch_size
        arrays = {name: self._joined(parts, name) for name in parts[0].block.arrays}
        self._batch_pool.begin_batch()
        for name in parts[0].block.batches:
            arrays |= self._decoded(parts, name, batch_size)
        fields: dict[str, Any] = {}
        for name in (OBSERVATIONS, f"next_{OBSERVATIONS}"):
            values: Any = arrays.get(name)
            if values is None:
                values = {
                    path.partition("/")[2]: array for path, array in arrays.items() if path.startswith(f"{name}/")
                }
            fields[name] = self._observation_tensors(values, env)
        fields |= {name: self._tensor(arrays[name]) for name in ("actions", "dones")}
        fields["rewards"] = self._tensor(self._normalize_reward(arrays["rewards"], env))
        if "discounts" in arrays:
            fields["discounts"] = self._tensor(arrays["discounts"])
        samples: Any = (DictReplayBufferSamples if self._spec.is_dict else ReplayBufferSamples)(**fields)
        if self.sampler is None:
            return samples
        return weighted_samples(samples, self._weights(parts), self._numbers(parts))

    def _joined(self, parts: list[Part], name: str) -> NDArray[Any]:
        """Return an array of a batch."""
        if len(parts) == 1:
            return parts[0].block.arrays[name][parts[0].first : parts[0].last]
        return np.concatenate([part.block.arrays[name][part.first : part.last] for part in parts])

    def _decoded(self, parts: list[Part], name: str, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return the observations and next observations of a batch."""
        item_shape, stored, dtype = self._formats[name]
        states = [part.block.values["layouts"][name] for part in parts]
        batches = [part.block.batches[name].part(2 * part.first, 2 * part.last) for part in parts]
        sizes = [part.last - part.first for part in parts]
        begins = np.cumsum([0, *sizes])
        out = self._batch_pool.empty((2 * batch_size, *item_shape), stored)
        known = [state for state in states if state is not None]
        if len(batches) > 1 and all(state == known[0] for state in known):
            firsts = [np.arange(2 * begin, 2 * begin + size) for begin, size in zip(begins, sizes, strict=False)]
            seconds = [first + size for first, size in zip(firsts, sizes, strict=True)]
            batches = [PayloadBatch.joined(batches, np.concatenate([*firsts, *seconds]))]
            states = known[:1] or [None]
        if len(batches) == 1:
            decode(batches[0], _layout(item_shape, states[0]), out, self.num_threads)
        else:  # shards found different layouts
            for batch, state, begin, end in zip(batches, states, begins, begins[1:], strict=False):
                part = np.empty((batch.n_items, *item_shape), stored)
                decode(batch, _layout(item_shape, state), part, self.num_threads)
                out[begin:end], out[batch_size + begin : batch_size + end] = part[: end - begin], part[end - begin :]
        if stored != dtype:
            out = out.astype(dtype)
        return {name: out[:batch_size], f"next_{name}": out[batch_size:]}

    def _observation_tensors(self, values: Any, env: Any) -> Any:
        normalized = self._normalize_obs(values, env)
        if isinstance(normalized, dict):
            parts = self.observation_space.spaces  # type: ignore[attr-defined]
            return {key: self._output(self._tensor(array), parts[key]) for key, array in normalized.items()}
        return self._output(self._tensor(normalized), self.observation_space)

    def _output(self, tensor: th.Tensor, space: spaces.Space[Any]) -> th.Tensor:
        if self.normalize_images and is_image_space(space):
            return tensor.float() / 255.0  # as SB3's policies do it
        return tensor.float() if self.output_dtype == "float" else tensor

    def _tensor(self, array: NDArray[Any]) -> th.Tensor:
        """Return a tensor of an array of this batch, without a copy where that is possible."""
        writable = array if array.flags.writeable else array.copy()  # Ray's memory is read-only
        return th.from_numpy(writable).to(self.device)

    # -- priorities ------------------------------------------------------------------------------------------

    def _weights(self, parts: list[Part]) -> th.Tensor:
        """Return the importance weights of a batch, ``(batch_size, 1)``."""
        sampler = self.sampler
        if not isinstance(sampler, PrioritizedSampler) or sampler.mode == "lap":
            return th.ones((sum(part.last - part.first for part in parts), 1), device=self.device)
        probabilities = np.concatenate(
            [
                part.block.arrays["priorities"][part.first : part.last] * (part.share / part.block.values["total"])
                for part in parts
            ]
        )
        weights = (probabilities.min() / probabilities) ** sampler.beta_after(self._n_draws)
        self._n_draws += 1
        return th.tensor(weights.reshape(-1, 1), dtype=th.float32, device=self.device)

    def _numbers(self, parts: list[Part]) -> NDArray[np.int64]:
        """Return the numbers of the transitions of a batch, for :meth:`update_priorities`."""
        numbers = []
        for part in parts:
            arrays, chosen = part.block.arrays, slice(part.first, part.last)
            prefix = (part.shard << EPOCH_BITS | part.epoch % (1 << EPOCH_BITS)) << RING_BITS
            rings = arrays["rings"][chosen].astype(np.int64) | prefix
            numbers.append(rings << NUMBER_BITS | arrays["numbers"][chosen])
        return np.concatenate(numbers)

    def update_priorities(self, indices: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor) -> int:
        """Update the priorities of transitions after a training step; they are sent with the next requests.

        Transitions that were overwritten, or lost with a shard, are skipped: :attr:`n_skipped_updates`.

        :param indices: ``indices`` of a batch, ``(n,)``
        :param td_errors: TD errors of these transitions, ``(n,)`` or ``(n, 1)``; their signs are ignored
        :return: 0, since shards report later how many were skipped
        :raises ValueError: if shapes differ, or a TD error is not finite
        :raises TypeError: if the buffer has no priorities
        """
        if not isinstance(self.sampler, PrioritizedSampler):
            raise TypeError("update_priorities() is for buffers with sampler='prioritized'")
        numbers = np.asarray(indices.cpu() if isinstance(indices, th.Tensor) else indices).reshape(-1)
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"indices must be integers, as in batch.indices, got {numbers.dtype}")
        numbers = numbers.astype(np.int64, copy=False)
        errors = td_errors.detach().cpu().numpy() if isinstance(td_errors, th.Tensor) else np.asarray(td_errors)
        errors = np.abs(errors.reshape(-1).astype(np.float64))
        if errors.shape != numbers.shape:
            raise ValueError(f"there must be a TD error for each index, got {errors.shape} for {numbers.shape}")
        if not np.isfinite(errors).all():
            raise ValueError(f"TD errors must be finite, got {errors[~np.isfinite(errors)][0]}")
        shards = numbers >> (EPOCH_BITS + RING_BITS + NUMBER_BITS)
        epochs = numbers >> (RING_BITS + NUMBER_BITS) & ((1 << EPOCH_BITS) - 1)
        rings = (numbers >> NUMBER_BITS & ((1 << RING_BITS) - 1)).astype(np.int16)
        numbers = numbers & ((1 << NUMBER_BITS) - 1)
        for shard in np.unique(shards).tolist():
            if not 0 <= shard < len(self._group.shards):
                raise ValueError("the indices are not those of a batch of this buffer")
            view = self._group.shards[shard]
            chosen = (shards == shard) & (epochs == view.epoch % (1 << EPOCH_BITS))
            self._n_lost_updates += int((shards == shard).sum() - chosen.sum())
            if view.status is not None:
                updates = self._updates.setdefault((shard, view.status.incarnation), [])
                updates.append((rings[chosen], numbers[chosen], errors[chosen]))
        return 0

    @property
    def n_skipped_updates(self) -> int:
        """How many updates of priorities were skipped, since their transitions were overwritten or lost."""
        statuses = (view.status for view in self._group.shards)
        return self._n_lost_updates + sum(status.n_skipped_updates for status in statuses if status is not None)

    def _take_updates(self, shard: int) -> list[PriorityUpdates]:
        """Return the updates of priorities for a shard that were not sent yet; they are not returned again."""
        found = []
        for key in [key for key in self._updates if key[0] == shard]:
            rings, numbers, errors = (np.concatenate(each) for each in zip(*self._updates.pop(key), strict=True))
            found.append(PriorityUpdates(rings, numbers, errors, key[1]))
        return found

    @property
    def shards(self) -> list[ShardView]:
        """The shards, as far as this process knows them."""
        return self._group.shards

    # -- state -----------------------------------------------------------------------------------------------

    def statistics(self) -> DistributedStatistics:
        """Return the state of the buffer, as far as this process knows."""
        group, pipeline = self._group, self._pipeline
        statuses = [status for view in group.shards for status in view.statuses]
        return DistributedStatistics(
            n_transitions=self.n_transitions,
            n_inserted=group.n_inserted,
            n_sampled=self.n_sampled,
            n_lost=sum(view.n_lost for view in group.shards) + sum(writer.n_lost for _, writer in self._local),
            n_restarts=sum(view.n_restarts for view in group.shards),
            n_failed=pipeline.n_failed + group.n_failed,
            n_late=pipeline.n_late,
            n_bytes_inserted=sum(status.n_bytes_inserted for status in statuses),
            n_bytes_sampled=sum(status.n_bytes_sampled for status in statuses),
            staleness=pipeline.staleness[0],
            staleness_seconds=pipeline.staleness[1],
            waited=pipeline.waited,
        )

    def close(self) -> None:
        """Send everything that was added, flush the folder, and end the shards.

        A shard that does not answer within the timeout loses what it has not received.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush(self._timeout)
        finally:
            self._pipeline.discard()
            self._group.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a distributed buffer cannot be pickled or copied, since its transitions are in other processes; use "
            "save_checkpoint() instead of save_replay_buffer()"
        )

    # -- checkpoints -----------------------------------------------------------------------------------------

    #: Whether no folder has to be flushed, for :class:`.BufferCheckpointCallback`.
    is_in_memory = True

    def save_checkpoint(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Save the transitions of all shards to a folder that all nodes reach: what changed since the last save.

        Saves are atomic: if one fails or is interrupted, the last complete one is still there, and the next call tries
        again. What other processes have staged is not included; of each writer, the transitions up to some segment are.

        :param folder: a new or empty folder, or one that this buffer was saved to or loaded from
        :param overwrite: whether to replace the checkpoint of another buffer
        :raises ShardUnavailable: if a shard fails or does not answer; nothing was saved
        :raises StorageError: if the folder contains something else, or another process saves to it
        :raises OSError: if it cannot be written
        """
        self._require_open()
        path = user_path(folder).absolute()
        self._require_writable(path, overwrite=overwrite)
        self.flush()
        self._group.refresh_all()
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
        try:
            lock.acquire()
            self._require_writable(path, overwrite=overwrite)  # another learner may have saved to it meanwhile
            cut = new_cut(path)
            try:
                rings, writers = self._group.save_checkpoint(path / NEWEST, path / cut)
                flush_path(path / cut)
                # Shards of a name may have rings of writers that only an earlier learner knew.
                manifest = Manifest(cut, self._writers | writers, rings)
                self._cuts.add((path, cut))  # before, so that an interrupted save is known to be that of this buffer
                manifest.write(path)
                self._saved = path
                remove_other_rings(path, manifest)
            finally:
                remove_other_cuts(path)
        finally:
            lock.release()

    def _require_writable(self, path: Path, *, overwrite: bool) -> None:
        """Raise if a folder contains something else than a checkpoint that may be replaced.

        :raises StorageError: if it does
        """
        if not path.exists():
            return
        try:
            manifest = read_manifest(path)
        except CheckpointNotFound:
            if not is_unfinished(path):
                raise StorageError(f"{path} contains other files, but no checkpoint of a distributed buffer") from None
        except CorruptStorage:
            if not overwrite:
                raise
        else:
            if not overwrite and (path, manifest.cut) not in self._cuts:
                raise StorageError(f"{path} contains another checkpoint; pass overwrite=True to replace it")

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet
        :raises OSError: if it cannot be written
        """
        if self._saved is None:
            raise StorageError("nothing was saved yet that could be copied; see save_checkpoint")
        path, manifest = user_path(folder).absolute(), read_manifest(self._saved)
        path.mkdir(parents=True)
        shutil.copytree(self._saved / manifest.cut, path / manifest.cut, copy_function=os.link)
        manifest.write(path)

    def load_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Replace all transitions by those of a checkpoint. Writers of other processes continue after them.

        The number of shards may be another one than that of the saved buffer, and so may ``buffer_size``. Rings that
        are missing or were exchanged are found before anything changes. If shards find damage, or fail, the buffer
        contains a part of the checkpoint: load this or another one again, or :meth:`reset` the buffer.

        :raises ShardUnavailable: if a shard fails or does not answer
        :raises StorageError: if the folder contains no checkpoint of a distributed buffer, or one of other spaces
        :raises CorruptStorage: if it is damaged, or lacks transitions that were saved
        """
        self._require_open()
        path = user_path(folder).absolute()
        manifest = read_manifest(path)
        saved = manifest.rings_in(path)
        n_shards = len(self._group.shards)
        present = {name: each for name, each in self._writers.items() if not name.startswith(LEARNER)}
        # Writers of other processes keep their shards, also those that have begun after the save.
        writers = present | {
            name: (n_envs, present.get(name, (0, shard))[1] % n_shards)
            for name, (n_envs, shard) in manifest.writers.items()
        }
        rings: list[dict[str, tuple[Path, int]]] = [{} for _ in range(n_shards)]
        for name, source in saved.items():
            n_envs, shard = writers[name]
            rings[shard][name] = source, n_envs
        sizes = {name: ring.n_transitions for name, ring in (manifest.rings or {}).items()}
        quotas = self._new_quotas(writers, sizes)
        rows = self._rows(quotas, writers)
        self._pipeline.discard()
        self._updates = {}
        self._group.renumber()
        self._group.rows = rows
        self._writers, self._local, self._quotas = writers, [], quotas
        loaded = self._group.call_each("load_checkpoint", [(of_shard, rows) for of_shard in rings])
        manifest.verify_loaded(path, dict(ChainMap(*loaded)), rows)
        self._saved = path
        self._cuts.add((path, manifest.cut))
        self._group.refresh_all()


def _process(name: str) -> str:
    """Return the process of a writer. The learner's writers are one, since they insert the same number of rows."""
    return LEARNER if name.startswith(LEARNER) else name


def _by_process(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of counts of writers by their processes."""
    sums: Counter[str] = Counter()
    for name, count in counts.items():
        sums[_process(name)] += count
    return sums


def _layout(item_shape: tuple[int, ...], state: Any) -> FrameLayout | None:
    """Return the layout in a block.

    :raises CorruptPayload: if items cannot have it
    """
    try:
        return layout_of(item_shape, None if state is None else tuple(state))
    except (TypeError, ValueError) as error:
        raise CorruptPayload(f"the layout {state!r} is invalid: {error}") from error


def _selected(observations: Any, part: slice) -> Any:
    """Return the observations of some environments."""
    if isinstance(observations, dict):
        return {key: np.asarray(value)[part] for key, value in observations.items()}
    return np.asarray(observations)[part]
