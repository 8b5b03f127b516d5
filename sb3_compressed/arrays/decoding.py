"""Decoding: from the payloads of a batch to items, in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_slot_store import payload_kernels
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.codec import output_bytes
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.common.threads import in_chunks
from sb3_compressed.errors import CorruptPayload

__all__ = ["decode"]


def decode(
    batch: PayloadBatch,
    layout: FrameLayout | None,
    out: NDArray[Any],
    num_threads: int = 1,
) -> None:
    """Decode a batch into memory that the caller owns.

    :param batch: the payloads of ``n`` items
    :param layout: how items are divided into frames, ``None`` if they are not
    :param out: C-contiguous array ``(n, *item_shape)`` of the dtype that frames were encoded in
    :param num_threads: the number of threads that may decode
    :raises CorruptPayload: if a payload is damaged; ``index`` is the position of its item
    :raises ValueError: if ``out`` is not C-contiguous or not of length ``n``, or the layout has another number of
        frames
    """
    if len(out) != batch.n_items:
        raise ValueError(f"out has room for {len(out)} items, got {batch.n_items}")
    if not batch.is_uniform:
        _decode_mixed(batch, layout, out, num_threads)
        return
    if not out.flags.c_contiguous:
        raise ValueError("out must be C-contiguous, so that payloads can be decoded in place")
    payloads, codecs, n_frames, frames = batch.payloads, batch.codecs, batch.n_frames, out
    n_payloads = len(payloads.places)
    if layout is not None and n_frames > 1:
        if layout.n_frames != n_frames:  # kernels write as many frames as there are payloads
            raise ValueError(f"items of {n_frames} frames cannot have a layout of {layout.n_frames}")
        # Frames along the first axis of an item are contiguous.
        shape = (n_payloads, *layout.frame_shape)
        frames = out.reshape(shape) if layout.axis == 0 else np.empty(shape, out.dtype)
    elif n_frames > 1:
        raise ValueError(f"items that are not divided into frames cannot have {n_frames}")
    if not n_payloads:
        return
    # Frames of overlapping stacks repeat, whole items rarely do.
    repeats = _Repeats(payloads) if n_frames > 1 else None
    done = repeats.is_repeated if repeats else None

    def decode_part(start: int, end: int) -> None:
        part, part_done = payloads, done
        if end - start < n_payloads:
            part, part_done = payloads[start:end], None if done is None else done[start:end]
        try:
            if isinstance(codecs[0], TrainableCodec):
                type(codecs[0]).decode_batch(codecs, part, frames[start:end], part_done)  # type: ignore[arg-type]
            else:
                _decode_remaining(codecs[0], part, frames[start:end], part_done)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, (start + error.index) // n_frames) from error

    n_chunks = min(num_threads, out.nbytes // codecs[0].chunk_nbytes) if codecs[0].is_parallel else 1
    if n_chunks > 1:
        distinct = np.flatnonzero(done == 0) if repeats else np.arange(n_payloads)
        bounds = [*distinct.tolist(), n_payloads]
        in_chunks(lambda start, end: decode_part(bounds[start], bounds[end]), len(distinct), n_chunks)
    else:
        decode_part(0, n_payloads)
    if repeats:
        repeats.copy(output_bytes(frames, n_payloads), n_chunks)
    if layout is not None and n_frames > 1 and layout.axis != 0:
        piece = layout.channels * out.itemsize
        payload_kernels().interleave_frames(output_bytes(frames, n_payloads), piece, output_bytes(out, len(out)))


class _Repeats:
    """Payloads that occur several times in a batch. They are decoded once and copied, which is faster.

    :ivar is_repeated: for each payload 1 if an earlier one is the same, else 0, ``(n,)``
    """

    def __init__(self, payloads: Payloads) -> None:
        n = len(payloads.places)
        table = np.empty(1 << (2 * n).bit_length(), dtype=np.int64)
        self._first, repeated = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        self.is_repeated = np.empty(n, dtype=np.uint8)
        n_repeated = payload_kernels().find_repeated(payloads.places, table, self._first, repeated, self.is_repeated)
        self._repeated = repeated[:n_repeated]

    def copy(self, frames: NDArray[np.uint8], n_chunks: int) -> None:
        """Copy the frames of these payloads from the first ones.

        :param frames: ``(n, frame_nbytes)``
        :param n_chunks: the number of threads that may copy
        """

        def copy_part(start: int, end: int) -> None:
            payload_kernels().copy_repeated(self._repeated[start:end], self._first, frames)

        in_chunks(copy_part, len(self._repeated), n_chunks)


def _decode_mixed(batch: PayloadBatch, layout: FrameLayout | None, out: NDArray[Any], num_threads: int) -> None:
    """Decode items of different numbers of payloads, see :class:`PayloadBatch`."""
    counts = np.diff(batch.offsets)
    for count in np.unique(counts).tolist():
        items = np.flatnonzero(counts == count)
        if count == 0:
            out[items] = 0  # as in SB3, what was never written reads as zeros
            continue
        part = np.empty((len(items), *out.shape[1:]), dtype=out.dtype)
        try:
            decode(batch.take(items, count), layout if count > 1 else None, part, num_threads)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, int(items[error.index])) from error
        out[items] = part


def _decode_remaining(codec: Codec, payloads: Payloads, frames: NDArray[Any], done: NDArray[np.uint8] | None) -> None:
    """Decode the payloads that are not done yet, with a codec that cannot skip payloads itself."""
    if codec.skips_decoded:
        codec.decode_into(payloads.skipping(done), frames)
        return
    if done is None or not done.any():
        codec.decode_into(payloads.tolist(), frames)
        return
    remaining = np.flatnonzero(done == 0).tolist()
    part = np.empty((len(remaining), *frames.shape[1:]), dtype=frames.dtype)
    try:
        codec.decode_into([payloads[index] for index in remaining], part)
    except CorruptPayload as error:
        raise CorruptPayload(error.reason, remaining[error.index]) from error
    frames[remaining] = part
