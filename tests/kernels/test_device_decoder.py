"""The decoder for GPUs, compiled for the CPU: equal to the CPU's decoder, and never outside its memory."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import pytest
from crafted_payloads import (
    MALFORMED_BLOCKS,
    MALFORMED_PACKED,
    MUTATIONS,
    PACKED_SHAPE,
    composed,
    pieces,
    sequence,
)
from device_emulator import KERNELS, Batch, Emulator, Reason, compile_program, compiler, run_program
from golden_payloads import CHANGES_OF_SOURCE, DELTAS, FRAMES, GOLDEN, MALFORMED_DELTAS, delta_frames
from numpy.typing import NDArray
from slot_objects import slot_of, write_slots

from sb3_compressed import Codec, CorruptPayload
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.codecs import TrainableCodec, get_codec
from sb3_compressed.codecs.delta import Delta, ReferenceFrames, coder_of
from sb3_compressed.codecs.packed import Packed

if compiler() is None:
    pytest.skip("there is no C++ compiler: c++, or what CXX names", allow_module_level=True)

N_CRAFTED = 10_000

Decode = Callable[[Batch], tuple[NDArray[Any], tuple[int, Reason] | None]]


@pytest.fixture(scope="session")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Decode:
    """Return a function that decodes a batch with one lane and with 32, which must be equal."""
    folder = tmp_path_factory.mktemp("device_decoder")
    emulators = [Emulator(folder, lanes, window_nbytes) for lanes, window_nbytes in ((1, 64), (32, 1024), (32, 64))]

    def decode_with_all(batch: Batch) -> tuple[NDArray[Any], tuple[int, Reason] | None]:
        out, problem = emulators[0].decode(batch)
        for emulator in emulators[1:]:
            other_out, other_problem = emulator.decode(batch)
            assert problem == other_problem
            assert problem is not None or out.tobytes() == other_out.tobytes()
        return out, problem

    return decode_with_all


def decodable_deltas() -> tuple[Delta, NDArray[np.uint8]]:
    """Return the codec and the frames of golden deltas; without zstd, which a GPU cannot decode."""
    codec, frames = delta_frames()
    return replace(codec, coder="lz4"), frames


class Slots:
    """Slots in memory.

    :param codec: their codec
    """

    def __init__(self, codec: Codec) -> None:
        self.log, self._codec = MemoryLog(), codec
        self._table = self.log.new_table((600,))
        self._n_slots = 0

    @property
    def addresses(self) -> NDArray[np.int64]:
        """The addresses of the slots, ``(n,)``."""
        return self._table[: self._n_slots]

    def add(self, *slots: Any) -> None:
        """Add slots as :class:`MemoryLog` takes them."""
        end = self._n_slots + len(slots)
        self._table[self._n_slots : end] = write_slots(self.log, slots)
        self._n_slots = end

    def write(self, codec: Codec, payloads: Sequence[bytes]) -> None:
        """Add a slot with these payloads."""
        slot: Any = tuple(payloads) if len(payloads) > 1 else payloads[0]
        self.add(slot_of([codec] * len(payloads), payloads) if isinstance(codec, TrainableCodec) else slot)

    def batch(self, shape: tuple[int, ...], dtype: Any = np.uint8, layout: FrameLayout | None = None) -> Batch:
        """Return the batch of all slots."""
        return Batch.of_log(self.log, self._codec, self.addresses, shape, dtype, layout)

    def decode(
        self, decode: Decode, shape: tuple[int, ...], dtype: Any = np.uint8, layout: FrameLayout | None = None
    ) -> NDArray[Any]:
        """Return all items, which must be those that the log returns."""
        batch = self.batch(shape, dtype, layout)
        encoder = FrameEncoder(shape, np.dtype(dtype), self._codec, layout)
        expected = self.log.read(batch.slots, encoder, np.dtype(dtype))
        out, problem = decode(batch)
        assert problem is None
        assert out.tobytes() == expected.tobytes()
        return out


# -- golden payloads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", FRAMES)
def test_golden_payloads_decode(decode: Decode, frame: str) -> None:
    expected, delta = FRAMES[frame], Delta(coder="lz4")
    golden = {name: bytes.fromhex(GOLDEN[name][frame]) for name in ("none", "packed", "lz4-block")}
    payloads: list[tuple[Codec, bytes]] = [(get_codec("none"), golden["none"])]
    if expected.size:
        payloads += [(delta, b"\xfe" + golden["lz4-block"]), (delta, b"\xff" + golden["none"])]
    if golden["packed"][0]:
        payloads += [(delta, b"\xfb" + golden["packed"])]
    for codec, payload in payloads:
        slots = Slots(codec)
        slots.write(codec, [payload])
        assert slots.decode(decode, expected.shape, expected.dtype).tobytes() == expected.tobytes()


def test_golden_deltas_decode(decode: Decode) -> None:
    codec, frames = decodable_deltas()
    slots = Slots(codec)
    for payload in [*DELTAS, *CHANGES_OF_SOURCE]:
        slots.write(codec, [bytes.fromhex(payload)])
    np.testing.assert_array_equal(slots.decode(decode, (600,))[:4], frames)


#: A frame as versions before 0.5 wrote it.
OLD_HEADERS = [header + "00" * 600 for header in ("fc", "fd")]


@pytest.mark.parametrize("payload", [*MALFORMED_DELTAS, *OLD_HEADERS, ""], ids=lambda payload: payload[:60])
def test_malformed_deltas_are_reported(decode: Decode, payload: str) -> None:
    codec, _ = decodable_deltas()
    slots = Slots(codec)
    for each in (DELTAS[0], payload, DELTAS[1]):
        slots.write(codec, [bytes.fromhex(each)])
    assert decode(slots.batch((600,)))[1] == (1, Reason.INVALID_PAYLOAD)


# -- frames ----------------------------------------------------------------------------------------------------------

#: Tiny and odd ones, those of games, and both orders of channels.
SHAPES: list[tuple[int, ...]] = [
    *((1,), (16,), (7, 9), (84, 84), (1, 84, 84), (3, 64, 64), (64, 64, 3), (3, 128, 128), (128, 128, 3)),
    *((3, 5, 7), (5, 7, 3), (2, 33, 20), (33, 20, 2), (4, 21, 22), (6, 12, 12), (2, 3, 20, 24), (3, 20, 21), (40, 1)),
]
CODERS = "delta", "lz4", "packed", "raw"


def pictures(n: int, shape: tuple[int, ...], dtype: str = "u1") -> NDArray[Any]:
    """Return smooth frames on which noise and equal tiles move."""
    rng = np.random.default_rng(0)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    background = (60 * np.sin(np.arange(nbytes) / 90) + rng.integers(0, 3, nbytes)).astype(np.int64).astype(np.uint8)
    frames = np.repeat(background[np.newaxis], n, axis=0)
    length = min(nbytes // 20, 60)
    tile = rng.integers(0, 256, length, np.uint8)
    for frame in frames:
        for value in (7, 255):
            frame[rng.integers(nbytes) :][:length] = value
        for start in rng.integers(0, nbytes, 3):
            frame[start:][:length] = tile[: nbytes - start]
        frame[rng.integers(nbytes)] = 99
    return frames.view(dtype).reshape(n, *shape)


def codec_for(coder: str, frames: NDArray[Any]) -> Delta:
    """Return a trained codec that encodes most frames with one coder."""
    trained = replace(Delta(coder="lz4").train(frames), tries_delta=True, tries_coder=True, finds_tiles=True)
    if coder == "delta":
        return replace(trained, coder="raw", tries_coder=False)
    return replace(
        trained,
        coder="raw" if coder == "raw" else "lz4",
        tries_delta=False,
        tries_lz4=coder == "lz4",
        tries_packed=coder == "packed",
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_frames_of_all_shapes_decode(decode: Decode, shape: tuple[int, ...]) -> None:
    for dtype in ("u1", "<u2", "<f4") if math.prod(shape) < 2000 else ("u1",):
        frames = pictures(12, shape, dtype)
        batches = [frames]
        if len(shape) == 3 and shape[0] < 5:  # channel-last in memory, as environments return them
            batches.append(np.ascontiguousarray(np.moveaxis(frames, 1, -1)).transpose(0, 3, 1, 2))
        for batch in batches:
            assert_all_coders_decode(decode, batch)


def assert_all_coders_decode(decode: Decode, frames: NDArray[Any]) -> None:
    written = set()
    slots = Slots(Delta(coder="lz4"))
    slots.add(None)
    for coder in CODERS:
        codec = codec_for(coder, frames[:6])
        payloads = codec.encode(frames)
        written |= {*map(coder_of, payloads)}
        for payload in payloads:
            slots.write(codec, [payload])
    assert written == {*CODERS} or frames.itemsize > 1 or frames[0].size < 1000
    out = slots.decode(decode, frames.shape[1:], frames.dtype)
    assert out.tobytes() == bytes(frames[0].nbytes) + len(CODERS) * frames.tobytes()


@pytest.mark.parametrize("size", [100, 1000, 70_000])
def test_uncompressed_frames_of_every_alignment_decode(decode: Decode, size: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (20, size), np.uint8)
    codec = get_codec("none")
    slots, others = Slots(codec), Slots(codec)
    others.log = slots.log
    for length, frame in enumerate(frames):
        others.write(codec, [bytes(length)])
        slots.write(codec, [frame.tobytes()])
    np.testing.assert_array_equal(slots.decode(decode, (size,)), frames)


@pytest.mark.parametrize("distance", [*range(1, 36), 48, 64, 100, 1000])
def test_matches_of_every_distance_and_length_decode(decode: Decode, distance: int) -> None:
    codec = Delta(coder="lz4", channels=2, channel_last_nbytes=1002 + 4000 + 8)
    literals = np.random.default_rng(0).bytes(1002)
    for length in (4, 15, 16, 31, 33, 64, 200, 4000):
        repeated = (literals[-distance:] * (length // distance + 1))[:length]
        payload = b"\xfe" + sequence(literals, distance, length) + sequence(b"12345678")
        frame = literals + repeated + b"12345678"
        slots = Slots(codec)
        slots.write(codec, [payload])
        stored = slots.decode(decode, (len(frame),))
        assert stored.tobytes() == frame if length < 4000 else stored.reshape(2, -1).T.tobytes() == frame


# -- items -----------------------------------------------------------------------------------------------------------

STACKS = [
    FrameLayout((4, 20, 24), 0, 4),
    FrameLayout((12, 20, 24), 0, 4),  # four RGB frames
    FrameLayout((20, 24, 4), -1, 4),
    FrameLayout((20, 24, 12), -1, 4),
    FrameLayout((4, 3, 20, 24), 0, 4),
    FrameLayout((3, 4, 20, 24), 1, 4),
    FrameLayout((3, 20, 72), -1, 3),  # frames that a codec may store in channel-last order
    FrameLayout((7, 5, 21), -1, 3),
    FrameLayout((5,), 0, 5),
    FrameLayout((33,), 0, 3),
]


@pytest.mark.parametrize("dtype", ["u1", "<f4"])
@pytest.mark.parametrize("layout", STACKS, ids=str)
def test_stacks_decode(decode: Decode, layout: FrameLayout, dtype: str) -> None:
    items = pictures(7, layout.item_shape, dtype)
    stacks = layout.split(items)
    frames = stacks.reshape(-1, *layout.frame_shape)
    orders = [frames]
    if frames.ndim == 4:
        orders.append(np.ascontiguousarray(np.moveaxis(frames, 1, -1)).transpose(0, 3, 1, 2))
    codecs = [codec_for(coder, order) for coder in CODERS for order in orders]
    whole_codec = codec_for("lz4", items)
    slots, expected = Slots(Delta(coder="lz4")), []
    for codec in codecs:
        slots.add(None)
        for stack in stacks:
            slots.write(codec, codec.encode(stack))
        for payload in whole_codec.encode(items[:2]):
            slots.write(whole_codec, [payload])
        expected += [np.zeros_like(items[0]), *items, *items[:2]]
    payloads = [codecs[k % len(codecs)].encode(stacks[0, k : k + 1])[0] for k in range(layout.n_frames)]
    slots.add(slot_of([codecs[k % len(codecs)] for k in range(layout.n_frames)], payloads))
    out = slots.decode(decode, layout.item_shape, dtype, layout)
    assert out.tobytes() == np.stack([*expected, items[0]]).tobytes()


@pytest.mark.parametrize("layout", STACKS, ids=str)
def test_uncompressed_stacks_decode(decode: Decode, layout: FrameLayout) -> None:
    items, codec = pictures(3, layout.item_shape), get_codec("none")
    slots = Slots(codec)
    for stack in layout.split(items):
        slots.write(codec, codec.encode(stack))
    slots.write(codec, codec.encode(items[:1]))
    out = slots.decode(decode, layout.item_shape, layout=layout)
    assert out.tobytes() == items.tobytes() + items[0].tobytes()


def test_slots_of_several_segments_decode(decode: Decode) -> None:
    frames = pictures(500, (84, 84))
    codec = codec_for("raw", frames[:6])
    slots = Slots(codec)
    for frame in frames:
        slots.write(codec, codec.encode(frame[np.newaxis]))
    slots.addresses[:200] = 0
    slots.log.free_unused()
    assert min(slots.log.segments) > 1
    assert len(slots.log.segments) > 1
    np.testing.assert_array_equal(slots.decode(decode, (84, 84))[200:], frames[200:])


# -- what cannot be decoded ------------------------------------------------------------------------------------------


def test_the_first_frame_that_cannot_be_decoded_is_reported(decode: Decode) -> None:
    layout = FrameLayout((2, 600), 0, 2)
    codec, _ = decodable_deltas()
    good, bad, zstd = bytes.fromhex(DELTAS[0]), b"\x02\x05", Delta().encode(np.zeros((1, 600), np.uint8))[0]
    slots = Slots(codec)
    for payloads in ([good, good], [good, bad], [bad, bad], [zstd, good]):
        slots.write(codec, payloads)
    batch = slots.batch((2, 600), layout=layout)

    def problem(addresses: Sequence[int], **changes: Any) -> tuple[int, Reason] | None:
        return decode(replace(batch, slots=np.array(addresses, np.int64), **changes))[1]

    first, second, third, fourth = slots.addresses.tolist()
    assert problem([]) is None
    assert problem([first, first]) is None
    assert problem([first, second, third, fourth]) == (3, Reason.INVALID_PAYLOAD)
    assert problem([first, first, fourth, third]) == (4, Reason.NEEDS_ZSTD)
    for address in (first + (1 << 32), -1, -(1 << 63), (1 << 63) - 1, 1, first | 0xFFFFFFFF):
        assert problem([first, address]) == (2, Reason.DAMAGED_SLOT)
    for codecs in ({}, {0: codec}, {2: codec}):
        assert problem([first], codecs=codecs) == (0, Reason.UNKNOWN_CODEC)
    assert problem([first], segments={}) == (0, Reason.DAMAGED_SLOT)


def damaged_slots() -> Iterator[tuple[Batch, bool]]:
    """Yield batches of one slot in a damaged segment, and whether the CPU reads it."""
    rng = np.random.default_rng(0)
    layout = FrameLayout((2, 600), 0, 2)
    codec, _ = decodable_deltas()
    for n_payloads in (1, 2):
        slots = Slots(codec)
        slots.write(codec, [bytes.fromhex(payload) for payload in DELTAS[1 : 1 + n_payloads]])
        [segment] = slots.log.segments.values()
        content = segment.bytes[: segment.next_offset].copy()
        offset = int(slots.addresses[0]) & 0xFFFFFFFF
        payload = int.from_bytes(content[offset + 4 : offset + 8].tobytes(), "little")
        damaged = [content[:length] for length in range(len(content))]
        for at in [*range(offset, len(content)), *range(payload, payload + 8)]:  # what precedes the payload's bytes
            for value in (0, 1, 2, 3, 255, content[at] ^ 1 << rng.integers(8), rng.integers(256)):
                changed = np.append(content, rng.integers(0, 256, 100 * rng.integers(2), np.uint8))
                changed[at] = value
                damaged.append(changed)
        for segment.bytes in damaged:
            batch = slots.batch((2, 600), layout=layout)
            try:
                encoder = FrameEncoder((2, 600), np.dtype(np.uint8), codec, layout)
                slots.log.read(batch.slots, encoder, np.dtype(np.uint8))
                is_read = True
            except (CorruptPayload, KeyError):  # an unknown codec is a KeyError
                is_read = False
            yield batch, is_read


def test_damaged_slots_are_reported_as_on_the_cpu(decode: Decode) -> None:
    found = []
    for batch, is_read in damaged_slots():
        problem = decode(batch)[1]
        assert (problem is None) == is_read
        found.append(problem)
    assert {each[1] for each in found if each} >= {Reason.DAMAGED_SLOT, Reason.DAMAGED_PAYLOAD, Reason.UNKNOWN_CODEC}
    assert None in found


# -- crafted payloads ------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """What a payload is for: its codec and the frame."""

    codec: Codec
    shape: tuple[int, ...]
    dtype: str = "u1"


Source = Callable[[np.random.Generator], bytes]
"""Returns a valid payload."""


def of_pieces(size: int) -> Source:
    return lambda rng: pieces(rng, 3, size)


def of_blocks(size: int) -> Source:
    def payload(rng: np.random.Generator) -> bytes:
        block: bytes = lz4.block.compress(composed(rng, size), store_size=False)
        return b"\xfe" + block

    return payload


def uncompressed(size: int) -> Source:
    return lambda rng: b"\xff" + rng.bytes(size)


def packed(shape: tuple[int, ...], dtype: str) -> Source:
    found = []
    for steps in (1, 2, 3, 5, 9, 30):
        values = np.random.default_rng(steps).integers(0, steps, (4, *shape), np.uint8).astype(dtype)
        found += [b"\xfb" + payload for payload in Packed().encode(values) if len(payload) < values[0].nbytes]
    return lambda rng: found[rng.integers(len(found))]


@cache
def sources() -> list[tuple[Format, Source]]:
    """Return sources of all coders, orders of channels, and sizes below and above those of windows and words."""
    found: list[tuple[Format, Source]] = [(Format(get_codec("none"), (21,)), lambda rng: rng.bytes(21))]
    shapes: list[tuple[tuple[int, ...], int]] = [((600,), 1), ((3000,), 1), ((20,), 1)]
    shapes += [((3, 12, 10), 3), ((2, 9, 7), 2), ((3, 11, 7), 3)]
    for shape, channels in shapes:
        size = math.prod(shape)
        content = np.random.default_rng(size).integers(0, 3, 3 * size, np.uint8).tobytes()
        codec = Delta(
            coder="lz4",
            references=ReferenceFrames(content, size),
            channels=channels,
            channel_last_nbytes=size if channels > 1 else 0,
        )
        found += [(Format(codec, shape), source) for source in (of_pieces(size), of_blocks(size), uncompressed(size))]
    codec = Delta(coder="lz4", channels=3, channel_last_nbytes=3 * 8 * 12)
    shapes_of_packed: list[tuple[int, ...]] = [(40,), (9, 9), (16, 8), (3, 5, 7), (7, 9, 3), (2, 5, 5), (3, 8, 12)]
    shapes_of_packed += [(6, 9, 10), (9, 10, 6), (2, 3, 6, 7), (3, 30, 40)]
    for shape in shapes_of_packed:
        for dtype in ("u1", "<u2"):
            found.append((Format(codec, shape, dtype), packed(shape, dtype)))
    return found


class Crafted(NamedTuple):
    """A batch of one crafted payload, and its frame, or what is wrong with it."""

    batch: Batch
    payload: bytes
    frame: bytes = b""
    reason: Reason | None = None

    @staticmethod
    def of(wanted: Format, payload: bytes, rng: np.random.Generator) -> Crafted:
        """Return a payload of a format."""
        head = rng.bytes(int(rng.integers(20)))  # so that payloads begin at every alignment
        codec_number = 0 if isinstance(wanted.codec, TrainableCodec) else 2
        numbers = np.array([1, len(head) + 8, len(payload), codec_number], "<u4").tobytes()
        segments = {5: np.frombuffer(head + numbers + payload, np.uint8)}
        codecs = {codec_number: wanted.codec}
        batch = Batch(segments, np.array([5 << 32 | len(head)]), codecs, wanted.shape, wanted.dtype)
        if isinstance(wanted.codec, Delta) and payload[:1] in (b"\0", b"\1"):
            return Crafted(batch, payload, reason=Reason.NEEDS_ZSTD)
        out = batch.new_out()
        try:
            wanted.codec.decode_into([payload], out)
        except CorruptPayload:
            return Crafted(batch, payload, reason=Reason.INVALID_PAYLOAD)
        return Crafted(batch, payload, out.tobytes())


def malformed(rng: np.random.Generator) -> Iterator[Crafted]:
    """Yield payloads that no encoder writes, though most of them are nearly valid."""
    deltas, packed_format = Format(decodable_deltas()[0], (600,)), Format(Delta(coder="lz4"), PACKED_SHAPE)
    blocks = Format(Delta(coder="lz4"), (48,))
    yield from (Crafted.of(deltas, bytes.fromhex(payload), rng) for payload in MALFORMED_DELTAS)
    yield from (Crafted.of(packed_format, bytes.fromhex("fb" + payload), rng) for payload in MALFORMED_PACKED)
    yield from (Crafted.of(blocks, b"\xfe" + payload, rng) for payload, _ in MALFORMED_BLOCKS.values())
    for n_literals in range(20, 80):
        yield Crafted.of(blocks, b"\xfe" + sequence(bytes(n_literals)), rng)
        yield Crafted.of(blocks, b"\xfe" + sequence(b"abc" * 8, 20, n_literals) + sequence(bytes(12)), rng)
    frame = np.zeros((1, 2, 8), np.uint8)
    frame[0, :, 0] = 63, 70
    [payload] = Packed().encode(frame)
    assert len(payload) == frame.nbytes, "as large as its frame, and larger with the header"
    yield Crafted.of(Format(Delta(coder="lz4"), (2, 8)), b"\xfb" + payload, rng)
    yield Crafted.of(blocks, b"\xfd" + bytes(48), rng)
    for delta in DELTAS:  # in a segment that ends within the payload
        whole = Crafted.of(deltas, bytes.fromhex(delta), rng)
        for n in range(1, len(whole.payload) + 1):
            segments = {5: whole.batch.segments[5][:-n]}
            yield Crafted(replace(whole.batch, segments=segments), whole.payload, reason=Reason.DAMAGED_PAYLOAD)


def crafted(n: int, seed: int) -> Iterator[Crafted]:
    """Yield crafted payloads, of which about half are damaged."""
    rng = np.random.default_rng(seed)
    yield from malformed(rng)
    for _ in range(n):
        wanted, source = sources()[rng.integers(len(sources()))]
        payload = source(rng)
        if rng.random() < 0.6:
            payload = MUTATIONS[rng.integers(len(MUTATIONS))](rng, payload)
        yield Crafted.of(wanted, payload, rng)


def assert_as_on_the_cpu(
    each: Crafted, out: NDArray[Any], problem: tuple[int, Reason] | None, n_decoded: dict[str, int]
) -> None:
    """Compare what was decoded; count decoded and corrupt payloads by their coder."""
    [codec] = each.batch.codecs.values()
    coder = coder_of(each.payload) if isinstance(codec, Delta) else codec.name
    assert problem == (None if each.reason is None else (0, each.reason))
    assert each.reason is not None or out.tobytes() == each.frame
    key = coder if each.reason is None else f"corrupt {coder}"
    n_decoded[key] = n_decoded.get(key, 0) + 1


def assert_all_were_crafted(n_decoded: dict[str, int], n: int) -> None:
    for coder in ("delta", "lz4", "packed", "raw"):
        assert n_decoded[coder] > n / 40, n_decoded
        assert n_decoded[f"corrupt {coder}"] > n / 100, n_decoded


def test_crafted_payloads_are_decoded_as_by_the_cpu(decode: Decode) -> None:
    n_decoded: dict[str, int] = {}
    for each in crafted(N_CRAFTED // 5, seed=0):
        assert_as_on_the_cpu(each, *decode(each.batch), n_decoded)
    assert_all_were_crafted(n_decoded, N_CRAFTED // 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sanitizers", "lanes", "n"),
    [("address,undefined", 1, N_CRAFTED), ("address,undefined", 32, N_CRAFTED // 10), ("thread", 32, N_CRAFTED // 20)],
)
def test_sanitizers_find_nothing_with_crafted_payloads(sanitizers: str, lanes: int, n: int, tmp_path: Path) -> None:
    program = compile_program(tmp_path, lanes, sanitizers)
    if program is None:
        pytest.skip(f"the C++ compiler has no sanitizers {sanitizers}")
    payloads = [*crafted(n, seed=lanes)]
    slots = [batch for batch, _ in damaged_slots()]
    n_decoded: dict[str, int] = {}
    results = run_program(program, [*(each.batch for each in payloads), *slots], tmp_path)
    for each, result in zip(payloads, results, strict=False):
        assert_as_on_the_cpu(each, *result, n_decoded)
    assert_all_were_crafted(n_decoded, n)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_it_compiles_for_devices(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    command = [nvcc, "-cubin", f"-arch={architecture}", "-Werror", "all-warnings", "-o", str(tmp_path / "cubin")]
    subprocess.run([*command, str(KERNELS / "device_decoder.cu")], check=True)
