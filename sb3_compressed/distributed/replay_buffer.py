"""``DistributedReplayBuffer``: a replay buffer whose transitions are in shards, on this machine or many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from sb3_compressed.buffers.arguments import warn_of_time_limits
from sb3_compressed.buffers.extend import Steps, extend_buffer, infos_of, steps_of
from sb3_compressed.buffers.tensors import OutputDtype, output_tensors, to_tensor, torch_device
from sb3_compressed.buffers.validation import validate_infos, validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples, weights_and_indices
from sb3_compressed.common.paths import user_path
from sb3_compressed.common.threads import validate_num_threads
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.common.warning import warn_user
from sb3_compressed.distributed.batch_decoding import BatchDecoder
from sb3_compressed.distributed.checkpoint_manifest import read_manifest
from sb3_compressed.distributed.encoded_rows import NEXT_OBSERVATIONS, OBSERVATIONS
from sb3_compressed.distributed.priority_updates import PendingUpdates, numbers_of
from sb3_compressed.distributed.ray_session import connect
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.sample_pipeline import Part, SamplePipeline
from sb3_compressed.distributed.shard import ShardStatus
from sb3_compressed.distributed.shard_checkpoints import ShardCheckpoints
from sb3_compressed.distributed.shard_group import MAX_SHARDS, STORAGE_MODES, ShardGroup
from sb3_compressed.distributed.writer import ReplayWriter
from sb3_compressed.distributed.writer_registry import LEARNER, WriterRegistry
from sb3_compressed.errors import ShardTimeout, StorageError
from sb3_compressed.persistence.buffer_storage import StorageLocation, StorageMode
from sb3_compressed.samplers import Draw, PrioritizedSampler, RecentSampler, Sampler, get_sampler
from sb3_compressed.samplers.td_errors import validated_td_errors

__all__ = ["DistributedReplayBuffer", "DistributedStatistics"]

#: Seconds to wait for acknowledgements while all shards are empty, before they are requested again.
SENDING_TIME = 0.1


class DistributedStatistics(NamedTuple):
    """The state of a distributed buffer.

    :param n_transitions: number of transitions in all shards
    :param n_inserted: number of transitions inserted since the shards were started; restarts do not reset it
    :param n_sampled: number of transitions that :meth:`DistributedReplayBuffer.sample` returned
    :param n_lost: number of transitions that restarts of shards lost, or that were dropped after a timeout
    :param n_restarts: number of restarts of shards
    :param n_failed: number of requests that failed
    :param n_late: number of requests that were not answered in time
    :param n_bytes_inserted: bytes of the segments that shards received, without codecs
    :param n_bytes_sampled: bytes of the samples that shards sent, without codecs
    :param memory_nbytes: resident memory of the shards' processes in bytes, as far as they have reported it
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
    memory_nbytes: int


