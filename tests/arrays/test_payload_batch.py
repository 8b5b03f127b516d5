"""Packed payload batches are unpacked in other processes, and none makes kernels read other memory."""

from __future__ import annotations

import multiprocessing
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from slot_objects import batch_of as batch_of_slots

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.arrays.payload_batch import PackedPayloads, PayloadBatch, codec_digest
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.errors import CorruptPayload, MissingCodec

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
    return array.stream.gather(array.references[rows, 0].copy())


def by_digest(codecs: Any) -> dict[bytes, Codec]:
    return {codec_digest(codec): codec for codec in codecs}


def decoded_in_another_process(packed: PackedPayloads, codecs: list[Codec], layout: Any) -> bytes:
    batch = PayloadBatch.unpack(packed, by_digest(codecs))
    out = np.empty((batch.n_items, *SHAPE), np.uint8)
    decode(batch, layout, out)
    return out.tobytes()


# -- equal items ---------------------------------------------------------------------------------------------


def equal_in_python(batch: PayloadBatch, other: PayloadBatch) -> list[bool]:
    """Return what :meth:`.PayloadBatch.equals` returns."""
    found = []
    for item in range(batch.n_items):
        mine, theirs = (
            [
                (each.codecs[writer], payload)
                for payload, writer in zip(part.payloads, part.payloads.writers.tolist(), strict=True)
            ]
            for each, part in ((each, each.part(item, item + 1)) for each in (batch, other))
        )
        found.append(bool(mine) and mine == theirs)
    return found


@pytest.mark.parametrize("codec", ["auto", "zstd3"])
def test_items_of_two_batches_are_compared(codec: str) -> None:
    array, twin = filled(codec), pickle.loads(pickle.dumps(filled(codec)))
    for rows in (slice(None), [0, 5, 399, 20, 398], []):
        mine, theirs = batch_of(array, rows), batch_of(twin, rows)
        is_written = (array.references[rows, 0] != 0).tolist()
        assert mine.equals(theirs).tolist() == is_written
        assert theirs.equals(mine).tolist() == is_written
    rng = np.random.default_rng(0)
    for _ in range(5):
        mine, theirs = (batch_of(each, 390 + rng.integers(0, 10, 60)) for each in (array, twin))
        expected = equal_in_python(mine, theirs)
        assert 0 < sum(expected) < 60
        assert mine.equals(theirs).tolist() == expected


DELTA, OTHER = Delta(1), Delta(2)
PAIR = [(DELTA, b"first" * 9, OTHER, b"second")]


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ((Delta(1), b"first" * 9, Delta(2), b"second"), True),
        ((DELTA, b"first" * 9, DELTA, b"second"), False),
        ((OTHER, b"first" * 9, DELTA, b"second"), False),
        ((DELTA, b"first" * 9, OTHER, b"Second"), False),
        ((DELTA, b"first" * 8 + b"firsT", OTHER, b"second"), False),
        ((DELTA, b"first" * 9, OTHER, b"second "), False),
        ((DELTA, b"first" * 9, OTHER, b"secon"), False),
        ((DELTA, b"first" * 9), False),
        ((DELTA, b"first" * 9, OTHER, b"second", b""), False),
        ((OTHER, b"second", DELTA, b"first" * 9), False),
        (None, False),
    ],
)
def test_items_are_equal_if_payloads_and_codecs_are(other: Any, is_equal: bool) -> None:
    slots = [(DELTA, b"1"), None, *PAIR, *PAIR]
    for index in (2, 3):  # items before and after it are found, whatever its number of payloads
        changed = [*slots]
        changed[index] = other
        expected = [True, False, True, True]
        expected[index] = is_equal
        mine, theirs = batch_of_slots(slots, 2), batch_of_slots(changed, 2)
        assert mine.equals(theirs).tolist() == theirs.equals(mine).tolist() == expected


# -- round trip ----------------------------------------------------------------------------------------------


def test_a_batch_is_decoded_in_a_spawned_process() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for codec in ("auto", "zstd-dict", "zstd3"):
            array = filled(codec)
            batch = batch_of(array)
            assert not batch.is_uniform
            assert len(batch.codecs) > 1 or codec == "zstd3", "trained codecs"
            arguments = batch.pack(), list(batch.codecs), array.layout
            assert pool.apply(decoded_in_another_process, arguments) == np.array(array).tobytes(), codec


