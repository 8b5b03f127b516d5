"""The numba kernels behind ``delta``; :mod:`sb3_compressed.codecs.delta` tells the wire format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from sb3_compressed.jit import BYTE_ROWS, BYTES, INT_ROWS, INTS, READ_BYTE_ROWS, READ_BYTES, kernel

__all__ = ["DONE", "NOT_A_DELTA", "decode_deltas", "encode_deltas", "pairwise_differences"]

DONE, NOT_A_DELTA, CORRUPT = 0, 1, 2
"""What :func:`decode_deltas` says of a payload."""

FIRST_REFERENCE = 2  # header bytes below are those of zstd payloads
LONG = 255  # a number that does not fit one byte: two bytes follow
MAX_GAP = 3  # equal bytes between two runs that cost less as literals than as a new run
PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]

BLOCK = 64  # bytes compared at once, while looking for a difference
CHUNK = 1024  # bytes compared before a reference is given up for a better one


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """Turn an address into a pointer to bytes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    signature = types.CPointer(types.uint8)(types.int64)  # type: ignore[no-untyped-call]
    return signature, codegen


@kernel(types.int64, READ_BYTES, READ_BYTES)
def count_different(some: NDArray[np.uint8], others: NDArray[np.uint8]) -> int:
    """Count the positions at which two byte vectors differ; alone, so that the compiler can use wide instructions."""
    n_different = 0
    for i in range(some.size):
        n_different += some[i] != others[i]
    return n_different


@kernel(types.void, READ_BYTE_ROWS, INT_ROWS)
def pairwise_differences(frames: NDArray[np.uint8], differences: NDArray[np.int64]) -> None:
    """Write in how many bytes each two of ``frames`` ``(n, frame_nbytes)`` differ to ``differences`` ``(n, n)``."""
    for i in range(len(frames)):
        differences[i, i] = 0
        for j in range(i):
            differences[i, j] = differences[j, i] = count_different(frames[i], frames[j])


@kernel(types.int64, READ_BYTES, READ_BYTE_ROWS, types.int64)
def nearest_reference(frame: NDArray[np.uint8], references: NDArray[np.uint8], guess: int) -> int:
    """Return which reference differs from ``frame`` in the fewest bytes; a good guess makes it faster."""
    nearest = guess
    fewest = frame.size + 1
    for turn in range(-1, len(references)):
        index = guess if turn < 0 else turn
        if index == guess and turn >= 0:
            continue
        reference = references[index]
        n_different = 0
        start = 0
        while start < frame.size and n_different < fewest:
            n_different += count_different(frame[start : start + CHUNK], reference[start : start + CHUNK])
            start += CHUNK
        if n_different < fewest:
            fewest = n_different
            nearest = index
    return nearest


@kernel(types.int64, READ_BYTES, READ_BYTES, types.int64, BYTES)
def encode_delta(
    frame: NDArray[np.uint8], reference: NDArray[np.uint8], header: int, payload: NDArray[np.uint8]
) -> int:
    """Write the runs in which ``frame`` differs from ``reference``; return the bytes written, -1 without room."""
    size = frame.size
    if payload.size == 0:
        return -1
    payload[0] = header
    written = 1
    done = 0  # up to here the payload tells the frame
    i = 0
    while True:
        while i < size and frame[i] == reference[i]:
            if i % BLOCK == 0:  # whole blocks without a difference, as fast as they can be read
                while i + BLOCK <= size and count_different(frame[i : i + BLOCK], reference[i : i + BLOCK]) == 0:
                    i += BLOCK
                if i >= size or frame[i] != reference[i]:
                    break
            i += 1
        if i >= size:
            return written
        start = i
        last = i
        i += 1
        while i < size and i - last <= MAX_GAP:
            if frame[i] != reference[i]:
                last = i
            i += 1
        length = last + 1 - start
        if written + 6 + length > payload.size:
            return -1
        for number in (start - done, length):
            if number < LONG:
                payload[written] = number
                written += 1
            else:
                payload[written] = LONG
                payload[written + 1] = number & 0xFF
                payload[written + 2] = number >> 8
                written += 3
        for j in range(length):
            payload[written + j] = frame[start + j]
        written += length
        done = last + 1
        i = last + 1


