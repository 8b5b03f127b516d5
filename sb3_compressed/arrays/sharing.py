"""Frame sharing: what an observation repeats of the one before it is stored once and referred to."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frames import LayoutSearch
from sb3_compressed.arrays.slots import Slot, SlotCoder
from sb3_compressed.arrays.teacher import Teacher
from sb3_compressed.codecs import LearningCodec

__all__ = ["FrameSharing"]


class FrameSharing:
    """Encodes rows of observations, one for each environment, and remembers the last row.

    A stacked observation at time t+1 repeats all but one frame of the one at t, and ``next_obs`` at t is ``obs`` at
    t+1 except where an episode ends. So the frames of the last row written are remembered for every environment,
    together with their payloads: a new observation that continues the remembered one needs one new payload, an
    equal one needs none, and every other reference is a Python reference to a payload that exists. Ring buffers
    overwrite slots without any bookkeeping, and episode ends need no ``done``: they simply do not match.

    Arrays that receive the same stream of observations, ``observations`` and ``next_observations``, have one
    ``FrameSharing`` between them.

    :param coder: encodes what is new
    :param search: finds the coder's layout from the rows, where it is neither stated nor switched off
    """

    def __init__(self, coder: SlotCoder, search: LayoutSearch | None) -> None:
        self.coder = coder
        self._search = search
        self._teacher = Teacher()
        self._slots: list[Slot] = []  # the last row's, one for each environment
        self._words: NDArray[Any] | None = None  # and the bits of its frames: [n_envs, n_frames, frame words]

    def encode_row(self, items: NDArray[Any]) -> list[Slot]:
        """Encode the next observation of every environment.

        :param items: array ``(n_envs, *item_shape)`` of the coder's dtype; it is not kept
        :return: ``n_envs`` slots
        """
        if self._search is not None:
            self._find_layout(self._search, items)
        frames = self.coder.split(items)  # [n_envs, n_frames, *frame_shape]
        words = _as_words(frames)
        n_frames = frames.shape[1]
        n_new = self._count_new_frames(words)
        is_new = np.arange(n_frames) >= n_frames - n_new[:, np.newaxis]
        fresh = frames[is_new]  # [number of new frames, *frame_shape]
        payloads = iter(self.coder.encode_frames(fresh))

        slots: list[Slot] = []
        for env, count in enumerate(n_new.tolist()):
            if count == 0:
                slots.append(self._slots[env])
                continue
            continued = self._slots[env] if count < n_frames else None
            slots.append(self.coder.join(list(islice(payloads, count)), continued))
        self._slots, self._words = slots, words
        if isinstance(self.coder.codec, LearningCodec):
            self._learn(self.coder.codec, fresh)
        return slots

    def _learn(self, codec: LearningCodec, fresh: NDArray[Any]) -> None:
        """Show new frames to the teacher, and take a codec that has learned when it is time."""
        lesson = self._teacher.see(fresh)
        if lesson is not None:
            self.coder.codec = codec.learn(lesson)
            if self.coder.codec is not codec:
                codec.retire()

    def _count_new_frames(self, words: NDArray[Any]) -> NDArray[np.intp]:
        """Tell how many frames of each environment's observation have no payload yet.

        That is the smallest shift by which its older frames equal the newer ones remembered. Bits are compared, not
        values: NaN equals itself and -0.0 differs from 0.0.
        """
        n_envs, n_frames = words.shape[:2]
        n_new = np.full(n_envs, n_frames, dtype=np.intp)
        known = self._remembered_words()
        if known is None or known.shape != words.shape:
            return n_new
        envs = np.arange(n_envs)
        for shift in range(n_frames):
            match = (words[envs, : n_frames - shift] == known[envs, shift:]).all(axis=(1, 2))
            n_new[envs[match]] = shift
            envs = envs[~match]
            if not len(envs):
                break
        return n_new

    def _remembered_words(self) -> NDArray[Any] | None:
        if self._words is None and self._slots:  # after unpickling
            items = np.empty((len(self._slots), *self.coder.item_shape), dtype=self.coder.dtype)
            self.coder.decode_into(self._slots, items)
            self._words = _as_words(self.coder.split(items))
        return self._words

    def _find_layout(self, search: LayoutSearch, items: NDArray[Any]) -> None:
        known = self._remembered_words()
        if known is not None and len(known) == len(items):
            # Without a layout the one remembered frame is the whole item.
            new = np.ascontiguousarray(items)[..., np.newaxis].view(np.uint8)  # [n_envs, *item_shape, itemsize]
            layout = search.observe(known.view(np.uint8).reshape(new.shape), new)
            if layout is not None:
                self.coder.layout = layout
                # The last row was stored as whole items, so there are no payloads of its frames to refer to.
                self._slots, self._words = [], None
        if search.over or self.coder.layout is not None:
            self._search = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_words": None}  # the payloads say the same


def _as_words(frames: NDArray[Any]) -> NDArray[Any]:
    """View contiguous frames ``(n_envs, n_frames, *frame_shape)`` as the widest integers that divide a frame."""
    n_envs, n_frames = frames.shape[:2]
    frame_nbytes = frames.nbytes // (n_envs * n_frames) if frames.size else 0
    rows = frames.reshape(n_envs, n_frames, frame_nbytes // frames.dtype.itemsize).view(np.uint8)
    width = next(width for width in (8, 4, 2, 1) if frame_nbytes % width == 0)
    return rows.view(f"u{width}")
