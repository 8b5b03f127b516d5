"""``PrioritizedSteps``: importance weights and TD errors of the gradient steps in one call of ``train``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CriticSteps", "PrioritizedSteps", "QNetworkSteps", "QuantileNetworkSteps", "TDError"]

#: A function of a model and a batch that returns the TD errors of the batch, ``(batch_size,)`` or ``(batch_size, 1)``.
TDError = Callable[[Any, Any], th.Tensor]


class PrioritizedSteps(ABC):
    """Scales gradients and updates priorities while an algorithm's own ``train`` runs.

    It is a context: the buffer's ``sample`` and the networks have their own behavior again afterwards, whatever
    happened inside. Each gradient step goes through it as follows: ``sample`` returns a batch; the next forward pass
    with gradients is that of its loss, where TD errors are computed and a hook on the output is registered; the
    backward pass calls the hook; the next ``sample``, or the end, updates the priorities.

    :param model: the model; its ``replay_buffer`` has priorities
    :param td_error: computes the TD errors, ``None`` for those of the algorithm
    """

    #: Name of the network in the loss.
    network: ClassVar[str]
    #: Name of its target network, ``None`` if its output is not used.
    target_network: ClassVar[str | None] = None

    def __init__(self, model: Any, td_error: TDError | None = None) -> None:
        self.model = model
        self.td_error = td_error
        self._buffer = model.replay_buffer
        self._sample: Callable[..., Any] = self._buffer.sample
        self._replaced_attribute: Any = None
        self._handles: list[RemovableHandle] = []
        self._batch: Any = None  # sampled, and not passed through the network yet
        self._target_output: th.Tensor | None = None
        self._indices: NDArray[np.int64] | None = None  # of the batch whose priorities have not been updated yet
        self._errors: NDArray[Any] | None = None  # absolute values of its TD errors, ``(batch_size,)``
        self._has_gradient = False  # whether its loss was differentiated
        self._sum, self._n = 0.0, 0  # of all batches

    @property
    def mean_td_error(self) -> float | None:
        """The mean absolute TD error of all updated transitions, ``None`` without any."""
        return self._sum / self._n if self._n else None

    def __enter__(self) -> Self:
        attributes = vars(self._buffer)
        self._replaced_attribute = attributes.get("sample")  # the timer of BufferStatsCallback
        attributes["sample"] = self._sample_batch
        self._handles.append(getattr(self.model, self.network).register_forward_hook(self._on_forward))
        if self.target_network is not None:
            target = getattr(self.model, self.target_network)
            self._handles.append(target.register_forward_hook(self._on_target_forward))
        return self

    def __exit__(self, error: type[BaseException] | None, *others: object) -> None:
        del vars(self._buffer)["sample"]
        if self._replaced_attribute is not None:
            vars(self._buffer)["sample"] = self._replaced_attribute
        for handle in self._handles:
            handle.remove()
        if error is None:
            self._finish_step()

    def _sample_batch(self, *args: Any, **kwargs: Any) -> Any:
        self._finish_step()
        self._batch = self._sample(*args, **kwargs)
        return self._batch

    def _finish_step(self) -> None:
        """Update the priorities of the last batch."""
        if self._batch is None and self._indices is None:
            return
        if self._batch is not None or not self._has_gradient:
            raise RuntimeError(
                f"{type(self.model).__name__}.train() sampled a batch, but did not differentiate the first output of "
                f"{self.network} that was computed with gradients; compute other outputs under torch.no_grad()"
            )
        assert self._errors is not None
        self._buffer.update_priorities(self._indices, self._errors)
        self._sum, self._n = self._sum + float(self._errors.sum()), self._n + len(self._errors)
        self._indices, self._errors, self._has_gradient = None, None, False

    def _on_forward(self, network: th.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        if self._batch is None or not outputs[0].requires_grad:
            return
        batch, self._batch = self._batch, None
        for each in outputs:
            if len(each) != len(batch.indices):
                raise RuntimeError(
                    f"{self.network} must be called with the {len(batch.indices)} observations of the batch, "
                    f"got {len(each)}"
                )
        self._indices = batch.indices
        self._weigh(batch, outputs)
        if self.td_error is not None:
            with th.no_grad():
                self._record(th.as_tensor(self.td_error(self.model, batch)))

    def _on_target_forward(self, network: th.nn.Module, inputs: tuple[Any, ...], output: th.Tensor) -> None:
        self._target_output = output.detach()

    def _record(self, errors: th.Tensor) -> None:
        """Record the TD errors of the batch; those of several critics are reduced to the largest."""
        values: NDArray[Any] = errors.detach().abs().reshape(-1).cpu().numpy()
        self._errors = values if self._errors is None else np.maximum(self._errors, values)

    @abstractmethod
    def _weigh(self, batch: Any, outputs: Iterable[th.Tensor]) -> None:
        """Register hooks that scale the gradients of the outputs, and compute TD errors."""


class QNetworkSteps(PrioritizedSteps):
    """Gradient steps of DQN: the loss is a mean of one loss per transition, so weights can scale its gradients.

    TD errors are computed from the outputs, since the gradients of the Huber loss are clipped.
    """

    network = "q_net"
    target_network = "q_net_target"

    def _weigh(self, batch: Any, outputs: Iterable[th.Tensor]) -> None:
        (output,) = outputs
        if self.td_error is None:
            with th.no_grad():
                discounts = self.model.gamma if batch.discounts is None else batch.discounts
                targets = batch.rewards + (1 - batch.dones) * discounts * self._next_values()
                self._record(targets - self._values(batch, output))
        output.register_hook(partial(self._scale, batch.weights))  # type: ignore[no-untyped-call]

    def _scale(self, weights: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        self._has_gradient = True
        return gradient * weights.reshape(-1, *[1] * (gradient.dim() - 1))

    def _values(self, batch: Any, output: th.Tensor) -> th.Tensor:
        """Return the values of the actions of the batch, ``(batch_size, 1)``."""
        return th.gather(output, dim=1, index=batch.actions.long())

    def _next_values(self) -> th.Tensor:
        """Return the values of the next observations, ``(batch_size, 1)``."""
        assert self._target_output is not None
        return self._target_output.max(dim=1, keepdim=True).values


class QuantileNetworkSteps(QNetworkSteps):
    """Gradient steps of QR-DQN. Its TD errors are those of the mean values of the distributions."""

    network = "quantile_net"
    target_network = "quantile_net_target"

    def _values(self, batch: Any, output: th.Tensor) -> th.Tensor:
        return super()._values(batch, output.mean(dim=1))  # from (batch_size, n_quantiles, n_actions)

    def _next_values(self) -> th.Tensor:
        assert self._target_output is not None
        return self._target_output.mean(dim=1).max(dim=1, keepdim=True).values


class CriticSteps(PrioritizedSteps):
    """Gradient steps of TD3, DDPG and SAC with LAP (https://arxiv.org/abs/2007.06049).

    Their critics have squared losses. Those of LAP are Huber losses, whose gradients are the same up to errors of 1
    and constant beyond. Gradients of squared losses are proportional to the TD errors, so nothing else is needed. The
    priority of a transition is the largest absolute error of all critics, as in the code of the paper.

    :param slope: derivative of the loss of a critic, divided by the TD error: 2 for TD3, 1 for SAC
    """

    network = "critic"

    def __init__(self, model: Any, slope: float) -> None:
        super().__init__(model)
        self._slope = slope

    def _weigh(self, batch: Any, outputs: Iterable[th.Tensor]) -> None:
        for output in outputs:
            output.register_hook(self._clip)  # type: ignore[no-untyped-call]

    def _clip(self, gradient: th.Tensor) -> th.Tensor:
        self._has_gradient = True
        errors = gradient.abs() * (len(gradient) / self._slope)
        self._record(errors)
        return gradient / errors.clamp(min=1)
