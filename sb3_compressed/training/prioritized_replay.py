"""``prioritize``: train SB3's algorithms with prioritized replay, without a copy of their ``train``."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_compressed.training.gradient_steps import (
    CriticSteps,
    PrioritizedSteps,
    QNetworkSteps,
    QuantileNetworkSteps,
    TDError,
)
from sb3_compressed.training.model_layers import ModelLayer, add_layer, layers_of, original_class, remove_layer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PrioritizedReplay", "prioritize"]


class PrioritizedReplay:
    """What :func:`prioritize` returns: removes prioritized replay from a model.

    As a context, it removes it at the end:

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     learning_starts=50,
    ...     replay_buffer_class=CompressedReplayBuffer,
    ...     replay_buffer_kwargs=dict(sampler="prioritized"),
    ... )
    >>> with prioritize(model):
    ...     model = model.learn(100)
    """

    def __init__(self, model: OffPolicyAlgorithm, layer: PrioritizedLayer) -> None:
        self._model = weakref.ref(model)
        self._layer = layer

    def remove(self) -> None:
        """Train the model as before :func:`prioritize`. Does nothing after another call of it, or of this method."""
        model = self._model()
        if model is not None:
            remove_layer(model, self._layer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def prioritize(model: OffPolicyAlgorithm, *, td_error: TDError | None = None) -> PrioritizedReplay:
    """Train a model with prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    The model needs a compressed replay buffer with ``sampler="prioritized"``. From then on, each gradient step scales
    the loss of each transition by its importance weight, and updates the priorities by the absolute TD errors:

    >>> from stable_baselines3 import DQN
    >>> from sb3_compressed import CompressedReplayBuffer
    >>> model = DQN(
    ...     "MlpPolicy",
    ...     "CartPole-v1",
    ...     learning_starts=50,
    ...     replay_buffer_class=CompressedReplayBuffer,
    ...     replay_buffer_kwargs=dict(sampler="prioritized"),
    ... )
    >>> handle = prioritize(model)
    >>> model = model.learn(100)
    >>> handle.remove()

    The algorithm's own ``train`` runs unchanged. During each call of it, the buffer's ``sample`` is observed, and the
    gradients of the network's outputs are multiplied by the weights, which is exactly the gradient of the weighted
    loss; ``train/loss`` remains the mean of the unweighted losses. ``train/td_error`` logs mean absolute TD errors.
    Nothing is stored in the model, so saved files are the same as without. Loaded and copied models are not
    prioritized; call ``prioritize`` again. A second call for the same model replaces the first.

    It supports

    - ``DQN`` and sb3-contrib's ``QRDQN``, with one step or, with ``CompressedNStepReplayBuffer``, several. The TD error
      of ``QRDQN`` is that of the mean values of the distributions.
    - their subclasses with a ``train`` of their own, such as Double DQN, if ``td_error`` is given. The loss must be the
      mean of one loss per transition, and the first output of the Q-network that is computed with gradients after
      ``sample`` must be the one in the loss.
    - ``TD3``, ``DDPG`` and ``SAC``, if the sampler is ``PrioritizedSampler(mode="lap")`` (Fujimoto et al. 2020,
      https://arxiv.org/abs/2007.06049): the critics' losses become Huber losses. With importance weights instead,
      they learn less than with uniform sampling (Saglam et al. 2023, https://arxiv.org/abs/2209.00532).

    :param model: the model; its class changes to a subclass of the same name until :meth:`PrioritizedReplay.remove`
    :param td_error: returns the TD errors ``(batch_size,)`` or ``(batch_size, 1)`` of a model and a batch; it is called
        before each gradient step, without gradients. ``None`` for those of the algorithm
    :raises TypeError: if the algorithm or the class of its buffer is not supported
    :raises ValueError: if the buffer has no priorities, or its ``n_steps`` or ``gamma`` differ from those of the model
    """
    if not isinstance(model, OffPolicyAlgorithm):
        raise TypeError(f"prioritize() supports DQN, QRDQN, TD3, DDPG and SAC, got {type(model).__name__}")
    if td_error is not None and not callable(td_error):
        raise TypeError(f"td_error must be a function of the model and a batch, got {td_error!r}")
    make_steps = _steps_of(model, original_class(model), td_error)
    _validate_buffer(model)
    for previous in layers_of(model):
        if isinstance(previous, PrioritizedLayer):
            remove_layer(model, previous)
    layer = PrioritizedLayer(make_steps)
    add_layer(model, layer)
    return PrioritizedReplay(model, layer)


class PrioritizedLayer(ModelLayer):
    """Replaces ``train`` of a model by one that prioritizes.

    :param make_steps: returns the gradient steps of a call of ``train``
    """

    def __init__(self, make_steps: Callable[[OffPolicyAlgorithm], PrioritizedSteps]) -> None:
        self._make_steps = make_steps

    def extend(self, base: type[Any]) -> type[Any]:
        """Return a subclass of an algorithm whose ``train`` prioritizes."""
        make_steps = self._make_steps

        class Prioritized(base):  # type: ignore[misc]
            def train(self, *args: Any, **kwargs: Any) -> None:
                _validate_buffer(self)  # which may have been replaced by load_replay_buffer
                with make_steps(self) as steps:
                    super().train(*args, **kwargs)
                if steps.mean_td_error is not None:
                    self.logger.record("train/td_error", steps.mean_td_error)

        return Prioritized


def _steps_of(
    model: Any, original: type[Any], td_error: TDError | None
) -> Callable[[OffPolicyAlgorithm], PrioritizedSteps]:
    """Return what creates the gradient steps of a model.

    :param original: the class of the model without layers
    :raises TypeError: if its algorithm is not supported
    """
    name = original.__name__
    if "train" in vars(model):
        raise TypeError(f"train was assigned to this {name}; prioritize() needs the method of its class")
    for algorithm, steps in ((DQN, QNetworkSteps), (_qrdqn(), QuantileNetworkSteps)):
        if algorithm is not None and isinstance(model, algorithm):
            if td_error is None and original.train is not algorithm.train:
                raise TypeError(
                    f"{name} has a train() of its own, so its TD errors are unknown: pass "
                    "td_error=function(model, batch), which returns them"
                )
            return partial(steps, td_error=td_error)
    for critics, slope in ((TD3, 2.0), (SAC, 1.0)):
        if isinstance(model, critics) and original.train is critics.train:
            if td_error is not None:
                raise TypeError(f"td_error is not supported for {name}, whose TD errors are those of its critics")
            return partial(CriticSteps, slope=slope)
    own = " with a train() of its own" if _needs_lap(model) else ""
    raise TypeError(f"prioritize() supports DQN, QRDQN and, with LAP, TD3, DDPG and SAC, got {name}{own}")


def _needs_lap(model: Any) -> bool:
    """Return whether a model has critics with squared losses."""
    return isinstance(model, (TD3, SAC))


def _qrdqn() -> type[Any] | None:
    """Return the class of sb3-contrib, ``None`` if nothing has imported it."""
    return getattr(sys.modules.get("sb3_contrib.qrdqn.qrdqn"), "QRDQN", None)


def _validate_buffer(model: Any) -> None:
    """Raise unless a model has a buffer with priorities, and with its own discounts."""
    buffer = model.replay_buffer
    if not hasattr(buffer, "update_priorities"):
        raise TypeError(f"prioritize() needs a compressed replay buffer, got {type(buffer).__name__}; {_hint(model)}")
    sampler = getattr(buffer, "sampler", None)
    if sampler is None or not sampler.has_priorities:
        kind = "uniform" if sampler is None else type(sampler).__name__
        raise ValueError(
            f"prioritize() needs a sampler with priorities, got {kind!r}; {_hint(model)}. If load_replay_buffer() has "
            "replaced its buffer, call take_over(loaded) of one with a sampler"
        )
    if _needs_lap(model) and getattr(sampler, "mode", None) != "lap":
        raise ValueError(
            f"importance weights impair {type(model).__name__} (https://arxiv.org/abs/2209.00532); {_hint(model)}"
        )
    # Buffers of SB3 with that attribute compute discounts in any case, distributed ones if there are several steps.
    is_n_step = isinstance(buffer, NStepReplayBuffer) or getattr(buffer, "n_steps", 1) > 1
    if model.n_steps not in (1, buffer.n_steps if is_n_step else 1):
        steps = f"n_steps={buffer.n_steps}" if is_n_step else "one step"
        raise ValueError(f"the model has n_steps={model.n_steps}, but its buffer {steps}; {_hint(model)}")
    if is_n_step and buffer.gamma != model.gamma:
        raise ValueError(f"the model has gamma={model.gamma}, but its buffer gamma={buffer.gamma}; {_hint(model)}")


def _hint(model: Any) -> str:
    """Return how to construct a model that can be prioritized."""
    sampler = 'PrioritizedSampler(mode="lap")' if _needs_lap(model) else '"prioritized"'
    steps = f", n_steps={model.n_steps}, gamma={model.gamma}" if model.n_steps > 1 else ""
    return (
        "construct the model with a replay buffer class of sb3_compressed and "
        f"replay_buffer_kwargs=dict(sampler={sampler}{steps})"
    )
