"""Packed payload batches are unpacked in other processes, and no damaged block is decoded."""

from __future__ import annotations

import multiprocessing
import pickle
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.payload_batch import (
    CHECKSUM_AT,
    HEADER,
    PayloadBatch,
    codec_digest,
    pack_sections,
    unpack_sections,
)
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.delta import Delta, ReferenceFrames
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, MissingCodec
from sb3_compressed.kernels.checksum import checksum

SHAPE = (4, 24, 24)


@cache
def filled(codec: str) -> CompressedArray:
    """Return an array with whole items from before the layout was found, of which the last row is unwritten."""
    array = CompressedArray((400, 1, *SHAPE), np.uint8, codec, num_threads=1)
    rng = np.random.default_rng(0)
    background = np.repeat(rng.integers(0, 256, (24, 6), np.uint8), 4, axis=1)
    frames = np.repeat(background[np.newaxis], 402, axis=0)
    for step, (row, column) in enumerate(rng.integers(0, 20, (402, 2))):
        frames[step, row : row + 4, column : column + 4] = step % 256
    for row in range(399):
        array[row, :] = frames[row : row + 4]
    return array


def batch_of(array: CompressedArray, rows: Any = slice(None)) -> PayloadBatch:
    return array.store.gather(array.slots[rows, 0].copy(), array.n_frames)


def by_digest(codecs: Any) -> dict[bytes, Codec]:
    return {codec_digest(codec): codec for codec in codecs}


def pack(batch: PayloadBatch) -> bytes:
    return pack_sections(batch.sections()).tobytes()


def unpack(block: Any, codecs: dict[bytes, Codec]) -> PayloadBatch:
    return PayloadBatch.from_sections(unpack_sections(block), codecs)


def decoded_in_another_process(block: bytes, codecs: list[Codec], layout: Any) -> bytes:
    batch = unpack(block, by_digest(codecs))
    out = np.empty((batch.n_items, *SHAPE), np.uint8)
    decode(batch, layout, out)
    return out.tobytes()


# -- round trip ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["auto", "zstd-dict", "zstd3"])
def test_a_batch_is_decoded_in_a_spawned_process(codec: str) -> None:
    array = filled(codec)
    batch = batch_of(array)
    assert not batch.is_uniform
    assert len(batch.codecs) > 1 or codec == "zstd3", "trained codecs"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = pack(batch), list(batch.codecs), array._encoder.layout
        found = pool.apply(decoded_in_another_process, arguments)
    assert found == np.array(array).tobytes()


@pytest.mark.parametrize("codec", ["auto", "zstd3"])
@pytest.mark.parametrize("rows", [slice(100, 140), slice(0, 20), slice(399, 400), slice(0, 0), [0, 399, 200]])
def test_packing_an_unpacked_batch_returns_the_same_block(codec: str, rows: Any) -> None:
    array = filled(codec)
    batch = batch_of(array, rows)
    block = pack(batch)
    for copied in (block, bytearray(block), memoryview(block)):
        other = unpack(copied, by_digest(batch.codecs))
        assert list(other.payloads) == list(batch.payloads)
        assert other.offsets.tolist() == batch.offsets.tolist()
        assert other.n_frames == batch.n_frames
        assert other.is_uniform == batch.is_uniform
        assert pack(other) == block


def test_payloads_are_not_copied() -> None:
    block = pack(batch_of(filled("auto"), slice(100, 140)))
    batch = unpack(block, by_digest(batch_of(filled("auto")).codecs))
    begin = np.frombuffer(block, np.uint8).ctypes.data
    addresses = batch.payloads.places[:, 0]
    assert ((begin <= addresses) & (addresses < begin + len(block))).all()


def test_digests_are_those_of_equal_codecs() -> None:
    codecs = [get_codec("zstd3"), get_codec("zstd4"), Delta(3), Delta(3, dictionary=b"d"), get_codec("none")]
    assert len({codec_digest(codec) for codec in codecs}) == len(codecs)
    for codec in codecs:
        assert codec_digest(pickle.loads(pickle.dumps(codec))) == codec_digest(codec)


def test_missing_codecs_are_listed() -> None:
    batch = batch_of(filled("auto"))
    digests = [codec_digest(codec) for codec in batch.codecs]
    with pytest.raises(MissingCodec, match=digests[1].hex()) as caught:
        unpack(pack(batch), by_digest(batch.codecs[:1]))
    assert caught.value.digests == digests[1:]
    assert isinstance(caught.value, LookupError)
    assert pickle.loads(pickle.dumps(caught.value)).digests == digests[1:]


# -- the format ----------------------------------------------------------------------------------------------

GOLDEN_CODEC = Delta(3, references=ReferenceFrames(bytes(range(16)), 16))
GOLDEN_PAYLOADS = [b"one", b"", b"three", b"4444"]
GOLDEN_OFFSETS = [0, 2, 2, 3, 4]


def golden_batch() -> PayloadBatch:
    """Return a batch of four items of two frames: one of frames, one unwritten, two whole."""
    codecs = [GOLDEN_CODEC, Delta(4)]
    return PayloadBatch(codecs, Payloads.of(GOLDEN_PAYLOADS, np.array([0, 0, 1, 0])), 2, np.array(GOLDEN_OFFSETS))


def sections_of(batch: PayloadBatch) -> dict[str, bytes]:
    return {name: section.tobytes() for name, section in unpack_sections(pack(batch)).items()}


def unpack_golden(sections: dict[str, bytes]) -> PayloadBatch:
    return unpack(pack_sections(sections), by_digest(golden_batch().codecs))


def test_unknown_optional_sections_are_skipped() -> None:
    batch = unpack_golden({"rewards": b"123", **sections_of(golden_batch()), "x": b""})
    assert list(batch.payloads) == GOLDEN_PAYLOADS


