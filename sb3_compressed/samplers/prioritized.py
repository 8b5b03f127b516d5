"""``PrioritizedSampler``: transitions with large TD errors are drawn more often."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers.sampler import Draw, Sampler
from sb3_compressed.samplers.sum_tree import DRAWN, VALID, SumTree, sum_tree_kernels

__all__ = ["PrioritizedSampler", "sequence_priorities"]

MODES = ("per", "lap")
ZERO_HINT = "use epsilon > 0, or update priorities with positive values"


@dataclass(eq=True)
class PrioritizedSampler(Sampler):
    """Draws transitions in proportion to a power of their absolute TD errors: prioritized experience replay.

    A transition has the priority ``(|td_error| + epsilon) ** alpha``, and is drawn with the probability of its share of
    all priorities. New transitions have the largest priority of those in the buffer that were updated since they were
    written, so this maximum falls when the transition that had it is updated, overwritten or removed. It is 1 while
    none was updated, or if the largest priority is 0.

    Batches have importance weights, ``(priority / smallest priority of the batch) ** -beta``. That is
    ``(n * probability) ** -beta`` divided by the largest of the batch, as in algorithm 1 of the paper and in Dopamine.
    Other libraries (Baselines, cpprb, TorchRL) divide by the largest of the whole buffer instead, where one transition
    with a tiny TD error scales down all gradients.

    Priorities and random numbers are of float64; transitions whose priority is 0 are never drawn. The random numbers
    are drawn from ``np.random``.

    >>> PrioritizedSampler(alpha=0.5, beta_steps=1_000_000)
    PrioritizedSampler(alpha=0.5, beta=0.4, beta_final=1.0, beta_steps=1000000, epsilon=1e-06, stratified=True,
        mode='per')

    Sources: Schaul et al. 2016, "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952; for ``"lap"``
    Fujimoto et al. 2020, "An Equivalence between Loss Functions and Non-Uniform Sampling in Experience Replay",
    https://arxiv.org/abs/2007.06049

    :param alpha: exponent of the priorities; 0 for uniform probabilities, 1 for the TD errors themselves
    :param beta: exponent of the importance weights in the first draw: 0 for none, 1 for a full correction
    :param beta_final: exponent after ``beta_steps`` batches
    :param beta_steps: number of batches, which is that of gradient steps, during which the exponent changes linearly
        from ``beta`` to ``beta_final``; ``None`` leaves it at ``beta``
    :param epsilon: added to absolute TD errors, so that transitions with none are drawn, too
    :param stratified: divide the sum of priorities into ``batch_size`` equal parts and draw one transition from
        each, as in the paper: batches vary less, and their transitions are in the order of their indices. ``False``
        draws each independently
    :param mode: ``"per"``; ``"lap"`` for loss-adjusted prioritization, which is for Huber losses: the priority is
        ``max(|td_error|, 1) ** alpha``, and there are no weights
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_final: float = 1.0
    beta_steps: int | None = None
    epsilon: float = 1e-6
    stratified: bool = True
    mode: Literal["per", "lap"] = "per"
    #: The largest priority of updated transitions in other parts of a divided buffer, for new transitions of this one.
    max_updated_elsewhere: float = field(init=False, repr=False, compare=False, default=0.0)
    _tree: SumTree | None = field(init=False, repr=False, compare=False, default=None)
    _n_draws: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        for name, largest in (("alpha", math.inf), ("beta", 1.0), ("beta_final", 1.0), ("epsilon", math.inf)):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not 0 <= float(value) <= largest or math.isinf(value):
                limits = "finite and not negative" if math.isinf(largest) else f"between 0 and {largest:g}"
                raise ValueError(f"{name} must be {limits}, got {value}")
        if self.beta_steps is not None:
            if not isinstance(self.beta_steps, Integral) or isinstance(self.beta_steps, bool):
                raise TypeError(f"beta_steps must be an integer or None, got {self.beta_steps!r}")
            if self.beta_steps < 1:
                raise ValueError(f"beta_steps must be at least 1, got {self.beta_steps}")
        if not isinstance(self.stratified, bool):
            raise TypeError(f"stratified must be True or False, got {self.stratified!r}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {self.mode!r}")

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Allocate the state for a buffer without transitions. Called once, before any other method."""
        super().bind(n_rows, n_envs)
        self._tree = SumTree(n_rows * n_envs)
        self._n_draws = 0

    def prepare(self) -> None:
        """Import and compile what drawing and updating need."""
        sum_tree_kernels()

    @property
    def tree(self) -> SumTree:
        """The priorities of all transitions.

        :raises ValueError: before :meth:`bind`
        """
        if self._tree is None:
            raise ValueError("this sampler is a configuration; a buffer binds a copy of it, see buffer.sampler")
        return self._tree

    @property
    def current_beta(self) -> float:
        """The exponent of the importance weights in the next draw."""
        return self._beta_after(self._n_draws)

    def _beta_after(self, n_draws: int) -> float:
        if self.beta_steps is None:
            return self.beta
        progress = min(1.0, n_draws / self.beta_steps)
        return self.beta + progress * (self.beta_final - self.beta)

    def add(self, indices: NDArray[np.int64], buffer: Any = None) -> None:
        """Include new transitions with the largest priority in the buffer."""
        self.tree.add(indices, self.new_priority)
        super().add(indices, buffer)

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Exclude transitions, whose priority becomes 0."""
        self.tree.remove(indices)
        super().remove(indices)

    def draw(self, batch_size: int) -> Draw:
        """Draw transitions with probabilities proportional to their priorities.

        :param batch_size: how many, at least 1; one may be drawn several times
        :return: indices, and weights in (0, 1] with the largest at 1; no weights with ``mode="lap"``
        :raises BufferNotReady: if there are no transitions to draw
        :raises ValueError: if all priorities are zero
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        return self.weighted(self._drawn(batch_size, stratified=self.stratified))

    def draw_independently(self, n: int) -> NDArray[np.int64]:
        """Return flat indices that are drawn independently of each other, for sequences, as :meth:`draw` does."""
        return self._drawn(n, stratified=False)

    def draw_among(self, candidates: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Return flat indices that are drawn independently from some transitions, in proportion to their priorities.

        :raises ValueError: if all their priorities are zero
        """
        if not self.tree.values[candidates].any():
            raise ValueError(f"the priorities of all {len(candidates)} transitions to choose from are 0; {ZERO_HINT}")
        return self.tree.draw_among(candidates, np.random.random(n))  # noqa: NPY002

    def weighted(self, indices: NDArray[np.int64]) -> Draw:
        """Return the draw of a batch of these transitions, with their weights, and count it."""
        n_draws, self._n_draws = self._n_draws, self._n_draws + 1
        return Draw(indices, self.importance_weights(self.tree.values[indices], n_draws))

    def importance_weights(self, priorities: NDArray[np.float64], n_draws: int) -> NDArray[np.float32] | None:
        """Return the importance weights of a batch, ``(batch_size,)``, the largest of which is 1.

        :param priorities: priorities of its transitions, or their probabilities, ``(batch_size,)``
        :param n_draws: how many batches were drawn before
        :return: ``None`` with ``mode="lap"``, which has no weights
        """
        if self.mode == "lap":
            return None
        weights: NDArray[np.float32] = ((priorities.min() / priorities) ** self._beta_after(n_draws)).astype(np.float32)
        return weights

    def _drawn(self, n: int, *, stratified: bool) -> NDArray[np.int64]:
        if self.tree.total == 0:
            if not self.is_valid.any():
                raise BufferNotReady("there are no transitions to draw; add some first")
            raise ValueError(f"the priorities of all transitions are 0, so none can be drawn; {ZERO_HINT}")
        indices, _ = self.tree.draw(np.random.random(n), stratified=stratified)  # noqa: NPY002
        return indices

    def update(self, indices: NDArray[np.int64], values: ArrayLike) -> None:
        """Set the priorities of transitions from their absolute TD errors.

        :param indices: flat indices ``(n,)``; of equal ones, the last value counts, and transitions that may not be
            drawn are ignored
        :param values: absolute TD errors ``(n,)``
        :raises ValueError: if a priority is NaN or too large; none is changed then. ``update_priorities`` of buffers
            validates TD errors before
        """
        errors = np.asarray(values, dtype=np.float64)
        errors = np.maximum(errors, 1.0) if self.mode == "lap" else errors + self.epsilon
        self.tree.update(indices, errors**self.alpha)

    @property
    def new_priority(self) -> float:
        """The priority of new transitions."""
        return max(self.tree.max_updated, self.max_updated_elsewhere) or 1.0

    @property
    def priorities(self) -> NDArray[np.float64]:
        """The priorities of all transitions, ``(n_rows * n_envs,)``, 0 for those that may not be drawn; a copy."""
        return self.tree.values.copy()

    @property
    def priority_max(self) -> float:
        """The largest priority, 0 without transitions."""
        return float(self.tree.values.max())

    @property
    def effective_sample_size(self) -> float:
        """The effective sample size of the priorities as a share of the transitions: 1 if all are equal.

        It is ``sum(p) ** 2 / (n * sum(p ** 2))``; NaN without transitions.
        """
        scaled = self.tree.values[self.is_valid] / (self.priority_max or 1.0)  # squares neither overflow nor underflow
        squares = float(np.dot(scaled, scaled))
        return float(scaled.sum()) ** 2 / (len(scaled) * squares) if squares else math.nan

    @property
    def share_never_sampled(self) -> float:
        """The share of the transitions that were never drawn; NaN without transitions."""
        counts = np.bincount(self.tree.flags & (DRAWN | VALID), minlength=4)
        n = counts[VALID] + counts[DRAWN | VALID]
        return float(counts[VALID] / n) if n else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which :meth:`load_state_dict` continues exactly.

        :return: ``priorities`` of float64 and ``flags`` of uint8, each ``(n_rows * n_envs,)`` and not copied; ``alpha``
            of the priorities; ``n_draws``, the number of batches drawn
        """
        tree = self.tree
        return {"priorities": tree.values, "flags": tree.flags, "alpha": self.alpha, "n_draws": self._n_draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned, after :meth:`bind` for as many transitions.

        :raises ValueError: if it does not fit, or was made with another ``alpha``; nothing is changed then
        """
        if state["alpha"] != self.alpha:
            raise ValueError(f"the priorities are powers with alpha={state['alpha']}, but alpha is {self.alpha}")
        if not isinstance(state["n_draws"], Integral) or state["n_draws"] < 0:
            raise ValueError(f"n_draws must be a number of draws, got {state['n_draws']!r}")
        flags = np.asarray(state["flags"])
        self.tree.load(np.asarray(state["priorities"]), flags)
        self.is_valid[:] = flags & VALID
        self._n_draws = int(state["n_draws"])


