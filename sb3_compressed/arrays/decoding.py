"""``decode``: from the payloads of a batch to items, in threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.codec import UINT8
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.common.threads import in_chunks
from sb3_compressed.errors import CorruptPayload

__all__ = ["decode", "payload_kernels"]


@cache
def payload_kernels() -> ModuleType:
    """Import the kernels on first use: importing numba is slow."""
    from sb3_compressed.arrays import payload_kernels

    return payload_kernels


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
    payloads, codecs, n_frames = batch.payloads, batch.codecs, batch.n_frames
    n_payloads = len(payloads.places)
    if not n_payloads:
        return
    # Memory for the frames, each of one payload.
    if n_frames == 1:
        frames = out
    elif layout is None or layout.n_frames != n_frames:  # kernels write as many frames as there are payloads
        expected = "no layout" if layout is None else f"a layout of {layout.n_frames}"
        raise ValueError(f"items of {n_frames} frames cannot have {expected}")
    elif layout.axis == 0:  # then the frames of an item are contiguous
        frames = out.reshape(n_payloads, *layout.frame_shape)
    else:
        frames = np.empty((n_payloads, *layout.frame_shape), out.dtype)
    # Frames of overlapping stacks repeat, whole items rarely do. Repeated ones are copied, which is faster.
    first_same = batch.first_same if n_frames > 1 else None
    done = None if first_same is None else (first_same != np.arange(n_payloads)).view(UINT8)
    n_chunks = min(num_threads, frames.nbytes // codecs[0].chunk_nbytes) if codecs[0].is_parallel else 1
    try:
        if n_chunks > 1:
            _decode_in_chunks(codecs, payloads, frames, done, n_chunks)
        else:
            type(codecs[0]).decode_batch(codecs, payloads, frames, done)
    except CorruptPayload as error:
        raise CorruptPayload(error.reason, error.index // n_frames) from error
    rows = frames.view(UINT8).reshape(n_payloads, frames.nbytes // n_payloads)
    if first_same is not None:
        copy_repeated = payload_kernels().copy_repeated
        in_chunks(lambda begin, end: copy_repeated(first_same, begin, end, rows), n_payloads, n_chunks)
    if layout is not None and layout.axis != 0 and n_frames > 1:
        from sb3_compressed.arrays.interleaving_kernels import interleave_frames

        items = out.view(UINT8).reshape(len(out), out.nbytes // len(out))
        interleave_frames(rows, layout.piece * out.itemsize, items)


def _decode_in_chunks(
    codecs: Sequence[Codec], payloads: Payloads, frames: NDArray[Any], done: NDArray[np.uint8] | None, n_chunks: int
) -> None:
    """Decode payloads in so many threads; the other arguments are those of :meth:`.Codec.decode_batch`."""
    distinct = np.arange(len(frames)) if done is None else np.flatnonzero(done == 0)
    bounds = [*distinct.tolist(), len(frames)]

    def decode_chunk(first: int, last: int) -> None:
        part = slice(bounds[first], bounds[last])
        try:
            type(codecs[0]).decode_batch(codecs, payloads[part], frames[part], None if done is None else done[part])
        except CorruptPayload as error:
            raise CorruptPayload(error.reason, bounds[first] + error.index) from error

    in_chunks(decode_chunk, len(distinct), n_chunks)


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