@pytest.mark.parametrize("codec", ["auto", "zstd3"])
@pytest.mark.parametrize("rows", [slice(100, 140), slice(0, 20), slice(399, 400), slice(0, 0), [0, 399, 200]])
def test_packing_an_unpacked_batch_returns_the_same(codec: str, rows: Any) -> None:
    batch = batch_of(filled(codec), rows)
    packed = batch.pack()
    other = PayloadBatch.unpack(packed, by_digest(batch.codecs))
    assert list(other.payloads) == list(batch.payloads)
    assert other.offsets.tolist() == batch.offsets.tolist()
    assert other.n_frames == batch.n_frames
    assert other.is_uniform == batch.is_uniform
    assert pickle.dumps(other.pack()) == pickle.dumps(packed)


def test_payloads_are_not_copied_and_shared_ones_are_packed_once() -> None:
    batch = batch_of(filled("auto"), slice(100, 140))
    packed = batch.pack()
    assert len(packed.lengths) == len({(address, writer) for address, _, writer in batch.payloads.places.tolist()})
    assert packed.nbytes < sum(map(len, batch.payloads)) / 2
    addresses = PayloadBatch.unpack(packed, by_digest(batch.codecs)).payloads.places[:, 0]
    begin = packed.content.ctypes.data
    assert ((begin <= addresses) & (addresses < begin + packed.content.nbytes)).all()
    assert len(np.unique(addresses)) == len(packed.lengths), "and shared again"


def test_missing_codecs_are_listed() -> None:
    batch = batch_of(filled("auto"))
    digests = [codec_digest(codec) for codec in batch.codecs]
    with pytest.raises(MissingCodec, match=digests[1].hex()) as caught:
        PayloadBatch.unpack(batch.pack(), by_digest(batch.codecs[:1]))
    assert caught.value.digests == digests[1:]
    assert isinstance(caught.value, LookupError)
    assert pickle.loads(pickle.dumps(caught.value)).digests == digests[1:]


# -- what does not fit ---------------------------------------------------------------------------------------


def small_batch() -> PayloadBatch:
    """Return a batch of four items of two frames: one of frames, one unwritten, two whole."""
    payloads = Payloads.of([b"one", b"", b"three", b"4444"], np.array([0, 0, 1, 0]))
    return PayloadBatch([Delta(3), Delta(4)], payloads, 2, np.array([0, 2, 2, 3, 4]))


def numbers(*values: int) -> Any:
    return np.array(values, np.uint32)


MOST = (1 << 32) - 1
INCONSISTENT: dict[str, dict[str, Any]] = {
    "no codecs": {"digests": []},
    "items of no frames": {"n_frames": 0},
    "items of other numbers of payloads": {"n_frames": 3},
    "more items than payloads": {"counts": numbers(2, 0, 1, 1, 1)},
    "very many items": {"counts": numbers(*[1] * 1000)},
    "fewer lengths": {"lengths": numbers(3, 0, 9)},
    "longer payloads": {"lengths": numbers(3, 0, 5, 5)},
    "very long payloads": {"lengths": numbers(MOST, MOST, 5, 4)},
    "a codec that is not there": {"writers": numbers(0, 0, 2, 0)},
    "fewer writers": {"writers": numbers(0, 0, 1)},
    "fewer bytes": {"content": np.frombuffer(b"onethree444", np.uint8)},
    "more bytes": {"content": np.frombuffer(b"onethree44444", np.uint8)},
    "a payload that is not there": {"indices": numbers(0, 1, 2, 4)},
    "fewer indices": {"indices": numbers(0, 1, 2)},
}


@pytest.mark.parametrize("kind", INCONSISTENT)
def test_inconsistent_parts_are_refused(kind: str) -> None:
    batch = small_batch()
    packed = batch.pack()
    assert [*PayloadBatch.unpack(packed, by_digest(batch.codecs)).payloads] == [*batch.payloads]
    with pytest.raises(CorruptPayload):
        PayloadBatch.unpack(packed._replace(**INCONSISTENT[kind]), by_digest(batch.codecs))


def test_a_batch_with_a_wrong_number_of_payloads_is_refused() -> None:
    payloads = Payloads.of([b"one", b"two", b"three"])
    with pytest.raises(ValueError, match="3 payloads are not items of 2 frames"):
        PayloadBatch([Delta(3)], payloads, 2)


def test_codecs_of_different_classes_are_refused() -> None:
    batch = small_batch()
    other = PayloadBatch([Delta(3), get_codec("zstd-dict")], batch.payloads, 2, batch.offsets)
    with pytest.raises(CorruptPayload, match="codecs of different classes"):
        PayloadBatch.unpack(other.pack(), by_digest(other.codecs))


def test_payloads_of_4_gib_are_not_packed() -> None:
    payload = Payloads.of([b"only its declared length matters"])
    payload.places[0, 1] = 1 << 32
    with pytest.raises(ValueError, match="4294967296"):
        PayloadBatch([get_codec("none")], payload, 1).pack()
