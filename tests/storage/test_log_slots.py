"""Slots on disk: all kinds come back, and what they share is written once."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from slot_objects import LogOfCodec, Slot, batch_of, load_slots, slot_n_frames, write_slots

from sb3_compressed.arrays import memory_log
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import TrainableCodec, get_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_kinds import SLOTS
from storage.slot_logs import CODECS, assert_same_slots, keep, new_log, opened

RELAXED = examples(150)


def assert_gathers(stored: Any, addresses: NDArray[np.int64], slots: Sequence[Slot], n_frames: int) -> PayloadBatch:
    """Assert that the payloads of slots are gathered, and by which codec each is."""
    found: PayloadBatch = stored.gather(addresses, n_frames)
    expected = batch_of(slots, n_frames)
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert [*found.payloads] == [*expected.payloads]
    assert [ctypes.string_at(place, nbytes) for place, nbytes, _ in found.payloads.places.tolist()] == [*found.payloads]
    writers = zip(found.payloads.writers.tolist(), expected.payloads.writers.tolist(), strict=True)
    assert all(found.codecs[ours] == expected.codecs[theirs] for ours, theirs in writers)
    assert found.n_frames == n_frames
    return found


# -- round trip -----------------------------------------------------------------------------------------------


SLOTS_OF_ALL_KINDS: list[Slot] = [
    None,
    b"a whole item",
    b"",
    b"1",
    b"\0" * 40,
    (b"first", b"second", b"third"),
    (b"", b""),
    (b"1", b"", b"1"),
    (CODECS[0], b"whole, trained"),
    (CODECS[0], b""),
    (CODECS[1], b""),
    (CODECS[0], b"1"),
    (CODECS[2], b"1"),
    (CODECS[0], b"1st", b"2nd", b"3rd", b"4th"),
    (CODECS[0], b"old", b"older", CODECS[1], b"new", b"newer"),
    (CODECS[0], b"1", CODECS[1], b"1", CODECS[2], b"1", CODECS[3], b"1"),
    (CODECS[2], b"", CODECS[0], b"", b""),
    None,
]


def test_slots_of_all_kinds_are_read_back(log: Log, tmp_path: Path) -> None:
    addresses = write_slots(log, SLOTS_OF_ALL_KINDS)
    assert (addresses.dtype, addresses.shape) == (np.dtype(np.int64), (len(SLOTS_OF_ALL_KINDS),))
    assert [address == 0 for address in addresses] == [slot is None for slot in SLOTS_OF_ALL_KINDS]
    assert_same_slots(load_slots(log, addresses), SLOTS_OF_ALL_KINDS)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(addresses)), 3))
    assert_same_slots(load_slots(log, addresses[order]), [SLOTS_OF_ALL_KINDS[i] for i in order])
    reader = opened(tmp_path)
    assert_same_slots(load_slots(reader, addresses), SLOTS_OF_ALL_KINDS)
    reader.close()


@st.composite
def any_slots(draw: st.DrawFn) -> list[list[Slot]]:
    """Draw batches of slots that share payloads and themselves."""
    payloads = [draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5)) for _ in range(5)]
    pools = [[bytes(bytearray(payload)) for payload in pool] for pool in payloads]  # of the codecs, and of none

    def frames(pool: int, n: int) -> list[bytes]:
        return [draw(st.sampled_from(pools[pool])) for _ in range(n)]

    def slot() -> Slot:
        kind = draw(st.sampled_from(["unwritten", "whole", "frames", "trained", "trained", "mixed"]))
        if kind == "unwritten":
            return None
        if kind == "whole":
            return draw(st.sampled_from(pools[4]))
        if kind == "frames":
            return tuple(frames(4, draw(st.integers(2, 5))))
        n_codecs = 1 if kind == "trained" else draw(st.integers(2, 4))
        chosen = draw(st.permutations(range(4)))[:n_codecs]
        return tuple(part for index in chosen for part in (CODECS[index], *frames(index, draw(st.integers(1, 3)))))

    pool_of_slots = [slot() for _ in range(draw(st.integers(1, 12)))]
    return draw(st.lists(st.lists(st.sampled_from(pool_of_slots), max_size=10), min_size=1, max_size=4))


@pytest.fixture(scope="module")
def common_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    made = new_log(tmp_path_factory.mktemp("log"))
    yield made
    made.close()


@RELAXED
@given(batches=any_slots())
def test_any_slots_are_read_back_however_they_share(common_log: Log, batches: list[list[Slot]]) -> None:
    written: list[NDArray[np.int64]] = []
    for batch in batches:
        written.append(write_slots(common_log, batch))
        addresses, slots = np.concatenate(written), [slot for batch in batches[: len(written)] for slot in batch]
        assert_same_slots(load_slots(common_log, addresses), slots)
    for n_frames in range(1, 5):
        alike = [k for k, slot in enumerate(slots) if slot_n_frames(slot) == n_frames and isinstance(slot, tuple)]
        alike = [k for k in alike if type(slots[k][0]) is not bytes]  # type: ignore[index]
        if alike:
            assert_gathers(common_log, addresses[alike], [slots[k] for k in alike], n_frames)


# -- written once --------------------------------------------------------------------------------------------


def stacks(n_slots: int, nbytes: int, codec: TrainableCodec | None = None) -> list[Slot]:
    """Return slots of four payloads, each of which has three of the one before."""
    rng = np.random.default_rng(0)
    payloads = [rng.bytes(nbytes) for _ in range(n_slots + 3)]
    return [((codec,) if codec else ()) + tuple(payloads[k : k + 4]) for k in range(n_slots)]


@pytest.mark.parametrize("codec", [None, CODECS[0]])
def test_what_items_share_is_written_once(codec: TrainableCodec | None, log: Log) -> None:
    slots = stacks(1000, 500, codec)
    start = log.last.end
    addresses = write_slots(log, [*slots, None, *slots[::-1]])
    expected = 1003 * (12 + 500) + 1000 * (8 + 4 * 4)  # documented headers
    expected += 0 if codec is None else len(json.dumps(codec.get_config()))
    assert expected <= log.last.end - start <= expected + 300  # and those of records
    assert addresses[1000] == 0
    np.testing.assert_array_equal(addresses[:1000], addresses[:1000:-1])
    assert_same_slots(load_slots(log, addresses[:1000]), slots)


def test_a_codec_is_written_once(log: Log) -> None:
    codec = Delta(5, dictionary=bytes(5000))
    place = log.address_of_codec(codec)
    end = log.last.end
    addresses = write_slots(log, [(codec, b"%d" % k) for k in range(20)])
    assert log.address_of_codec(codec) == place
    assert log.last.end - end < 20 * 100
    assert log.codec(place) == codec
    assert log.codec(place) is log.codec(place)
    assert {id(slot[0]) for slot in load_slots(log, addresses)} == {id(log.codec(place))}


# -- gathering -----------------------------------------------------------------------------------------------


def test_gathered_payloads_outlive_their_segments(log: Log) -> None:
    slots = stacks(10, 300, CODECS[0])
    found = log.gather(write_slots(log, slots), 4)
    expected = [*found.payloads]
    log.last.append(SLOTS, bytes(2_000_000))  # it is mapped again
    keep(log, [])
    log.begin_segment()
    keep(log, [])
    log.close()
    assert [ctypes.string_at(place, nbytes) for place, nbytes, _ in found.payloads.places.tolist()] == expected


def test_unwritten_and_whole_items_are_gathered_among_frames(log: Log) -> None:
    frames, whole = (CODECS[0], b"first", b"second"), (CODECS[1], b"whole")
    for slots in ([None, frames], [frames, None, whole, frames], [None, None], [whole], [frames, frames]):
        found = assert_gathers(log, write_slots(log, slots), slots, 2)
        assert np.diff(found.offsets).tolist() == [*map(slot_n_frames, slots)]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_payloads_that_slots_share_are_found(kind: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_log, "MIN_NBYTES", 1 << 12)
    stored = log if kind == "folder" else MemoryLog()
    slots, written = [], []
    for first in range(0, 60, 20):  # on disk, other payloads have the same offsets in each segment
        part = [*stacks(60, 300, CODECS[0])[first : first + 20], (CODECS[0], b"%d whole" % first), None]
        written.append(write_slots(stored, part))
        slots += part
        if kind == "folder":
            log.begin_segment()
    addresses = np.concatenate(written)
    assert len({*(addresses[addresses != 0] >> 32).tolist()}) >= 3
    whole = np.flatnonzero([slot_n_frames(slot) <= 1 for slot in slots])
    drawn = np.random.default_rng(0).integers(0, len(slots), 150)
    for n_frames, order in ((4, drawn), (0, drawn), (4, whole.repeat(2)), (1, whole.repeat(2)), (4, drawn[:0])):
        found = assert_gathers(stored, addresses[order], [slots[k] for k in order], n_frames)
        _, first_ones, numbers = np.unique(found.payloads.places, axis=0, return_index=True, return_inverse=True)
        assert len(first_ones) < len(found.payloads) or not order.size
        np.testing.assert_array_equal(found.first_same, first_ones[numbers.reshape(-1)])
        elsewhere = PayloadBatch(found.codecs, found.payloads, n_frames, found.offsets)
        np.testing.assert_array_equal(elsewhere.first_same, found.first_same)


@pytest.mark.parametrize(
    "slot",
    [b"whole", (b"1", b"2"), (CODECS[0], b"1", b"2", b"3"), (CODECS[0], b"1", CODECS[1], b"2", b"3")],
)
def test_slots_of_other_codecs_or_numbers_of_frames_are_refused(slot: Slot, log: Log) -> None:
    stored = LogOfCodec(log, CODECS[0])
    good = (CODECS[0], b"first", b"second")
    assert list(stored.gather(write_slots(stored, [good, good]), 2).payloads) == [b"first", b"second"] * 2
    for index, slots in enumerate(([slot, good], [good, slot])):
        addresses = write_slots(stored, slots)
        with pytest.raises(CorruptPayload) as caught:
            stored.gather(addresses, 2)
        assert caught.value.index == index
        assert_same_slots(load_slots(log, addresses), slots)


@pytest.mark.parametrize("name", ["zstd3", "none"])
def test_slots_without_trained_codecs_are_gathered_for_their_codec(name: str, log: Log) -> None:
    codec = get_codec(name)
    stored = LogOfCodec(log, codec)
    slots: list[Slot] = [(b"1", b"", b"3"), None, b"whole", (b"4", b"5", b"6")]
    found = stored.gather(write_slots(stored, slots), 3)
    assert [*found.payloads] == [b"1", b"", b"3", b"whole", b"4", b"5", b"6"]
    assert (found.offsets.tolist(), {*found.codecs}) == ([0, 3, 3, 4, 7], {codec})
    with pytest.raises(CorruptPayload, match=f"is by delta, not by {codec.name}") as caught:
        stored.gather(write_slots(stored, [slots[0], (CODECS[0], b"1", b"2", b"3")]), 3)
    assert caught.value.index == 1
    with pytest.raises(CorruptPayload, match="no trainable codec") as caught:
        LogOfCodec(log, CODECS[0]).gather(write_slots(stored, [(CODECS[0], b"1", b"2", b"3"), slots[0]]), 3)
    assert caught.value.index == 1
