"""``BufferStatsCallback``: log memory, compression and timing of a buffer during training."""

from __future__ import annotations

from typing import Any, cast

from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed.buffers.base import CompressedBuffer
from sb3_compressed.buffers.memory_statistics import buffer_statistics
from sb3_compressed.buffers.rollout import CompressedRollout
from sb3_compressed.buffers.timing import MethodTimer
from sb3_compressed.samplers import PrioritizedSampler

__all__ = ["BufferStatsCallback"]


class BufferStatsCallback(BaseCallback):
    """Logs the memory, compression and timing of a compressed buffer.

    It records to SB3's logger, so the values appear wherever that writes: the terminal, TensorBoard, CSV, or Weights &
    Biases through TensorBoard. For every compressed replay or rollout buffer, these are

    ========================================  ======================================================================
    ``buffer/transitions``                    transitions in the buffer, of all environments
    ``buffer/memory_mb``                      memory of the buffer in MB, with actions and rewards
    ``buffer/full_memory_mb``                 memory of the full buffer in MB, estimated from the present content
    ``buffer/batch_memory_mb``                additional memory in MB that is reused from batch to batch
    ``buffer/compression_ratio``              memory of the observations in SB3's buffer, divided by that in this one
    ``buffer/payload_bytes_per_transition``   compressed bytes per transition
    ``buffer/shared_frames``                  fraction of frames that are stored as references to other frames
    ``buffer/add_us``                         mean microseconds of an ``add`` since the last log
    ``buffer/sample_us``                      mean microseconds per batch since the last log
    ========================================  ======================================================================

    With ``storage="device"``, ``buffer/device_memory_mb`` is the memory of the device that it takes. For a replay
    buffer with a prioritized sampler, these are also

    ================================  ==============================================================================
    ``buffer/priority_max``           the largest priority
    ``buffer/effective_sample_size``  of the priorities, as a share of the transitions: 1 if all priorities are equal
    ``buffer/never_sampled``          share of the transitions that were never sampled
    ``buffer/skipped_updates``        updates of priorities whose transitions may not be drawn any more
    ================================  ==============================================================================

    which take about 15 ms for a million transitions. Of a mixed buffer, ``add_us`` and ``sample_us`` are of the whole,
    and all else is of the online buffer.

    :func:`~sb3_compressed.buffer_statistics` computes the sizes from a few thousand slots, whatever the size of the
    buffer. Timing reads the clock twice per ``add`` and ``sample``, and is removed after training.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import BufferStatsCallback, CompressedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=50
    ... )
    >>> model = model.learn(100, callback=BufferStatsCallback())

    :param log_freq: environment steps between two logs of a replay buffer; a rollout buffer is logged after every
        rollout. Values are written whenever the algorithm writes its own, see ``log_interval`` of ``learn``, and at the
        end of training
    :raises ValueError: if ``log_freq`` is not positive
    """

    def __init__(self, log_freq: int = 10_000) -> None:
        super().__init__()
        if log_freq < 1:
            raise ValueError(f"log_freq must be positive, got {log_freq}")
        self.log_freq = log_freq
        self._next_log = 0
        self._timed_buffer: CompressedBuffer | None = None
        self._timers: tuple[MethodTimer, ...] = ()

    def _init_callback(self) -> None:
        self._buffer()  # raises before training

    def _on_training_start(self) -> None:
        self._next_log = self.num_timesteps + self.log_freq

    def _on_rollout_start(self) -> None:
        buffer = self._buffer()
        if buffer is not self._timed_buffer:  # at the start, and after another buffer was loaded
            self._remove_timers()
            self._timed_buffer, self._timers = buffer, buffer.start_timers()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps >= self._next_log or isinstance(self._timed_buffer, CompressedRollout):
            self._next_log = self.num_timesteps + self.log_freq
            self._record_statistics()
            self._record_times()

    def _on_training_end(self) -> None:
        if not self._timers:  # rl-baselines3-zoo ends the training twice
            return
        if not isinstance(self._timed_buffer, CompressedRollout):  # training has flattened the rollout
            self._record_statistics()
        self._record_times()
        self._remove_timers()
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)

    def _record_statistics(self) -> None:
        buffer: Any = self._buffer()
        statistics = buffer_statistics(buffer)
        values = {
            "transitions": statistics.transitions,
            "memory_mb": statistics.memory_nbytes / 1e6,
            "full_memory_mb": statistics.full_memory_nbytes / 1e6,
            "batch_memory_mb": statistics.batch_memory_nbytes / 1e6,
            "compression_ratio": statistics.compression_ratio,
            "payload_bytes_per_transition": statistics.payload_nbytes_per_transition,
            "shared_frames": statistics.shared_frames,
        }
        if statistics.device_memory_nbytes:
            values["device_memory_mb"] = statistics.device_memory_nbytes / 1e6
        sampler = getattr(buffer, "sampler", None)
        if isinstance(sampler, PrioritizedSampler) and sampler.priority_max:  # once it was drawn from
            values["priority_max"] = sampler.priority_max
            values["effective_sample_size"] = sampler.effective_sample_size
            values["never_sampled"] = sampler.share_never_sampled
            values["skipped_updates"] = buffer.n_skipped_updates
        for name, value in values.items():
            self.logger.record(f"buffer/{name}", value)

    def _record_times(self) -> None:
        for name, timer in zip(("add_us", "sample_us"), self._timers, strict=True):
            seconds = timer.take()
            if seconds is not None:  # no batch is sampled before learning starts
                self.logger.record(f"buffer/{name}", 1e6 * seconds)

    def _remove_timers(self) -> None:
        for timer in self._timers:
            timer.remove()
        self._timed_buffer, self._timers = None, ()

    def _buffer(self) -> CompressedBuffer:
        buffers = [getattr(self.model, name, None) for name in ("replay_buffer", "rollout_buffer")]
        buffer = next((buffer for buffer in buffers if buffer is not None), None)
        if not isinstance(getattr(buffer, "online", buffer), CompressedBuffer):
            kind = "replay_buffer_class" if hasattr(self.model, "replay_buffer") else "rollout_buffer_class"
            raise TypeError(
                f"{type(self).__name__} needs a compressed buffer, but this model "
                f"{'has none' if buffer is None else f'uses {type(buffer).__name__}'}; pass a class of sb3_compressed "
                f"to the model as {kind}"
            )
        return cast("CompressedBuffer", buffer)  # a mixed one has its interface
