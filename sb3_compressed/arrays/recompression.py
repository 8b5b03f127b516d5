"""``Recompressor``: makes payloads smaller when they are no longer new, while nothing waits for it.

``add`` encodes new frames as fast as the training requires. When they are no longer new, another thread of low
priority encodes them again with a codec that takes longer and makes smaller payloads; decoding hardly depends on that.
The thread only prepares: ``add`` replaces slots, so that no row that was written meanwhile is lost.

A payload is shared by up to eight slots. It is replaced in all of them: rows are encoded in their order, and the frames
that the next rows share with those before are not encoded twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.codec_choice import MAX_BACKGROUND
from sb3_compressed.arrays.codec_handle import CodecHandle, codec_of, handle_of
from sb3_compressed.arrays.compressed_array import CompressedArray
from sb3_compressed.arrays.slot_store import Slot, pack_slot, slot_n_frames, unpack_slot
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.common.threads import BackgroundTask
from sb3_compressed.common.warning import warn_user
from sb3_compressed.errors import CorruptPayload

__all__ = ["Recompressor"]

#: About how many frames a task of the other thread encodes.
CHUNK_FRAMES = 64
#: A task decodes and encodes batches of about so many bytes of frames, but of at least so many frames. The training may
#: wait for Python's lock after each batch, and waits longer if a batch does not fit into the caches.
BATCH_NBYTES, MIN_BATCH = 1_000_000, 8
#: The newest rows stay as they are: the next row refers to the payloads of the last one.
N_NEWEST = 16
#: Rows between two looks at the other thread.
LOOK_EVERY = 8
#: Most bytes of payloads that wait to be encoded again, and as a share of SB3's arrays.
MAX_WAITING_NBYTES, MAX_WAITING_SHARE = 16_000_000, 0.005
#: A new payload must be smaller than this part of the one that it replaces.
MIN_GAIN = 0.95


class _Replaced(NamedTuple):
    """What was replaced, by the id of the old object, which is kept so that no other object gets this id.

    :param payloads: old payloads, and the handle of the codec and the payload that replace each
    :param slots: old slots, and the new ones
    """

    payloads: dict[int, tuple[bytes, tuple[CodecHandle, bytes]]]
    slots: dict[int, tuple[Slot, Slot]]


class _Result(NamedTuple):
    """Slots that were encoded again.

    :param slots: for each array new slots of the rows, an object array
    :param seconds: what this took of the thread's processor
    :param replaced: what following rows may share
    """

    slots: list[NDArray[Any]]
    seconds: float
    replaced: _Replaced


class Recompressor:
    """Encodes the frames of one stream of observations again.

    First come the rows whose frames were stored for the time being, the oldest one first, since their payloads are
    large. Then come the rows that were written before the codec was chosen. Rows are counted from the first one that
    was written to the ring. A copy or a pickle encodes only the rows again that are written to it.
    """

    def __init__(self) -> None:
        self._n_rows = 0  # that were written
        self._next = 0  # the oldest row that is stored for the time being
        self._earlier, self._earlier_end = 0, 0  # the rows that were written before the codec was chosen
        self._has_warned = False
        self._is_limited = False  # whether too many rows wait
        self._codec: TrainableCodec | None = None  # that encodes again
        self._n_until_look = LOOK_EVERY
        self._resume_at = 0.0  # when the share of a core allows more
        self._task: BackgroundTask[_Result] | None = None
        self._arrays: Sequence[CompressedArray] = ()  # that the task reads
        self._rows = np.empty(0, np.int64)  # likewise, in the ring
        self._old: list[NDArray[Any]] = []  # their slots
        self._replaced = _Replaced({}, {})  # in the rows before

    def __reduce__(self) -> tuple[type[Recompressor], tuple[()]]:
        return Recompressor, ()

    @property
    def n_waiting(self) -> int:
        """Number of rows that are stored for the time being only."""
        return self._n_rows - self._next

    def count_rows(self, n: int) -> bool:
        """Count rows that were written; return whether :meth:`advance` is to be called."""
        self._n_rows += n
        self._n_until_look -= n
        return self._n_until_look <= 0

    def advance(self, arrays: Sequence[CompressedArray], position: int) -> None:
        """Replace what the other thread has encoded, and let it encode more; in the thread that writes.

        :param arrays: the arrays of the stream: observations and, if there are any, next observations
        :param position: the row that is written next
        """
        self._n_until_look = LOOK_EVERY
        length = len(arrays[0].slots)
        if self._n_rows % length != position:  # the ring was resized, loaded or emptied
            self._n_rows = self._next = self._earlier = self._earlier_end = position
        task = self._task
        if task is not None:
            if task.is_done:
                self._task = None
                self._finish(arrays, task)
            return
        choice = arrays[0].choice
        if choice is not None and (choice.later is not None or not self._is_limited):
            self._codec = None if choice.later is None else choice.later.codec
        oldest = self._n_rows - length + N_NEWEST
        if self._next < oldest:  # it would be overwritten sooner than it can be replaced
            self._next = self._n_rows - length // 2
        self._earlier = max(self._earlier, oldest)
        if choice is None or self._codec is None:
            self._next = self._earlier_end = self._n_rows
            return
        self._limit_waiting(arrays[0], choice.new.nbytes)
        if time.monotonic() < self._resume_at:
            return
        n = max(CHUNK_FRAMES // arrays[0].shape[1], 1)
        if self.n_waiting >= n + N_NEWEST:
            self._start(arrays, np.arange(self._next, self._next + n), self._codec)
            self._next += n
        elif self._earlier < self._earlier_end - N_NEWEST:
            end = min(self._earlier + n, self._earlier_end - N_NEWEST)
            self._start(arrays, np.arange(self._earlier, end), self._codec)
            self._earlier = end

    def _start(self, arrays: Sequence[CompressedArray], rows: NDArray[np.int64], codec: TrainableCodec) -> None:
        """Begin to encode rows, counted from the first one of the ring on."""
        array = arrays[0]
        self._arrays, self._rows = arrays, rows % len(array.slots)
        self._old = [each.slots[self._rows] for each in arrays]
        layout = array.layout
        shape = tuple(array.item_shape if layout is None else layout.frame_shape)
        self._task = BackgroundTask(
            partial(_recompressed, self._old, codec, shape, array.elem_type, array.n_frames, self._replaced)
        )

    def _finish(self, arrays: Sequence[CompressedArray], task: BackgroundTask[_Result]) -> None:
        """Use what the other thread has encoded; if it has failed, rows stay as they are."""
        try:
            result = task.wait()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                warn_user(f"some frames could not be compressed further and stay as they are: {error!r}")
            result = _Result(self._old, 0.0, _Replaced({}, {}))
        if all(array is read for array, read in zip(arrays, self._arrays, strict=True)):  # else, they were replaced
            for array, old, new in zip(arrays, self._old, result.slots, strict=True):
                array.replace_slots(self._rows, old, new)
        self._replaced = result.replaced
        self._resume_at = time.monotonic() + result.seconds * (1 / MAX_BACKGROUND - 1)
        self._arrays, self._old = (), []

    def _limit_waiting(self, array: CompressedArray, frame_nbytes: float) -> None:
        """Let ``add`` encode frames as they are to be stored as long as too many wait.

        :param frame_nbytes: bytes of a frame that waits
        """
        nbytes = self.n_waiting * array.shape[1] * frame_nbytes
        most = min(MAX_WAITING_NBYTES, MAX_WAITING_SHARE * 2 * array.raw_nbytes)
        most = max(most, 8 * CHUNK_FRAMES * frame_nbytes)
        if nbytes > most and not self._is_limited:
            self._is_limited = True
            array.allow_encoding_later(is_allowed=False)
        elif nbytes < most / 4 and self._is_limited:
            self._is_limited = False
            array.allow_encoding_later(is_allowed=True)


def _recompressed(
    old: Sequence[NDArray[Any]],
    codec: TrainableCodec,
    frame_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    n_frames: int,
    before: _Replaced,
) -> _Result:
    """Return slots with smaller payloads.

    :param old: slots of rows, for each array, ``(n_rows, n_envs)``
    :param codec: encodes the frames
    :param n_frames: frames of an observation; slots with other numbers of payloads stay as they are
    :param before: what was replaced in the rows before
    """
    begin = time.thread_time()
    handle = handle_of(codec)
    found = {id(slot): slot for array in old for slot in array.ravel().tolist()}
    slots = {key: slot for key, slot in found.items() if type(slot) is tuple and slot_n_frames(slot) == n_frames}
    replaced = _Replaced({}, {key: before.slots[key] for key in slots if key in before.slots})
    waiting: dict[int, tuple[CodecHandle, bytes]] = {}
    is_final: dict[int, bool] = {}  # whether payloads of a codec stay as they are
    for key, slot in slots.items():
        if key in replaced.slots:
            continue
        for writer, payload in zip(*unpack_slot(slot), strict=True):
            if id(payload) in before.payloads:
                replaced.payloads[id(payload)] = before.payloads[id(payload)]
                continue
            if id(writer) not in is_final:
                written_by = codec_of(writer)
                is_final[id(writer)] = type(written_by) is not type(codec) or written_by.like(codec) == written_by
            if not is_final[id(writer)]:
                waiting[id(payload)] = writer, payload
    every = [*waiting.values()]
    n_at_once = max(BATCH_NBYTES // max(math.prod(frame_shape) * dtype.itemsize, 1), MIN_BATCH)
    for first in range(0, len(every), n_at_once):
        part = every[first : first + n_at_once]
        try:
            new = _encoded_again(part, codec, frame_shape, dtype)
        except CorruptPayload:  # the sample that needs it raises the error, with its slot
            continue
        for (_, payload), smaller in zip(part, new, strict=True):
            if len(smaller) < MIN_GAIN * len(payload):
                replaced.payloads[id(payload)] = payload, (handle, smaller)
    for key, slot in slots.items():
        if key not in replaced.slots:
            pairs = [*zip(*unpack_slot(slot), strict=True)]
            if any(id(payload) in replaced.payloads for _, payload in pairs):
                pairs = [replaced.payloads.get(id(pair[1]), (None, pair))[1] for pair in pairs]
                replaced.slots[key] = slot, pack_slot(*zip(*pairs, strict=True))
    return _Result([_with(array, replaced.slots) for array in old], time.thread_time() - begin, replaced)


def _with(old: NDArray[Any], replaced: dict[int, tuple[Slot, Slot]]) -> NDArray[Any]:
    """Return a copy of an array of slots in which some are replaced."""
    new = (replaced.get(id(slot), (slot, slot))[1] for slot in old.ravel().tolist())
    return np.fromiter(new, dtype=object, count=old.size).reshape(old.shape)


def _encoded_again(
    part: Sequence[tuple[Any, bytes]], codec: TrainableCodec, frame_shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Sequence[bytes]:
    """Return the payloads of a codec for the frames of other payloads.

    :param part: for each payload the handle of its codec, and the payload
    """
    writers = {id(handle): handle for handle, _ in part}
    numbers = {key: number for number, key in enumerate(writers)}
    frames = np.empty((len(part), *frame_shape), dtype)
    payloads = Payloads.of(
        [payload for _, payload in part], np.array([numbers[id(handle)] for handle, _ in part], dtype=np.int64)
    )
    codec.decode_batch([codec_of(handle) for handle in writers.values()], payloads, frames)
    return codec.encode(frames)
