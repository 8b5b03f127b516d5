"""``packed``: its format, compared with an encoder and a decoder in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from crafted_payloads import MALFORMED_PACKED, PACKED_SHAPE
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from roundtrips import decode_guarded, roundtrip

from sb3_compressed.codecs.packed import Packed
from sb3_compressed.codecs.packed_decoder_kernels import unpack_frames
from sb3_compressed.codecs.packed_kernels import pack_frame, pack_frames
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.picture_layout import PictureLayout
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import BYTES, READ_BYTES, READ_INTS, kernel

#: Each with both orders of channels, sizes that are not multiples of eight, and widths above and below it.
SHAPES: list[tuple[int, ...]] = [
    *((), (1,), (7,), (8,), (65,), (1, 1), (1, 9), (9, 1), (5, 13), (16, 8)),
    *((1, 1, 1), (3, 1, 1), (3, 5, 7), (5, 7, 3), (3, 8, 8), (8, 8, 3), (1, 9, 11), (9, 11, 1), (3, 3, 3), (7, 7, 20)),
    *((2, 6, 5), (6, 5, 2), (4, 9, 9), (9, 9, 4), (6, 9, 10), (9, 10, 6)),
    *((2, 3, 6, 7), (2, 6, 7, 3), (2, 2, 4, 9, 9)),
]
DTYPES = "u1", "<u2", "<f4", "V3"


# -- the format in plain Python --------------------------------------------------------------------------------------


def planes_of(frames: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a frame as an array ``(pictures, channels, itemsize, height, width)``, a copy."""
    frame = frames.reshape((1,) * (3 - frames.ndim) + frames.shape)
    if frame.shape[-1] < frame.shape[-3]:
        frame = np.moveaxis(frame, -1, -3)
    pictures = np.array(frame, order="C").reshape(-1, *frame.shape[-3:], 1).view(np.uint8)
    return np.moveaxis(pictures, -1, 2).copy()


def has_colors(planes: NDArray[np.uint8]) -> bool:
    _, channels, itemsize, *_ = planes.shape
    return bool(itemsize == 1 and channels % 3 == 0)


def packed_blocks(values: list[int]) -> tuple[list[int], bytes]:
    """Return the widths of the blocks of some values, and their bytes."""
    widths, data = [], bytearray()
    for start in range(0, len(values), 8):
        block = values[start : start + 8]
        widths.append(max(block).bit_length())
        data += bytes(sum((value >> j & 1) << i for i, value in enumerate(block)) for j in range(widths[-1]))
    return widths, bytes(data)


def unpacked_blocks(widths: list[int], data: bytes) -> list[int]:
    values = []
    for width in widths:
        planes, data = data[:width], data[width:]
        values += [sum((plane >> i & 1) << j for j, plane in enumerate(planes)) for i in range(8)]
    return values


def encoded(frame: NDArray[Any]) -> bytes:
    planes = planes_of(frame)
    if has_colors(planes):
        planes[:, 0::3] -= planes[:, 1::3]
        planes[:, 2::3] -= planes[:, 1::3]
    planes[..., 1:, :] -= planes[..., :-1, :].copy()
    values: list[int] = []
    for plane in planes.reshape(-1, planes.shape[-2] * planes.shape[-1]).astype(np.int8).tolist():
        values += [2 * value if value >= 0 else -2 * value - 1 for value in plane] + [0] * (-len(plane) % 8)
    widths, data = packed_blocks(values)
    group_widths, width_data = packed_blocks(widths + [0] * (-len(widths) % 8))
    halves = [*group_widths, 0]
    header = bytes(low | high << 4 for low, high in zip(halves[0:-1:2], halves[1::2], strict=True))
    payload = bytes([1 + frame.nbytes % 255]) + header + width_data + data
    return payload if len(payload) <= frame.nbytes else b"\0" + frame.tobytes()