def sequence_priorities(td_errors: ArrayLike, mask: ArrayLike | None = None, eta: float = 0.9) -> NDArray[np.float64]:
    """Return values of sequences for :meth:`PrioritizedSampler.update`: between the maximum and mean of TD errors.

    Source: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2),
    https://openreview.net/forum?id=r1lyTjAqYX

    >>> sequence_priorities([[1.0, -3.0, 8.0]], [[True, True, False]])
    array([2.9])

    :param td_errors: TD errors ``(batch, time)``; their absolute values count
    :param mask: which steps count, of the same shape; ``None`` for all
    :param eta: share of the maximum, in 0..1; the rest is that of the mean
    :return: ``eta * maximum + (1 - eta) * mean`` over the steps that count, ``(batch,)``; 0 without such steps
    :raises ValueError: if shapes differ, ``eta`` is out of range, or a TD error that counts is NaN or infinite
    """
    errors = np.abs(np.asarray(td_errors, dtype=np.float64))
    is_counted = np.ones(errors.shape, dtype=bool) if mask is None else np.asarray(mask).astype(bool)
    if errors.ndim != 2 or is_counted.shape != errors.shape:
        raise ValueError(f"TD errors and mask must be (batch, time), got {errors.shape} and {is_counted.shape}")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be between 0 and 1, got {eta}")
    errors = np.where(is_counted, errors, 0.0)
    if not np.isfinite(errors).all():
        row, step = np.argwhere(~np.isfinite(errors))[0]
        raise ValueError(f"TD errors must be finite, got {errors[row, step]} for step {step} of sequence {row}")
    means = errors.sum(axis=1) / np.maximum(is_counted.sum(axis=1), 1)
    result: NDArray[np.float64] = eta * errors.max(axis=1, initial=0.0) + (1 - eta) * means
    return result
