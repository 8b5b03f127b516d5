"""``PrioritizedReplayCallback``: prioritized replay during one call of ``learn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_compressed.training.prioritized_replay import PrioritizedReplay, prioritize

if TYPE_CHECKING:
    from sb3_compressed.training.gradient_steps import TDError

__all__ = ["PrioritizedReplayCallback"]


class PrioritizedReplayCallback(BaseCallback):
    """Calls :func:`~sb3_compressed.prioritize` before training, and undoes it afterwards.

    For scripts that configure callbacks, such as those of RL Baselines3 Zoo, whose files of hyperparameters accept
    ``callback: sb3_compressed.PrioritizedReplayCallback``. If an exception ends the training, the model remains
    prioritized.

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer, PrioritizedReplayCallback
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     learning_starts=50,
    ...     replay_buffer_class=CompressedReplayBuffer,
    ...     replay_buffer_kwargs=dict(sampler="prioritized"),
    ... )
    >>> model = model.learn(100, callback=PrioritizedReplayCallback())

    :param td_error: as for :func:`~sb3_compressed.prioritize`, which also raises the same errors, before training
    """

    def __init__(self, td_error: TDError | None = None) -> None:
        super().__init__()
        self.td_error = td_error
        self._handle: PrioritizedReplay | None = None

    def _on_training_start(self) -> None:
        model: Any = self.model  # prioritize raises if it is not supported
        self._handle = prioritize(model, td_error=self.td_error)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self._handle is not None:
            self._handle.remove()
