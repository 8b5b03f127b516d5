"""A callback that ends a training with an exception, of which SB3 does not notify callbacks."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback


class FailingCallback(BaseCallback):
    """Raises an error at a step."""

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__()
        self.step, self.error = step, error

    def _on_step(self) -> bool:
        if self.num_timesteps == self.step:
            raise self.error
        return True
