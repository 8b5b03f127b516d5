"""Compressed rollout buffers, one for each of sb3-contrib's."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import (
    MaskableDictRolloutBuffer,
    MaskableDictRolloutBufferSamples,
    MaskableRolloutBuffer,
    MaskableRolloutBufferSamples,
)
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_compressed.buffers.arguments import parent_signature
from sb3_compressed.buffers.base import CompressedBuffer, Methods
from sb3_compressed.buffers.rollout import (
    CompressedDictRolloutBuffer,
    CompressedMinibatches,
    CompressedRollout,
    CompressedRolloutBuffer,
)

__all__ = [
    "CompressedMaskableDictRolloutBuffer",
    "CompressedMaskableRolloutBuffer",
    "CompressedRecurrentDictRolloutBuffer",
    "CompressedRecurrentRolloutBuffer",
    "compress_rollout_buffer",
]


class _Maskable(CompressedMinibatches):
    """What both buffers with action masks have in common."""

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedMinibatches.REIMPLEMENTED,
        MaskableRolloutBuffer.add, MaskableRolloutBuffer.get, MaskableRolloutBuffer._get_samples,
        MaskableDictRolloutBuffer.add, MaskableDictRolloutBuffer.get, MaskableDictRolloutBuffer._get_samples,
    )  # fmt: skip
    _flattened = (*CompressedMinibatches._flattened, "action_masks")
    action_masks: NDArray[np.float32]
    mask_dims: int

    def _write_extras(self, action_masks: NDArray[Any] | None = None, **extras: Any) -> None:
        super()._write_extras(**extras)
        if action_masks is not None:
            self.action_masks[self.pos] = action_masks.reshape((self.n_envs, self.mask_dims))

    def _values_at(self, batch_inds: NDArray[np.int64]) -> list[NDArray[Any]]:
        _, *values = super()._values_at(batch_inds)
        return [self.actions[batch_inds], *values, self.action_masks[batch_inds].reshape(-1, self.mask_dims)]


class _Recurrent(CompressedRollout):
    """What both buffers with states of recurrent networks have in common."""

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedRollout.REIMPLEMENTED,
        RecurrentRolloutBuffer.add,
        RecurrentDictRolloutBuffer.add,
    )

    def _write_extras(self, lstm_states: RNNStates, **extras: Any) -> None:  # type: ignore[override]  # it is required
        super()._write_extras(**extras)
        for name, states in (("pi", lstm_states.pi), ("vf", lstm_states.vf)):
            for kind, state in zip(("hidden", "cell"), states, strict=True):
                getattr(self, f"{kind}_states_{name}")[self.pos] = state.cpu().numpy()


class CompressedMaskableRolloutBuffer(_Maskable, MaskableRolloutBuffer):  # type: ignore[misc]  # contrib's add takes anything
    """sb3-contrib's ``MaskableRolloutBuffer``, compressed: for MaskablePPO.

    Arguments: those of ``MaskableRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = MaskableRolloutBufferSamples


class CompressedMaskableDictRolloutBuffer(_Maskable, MaskableDictRolloutBuffer):  # type: ignore[misc]  # contrib's add takes anything
    """sb3-contrib's ``MaskableDictRolloutBuffer``, compressed key by key: for MaskablePPO.

    Arguments: those of ``MaskableDictRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = MaskableDictRolloutBufferSamples


class CompressedRecurrentRolloutBuffer(_Recurrent, RecurrentRolloutBuffer):  # type: ignore[misc]  # contrib's add takes anything
    """sb3-contrib's ``RecurrentRolloutBuffer``, compressed: for RecurrentPPO by :func:`compress_rollout_buffer`.

    Arguments: those of ``RecurrentRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


class CompressedRecurrentDictRolloutBuffer(_Recurrent, RecurrentDictRolloutBuffer):  # type: ignore[misc]  # contrib's add takes anything
    """sb3-contrib's ``RecurrentDictRolloutBuffer``, compressed: for RecurrentPPO by :func:`compress_rollout_buffer`.

    Arguments: those of ``RecurrentDictRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """


COMPRESSED: dict[type[Any], type[CompressedRollout]] = {
    RolloutBuffer: CompressedRolloutBuffer,
    DictRolloutBuffer: CompressedDictRolloutBuffer,
    MaskableRolloutBuffer: CompressedMaskableRolloutBuffer,
    MaskableDictRolloutBuffer: CompressedMaskableDictRolloutBuffer,
    RecurrentRolloutBuffer: CompressedRecurrentRolloutBuffer,
    RecurrentDictRolloutBuffer: CompressedRecurrentDictRolloutBuffer,
}

Model = TypeVar("Model", bound=OnPolicyAlgorithm)


def compress_rollout_buffer(model: Model, **options: Any) -> Model:
    """Give an on-policy model the compressed counterpart of its rollout buffer.

    For algorithms without ``rollout_buffer_class``, such as RecurrentPPO. Saved models do not contain the buffer: call
    it again after ``load``.

    >>> from sb3_contrib import RecurrentPPO
    >>> model = compress_rollout_buffer(
    ...     RecurrentPPO("MlpLstmPolicy", "CartPole-v1"), compression_method="zstd-5"
    ... )

    :param model: a model between two rollouts
    :param options: the arguments of :class:`~sb3_compressed.buffers.base.CompressedBuffer`
    :return: the same model
    :raises TypeError: if its buffer has no compressed counterpart
    """
    buffer = getattr(model, "rollout_buffer", None)
    compressed = type(buffer) if isinstance(buffer, CompressedRollout) else COMPRESSED.get(type(buffer))
    if compressed is None:
        names = ", ".join(sorted(parent.__name__ for parent in COMPRESSED))
        kind = "has no rollout buffer" if buffer is None else f"has a {type(buffer).__name__}"
        raise TypeError(f"{type(model).__name__} {kind}; only {names} have compressed counterparts")
    # Every argument of these constructors is an attribute of the buffer under the same name.
    arguments = {name: getattr(buffer, name) for name in parent_signature(compressed, CompressedBuffer).parameters}
    model.rollout_buffer = compressed(**arguments, **options)  # type: ignore[assignment]
    return model
