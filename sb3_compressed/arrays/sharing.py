"""Frame sharing: what an observation repeats of the one before it is stored once and referred to."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from types import ModuleType
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
        self._items: NDArray[Any] | None = None  # and its observations, [n_envs, *item_shape], as they came in memory
        self._rows: NDArray[np.uint8] | None = None  # their bytes, as ``_pieces`` gives them

    def encode_row(self, items: NDArray[Any]) -> list[Slot]:
        """Encode the next observation of every environment.

        :param items: array ``(n_envs, *item_shape)`` of the coder's dtype; it is not kept
        :return: ``n_envs`` slots
        """
        if self._search is not None:
            self._find_layout(self._search, items)
        items = np.array(items, order="K", copy=True)
        rows, piece = self._pieces(items)
        n_new = self._count_new_frames(items, rows, piece)
        if not n_new.any():  # an observation that was the next one before
            return self._slots
        fresh = self._take_new_frames(rows, piece, n_new)
        payloads = iter(self.coder.encode_frames(fresh))

        slots: list[Slot] = []
        for env, count in enumerate(n_new.tolist()):
            if count == 0:
                slots.append(self._slots[env])
                continue
            continued = self._slots[env] if count < self.coder.n_frames else None
            slots.append(self.coder.join(list(islice(payloads, count)), continued))
        self._slots, self._items, self._rows = slots, items, rows
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

    def _pieces(self, items: NDArray[Any]) -> tuple[NDArray[np.uint8], int]:
        """Return observations as bytes in which each frame lies in equal pieces, and the bytes of a piece.

        The bytes ``(n_envs, item_nbytes)`` are a view where memory allows it: frames one after the other, or
        interleaved pixel by pixel, as ``VecFrameStack`` stacks them.
        """
        n_envs, item_nbytes = len(items), items.nbytes // max(len(items), 1)
        layout = self.coder.layout
        piece = item_nbytes // self.coder.n_frames
        if layout is not None and layout.axis == 0 and layout.channels == 1:
            interleaved = items.transpose(0, *range(2, items.ndim), 1)
            if interleaved.flags.c_contiguous and not items.flags.c_contiguous:
                items, piece = interleaved, items.itemsize
        elif layout is not None and layout.axis == -1:
            piece = layout.channels * items.itemsize
        return np.ascontiguousarray(items).reshape(n_envs, item_nbytes // items.itemsize).view(np.uint8), piece

    def _count_new_frames(self, items: NDArray[Any], rows: NDArray[np.uint8], piece: int) -> NDArray[np.int64]:
        """Tell how many frames of each environment's observation have no payload yet.

        That is the smallest shift by which its older frames equal the newer ones remembered. Bits are compared, not
        values: NaN equals itself and -0.0 differs from 0.0.
        """
        n_frames = self.coder.n_frames
        n_new = np.full(len(items), n_frames, dtype=np.int64)
        known = self._remembered_items()
        if known is None or known.shape != items.shape or not items.size:
            return n_new
        if known.strides == items.strides and self._rows is not None:
            known_rows = self._rows
        else:
            laid_alike = np.empty_like(items)
            laid_alike[...] = known
            known_rows, _ = self._pieces(laid_alike)
        masks = older_frames(n_frames, rows.shape[1], piece)
        sharing_kernels().count_new_frames(rows, known_rows, masks, piece, n_new)
        return n_new

    def _take_new_frames(self, rows: NDArray[np.uint8], piece: int, n_new: NDArray[np.int64]) -> NDArray[Any]:
        """Return the new frames of all environments, the oldest of an environment first: ``(n, *frame_shape)``."""
        n_frames = self.coder.n_frames
        frames = np.empty((int(n_new.sum()), rows.shape[1] // n_frames), dtype=np.uint8)
        if frames.size:
            sharing_kernels().take_new_frames(rows, n_new, n_frames, piece, frames)
        return frames.view(self.coder.dtype).reshape(len(frames), *self.coder.frame_shape)

    def _remembered_items(self) -> NDArray[Any] | None:
        if self._items is None and self._slots:  # after unpickling
            self._items = np.empty((len(self._slots), *self.coder.item_shape), dtype=self.coder.dtype)
            self.coder.decode_into(self._slots, self._items)
        return self._items

    def _find_layout(self, search: LayoutSearch, items: NDArray[Any]) -> None:
        known = self._remembered_items()
        if known is not None and known.shape == items.shape:
            before, after = (np.ascontiguousarray(array)[..., np.newaxis].view(np.uint8) for array in (known, items))
            layout = search.observe(before, after)  # [n_envs, *item_shape, itemsize]
            if layout is not None:
                self.coder.layout = layout
                # The last row was stored as whole items, so there are no payloads of its frames to refer to.
                self._slots, self._items, self._rows = [], None, None
        if search.over or self.coder.layout is not None:
            self._search = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": None, "_rows": None}  # the payloads say the same


@lru_cache(maxsize=4)
def older_frames(n_frames: int, item_nbytes: int, piece: int) -> NDArray[np.uint8]:
    """Return masks ``(shift: n_frames, item_nbytes)`` with 1 at the bytes of all but the newest ``shift`` frames."""
    frame_of_byte = np.arange(item_nbytes) // piece % n_frames
    return (frame_of_byte < n_frames - np.arange(n_frames)[:, np.newaxis]).astype(np.uint8)


def sharing_kernels() -> ModuleType:
    """Return the module of the kernels; numba is imported, and they are compiled, when the first row is written."""
    from sb3_compressed.arrays import sharing_kernels

    return sharing_kernels