@kernel(types.void, READ_BYTE_ROWS, READ_BYTE_ROWS, BYTE_ROWS, INTS)
def encode_deltas(
    frames: NDArray[np.uint8],
    references: NDArray[np.uint8],
    payloads: NDArray[np.uint8],
    lengths: NDArray[np.int64],
) -> None:
    """Encode each frame against the reference nearest to it.

    :param frames: bytes of frames, ``(n, frame_nbytes)``
    :param references: bytes of reference frames, ``(n_references, frame_nbytes)``
    :param payloads: room for the payloads, ``(n, room)``
    :param lengths: is given the length of each payload, -1 for one that has no room, ``(n,)``
    """
    nearest = 0
    for k in range(len(frames)):
        nearest = nearest_reference(frames[k], references, nearest)
        lengths[k] = encode_delta(frames[k], references[nearest], FIRST_REFERENCE + nearest, payloads[k])


@kernel(PAIR, READ_BYTES, types.int64, types.int64)
def read_number(data: NDArray[np.uint8], start: int, end: int) -> tuple[int, int]:
    """Return the number at ``start`` and where what follows it starts; -1 for that where it goes beyond ``end``."""
    if start < 0 or start >= end:
        return 0, -1
    if data[start] < LONG:
        return np.int64(data[start]), start + 1  # type: ignore[return-value]
    if start + 3 > end:
        return 0, -1
    return np.int64(data[start + 1]) | np.int64(data[start + 2]) << 8, start + 3  # type: ignore[return-value]


@kernel(types.boolean, READ_BYTES, types.int64, types.int64, BYTES)
def apply_runs(data: NDArray[np.uint8], start: int, end: int, frame: NDArray[np.uint8]) -> bool:
    """Write the runs in ``data[start:end]`` over ``frame``; return whether they are well-formed and fit it."""
    position = 0
    while start < end:
        skipped, start = read_number(data, start, end)
        length, start = read_number(data, start, end)
        position += skipped
        if start < 0 or length == 0 or position + length > frame.size or start + length > end:
            return False
        for j in range(length):
            frame[position + j] = data[start + j]
        position += length
        start += length
    return True


@kernel(types.int64, READ_BYTES, INTS, INTS, INTS, BYTE_ROWS, BYTES)
def decode_deltas(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    addresses: NDArray[np.int64],
    n_references: NDArray[np.int64],
    frames: NDArray[np.uint8],
    status: NDArray[np.uint8],
) -> int:
    """Decode the payloads that are deltas.

    :param data: all payloads, one after the other
    :param starts: where each begins, and where the last ends, ``(n + 1,)``
    :param addresses: address of the references of each payload's codec, ``(n,)``
    :param n_references: how many there are, each of ``frame_nbytes`` bytes, ``(n,)``
    :param frames: is given the frames, ``(n, frame_nbytes)``
    :param status: is given :data:`DONE`, :data:`NOT_A_DELTA` or :data:`CORRUPT` for each payload, ``(n,)``
    :return: the number of payloads that are not done
    """
    n_left = 0
    size = frames.shape[1]
    for k in range(len(frames)):
        start, end = starts[k], starts[k + 1]
        if start == end or data[start] < FIRST_REFERENCE:
            status[k] = NOT_A_DELTA
            n_left += 1
            continue
        index = int(np.int64(data[start])) - FIRST_REFERENCE
        if index >= n_references[k]:
            status[k] = CORRUPT
            n_left += 1
            continue
        reference = carray(_pointer(addresses[k] + index * size), size)  # type: ignore[call-arg]
        frame = frames[k]
        for j in range(size):
            frame[j] = reference[j]
        if apply_runs(data, start + 1, end, frame):
            status[k] = DONE
        else:
            status[k] = CORRUPT
            n_left += 1
    return n_left