class DistributedReplayBuffer(ReplayBuffer):
    """A replay buffer for SB3 whose transitions are in shards: processes on this machine or on many.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed.distributed import DistributedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     replay_buffer_class=DistributedReplayBuffer,
    ...     replay_buffer_kwargs=dict(n_shards=2),
    ... )  # doctest: +SKIP

    Observations are encoded where they are added, stored and sent as payloads, and decoded in the learner. Each writer
    has a ring of its own in one shard: this buffer, whose :meth:`add` is that of SB3, and any number of others, see
    :meth:`writer` and :class:`~sb3_compressed.distributed.Collectors`. Environments have rings of the same length.
    Batches are drawn uniformly from all transitions, or in proportion to their priorities.

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
    :param gamma: discount factor of n-step returns, 0.99 by default as in SB3, whatever that of the model is
    :param prefetch: how many batches are requested before they are needed; 0 for none
    :param timeout: seconds after which a shard that does not answer is left out, until it answers
    :param segment_length: number of steps that are sent to a shard together
    :param address: of a Ray cluster, such as ``"auto"``; ``None`` uses the connection of this process or
        ``RAY_ADDRESS``, if there is one, and starts Ray on this machine otherwise
    :param ray_options: options of the shards' actors, such as ``dict(num_cpus=1)``
    :param num_threads: number of threads that decode a batch, as for other buffers
    :param output_dtype: as for other buffers
    :param normalize_images: as for other buffers
    :param compression: other compression options of buffers: ``compression_method``, ``compression_kwargs``,
        ``dtypes``, ``frame_stack``
    :raises ValueError: if an argument is invalid, or codec and sampler have more than 95 MiB, which Ray does not keep
    :raises StorageError: if the folder contains shards that are not to be continued, or more than ``n_shards``
    :raises ShardTimeout: if a shard does not answer, or does not start, such as if no node has the resources that
        ``ray_options`` request
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
        address: str | None = None,
        ray_options: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        output_dtype: OutputDtype = "raw",
        normalize_images: bool = False,
        **compression: Any,
    ) -> None:
        for count, value in {
            "buffer_size": buffer_size, "n_envs": n_envs, "n_steps": n_steps, "segment_length": segment_length,
            "n_shards": n_shards,
        }.items():  # fmt: skip
            validate_integer(count, value, 1)
        validate_integer("prefetch", prefetch, 0)
        if storage == "device":
            raise ValueError("storage='device' is for buffers of one process; shards are in memory or in a folder")
        if n_shards >= MAX_SHARDS:
            raise ValueError(f"n_shards must be less than {MAX_SHARDS}, got {n_shards}")
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if storage_mode not in STORAGE_MODES:
            raise StorageError(f"storage_mode must be one of {STORAGE_MODES}, got {storage_mode!r}")
        folder = None if storage == "memory" else user_path(storage).absolute()
        configured = _validated_sampler(sampler)
        if n_steps > 1 and isinstance(observation_space, spaces.Dict):
            raise ValueError(f"SB3 has no n-step returns for Dict observations, got n_steps={n_steps}")
        # Not that of ReplayBuffer, which would allocate arrays: the transitions are in the shards.
        own = [each for each in type(self).__mro__ if "__init__" in vars(each)]
        if (following := own[own.index(DistributedReplayBuffer) + 1]) is not ReplayBuffer:
            raise TypeError(
                f"{type(self).__name__} would never call {following.__name__}.__init__: place that class before "
                "DistributedReplayBuffer in the bases"
            )
        rows = max(buffer_size // n_envs, 1)
        super(ReplayBuffer, self).__init__(rows, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        if n_steps > 1 and not handle_timeout_termination:
            warn_of_time_limits("n-step returns")
        self.n_steps, self.sampler = n_steps, configured
        self.gamma = gamma if n_steps > 1 else None  # without discounts, as other buffers of single steps
        self.output_dtype, self.normalize_images = output_dtype, normalize_images
        self.num_threads = validate_num_threads(num_threads)
        self._timeout = timeout
        self._spec = RingSpec(
            observation_space, action_space,
            {"handle_timeout_termination": handle_timeout_termination, **compression},
            "uniform" if configured is None else configured, n_steps, gamma,
        )  # fmt: skip
        #: Validates what is added. It raises for invalid options here.
        self._template = self._spec.staging(1, n_envs, 1)
        self._decoder = BatchDecoder(self._template, self.num_threads)
        connect(address)
        seed, rng_seed = np.random.randint(2**31, size=2)  # noqa: NPY002  # which SB3 seeds
        self._group = ShardGroup(
            n_shards, folder, storage_mode, ray_options or {}, timeout, self._spec, max(buffer_size // n_envs, 2),
            int(seed),
        )  # fmt: skip
        if self._group.n_transitions > buffer_size:
            warn_user(
                f"the shards of {storage} contain {self._group.n_transitions} transitions, but "
                f"buffer_size={buffer_size}: the oldest of each writer are removed"
            )
        self._registry = WriterRegistry(self._group, buffer_size, segment_length)
        self._updates = PendingUpdates(n_shards)
        rng = np.random.default_rng(rng_seed)
        self._pipeline = SamplePipeline(
            self._group, prefetch, timeout, rng, lambda: self.flush(SENDING_TIME), self._updates.take
        )
        self._checkpoints = ShardCheckpoints(self._group)
        #: The writers of :meth:`add`, and which environments each gets.
        self._local: list[tuple[slice, ReplayWriter]] = []
        self._is_closed = False
        #: Number of transitions that :meth:`sample` has returned, and of batches with importance weights.
        self.n_sampled = self._n_draws = 0

    # -- writing ---------------------------------------------------------------------------------------------

    def writer(self, name: str, n_envs: int, *, timeout: float | None = None) -> ReplayWriter:
        """Return a writer of transitions for another process, such as an actor of Ray.

        The buffer is divided equally among the environments of all writers. Existing rings become smaller, and lose
        their oldest transitions if they are full, so create all writers before you use them.

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
        self.flush()
        self._registry.include({name: n_envs})
        return self._registry.new_writer(name, self._spec, timeout=timeout)

    def _open(self) -> list[tuple[slice, ReplayWriter]]:
        """Divide the environments among the shards, and return which of them each writer gets.

        Rings of a checkpoint or of an earlier run are continued if they fit, whatever the number of shards is.
        """
        known = {name: n_envs for name, (n_envs, _) in self._registry.writers.items() if name.startswith(LEARNER)}
        for n_parts in (len(known), min(len(self._group.shards), self.n_envs)):
            parts = {f"{LEARNER}{part}": slice(part, None, n_parts or 1) for part in range(n_parts)}
            n_envs_of = {name: len(range(self.n_envs)[part]) for name, part in parts.items()}
            if known and known == n_envs_of:
                break
        self.flush()
        self._registry.include(n_envs_of)
        options = {"timeout": self._timeout, "num_threads": self.num_threads}
        local = [(part, self._registry.new_writer(name, self._spec, **options)) for name, part in parts.items()]
        for _, writer in local:  # all of them, before one of them adds its part of a row
            writer.open()
        self._local = local
        return local

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add a transition of every environment, as SB3's buffer does.

        It can be sampled when its segment was sent, see ``segment_length``.

        :raises ValueError: if an argument does not fit; nothing is added then
        :raises ShardUnavailable: at the first call, if a shard fails or does not answer; nothing is added then. Later,
            if Ray does not restart a shard that has ended
        """
        self._require_open()
        local = self._local or self._open()
        if len(local) == 1:
            local[0][1].add(obs, next_obs, action, reward, done, infos)
        else:
            if self.handle_timeout_termination:
                validate_infos(infos, self.n_envs)
            # Before a writer adds the first of it.
            obs, next_obs, action, reward, done = self._template._validated_arguments(
                obs, next_obs, action, reward, done
            )
            for _, writer in local:
                writer.make_room()

            def add_part(part: slice, writer: ReplayWriter) -> None:
                first, second = tree_map(itemgetter(part), obs), tree_map(itemgetter(part), next_obs)
                writer.add(first, second, action[part], reward[part], done[part], infos[part])

            self._call_local(add_part)
        self._record_local()

    def _call_local(self, function: Callable[[slice, ReplayWriter], None]) -> None:
        """Call a function for all writers of this process, also after one whose shard is unavailable or cannot write.

        :param function: its arguments are the environments of the writer, and the writer
        :raises OSError: the first of their errors
        """
        errors: list[OSError] = []
        for part, writer in self._local:
            try:
                function(part, writer)
            except OSError as error:  # noqa: PERF203  # there are few writers
                errors.append(error)
        if errors:
            raise errors[0]

    def extend(
        self,
        obs: Any = None,
        next_obs: Any = None,
        action: Any = None,
        reward: Any = None,
        done: Any = None,
        infos: Any = None,
        *further: Any,
        timeouts: Any = None,
    ) -> None:
        """Add many steps of every environment, one after the other, with the arguments of a local buffer's ``extend``.

        :raises ValueError: if an argument does not fit; steps before it stay
        :raises TypeError: if an argument is not numeric; likewise
        """
        extend_buffer(self, (obs, next_obs, action, reward, done, infos, *further), timeouts, self._add_steps)

    def _add_steps(self, given: Steps, infos: Sequence[Any] | None) -> None:
        steps, n_steps = steps_of(self._template, given, infos)
        for step in range(n_steps):
            self.add(*steps.at(step)[:-1], infos_of(self._template.n_envs, step, infos, steps.timeouts))

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the buffer is closed, and its shards have ended")

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that was added, and wait until shards have it. Updates of priorities are sent as well.

        :param timeout: seconds after which it returns in any case; ``None`` to raise after the timeout of the buffer
        :raises ShardTimeout: if a shard has not acknowledged everything by then; the rest stays staged
        :raises ShardUnavailable: if Ray does not restart a shard that has ended; likewise
        :raises OSError: if a shard could not write; likewise
        """
        for shard, view in enumerate(self._group.shards):
            if (updates := self._updates.take(shard)) is not None:
                view.actor.update_priorities.remote(updates)
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)

        def flush(_: slice, writer: ReplayWriter) -> None:
            writer.flush(max(deadline - time.monotonic(), 0))
            self.record_status(writer.name, writer.status)
            if writer.n_staged and timeout is None:
                raise ShardTimeout(
                    f"{writer.shard_name} has not acknowledged {writer.n_staged} transitions for {self._timeout:g} s"
                )

        self._call_local(flush)

    def record_status(self, name: str, status: ShardStatus | None) -> None:
        """Record the state of a shard in the last reply to a writer, ``writer.status``.

        The learner counts transitions of other processes only when it receives such a state, or when it samples.

        :param name: the name of the writer
        """
        if status is not None:
            self._group.update(self._group.shards[self._registry.writers[name][1]], status)
            self._registry.update()

    def _record_local(self) -> None:
        """Record the states in the replies to the writers of this process."""
        for _, writer in self._local:
            self.record_status(writer.name, writer.status)

    def silent_shards(self) -> list[int]:
        """Return the numbers of the shards that do not answer within the timeout."""
        self._group.refresh(self._timeout)
        return [index for index, view in enumerate(self._group.shards) if view.probe is not None]

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does. What other processes have staged is added afterwards.

        :raises ShardUnavailable: if a shard fails or does not answer; reset again then, since others may be empty
        """
        super().reset()
        self._require_open()
        self._pipeline.discard()
        self._local = []
        self._updates.clear()
        self._group.call("reset")
        self._registry.replace(self._registry.writers, {})
        self._group.resize(self._registry.rows)
        self._group.refresh_all()

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
        self._record_local()
        n_staged = sum(writer.n_staged for _, writer in self._local)
        return min(self._group.n_transitions + n_staged, self.buffer_size * self.n_envs)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch, as SB3's buffer does.

        :param batch_size: number of transitions, at least 1
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :raises BufferNotReady: if no shard has a transition
        :raises ShardUnavailable: if Ray does not restart a shard that has ended
        :raises ValueError: if there are fewer, or rewards of n-step returns are to be normalized
        :raises RuntimeError: if the buffer is closed
        """
        self._require_open()
        validate_integer("batch_size", batch_size, 1)
        if env is not None and self.n_steps > 1 and env.norm_reward:
            raise ValueError(
                "rewards of n-step returns are summed in the shards, so VecNormalize must have norm_reward=False"
            )
        self._registry.update()
        parts = self._pipeline.next(batch_size)
        self.n_sampled += batch_size
        arrays = self._decoder.arrays(parts)
        samples: Any = (DictReplayBufferSamples if self._spec.is_dict else ReplayBufferSamples)(
            self._observations(arrays, OBSERVATIONS, env),
            self._tensor(arrays["actions"]),
            self._observations(arrays, NEXT_OBSERVATIONS, env),
            self._tensor(arrays["dones"]),
            self._tensor(self._normalize_reward(arrays["rewards"], env)),
            self._tensor(arrays["discounts"]) if "discounts" in arrays else None,
        )
        if self.sampler is not None:
            samples = weighted_samples(samples, *weights_and_indices(self._draw_of(parts), self.device))
        return samples

    def _observations(self, arrays: dict[str, NDArray[Any]], name: str, env: Any) -> Any:
        """Return the observations of a batch as tensors.

        :param name: the name of their array, or how the names of their arrays begin
        """
        space: Any = self.observation_space
        values: Any = {key: arrays[f"{name}/{key}"] for key in space} if self._spec.is_dict else arrays[name]
        tensors = tree_map(self._tensor, self._normalize_obs(values, env))
        return output_tensors(tensors, space, self.output_dtype, normalize_images=self.normalize_images)

    def _tensor(self, array: NDArray[Any]) -> th.Tensor:
        """Return a tensor of an array of this batch, without a copy where that is possible."""
        own = array if array.flags.writeable else array.copy()  # Ray's memory is read-only
        return to_tensor(own, torch_device(self.device))

    # -- priorities ------------------------------------------------------------------------------------------

    def _draw_of(self, parts: list[Part]) -> Draw:
        """Return the numbers of the transitions of a batch, and their importance weights."""
        if not isinstance(self.sampler, PrioritizedSampler):
            return Draw(numbers_of(parts))
        # Of the whole buffer: a shard replies with the probabilities within it.
        shares = [part.array("priorities") * (part.share / part.block.values["total"]) for part in parts]
        weights = self.sampler.importance_weights(np.concatenate(shares), self._n_draws)
        self._n_draws += 1
        return Draw(numbers_of(parts), weights)

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
        self._updates.add(*validated_td_errors(indices, td_errors))
        return 0

    @property
    def n_skipped_updates(self) -> int:
        """How many updates of priorities were skipped, since their transitions were overwritten or lost."""
        return sum(status.n_skipped_updates for view in self._group.shards for status in view.statuses.values())

    # -- state -----------------------------------------------------------------------------------------------

    def statistics(self) -> DistributedStatistics:
        """Return the state of the buffer, as far as this process knows."""
        group, pipeline = self._group, self._pipeline
        statuses = [status for view in group.shards for status in view.statuses.values()]
        return DistributedStatistics(
            n_transitions=self.n_transitions,
            n_inserted=group.n_inserted,
            n_sampled=self.n_sampled,
            n_lost=sum(view.n_lost for view in group.shards) + sum(writer.n_lost for _, writer in self._local),
            n_restarts=sum(view.n_restarts for view in group.shards),
            n_failed=pipeline.n_failed,
            n_late=pipeline.n_late,
            n_bytes_inserted=sum(status.n_bytes_inserted for status in statuses),
            n_bytes_sampled=sum(status.n_bytes_sampled for status in statuses),
            memory_nbytes=sum(view.status.memory for view in group.shards if view.status is not None),
        )

    def __repr__(self) -> str:
        if "_group" not in vars(self):  # its construction has failed
            return object.__repr__(self)
        n, n_shards = self._group.n_transitions, len(self._group.shards)  # without a call of a shard
        where = f"{n_shards} {'shards' if n_shards > 1 else 'shard'}{', closed' if self._is_closed else ''}"
        return f"<{type(self).__name__}: {n:,} of {self.buffer_size * self.n_envs:,} transitions in {where}>"

    def close(self) -> None:
        """Send everything that was added, flush the folder, and end the shards.

        A shard that does not answer within the timeout loses what it has not received.

        :raises ShardUnavailable: if Ray has not restarted one, which loses that as well; all others are ended
        :raises OSError: if a shard could not write the last transitions; likewise
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
        self._checkpoints.require_replaceable(path, overwrite=overwrite)
        self.flush()
        self._group.refresh_all()
        self._checkpoints.save(path, self._registry.writers, overwrite=overwrite)

    def save_latest(self, folder: str | PathLike[str]) -> None:
        """Save the buffer for :meth:`copy_checkpoint`; see :meth:`save_checkpoint`."""
        self.save_checkpoint(folder, overwrite=True)

    def copy_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Copy the last save to a new folder, as hard links to the same files where possible.

        :raises StorageError: if nothing was saved yet, or another learner has replaced it
        :raises OSError: if it cannot be written
        """
        self._checkpoints.copy_to(user_path(folder).absolute())

    def load_checkpoint(self, folder: str | PathLike[str]) -> None:
        """Replace all transitions by those of a checkpoint. Writers of other processes continue after them.

        The number of shards may be another one than that of the saved buffer, and so may ``buffer_size``. Rings that
        are missing or were exchanged are found before anything changes. If shards find damage, or fail, or another
        learner saves to the folder meanwhile, the buffer contains a part of the checkpoint: load this or another one
        again, or :meth:`reset` the buffer.

        :raises ShardUnavailable: if a shard fails or does not answer
        :raises StorageError: if the folder contains no checkpoint of a distributed buffer, or one of other spaces
        :raises CorruptStorage: if it is damaged, or lacks transitions that were saved
        """
        self._require_open()
        path = user_path(folder).absolute()
        manifest = read_manifest(path)
        saved = manifest.rings_in(path)
        n_shards = len(self._group.shards)
        present = {name: each for name, each in self._registry.writers.items() if not name.startswith(LEARNER)}
        # Writers of other processes keep their shards, also those that have begun after the save.
        writers = present | {
            name: (n_envs, present.get(name, (0, shard))[1] % n_shards)
            for name, (n_envs, shard) in manifest.writers.items()
        }
        sizes = {name: ring.n_transitions for name, ring in manifest.rings.items()}
        rings: list[dict[str, tuple[Path, int, int | None]]] = [{} for _ in range(n_shards)]
        for name, source in saved.items():
            n_envs, shard = writers[name]
            rings[shard][name] = source, n_envs, sizes.get(name)
        self._registry.replace(writers, sizes)
        rows = self._registry.rows
        self._pipeline.discard()
        self._updates.clear()
        self._group.rows = rows
        self._local = []
        self._group.call_each("load_checkpoint", [(of_shard, rows) for of_shard in rings])
        self._checkpoints.record(path, manifest)
        self._group.refresh_all()


def _validated_sampler(sampler: str | Sampler) -> PrioritizedSampler | RecentSampler | None:
    """Return the configured sampler, ``None`` for uniform sampling.

    :raises ValueError: if it is another one
    """
    configured = get_sampler(sampler)
    if not isinstance(configured, PrioritizedSampler | RecentSampler | None):
        raise ValueError(
            f"sampler must be 'uniform', 'prioritized' or 'recent', got {sampler!r}: others know nothing of the "
            "transitions in other shards"
        )
    return configured
