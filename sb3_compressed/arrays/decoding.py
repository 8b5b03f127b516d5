"""Decoding: from the payloads of a batch to items, in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.codec import output_bytes
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.threads import in_chunks

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
    :raises ValueError: if ``out`` is not C-contiguous or not of length ``n``
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
        # Frames along the first axis of an item are contiguous.
        shape = (n_payloads, *layout.frame_shape)
        frames = out.reshape(shape) if layout.axis == 0 else np.empty(shape, out.dtype)
    elif n_frames > 1:
        raise ValueError(f"items that are not divided into frames cannot have {n_frames}")
    if not n_payloads:
        return
    first = repeated = None
    if n_frames > 1:  # frames of overlapping stacks repeat, whole items rarely do
        first, repeated = _first_occurrences(payloads)

    def decode_part(start: int, end: int) -> None:
        done = None if repeated is None else repeated[start:end]
        part = payloads if end - start == n_payloads else payloads[start:end]
        try:
            if isinstance(codecs[0], TrainableCodec):
                type(codecs[0]).decode_batch(codecs, part, frames[start:end], done)  # type: ignore[arg-type]
            else:
                _decode_remaining(codecs[0], part, frames[start:end], done)
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, (start + error.index) // n_frames) from error

    n_chunks = min(num_threads, out.nbytes // codecs[0].chunk_nbytes)
    if n_chunks > 1 and codecs[0].is_parallel:
        in_chunks(decode_part, n_payloads, n_chunks)
    else:
        decode_part(0, n_payloads)
    if first is not None:
        from sb3_compressed.arrays.payload_kernels import copy_repeated

        copy_repeated(first, output_bytes(frames, n_payloads))
    if layout is not None and n_frames > 1 and layout.axis != 0:
        from sb3_compressed.arrays.payload_kernels import interleave_frames

        piece = layout.channels * out.itemsize
        interleave_frames(output_bytes(frames, n_payloads), piece, output_bytes(out, len(out)))


def _first_occurrences(payloads: Payloads) -> tuple[NDArray[np.int64] | None, NDArray[np.uint8] | None]:
    """Return for each payload the index of the first one that is the same, and 1 where it is an earlier one, ``(n,)``.

    Both are ``None`` if all payloads are different.
    """
    # On first use, since importing numba takes long.
    from sb3_compressed.arrays.payload_kernels import find_repeated

    n_payloads = len(payloads.places)
    first, repeated = np.empty(n_payloads, dtype=np.int64), np.empty(n_payloads, dtype=np.uint8)
    table = np.empty(1 << (2 * n_payloads).bit_length(), dtype=np.int64)
    return (first, repeated) if find_repeated(payloads.places, table, first, repeated) else (None, None)


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
