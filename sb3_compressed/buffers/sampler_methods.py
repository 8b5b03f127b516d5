"""What replay buffers do with samplers: ``sampler=``, ``update_priorities``, ``iterate``, ``sample_sequences``.

:meth:`.CompressedReplay.sample` itself, and SB3's own sampling, are in :mod:`.replay`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.buffers.base import CompressedBuffer
from sb3_compressed.buffers.sequences import SequenceSamples, sample_sequences
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.buffers.weighted_samples import weighted_samples
from sb3_compressed.errors import BufferNotReady
from sb3_compressed.samplers import Draw, Sampler, WithoutReplacementSampler, get_sampler
from sb3_compressed.samplers.bound_sampler import BoundSampler
from sb3_compressed.samplers.episode_table import EpisodeTable
from sb3_compressed.samplers.sequence_draw import Pad, SequenceShape

__all__ = ["SamplerMethods"]


class SamplerMethods(CompressedBuffer):
    """Methods of replay buffers for samplers. ``sample`` and ``_get_samples`` are in :mod:`.replay`."""

    optimize_memory_usage: bool
    dones: NDArray[np.float32]
    timeouts: NDArray[np.float32]
    #: See :attr:`bound_sampler`.
    _bound_sampler: BoundSampler | None = None
    _has_warned_of_time_limits = False

    @property
    def bound_sampler(self) -> BoundSampler | None:
        """The sampler with the transitions that it may draw, ``None`` for SB3's own sampling."""
        return self._bound_sampler

    @property
    def episodes(self) -> EpisodeTable | None:
        """The episodes of hindsight replay, ``None`` for other buffers."""
        return EpisodeTable.among(vars(self))

    def reset(self) -> None:
        """Remove all transitions, as SB3's buffer does."""
        super().reset()
        if self._bound_sampler is not None:  # now: after many new steps, nothing shows that there was a reset
            self._bound_sampler.catch_up(self)

    @property
    def sampler(self) -> Sampler | None:
        """The sampler of this buffer, ``None`` for SB3's own sampling."""
        return None if self._bound_sampler is None else self._bound_sampler.sampler

    @property
    def n_skipped_updates(self) -> int:
        """How many updates :meth:`update_priorities` skipped since their transitions could not be drawn any more."""
        return 0 if self._bound_sampler is None else self._bound_sampler.n_skipped_updates

    def _set_sampler(self, sampler: str | Sampler) -> None:
        if (configured := get_sampler(sampler)) is None:
            return
        order = type(self).__mro__
        parent = next(base for base in order[order.index(SamplerMethods) + 1 :] if "sample" in vars(base))
        if parent.__module__.partition(".")[0] != "stable_baselines3":
            raise TypeError(
                f"a sampler replaces {parent.__name__}.sample, which {type(self).__name__} inherits; override "
                "_samples_at instead, or pass sampler='uniform'"
            )
        self._require_no_own_get_samples()
        self._bound_sampler = BoundSampler(configured, self.buffer_size, self.n_envs)
        configured.prepare()  # rather than at the first step of the training

    def _require_no_own_get_samples(self) -> None:
        """Raise if a user's class overrides ``_get_samples``, which cannot receive the environments of a sampler.

        :raises TypeError: if one does
        """
        owner = next(base for base in type(self).__mro__ if "_get_samples" in vars(base))
        if not owner.__module__.startswith(f"{__package__}."):
            raise TypeError(
                f"a sampler chooses rows and environments, and {owner.__name__}._get_samples receives rows only: "
                "override _samples_at(self, rows, envs, env=None) instead, which is called with and without a sampler, "
                "or pass sampler='uniform'"
            )

    def _draw(self, batch_size: int) -> Draw:
        """Draw the transitions of a batch with the sampler."""
        bound = self._bound_sampler
        assert bound is not None
        return self._in_batch_order(bound.draw(self, batch_size))

    def _in_batch_order(self, draw: Draw) -> Draw:
        """Return the transitions of a batch in the order of the batch."""
        return draw

    def _samples_of(self, draw: Draw, env: VecNormalize | None) -> Any:
        """Return the batch of transitions.

        :param draw: flat indices of the transitions, and their weights
        """
        samples = self._samples_at(*np.divmod(draw.indices, self.n_envs), env)
        return weighted_samples(self._output(samples), *self._weights_and_indices(draw))

    def _weights_and_indices(self, draw: Draw) -> tuple[th.Tensor, NDArray[np.int64]]:
        """Return the importance weights ``(batch_size, 1)`` and flat indices ``(batch_size,)`` of transitions.

        They are copies: a sampler may reuse its arrays.
        """
        if draw.weights is None:
            weights = th.ones((len(draw.indices), 1), device=self.device)
        else:
            weights = th.tensor(draw.weights.reshape(-1, 1), dtype=th.float32, device=self.device)
        return weights, np.array(draw.indices, dtype=np.int64)

    def update_priorities(self, indices: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor) -> int:
        """Update the priorities of transitions after a training step; return how many were skipped.

        Update them before the next ``add``, which may overwrite them. Those that may not be drawn any more, such as
        episodes of hindsight replay that were overwritten in part, are skipped. Of equal indices, the last value
        counts.

        :param indices: ``indices`` of a batch, ``(n,)``
        :param td_errors: TD errors of these transitions, ``(n,)`` or ``(n, 1)``; their signs are ignored
        :raises ValueError: if shapes differ, a TD error is not finite, or an index is out of range
        :raises TypeError: if the buffer's sampler has no priorities
        """
        if self._bound_sampler is None:
            raise TypeError("update_priorities() is for buffers with a sampler, such as sampler='prioritized'")
        return self._bound_sampler.update(self, indices, td_errors)

    def iterate(
        self, batch_size: int, epochs: int = 1, *, env: VecNormalize | None = None, resume: bool = False
    ) -> Iterator[Any]:
        """Iterate over batches that together contain each transition once an epoch, in random order.

        For ``sampler="without-replacement"``. The last batch of an epoch is smaller, where the number of transitions
        is no multiple of ``batch_size``. Transitions that are added meanwhile are in the next epoch, and those that are
        overwritten before their batch are left out. :meth:`sample` continues the same epoch.

        :param batch_size: number of transitions of a batch, at least 1
        :param epochs: number of epochs
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :param resume: whether to continue an epoch that has transitions left, such as one that was interrupted and
            loaded, as the first one; if all of them were overwritten since, the first one is a new epoch
        :raises TypeError: if the buffer has another sampler
        :raises BufferNotReady: if nothing was added yet
        :raises ValueError: if ``batch_size`` is not positive, or ``epochs`` is negative
        """
        sampler = self.sampler
        if not isinstance(sampler, WithoutReplacementSampler):
            raise TypeError("iterate() is for buffers with sampler='without-replacement'")
        validate_integer("batch_size", batch_size, 1)
        validate_integer("epochs", epochs, 0)
        self._require_transitions(batch_size)
        return self._epochs(sampler, batch_size, epochs, env, resume=resume)

    def _epochs(
        self,
        sampler: WithoutReplacementSampler,
        batch_size: int,
        epochs: int,
        env: VecNormalize | None,
        *,
        resume: bool,
    ) -> Iterator[Any]:
        bound = self._bound_sampler
        assert bound is not None
        for _ in range(epochs):
            bound.catch_up(self)
            if not (resume and sampler.n_left):
                sampler.start_epoch()
            resume = False
            while True:
                bound.catch_up(self)
                draw = sampler.draw_of_epoch(batch_size)
                if not len(draw.indices):
                    break
                samples = self._samples_of(self._in_batch_order(draw), env)
                yield samples

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        pad: Pad = "none",
        env: Any = None,
        *,
        next_observations: bool = True,
        as_views: bool = False,
    ) -> SequenceSamples:
        """Sample sequences of consecutive transitions, each within one episode.

        Each possible sequence has the same probability, or with a sampler, that of its first transition after the
        burn-in. Random numbers are from ``np.random``. The time it takes does not depend on the size of the buffer,
        unless nearly all episodes are shorter than ``length``. Buffers with n-step returns and hindsight replay return
        the transitions as they were added. With ``handle_timeout_termination=False``, the buffer does not know where
        time limits end episodes, so that sequences continue into the next one there; a warning says so.

        :param batch_size: number of sequences, at least 1
        :param length: transitions of a sequence to train on, at least 1
        :param burn_in: transitions before them, from which a recurrent network computes its state (R2D2,
            https://openreview.net/forum?id=r1lyTjAqYX). At the beginning of an episode they are padding
        :param stride: sequences begin at the first transition of each episode, at every ``stride``-th row of the
            buffer, and with ``pad="none"`` also where they end with their episode. Other libraries call it period
        :param pad: what to do where an episode has fewer transitions. ``"none"``: only complete sequences are drawn;
            ``"end"``: sequences begin at any transition, and are padded with zeros after the end of the episode
        :param env: a ``VecNormalize`` to normalize observations and rewards with
        :param next_observations: whether to return next observations
        :param as_views: whether to return stacked observations as views of shared frames, if their frames lie so that
            that is possible: the tensors must not be written to, and their steps that are padding may contain frames
            of others. With four stacked frames, observations take about a quarter of the memory
        :raises BufferNotReady: if there is no such sequence yet
        :raises ValueError: if an argument is out of range, or longer than the buffer
        :raises TypeError: if one is not an integer
        :raises CorruptPayload: if a payload is damaged; the error names its slot
        """
        shape = SequenceShape(length, burn_in, stride, pad)
        return sample_sequences(self, batch_size, shape, env, with_next=next_observations, as_views=as_views)

    def _require_transitions(self, batch_size: int) -> None:
        """Raise if no batch can be sampled; hindsight replay also requires a complete episode."""
        self._validate_sampling(batch_size)

    def _validate_sampling(self, batch_size: Any) -> None:
        """Raise if no batch of that size can be sampled."""
        validate_integer("batch_size", batch_size, 0)
        if batch_size == 0:
            return
        if self.size() == 0:
            raise BufferNotReady("cannot sample from an empty buffer: add transitions first")
        if self.full and self.buffer_size == 1 and self.optimize_memory_usage:
            raise BufferNotReady(
                "cannot sample from a buffer of one row with optimize_memory_usage=True, which reserves one row; "
                "increase buffer_size"
            )

    def _samples_at(self, rows: Any, envs: NDArray[np.int64], env: VecNormalize | None = None) -> Any:
        raise NotImplementedError
