"""``Sampler``: which transitions a batch consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Draw", "Sampler"]


class Draw(NamedTuple):
    """The transitions of a batch.

    :param indices: flat indices ``(batch_size,)`` of int64: ``row * n_envs + env``
    :param weights: importance weights ``(batch_size,)`` of float32, ``None`` if all are 1
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None


class Sampler(ABC):
    """Draws the transitions of each batch of a replay buffer.

    A sampler that was not bound yet is a configuration: each buffer copies it, and binds its copy. Arguments of the
    constructor are attributes of the same names, from which folders store them. A subclass needs nothing but
    :meth:`draw`; :meth:`add` and :meth:`remove` of this class record which transitions may be drawn, so
    methods that override them call ``super()``. Random numbers are drawn from ``np.random``, as SB3 does, so that
    ``seed`` reproduces a training.

    Transitions have flat indices: that of row ``row`` and environment ``env`` is ``row * n_envs + env``. The buffer
    validates what :meth:`draw` returns, and what it passes to :meth:`update`.
    """

    #: Number of rows of the buffer, 0 before :meth:`bind`.
    n_rows: int = 0
    #: Number of environments of the buffer, 0 before :meth:`bind`.
    n_envs: int = 0
    #: Which transitions may be drawn, ``(n_rows * n_envs,)`` of bool. Subclasses read it.
    is_valid: NDArray[np.bool_]

    @property
    def is_bound(self) -> bool:
        """Whether it belongs to a buffer."""
        return self.n_envs > 0

    @property
    def has_priorities(self) -> bool:
        """Whether :meth:`update` changes what is drawn."""
        return type(self).update is not Sampler.update

    def bind(self, n_rows: int, n_envs: int) -> None:
        """Allocate the state for a buffer without transitions. Called once, before any other method.

        :param n_rows: number of rows of the buffer
        :param n_envs: number of its environments
        """
        self.n_rows, self.n_envs = n_rows, n_envs
        self.is_valid = np.zeros(n_rows * n_envs, dtype=np.bool_)

    def prepare(self) -> None:  # noqa: B027  # most samplers need nothing
        """Import and compile everything that it needs, called before the first step of a training."""

    def add(self, indices: NDArray[np.int64], buffer: Any) -> None:
        """Include transitions that were written, or that may be drawn from now on.

        The buffer calls it after each ``add`` with the transitions of the step, and hindsight replay when an episode is
        complete. After loading, it is called with all transitions that the saved state does not include, from the
        oldest to the newest.

        :param indices: flat indices, each once; whatever was there before was overwritten
        :param buffer: the replay buffer that contains them
        """
        self.is_valid[indices] = True

    def remove(self, indices: NDArray[np.int64]) -> None:
        """Exclude transitions, which may not be drawn any more.

        :param indices: flat indices, each once; some may be excluded already
        """
        self.is_valid[indices] = False

    @abstractmethod
    def draw(self, batch_size: int) -> Draw:
        """Draw the transitions of a batch, in any order.

        :param batch_size: how many, at least 1; at least one transition may be drawn
        """

    def update(self, indices: NDArray[np.int64], values: ArrayLike) -> None:
        """Update the values of transitions, such as priorities.

        :param indices: flat indices ``(n,)`` of transitions that may be drawn; of equal ones, the last value counts
        :param values: new values ``(n,)``, absolute TD errors for priorities
        :raises TypeError: if the sampler has no values to update
        :raises ValueError: if a value is not valid; no value is changed then
        """
        raise TypeError(f"{type(self).__name__} has no priorities to update; see sampler='prioritized'")

    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which :meth:`load_state_dict` continues exactly.

        :return: arrays of numbers, whose shapes and dtypes are always the same, and plain values (``bool``, ``int``,
            ``float``, ``str`` or ``None``). Arrays with an element for each transition, ``(n_rows * n_envs, ...)``,
            follow their transitions when a buffer is loaded with another size
        """
        return {"is_valid": self.is_valid}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned, after :meth:`bind` for as many rows.

        :raises ValueError: if it does not fit
        """
        self.is_valid[:] = self._flags_in(state, "is_valid")

    def load_resized_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Restore the state of a buffer of another size, of which the newest rows were kept.

        By default, that is :meth:`load_state_dict`; samplers whose state contains positions in the ring override it.

        :param state: the state; its arrays of transitions have the present size, with the oldest row first
        :param n_rows: how many rows were kept; the next row to write is ``n_rows % self.n_rows``
        :raises ValueError: if it does not fit
        """
        self.load_state_dict(state)

    def _flags_in(self, state: dict[str, Any], name: str) -> NDArray[np.bool_]:
        """Return flags of all transitions in a state.

        :raises ValueError: if they do not fit
        """
        flags = np.asarray(state[name])
        if flags.shape != self.is_valid.shape or flags.dtype != np.bool_:
            expected = f"{self.is_valid.shape} of bool"
            raise ValueError(f"{name} must be {expected}, got {flags.shape} of {flags.dtype}")
        return flags
