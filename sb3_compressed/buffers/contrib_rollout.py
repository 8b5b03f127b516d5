"""Compressed rollout buffers, one for each of sb3-contrib's."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
from gymnasium import spaces
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

from sb3_compressed.buffers.allocation import BaseConstructor
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
        MaskableRolloutBuffer.add, MaskableRolloutBuffer.reset,
        MaskableRolloutBuffer.get, MaskableRolloutBuffer._get_samples,
        MaskableDictRolloutBuffer.add, MaskableDictRolloutBuffer.reset,
        MaskableDictRolloutBuffer.get, MaskableDictRolloutBuffer._get_samples,
    )  # fmt: skip
    _flattened = (*CompressedMinibatches._flattened, "action_masks")
    action_masks: NDArray[np.float32]
    mask_dims: int

    def _values_at(self, batch_inds: NDArray[np.int64]) -> list[NDArray[Any]]:
        _, *values = super()._values_at(batch_inds)
        return [self.actions[batch_inds], *values, self.action_masks[batch_inds].reshape(-1, self.mask_dims)]


class _Recurrent(CompressedRollout):
    """What both buffers with states of recurrent networks have in common."""

    REIMPLEMENTED: ClassVar[Methods] = (
        *CompressedRollout.REIMPLEMENTED,
        RecurrentRolloutBuffer.add, RecurrentRolloutBuffer.reset,
        RecurrentDictRolloutBuffer.add, RecurrentDictRolloutBuffer.reset,
    )  # fmt: skip


# add() and reset() are methods of the last classes, not of those above, since a user's class may skip them by
# super(CompressedMaskableRolloutBuffer, self).reset(), as SB3's by super(MaskableRolloutBuffer, self).reset().


class CompressedMaskableRolloutBuffer(_Maskable, MaskableRolloutBuffer, BaseConstructor):
    """sb3-contrib's ``MaskableRolloutBuffer``, compressed: for MaskablePPO.

    Arguments: those of ``MaskableRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = MaskableRolloutBufferSamples

    def reset(self) -> None:
        """Empty the buffer for the next rollout; see :meth:`.CompressedRollout.reset`."""
        self.mask_dims = mask_dims_of(self.action_space)
        self.action_masks = np.ones((self.buffer_size, self.n_envs, self.mask_dims), dtype=np.float32)
        CompressedRollout.reset(self)

    def add(self, *args: Any, action_masks: NDArray[Any] | None = None, **kwargs: Any) -> None:
        """Add a step of every environment; see :meth:`.CompressedRollout.add`.

        :param action_masks: which actions are possible, of ``n_envs * mask_dims`` elements; ``None`` for all
        """
        if action_masks is not None:
            self.action_masks[self.pos] = action_masks.reshape((self.n_envs, self.mask_dims))
        CompressedRollout.add(self, *args, **kwargs)


class CompressedMaskableDictRolloutBuffer(_Maskable, MaskableDictRolloutBuffer, BaseConstructor):
    """sb3-contrib's ``MaskableDictRolloutBuffer``, compressed key by key: for MaskablePPO.

    Arguments: those of ``MaskableDictRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    _samples_class = MaskableDictRolloutBufferSamples
    reset = CompressedMaskableRolloutBuffer.reset
    add = CompressedMaskableRolloutBuffer.add


class CompressedRecurrentRolloutBuffer(_Recurrent, RecurrentRolloutBuffer, BaseConstructor):
    """sb3-contrib's ``RecurrentRolloutBuffer``, compressed: for RecurrentPPO by :func:`compress_rollout_buffer`.

    Arguments: those of ``RecurrentRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    def reset(self) -> None:
        """Empty the buffer for the next rollout; see :meth:`.CompressedRollout.reset`."""
        CompressedRollout.reset(self)
        for name in STATES:
            setattr(self, name, np.zeros(self.hidden_state_shape, dtype=np.float32))

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]  # as contrib's
        """Add a step of every environment; see :meth:`.CompressedRollout.add`.

        :param lstm_states: states of the recurrent networks before the step
        """
        for name, state in zip(STATES, (*lstm_states.pi, *lstm_states.vf), strict=True):
            getattr(self, name)[self.pos] = state.cpu().numpy()
        CompressedRollout.add(self, *args, **kwargs)


class CompressedRecurrentDictRolloutBuffer(_Recurrent, RecurrentDictRolloutBuffer, BaseConstructor):
    """sb3-contrib's ``RecurrentDictRolloutBuffer``, compressed: for RecurrentPPO by :func:`compress_rollout_buffer`.

    Arguments: those of ``RecurrentDictRolloutBuffer`` and of :class:`~sb3_compressed.buffers.base.CompressedBuffer`.
    """

    reset = CompressedRecurrentRolloutBuffer.reset
    add = CompressedRecurrentRolloutBuffer.add  # type: ignore[assignment]


#: The arrays of states, in the order of ``RNNStates``.
STATES = "hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"


def mask_dims_of(action_space: spaces.Space[Any]) -> int:
    """Return the number of elements of an action mask, as sb3-contrib's ``reset`` does.

    :raises ValueError: if there are no masks for the space
    """
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1:
        return sum(action_space.nvec)
    if isinstance(action_space, spaces.MultiBinary) and isinstance(action_space.n, int):
        return 2 * action_space.n  # one for each value of a bit
    raise ValueError(
        "action masks are for Discrete spaces, and for MultiDiscrete and MultiBinary spaces of one axis, got "
        f"{action_space}; flatten a space of several axes"
    )


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