def test_unknown_required_sections_are_refused() -> None:
    with pytest.raises(CorruptPayload, match="a later version packed it, with the sections Shapes"):
        unpack_golden({**sections_of(golden_batch()), "Shapes": b""})


@pytest.mark.parametrize("name", ["Codecs", "Items", "Lengths", "Writers", "Payloads"])
def test_missing_sections_are_refused(name: str) -> None:
    sections = sections_of(golden_batch())
    del sections[name]
    with pytest.raises(CorruptPayload, match=f"has no sections {name}"):
        unpack_golden(sections)


# -- damage --------------------------------------------------------------------------------------------------

MOST = (1 << 32) - 1

INCONSISTENT: dict[str, dict[str, bytes]] = {
    "no codecs": {"Codecs": b""},
    "half a codec": {"Codecs": bytes(8)},
    "no number of frames": {"Items": b""},
    "items of no frames": {"Items": struct.pack("<5I", 0, 2, 0, 1, 1)},
    "items of other numbers of payloads": {"Items": struct.pack("<4I", 3, 2, 1, 1)},
    "more items than payloads": {"Items": struct.pack("<6I", 2, 2, 0, 1, 1, 1)},
    "items of very many frames": {"Items": struct.pack("<4I", MOST, MOST, 1, 1)},
    "very many items": {"Items": struct.pack("<I", MOST) * 1000},
    "fewer lengths": {"Lengths": struct.pack("<3I", 3, 0, 9)},
    "longer payloads": {"Lengths": struct.pack("<4I", 3, 0, 5, 5)},
    "very long payloads": {"Lengths": struct.pack("<4I", MOST, MOST, 5, 4)},
    "part of a length": {"Lengths": bytes(15)},
    "a codec that is not there": {"Writers": struct.pack("<4I", 0, 0, 2, 0)},
    "fewer writers": {"Writers": struct.pack("<3I", 0, 0, 1)},
    "fewer bytes": {"Payloads": b"onethree444"},
    "more bytes": {"Payloads": b"onethree44444"},
}


@pytest.mark.parametrize("kind", INCONSISTENT)
def test_inconsistent_sections_are_refused(kind: str) -> None:
    with pytest.raises(CorruptPayload):
        unpack_golden({**sections_of(golden_batch()), **INCONSISTENT[kind]})


def test_codecs_of_different_classes_are_refused() -> None:
    batch = golden_batch()
    other = PayloadBatch([Delta(3), get_codec("zstd-dict")], batch.payloads, 2, batch.offsets)
    with pytest.raises(CorruptPayload, match="codecs of different classes"):
        unpack(pack(other), by_digest(other.codecs))


@pytest.mark.parametrize("position", [8, 12, 28 + 16, 28 + 20, 28 + 24, 28 + 28])
@pytest.mark.parametrize("value", [0, 27, 1 << 20, MOST])
def test_wrong_sizes_with_right_checksums_are_refused_or_harmless(position: int, value: int) -> None:
    block = bytearray(pack(golden_batch()))
    struct.pack_into("<I", block, position, value)
    data = np.frombuffer(bytes(block), np.uint8)
    correct = checksum(data[HEADER.size :], seed=checksum(data[:CHECKSUM_AT]))
    struct.pack_into("<Q", block, CHECKSUM_AT, correct)
    try:
        batch = unpack(block, by_digest(golden_batch().codecs))
    except (CorruptPayload, MissingCodec):
        return
    assert list(batch.payloads) == GOLDEN_PAYLOADS


def flip(block: bytes, position: int, byte: int) -> bytes:
    position %= len(block)
    return block[:position] + bytes([block[position] ^ byte]) + block[position + 1 :]


CHANGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flipped": flip,
    "cut": lambda block, position, _: block[: position % (len(block) + 1)],
    "cut at the front": lambda block, position, _: block[position % (len(block) + 1) :],
    "inserted": lambda block, position, byte: (
        block[: position % len(block)] + bytes([byte]) + block[position % len(block) :]
    ),
    "removed": lambda block, position, _: block[: position % len(block)] + block[position % len(block) + 1 :],
}


@examples(400)
@given(st.sampled_from(sorted(CHANGES)), st.integers(0, 100_000), st.integers(0, 255))
def test_a_changed_block_is_refused_or_the_same(change: str, position: int, byte: int) -> None:
    block = small_block()
    changed = CHANGES[change](block, position, byte)
    try:
        batch = unpack(changed, by_digest(batch_of(filled("auto")).codecs))
    except CorruptPayload:
        assert changed != block
        return
    assert pack(batch) == block


@cache
def small_block() -> bytes:
    return pack(batch_of(filled("auto"), slice(390, 400)))


@examples(200)
@given(st.dictionaries(st.sampled_from(["Codecs", "Items", "Lengths", "Writers", "Payloads"]), st.binary(max_size=24)))
def test_any_sections_are_refused_or_consistent(sections: dict[str, bytes]) -> None:
    try:
        batch = unpack_golden({**sections_of(golden_batch()), **sections})
    except (CorruptPayload, MissingCodec):
        return
    assert sum(map(len, batch.payloads)) == len(b"".join(batch.payloads))
    assert batch.offsets[-1] == len(batch.payloads)
    frames: NDArray[np.uint8] = np.empty((batch.n_items, 2, 16), np.uint8)
    assert len(frames) == len(batch.offsets) - 1


def test_payloads_of_4_gib_are_not_packed() -> None:
    payload = Payloads.of([b"only its declared length matters"])
    payload.places[0, 1] = 1 << 32
    with pytest.raises(ValueError, match="payloads of 4294967296 bytes are too large to be packed"):
        pack(PayloadBatch([get_codec("none")], payload, 1))
