"""``BufferStatsCallback``: what the buffer takes and saves, beside the other curves of a training."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed.buffers.base import CompressedBuffer, CompressedRollout
from sb3_compressed.buffers.memory_statistics import buffer_statistics
from sb3_compressed.buffers.timing import MethodTimer

__all__ = ["BufferStatsCallback"]


class BufferStatsCallback(BaseCallback):
    """Logs what a compressed buffer takes, saves and shares, and how long it takes to add and to sample.

    It records to SB3's logger, so the values arrive wherever that writes to: the terminal, TensorBoard, CSV, and
    Weights & Biases by way of TensorBoard. For every compressed replay or rollout buffer these are

    ========================================  ======================================================================
    ``buffer/transitions``                    transitions in the buffer, of all environments
    ``buffer/memory_mb``                      memory of the buffer in MB, with Python's overhead, actions and rewards
    ``buffer/batch_memory_mb``                memory in MB that is kept from one batch to the next, besides that
    ``buffer/compression_ratio``              how many times less observations take than in SB3's buffer
    ``buffer/payload_bytes_per_transition``   compressed bytes that a transition adds
    ``buffer/shared_frames``                  part of all frames that refers to one which is stored anyway
    ``buffer/add_us``                         microseconds to add a step of all environments, mean since the last
    ``buffer/sample_us``                      microseconds to make a batch, mean since the last
    ========================================  ======================================================================

    Values are those of :func:`~sb3_compressed.buffer_statistics`, which looks at some thousand slots whatever the size
    of the buffer. The clock is read twice for each ``add`` and
    ``sample``, and after the training nothing is left of that.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import BufferStatsCallback, CompressedReplayBuffer
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, learning_starts=50)
    >>> model = model.learn(100, callback=BufferStatsCallback())

    :param log_freq: environment steps between two logs of a replay buffer; a rollout buffer is logged with each
        rollout. Logs are written when the algorithm writes its own, ``log_interval`` of ``learn``, and at the end
    :raises ValueError: if ``log_freq`` is not positive
    """

    def __init__(self, log_freq: int = 10_000) -> None:
        super().__init__()
        if log_freq < 1:
            raise ValueError(f"log_freq must be positive, got {log_freq}")
        self.log_freq = log_freq
        self._next_log = 0
        self._metered: CompressedBuffer | None = None
        self._meters: tuple[MethodTimer, ...] = ()

    def _init_callback(self) -> None:
        self._buffer()  # raises before the training rather than in it

    def _on_training_start(self) -> None:
        self._next_log = self.num_timesteps + self.log_freq

    def _on_rollout_start(self) -> None:
        buffer = self._buffer()
        if buffer is not self._metered:  # the first one, or another one was loaded meanwhile
            self._remove_meters()
            self._metered, self._meters = buffer, buffer.start_timers()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps >= self._next_log or isinstance(self._metered, CompressedRollout):
            self._next_log = self.num_timesteps + self.log_freq
            self._record_statistics()
            self._record_times()

    def _on_training_end(self) -> None:
        if not self._meters:  # SB3's zoo says it twice
            return
        if not isinstance(self._metered, CompressedRollout):  # where the training has taken the rollout apart
            self._record_statistics()
        self._record_times()
        self._remove_meters()
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)

    def _record_statistics(self) -> None:
        statistics = buffer_statistics(self._buffer())
        self._record("transitions", statistics.transitions)
        self._record("memory_mb", statistics.memory_nbytes / 1e6)
        self._record("batch_memory_mb", statistics.batch_memory_nbytes / 1e6)
        self._record("compression_ratio", statistics.compression_ratio)
        self._record("payload_bytes_per_transition", statistics.payload_nbytes_per_transition)
        self._record("shared_frames", statistics.shared_frames)

    def _record_times(self) -> None:
        for name, meter in zip(("add_us", "sample_us"), self._meters, strict=True):
            seconds = meter.take()
            if seconds is not None:  # nothing is sampled before the learning starts
                self._record(name, 1e6 * seconds)

    def _record(self, name: str, value: float) -> None:
        self.logger.record(f"buffer/{name}", value)

    def _remove_meters(self) -> None:
        for meter in self._meters:
            meter.remove()
        self._metered, self._meters = None, ()

    def _buffer(self) -> CompressedBuffer:
        buffers = [getattr(self.model, name, None) for name in ("replay_buffer", "rollout_buffer")]
        buffer = next((buffer for buffer in buffers if buffer is not None), None)
        if not isinstance(buffer, CompressedBuffer):
            kind = "replay_buffer_class" if hasattr(self.model, "replay_buffer") else "rollout_buffer_class"
            raise TypeError(
                f"{type(self).__name__} measures compressed buffers, and this model "
                f"{'has none' if buffer is None else f'uses {type(buffer).__name__}'}; pass {kind} to the "
                "model, one of sb3_compressed"
            )
        return buffer
