"""``LearningCodec``, the base class of trainable codecs in version 0.1."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from numpy.typing import NDArray

from sb3_compressed.codecs.codec import TrainableCodec

__all__ = ["LearningCodec"]


class LearningCodec(TrainableCodec):
    """A :class:`TrainableCodec` with the methods' former names: subclasses implement ``learn`` and ``retire``."""

    @abstractmethod
    def learn(self, frames: NDArray[Any]) -> TrainableCodec:
        """Return a trained codec; see :meth:`TrainableCodec.train`."""

    def retire(self) -> None:
        """Free what only encoding needs; see :meth:`TrainableCodec.release_encoder`."""

    def train(self, frames: NDArray[Any]) -> TrainableCodec:
        """Call ``learn``."""
        return self.learn(frames)

    def release_encoder(self) -> None:
        """Call ``retire``."""
        self.retire()