def decoded(payload: bytes, shape: tuple[int, ...], dtype: str) -> bytes | None:
    """Return the frame of a payload, ``None`` if it is corrupt: if it is not what its frame is encoded to.

    Uncompressed frames may be larger than they need be.
    """
    frame = np.zeros(shape, dtype)
    planes = planes_of(frame)
    if not payload or (payload[0] == 0 and len(payload) != 1 + frame.nbytes):
        return None
    if payload[0] == 0:
        return payload[1:]
    size = planes.shape[-2] * planes.shape[-1]
    n_blocks = planes.size // size * -(-size // 8)
    n_groups = -(-n_blocks // 8)
    header, rest = payload[1:][: -(-n_groups // 2)], payload[1 + -(-n_groups // 2) :]
    group_widths = [half for byte in header for half in (byte & 15, byte >> 4)][:n_groups]
    if len(group_widths) < n_groups or max(group_widths) > 4:
        return None
    widths = unpacked_blocks(group_widths, rest)[:n_blocks]
    if max(widths) > 8:
        return None
    values = np.array(unpacked_blocks(widths, rest[sum(group_widths) :])).reshape(-1, 8 * -(-size // 8))[:, :size]
    planes[:] = np.where(values % 2 == 0, values // 2, 255 - values // 2).reshape(planes.shape)
    np.cumsum(planes, axis=3, dtype=np.uint8, out=planes)
    if has_colors(planes):
        planes[:, 0::3] += planes[:, 1::3]
        planes[:, 2::3] += planes[:, 1::3]
    pictures = np.ascontiguousarray(np.moveaxis(planes, 2, -1)).view(dtype)[..., 0]
    padded = (1,) * (3 - len(shape)) + shape
    if padded[-1] < padded[-3]:
        pictures = np.moveaxis(pictures, 1, -1)
    frame[...] = pictures.reshape(shape)
    return frame.tobytes() if encoded(frame) == payload else None


# -- frames ----------------------------------------------------------------------------------------------------------


def new_frame(shape: tuple[int, ...], dtype: str, seed: int, steps: int) -> NDArray[Any]:
    """Return a random frame; the number of steps decides how smooth it is, and some lines are noise."""
    rng = np.random.default_rng(seed)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    values = rng.integers(0, steps, nbytes) + 40 * np.sin(np.arange(nbytes) / 50)
    values[rng.integers(0, max(nbytes, 1)) :][: rng.integers(0, 30)] = rng.integers(0, 256)
    frame: NDArray[Any] = values.astype(np.int64).astype(np.uint8).view(dtype).reshape(shape)
    return frame


EXTREMES: dict[str, Callable[[int], NDArray[np.uint8]]] = {
    "zeros": lambda n: np.zeros(n, np.uint8),
    "ones": lambda n: np.full(n, 255, np.uint8),
    "alternating": lambda n: np.where(np.arange(n) % 2, 255, 0).astype(np.uint8),
    "halves": lambda n: np.where(np.arange(n) % 3, 127, 128).astype(np.uint8),
    "last": lambda n: np.append(np.zeros(n - 1, np.uint8), np.uint8(255)),
    "noise": lambda n: np.random.default_rng(0).integers(0, 256, n, np.uint8),
    "ramp": lambda n: np.arange(n).astype(np.uint8),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_payloads_of_all_shapes_are_those_of_the_format(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        frames = [extreme(nbytes).view(dtype).reshape(shape) for extreme in EXTREMES.values()]
        frames += [new_frame(shape, dtype, seed, steps=4) for seed in range(3)]
        payloads = roundtrip(Packed(), np.stack(frames))
        assert payloads == [encoded(frame) for frame in frames]
        assert [decoded(payload, shape, dtype) for payload in payloads] == [frame.tobytes() for frame in frames]


@examples(200)
@example((3, 13, 11), "u1", 0, 1)
@example((9, 9), "u1", 5, 256)
@given(
    shape=st.lists(st.integers(1, 13), max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
    steps=st.sampled_from([1, 2, 3, 8, 40, 256]),
)
def test_payloads_are_those_of_the_format(shape: tuple[int, ...], dtype: str, seed: int, steps: int) -> None:
    frame = new_frame(shape, dtype, seed, steps)
    assert roundtrip(Packed(), frame[np.newaxis]) == [encoded(frame)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 20, 24), (1, 9, 7), (6, 11, 8), (2, 3, 9, 10)])
def test_payloads_depend_on_neither_the_order_of_axes_nor_that_in_memory(shape: tuple[int, ...], dtype: str) -> None:
    channel_first = np.stack([new_frame(shape, dtype, seed, steps=3) for seed in range(2)])
    channel_last = np.ascontiguousarray(np.moveaxis(channel_first, -3, -1))
    payloads = roundtrip(Packed(), channel_first)
    assert all(payload[0] for payload in payloads)
    for frames in (
        channel_last,  # in another shape
        np.moveaxis(channel_last, -1, -3),  # in another order in memory, as SB3's environments return them
        np.moveaxis(channel_first, -3, -1),
        np.asfortranarray(channel_first),
        np.repeat(channel_first, 2, axis=-1)[..., ::2],
    ):
        assert roundtrip(Packed(), frames) == payloads


def test_frames_of_a_batch_are_encoded_as_single_ones_and_left_unchanged() -> None:
    frames = np.stack([new_frame((3, 12, 12), "u1", seed, steps) for seed, steps in enumerate([1, 256, 3, 256, 9])])
    before = frames.copy()
    frames.flags.writeable = False
    payloads = roundtrip(Packed(), frames)
    assert [payload[0] == 0 for payload in payloads] == [False, True, False, True, False]
    assert payloads == [Packed().encode(frame[np.newaxis])[0] for frame in frames]
    np.testing.assert_array_equal(frames, before)
    assert Packed().encode(frames[:0]) == []


def test_smooth_pictures_take_far_less_than_their_bytes() -> None:
    y, x = np.mgrid[:84, :84]
    gray = 120 + 90 * np.sin(0.03 * x + 0.05 * y)[..., np.newaxis]
    noise = np.random.default_rng(0).integers(0, 3, (84, 84, 3))
    for picture, ratio in ((np.repeat(gray, 3, axis=-1), 0.25), (gray + noise, 0.55)):
        [payload] = roundtrip(Packed(), picture.astype(np.uint8)[np.newaxis])
        assert len(payload) < ratio * picture.size
    depth = 1000 + 9 * gray[..., 0]  # in millimeters
    [payload] = roundtrip(Packed(), depth.astype(np.uint16)[np.newaxis])
    assert len(payload) < 0.5 * depth.size * 2


# -- corrupt payloads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "empty"),
        ("00 0102", "2 raw bytes, but a frame has 105"),
        *((payload, "shape") for payload in MALFORMED_PACKED),
        ("6a 00" + "00" * 200, "202 bytes"),
    ],
)
def test_payloads_that_are_never_written_are_corrupt(payload: str, reason: str) -> None:
    frames = np.full((4, *PACKED_SHAPE), 7, np.uint8)
    with pytest.raises(CorruptPayload, match=reason) as caught:
        Packed().decode_into([bytes.fromhex("6a 01 01 01"), bytes.fromhex(payload)], frames[1:3])
    assert caught.value.index == 1
    assert (frames[[0, 3]] == 7).all()
    assert decoded(bytes.fromhex(payload), PACKED_SHAPE, "u1") is None
    assert frames[1, 0].tolist() == [[255, *[0] * 6]] * 5 or frames[1].any()


@examples(400)
@given(data=st.data())
def test_damaged_payloads_are_decoded_as_by_the_format(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(3, 5, 7), (9, 9), (7, 9, 3), (40,), (2, 5, 5)]))
    dtype = data.draw(st.sampled_from(["u1", "<u2"]))
    frame = new_frame(shape, dtype, data.draw(st.integers(0, 9)), data.draw(st.sampled_from([1, 2, 9])))
    payload = bytearray(encoded(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        match data.draw(st.sampled_from(["flip", "set", "cut", "insert", "double"])):
            case "flip" if at < len(payload):
                payload[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set" if at < len(payload):
                payload[at] = data.draw(st.integers(0, 255))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 4))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case _:
                payload += bytes(payload)
    expected = decoded(bytes(payload), shape, dtype)
    assert decode_guarded(Packed(), bytes(payload), frame.nbytes, shape, dtype) == expected


# -- kernels for other codecs ----------------------------------------------------------------------------------------


@kernel(INT, READ_BYTES, READ_INTS, BYTES, BYTES, INT)
def pack_within(
    frame: NDArray[np.uint8],
    layout: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    payload: NDArray[np.uint8],
    limit: int,
) -> int:
    """Pack one frame, as another codec's kernel does."""
    return pack_frame(frame.ctypes.data, layout.ctypes.data, scratch.ctypes.data, payload.ctypes.data, limit)


def test_nothing_is_written_beyond_a_limit_or_if_it_does_not_suffice() -> None:
    for shape in ((5, 13), (3, 5, 7), (1,)):
        frame = new_frame(shape, "u1", 1, steps=3)
        layout = PictureLayout.of(shape, 1)
        scratch = np.empty(layout.scratch_nbytes, np.uint8)
        payload = np.empty(2 * frame.nbytes + 20, np.uint8)
        size = pack_within(frame.reshape(-1), layout.numbers, scratch, payload, payload.size)
        expected = payload[:size].tobytes()
        assert size > 0
        for limit in range(payload.size):
            payload[:] = 99
            assert pack_within(frame.reshape(-1), layout.numbers, scratch, payload, limit) == size * (size <= limit)
            assert payload.tobytes() == (expected if size <= limit else b"").ljust(payload.size, b"\x63")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_use_no_more_scratch_memory_than_the_layout_states(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        frame = new_frame(shape, dtype, 1, steps=3)
        layout, rows = PictureLayout.of(shape, frame.itemsize), np.frombuffer(frame.tobytes(), np.uint8)[np.newaxis]
        guarded = np.full(64 + layout.scratch_nbytes + 64, 0xA5, np.uint8)
        scratch = guarded[64:-64]
        payloads, ends = np.empty(rows.size, np.uint8), np.zeros(1, np.int64)
        for is_channel_last in (False, True):
            numbers = layout.numbers if is_channel_last == layout.is_channel_last else layout.transposed_numbers
            pack_frames(rows, numbers, scratch, payloads, ends)
        packed, done, out = Payloads.of(Packed().encode(frame[np.newaxis])), np.zeros(1, np.uint8), np.empty_like(rows)
        unpack_frames(packed.places, layout.numbers, scratch, out, done)
        assert out.tobytes() == frame.tobytes()
        assert (guarded[:64] == 0xA5).all()
        assert (guarded[-64:] == 0xA5).all()
