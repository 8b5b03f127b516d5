"""Slots on disk: all kinds come back, what they share is written once, and no damage or address is a crash."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from programs import run

from sb3_compressed.arrays.payload_batch import PayloadBatch, gather_in_python
from sb3_compressed.arrays.slots import Slot, slot_n_frames
from sb3_compressed.codecs import Codec, TrainableCodec, get_codec
from sb3_compressed.codecs.config import codec_config
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage import log_slot_store as slots_module
from sb3_compressed.storage.checksum import checksum
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.log_slot_kernels import SLOT_SEED
from sb3_compressed.storage.log_slot_store import CODEC, SLOTS, SlotReader, SlotWriter, StoredSlots, address_of

RELAXED = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)

CODECS: list[TrainableCodec] = [Delta(1), Delta(2), ZstdDict(3), Delta(1)]  # two of them equal, and still not one


#: Of the segment that slots are written to first; a log begins with a snapshot.
FIRST = 1


def new_log(folder: Path, room: int = 100_000) -> Log:
    log = Log.create(folder)
    log.write_snapshot([])
    log.begin_segment(room)
    return log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = new_log(tmp_path)
    yield made
    made.close()


def opened(folder: Path) -> Log:
    """Open a log for reading, of which all segments belong to the state."""
    log = Log.open(folder)
    for segment in log.open_chain():
        assert [*segment.records()] or segment is log.last
    for number in log.numbers():
        segment = log.open_segment(number)
        log.ids[number] = segment.id
        segment.close()
    return log


def keep(log: Log, numbers: list[int]) -> None:
    """Delete all segments that there are but some."""
    log.write_snapshot([])
    log.keep(numbers)


def assert_same_slots(found: Any, expected: list[Slot]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is type(theirs)
        assert ours == theirs


def assert_gathers_what_is_loaded(stored: Any, addresses: NDArray[np.int64], n_frames: int) -> PayloadBatch:
    """Hold that slots are gathered whose payloads are where the kernel says they are."""
    found: PayloadBatch | None = stored.gather(addresses, n_frames)
    assert found is not None
    expected = gather_in_python(stored.load(addresses), CODECS[0], n_frames)
    assert [*found.payloads] == [*expected.payloads]
    assert [ctypes.string_at(place, nbytes) for place, nbytes, _ in found.payloads.places.tolist()] == [*found.payloads]
    writers = zip(found.payloads.writers.tolist(), expected.payloads.writers.tolist(), strict=True)
    assert all(found.codecs[ours] == expected.codecs[theirs] for ours, theirs in writers)
    assert found.n_frames == n_frames
    return found


# -- there and back ------------------------------------------------------------------------------------------

SLOTS_OF_ALL_KINDS: list[Slot] = [
    None,
    b"a whole item",
    b"",
    b"1",
    b"\0" * 40,
    (b"first", b"second", b"third"),
    (b"", b""),
    (b"1", b"", b"1"),
    (CODECS[0], b"whole, learned"),
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


def test_slots_of_all_kinds_come_back(log: Log, tmp_path: Path) -> None:
    stored = StoredSlots(log)
    addresses = stored.write(SLOTS_OF_ALL_KINDS)
    assert (addresses.dtype, addresses.shape) == (np.dtype(np.int64), (len(SLOTS_OF_ALL_KINDS),))
    assert [address == 0 for address in addresses] == [slot is None for slot in SLOTS_OF_ALL_KINDS]
    assert_same_slots(stored.load(addresses), SLOTS_OF_ALL_KINDS)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(addresses)), 3))
    assert_same_slots(stored.load(addresses[order]), [SLOTS_OF_ALL_KINDS[i] for i in order])
    reader = opened(tmp_path)
    assert_same_slots(SlotReader(reader).load(addresses), SLOTS_OF_ALL_KINDS)
    reader.close()


def test_there_is_nothing_to_do_for_no_slots(log: Log) -> None:
    stored, end = StoredSlots(log), log.last.end
    assert stored.write([]).tolist() == stored.load(np.zeros(0, np.int64)).tolist() == []
    assert stored.write([None] * 3).tolist() == [0, 0, 0]
    assert stored.load(np.zeros(3, np.int64)).tolist() == [None] * 3
    assert stored.gather(np.zeros(0, np.int64), 1) is None
    assert log.last.end == end


@st.composite
def any_slots(draw: st.DrawFn) -> list[list[Slot]]:
    """Draw batches of slots that share payloads and themselves."""
    payloads = [draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5)) for _ in range(5)]
    pools = [[bytes(bytearray(payload)) for payload in pool] for pool in payloads]  # of the codecs, and of none

    def frames(pool: int, n: int) -> list[bytes]:
        return [draw(st.sampled_from(pools[pool])) for _ in range(n)]

    def slot() -> Slot:
        kind = draw(st.sampled_from(["unwritten", "whole", "frames", "learned", "learned", "mixed"]))
        if kind == "unwritten":
            return None
        if kind == "whole":
            return draw(st.sampled_from(pools[4]))
        if kind == "frames":
            return tuple(frames(4, draw(st.integers(2, 5))))
        n_codecs = 1 if kind == "learned" else draw(st.integers(2, 4))
        chosen = draw(st.permutations(range(4)))[:n_codecs]
        return tuple(part for index in chosen for part in (CODECS[index], *frames(index, draw(st.integers(1, 3)))))

    known = [slot() for _ in range(draw(st.integers(1, 12)))]
    return draw(st.lists(st.lists(st.sampled_from(known), max_size=10), min_size=1, max_size=4))


@pytest.fixture(scope="module")
def common_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    made = new_log(tmp_path_factory.mktemp("log"), 1_000_000)
    yield made
    made.close()


@RELAXED
@given(batches=any_slots())
def test_any_slots_come_back_however_they_share(common_log: Log, batches: list[list[Slot]]) -> None:
    stored = StoredSlots(common_log)
    written: list[NDArray[np.int64]] = []
    for batch in batches:
        written.append(stored.write(batch))
        addresses, slots = np.concatenate(written), [slot for batch in batches[: len(written)] for slot in batch]
        for reader in (stored.reader, SlotReader(common_log)):
            assert_same_slots(reader.load(addresses), slots)
    for n_frames in range(1, 5):
        alike = [k for k, slot in enumerate(slots) if slot_n_frames(slot) == n_frames and isinstance(slot, tuple)]
        alike = [k for k in alike if type(slots[k][0]) is not bytes]  # type: ignore[index]
        if alike:
            assert_gathers_what_is_loaded(stored, addresses[alike], n_frames)


@pytest.mark.parametrize("payload", [b"", b"1", b"of several bytes"])
def test_one_object_may_be_a_payload_of_several_codecs(payload: bytes, log: Log) -> None:
    slots: list[Slot] = [(codec, payload) for codec in CODECS[:3]]
    slots += [payload, (payload, b"other"), (CODECS[0], payload, CODECS[1], payload)]
    stored = StoredSlots(log)
    for _ in range(2):
        assert_same_slots(stored.load(stored.write(slots)), slots)


# -- written once --------------------------------------------------------------------------------------------


def stacks(n_slots: int, nbytes: int, codec: TrainableCodec | None = None) -> list[Slot]:
    """Return slots of four payloads, each of which has three of the one before."""
    rng = np.random.default_rng(0)
    payloads = [rng.bytes(nbytes) for _ in range(n_slots + 3)]
    return [((codec,) if codec else ()) + tuple(payloads[k : k + 4]) for k in range(n_slots)]


@pytest.mark.parametrize("codec", [None, CODECS[0]])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_what_slots_share_is_written_once(at_once: int, codec: TrainableCodec | None, log: Log) -> None:
    slots = stacks(1000, 500, codec)
    stored, start = StoredSlots(log), log.last.end
    batches = [slots[k : k + at_once] for k in range(0, len(slots), at_once)]
    addresses = np.concatenate([stored.write(batch) for batch in batches])
    expected = 1003 * (12 + 500) + 1000 * (8 + 4 * 4) + len(batches) * 17  # headers as they are documented
    assert expected <= log.last.end - start <= expected + 200
    assert_same_slots(stored.load(addresses), slots)


def test_a_slot_that_was_just_written_is_not_written_again(log: Log) -> None:
    stored = StoredSlots(log)
    slots = [*stacks(20, 500, CODECS[0]), b"whole item"]
    addresses = stored.write(slots)
    end = log.last.end
    np.testing.assert_array_equal(stored.write(slots[::-1]), addresses[::-1])
    np.testing.assert_array_equal(stored.write([None, slots[3], None, slots[3]]), [0, addresses[3], 0, addresses[3]])
    assert log.last.end == end


def test_a_codec_is_written_once(log: Log) -> None:
    codec = Delta(5, dictionary=bytes(5000))
    stored = StoredSlots(log)
    place = stored.writer.place_of_codec(codec)
    end = log.last.end
    addresses = stored.write([(codec, b"%d" % k) for k in range(20)])
    assert stored.writer.place_of_codec(codec) == place
    assert log.last.end - end < 20 * 100
    assert stored.reader.codec(place) == codec
    assert stored.reader.codec(place) is stored.reader.codec(place)
    assert {id(slot[0]) for slot in stored.load(addresses)} == {id(stored.reader.codec(place))}


def test_loaded_slots_share_what_they_shared(log: Log) -> None:
    stored = StoredSlots(log)
    slots = stacks(30, 100, CODECS[0])
    loaded = stored.load(stored.write([*slots, *slots]))
    for before, after in pairwise(loaded[:30]):
        assert [id(payload) for payload in before[2:]] == [id(payload) for payload in after[1:-1]]
        assert before[0] is after[0]
    assert all(ours is theirs for ours, theirs in zip(loaded[:30], loaded[30:], strict=True))


def test_sharing_goes_on_when_more_is_loaded_than_is_remembered(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_LOADED", 10)
    stored = StoredSlots(log)
    slots = stacks(100, 20, CODECS[0])
    loaded = stored.load(stored.write(slots))
    assert_same_slots(loaded, slots)
    for before, after in pairwise(loaded):
        assert [id(payload) for payload in before[2:]] == [id(payload) for payload in after[1:-1]]


# -- segments ------------------------------------------------------------------------------------------------


def test_all_that_a_slot_needs_is_in_its_segment(log: Log, tmp_path: Path) -> None:
    stored = StoredSlots(log)
    slots = stacks(30, 200, CODECS[0])
    first = stored.write(slots[:10])
    log.begin_segment(100_000)
    second = stored.write(slots[5:20])
    log.begin_segment(100_000)
    third = stored.write(slots[15:])
    assert {*(np.concatenate([first, second, third]) >> 32).tolist()} == {1, 2, 3}
    everything = np.concatenate([first, second, third])
    assert_same_slots(stored.load(everything), [*slots[:10], *slots[5:20], *slots[15:]])
    assert_gathers_what_is_loaded(stored, everything, 4)
    assert_gathers_what_is_loaded(stored, np.random.default_rng(1).permutation(everything), 4)
    keep(log, [2, 3])
    reader = opened(tmp_path)
    for each in (stored.reader, SlotReader(reader)):
        left = np.concatenate([third, second])
        assert_same_slots(each.load(left), [*slots[15:], *slots[5:20]])
        assert_gathers_what_is_loaded(each, left, 4)
    reader.close()


@pytest.mark.parametrize("way", ["load", "gather"])
def test_a_slot_of_a_segment_that_is_missing_is_named(way: str, log: Log, tmp_path: Path) -> None:
    stored, written = StoredSlots(log), []
    for _ in range(3):
        written.append(stored.write([(CODECS[0], b"first", b"second")]))
        log.begin_segment(1000)
    keep(log, [1])
    reader = opened(tmp_path)
    with pytest.raises(CorruptPayload, match=r"00000002\.log is missing") as caught:
        READERS[way](SlotReader(reader), np.concatenate([written[0], written[1]]))
    assert caught.value.index == 1
    reader.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.storage.log_slot_store import StoredSlots
from storage.test_slots import new_log, opened

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = new_log(Path(sys.argv[1]), 1_000_000)
stored = StoredSlots(log)
old, new = Delta(1), Delta(2)
frames = [bytes([k]) * 300 for k in range(20)]
slots = [(old, *frames[k : k + 4]) for k in range(10)]
addresses = stored.write(slots)
for free in (10, 100, 2000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.last.end + free, resource.RLIM_INFINITY))
    more = [(old, *frames[k : k + 4]) for k in range(10, 17)] + [(new, b"of another")]
    try:
        stored.write(more)
        print("written")
    except OSError:
        print("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(stored.load(addresses).tolist() == slots)
    small = [(old, b"small", *frames[1:4])]
    print(stored.load(stored.write(small)).tolist() == small)
print(stored.load(stored.write(more)).tolist() == more)
log.close()
log = opened(Path(sys.argv[1]))
print(StoredSlots(log).load(addresses).tolist() == slots)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_what_a_full_disk_did_not_take_is_not_referred_to(tmp_path: Path) -> None:
    assert run(FULL_DISK, tmp_path).splitlines() == ["refused", "True", "True"] * 3 + ["True", "True"]


# -- gathering -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_frames", [1, 2, 4])
def test_what_learned_codecs_wrote_is_gathered(n_frames: int, log: Log, tmp_path: Path) -> None:
    rng = np.random.default_rng(n_frames)
    stored, written = StoredSlots(log), []
    for number in range(3):
        if number:
            log.begin_segment(100_000)
        slots: list[Slot] = []
        for _ in range(100):
            parts: list[Any] = [CODECS[rng.integers(3)]]
            for _ in range(n_frames):
                if len(parts) > 1 and rng.random() < 0.3:
                    parts.append(CODECS[rng.integers(3)])
                parts.append(rng.bytes(int(rng.integers(0, 300))))
            slots.append(tuple(parts))
        written.append(stored.write(slots))
    addresses = rng.permutation(np.concatenate(written))
    reader = opened(tmp_path)
    for each in (stored.reader, SlotReader(reader)):
        found = assert_gathers_what_is_loaded(each, addresses, n_frames)
        assert len(found.codecs) == 9, "each of three in each of three segments"
        assert_gathers_what_is_loaded(each, addresses[:1], n_frames)
        assert [found.payloads[i] for i in (0, -1)] == [[*found.payloads][i] for i in (0, -1)]
    reader.close()


def test_gathered_payloads_stay_where_they_are(log: Log) -> None:
    stored = StoredSlots(log)
    slots = stacks(10, 300, CODECS[0])
    found = stored.gather(stored.write(slots), 4)
    assert found is not None
    expected = [*found.payloads]
    log.last.make_room(50_000_000)
    keep(log, [])
    log.begin_segment(1000)
    keep(log, [])
    log.close()
    assert [ctypes.string_at(place, nbytes) for place, nbytes, _ in found.payloads.places.tolist()] == expected


@pytest.mark.parametrize(
    "slot",
    [
        None,
        b"whole",
        (b"1", b"2"),
        (CODECS[0], b"1"),
        (CODECS[0], b"1", b"2", b"3"),
        (CODECS[0], b"1", CODECS[1], b"2", b"3"),
    ],
)
def test_other_slots_are_not_gathered(slot: Slot, log: Log) -> None:
    stored = StoredSlots(log)
    good = (CODECS[0], b"first", b"second")
    assert stored.gather(stored.write([good, good]), 2) is not None
    for slots in ([slot, good], [good, slot], [slot]):
        addresses = stored.write(slots)
        assert stored.gather(addresses, 2) is None
        assert_same_slots(stored.load(addresses), slots)


def test_more_codecs_than_there_is_room_for_are_not_gathered(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredSlots(log)
    addresses = stored.write([(CODECS[0], b"1"), (CODECS[1], b"2"), (CODECS[0], b"3")])
    monkeypatch.setattr(slots_module, "MAX_CODECS", 2)
    assert_gathers_what_is_loaded(stored, addresses, 1)
    monkeypatch.setattr(slots_module, "MAX_CODECS", 1)
    assert stored.gather(addresses, 1) is None
    assert_gathers_what_is_loaded(stored, addresses[::2].copy(), 1)


def test_what_codecs_learned_decodes_what_they_wrote(log: Log, tmp_path: Path) -> None:
    """Of several, each with its own references and dictionary."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(rng.integers(0, 256, (3, 1, 20, 10), np.uint8), 2, axis=3)
    frames = np.repeat(scenes, 100, axis=1)  # [scenes, steps, height, width]
    frames[:, np.arange(100), np.arange(100) % 20] = 255
    slots: list[Slot] = []
    for scene in frames:
        codec = Delta().train(scene)
        slots += [(codec, payload) for payload in codec.encode(scene)]
    addresses = StoredSlots(log).write(slots)
    reader = opened(tmp_path)
    found = assert_gathers_what_is_loaded(SlotReader(reader), addresses, 1)
    out = np.empty((300, 20, 20), np.uint8)
    found.decode(0, 300, out)
    np.testing.assert_array_equal(out.reshape(frames.shape), frames)
    reader.close()


# -- damage --------------------------------------------------------------------------------------------------

Read = Callable[[SlotReader, NDArray[np.int64]], Any]

READERS: dict[str, Read] = {
    "load": lambda reader, addresses: reader.load(addresses),
    "gather": lambda reader, addresses: reader.gather(addresses, 2),
}


class Damage:
    """Flips bits of a file and undoes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = path.read_bytes()

    def flipped(self, start: int, end: int) -> Iterator[int]:
        """Flip each bit of some bytes, one after the other; yield the byte."""
        with open(self.path, "r+b", buffering=0) as file:
            for position in range(start, end):
                for bit in range(8):
                    os.pwrite(file.fileno(), bytes([self.whole[position] ^ 1 << bit]), position)
                    yield position
                os.pwrite(file.fileno(), self.whole[position : position + 1], position)


@pytest.mark.parametrize("way", READERS)
def test_every_flipped_bit_of_a_slot_or_payload_is_seen(way: str, log: Log, tmp_path: Path) -> None:
    slots: list[Slot] = [
        (CODECS[0], b"first", b"second"),
        (CODECS[0], b"", CODECS[1], b"1"),
        (CODECS[1], bytes(range(40)), bytes(9)),
    ]
    stored = StoredSlots(log)
    for codec in CODECS[:2]:
        stored.writer.place_of_codec(codec)
    start = log.last.next_offset
    addresses = stored.write(slots)
    end = log.last.end - 1
    path = tmp_path / "00000001.log"
    where = re_escaped(path)
    n_flips = 0
    assert READERS[way](stored.reader, addresses) is not None

    def read() -> None:
        if way == "load" or stored.gather(addresses, 2) is None:  # of another number of frames now
            stored.load(addresses)

    for position in Damage(path).flipped(start, end):
        with pytest.raises(CorruptPayload, match=where) as caught:
            read()
        assert 0 <= caught.value.index < 3, position
        n_flips += 1
        others = np.delete(addresses, caught.value.index)
        if position % 3 == 0:  # each payload here is of one slot, so the others can be read
            assert_same_slots(stored.load(others), [s for k, s in enumerate(slots) if k != caught.value.index])
    assert n_flips == 8 * (end - start)
    assert_same_slots(stored.load(addresses), slots)


def re_escaped(path: Path) -> str:
    return str(path).replace(".", r"\.")


@pytest.mark.parametrize("way", READERS)
def test_every_flipped_bit_of_a_codec_is_seen(way: str, log: Log, tmp_path: Path) -> None:
    stored = StoredSlots(log)
    start = log.last.end
    stored.writer.place_of_codec(CODECS[0])
    end = log.last.end
    addresses = stored.write([(CODECS[0], b"first", b"second")])
    path = tmp_path / "00000001.log"
    for _ in Damage(path).flipped(start, end):
        with pytest.raises((CorruptPayload, CorruptStorage), match=re_escaped(path)):
            READERS[way](SlotReader(log), addresses)
    assert READERS[way](SlotReader(log), addresses) is not None


def test_it_is_told_which_slot_is_damaged(log: Log, tmp_path: Path) -> None:
    stored = StoredSlots(log)
    slots: list[Slot] = [(CODECS[0], bytes([k]) * 5, bytes([k]) * 7) for k in range(100, 110)]
    addresses = stored.write(slots)
    path = tmp_path / "00000001.log"
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"!", path.read_bytes().index(bytes([106]) * 7))
    for read in READERS.values():
        for order in (np.arange(10), np.arange(10)[::-1].copy(), np.array([6])):
            with pytest.raises(CorruptPayload, match=r"payload at byte \d+, is damaged") as caught:
                read(stored.reader, addresses[order])
            assert order[caught.value.index] == 6


class At(NamedTuple):
    """Where a part is: the offset in a segment, and the id of that."""

    offset: int
    segment_id: int


def part(data: bytes, at: At, seed: int = 0) -> bytes:
    """Return bytes behind their checksum, as they are at an offset."""
    return (checksum(data, (at.offset + seed) ^ at.segment_id) & 0xFFFFFFFF).to_bytes(4, "little") + data


def payload_at(at: At, content: bytes, codec: int, *, nbytes: int | None = None) -> bytes:
    return part(struct.pack("<II", len(content) if nbytes is None else nbytes, codec) + content, at)


def slot_at(at: At, places: list[int], *, n: int | None = None) -> bytes:
    return part(struct.pack(f"<{1 + len(places)}I", len(places) if n is None else n, *places), at, SLOT_SEED)


def append_part(log: Log, make: Callable[[At], bytes]) -> int:
    """Append a record of one part, which is told where it is; return the offset."""
    return log.segment_to_write().append(SLOTS, make(At(log.last.next_offset, log.last.id)))


def codec_record(log: Log, codec: Codec | None) -> int:
    """Append a codec, or a record that is none, and return its offset."""
    return log.segment_to_write().append(CODEC, b"[1]" if codec is None else json.dumps(codec_config(codec)).encode())


def test_parts_are_as_they_are_documented(log: Log) -> None:
    codec = codec_record(log, CODECS[0])
    first = append_part(log, lambda at: payload_at(at, b"abc", codec))
    second = append_part(log, lambda at: payload_at(at, b"", codec))
    slot = append_part(log, lambda at: slot_at(at, [second, first, second]))
    plain = append_part(log, lambda at: payload_at(at, b"plain", 0))
    whole = append_part(log, lambda at: slot_at(at, [plain]))
    found = SlotReader(log).load(np.array([address_of(FIRST, slot), address_of(FIRST, whole)]))
    assert_same_slots(found, [(CODECS[0], b"", b"abc", b""), b"plain"])


@pytest.mark.parametrize("way", READERS)
def test_a_payload_does_not_pass_for_a_slot(way: str, log: Log) -> None:
    """Though its bytes could be those of one of two payloads."""
    codec = codec_record(log, CODECS[0])
    payload = append_part(log, lambda at: payload_at(at, b"abc", codec))
    like = append_part(log, lambda at: part(struct.pack("<III", 2, payload, payload), at))
    with pytest.raises(CorruptPayload):
        READERS[way](SlotReader(log), np.array([address_of(FIRST, like)]))


# To be loaded, which tells what is wrong with them.
UNLIKE_TWO_LEARNED_PAYLOADS = {
    "no payloads",
    "more payloads than bytes",
    "2**32 - 1 payloads",
    "codec of one payload only",
}


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize(
    "kind",
    [
        "no payloads",
        "more payloads than bytes",
        "2**32 - 1 payloads",
        "payload in the header",
        "payload behind the end",
        "payload at 2**32 - 1",
        "slot as payload",
        "payload of too many bytes",
        "payload of 2**32 - 1 bytes",
        "codec that is none",
        "codec behind the end",
        "codec in the header",
        "slots as codec",
        "codec that does not learn",
        "codec of one payload only",
    ],
)
def test_what_makes_no_sense_is_refused_though_its_checksum_is_right(way: str, kind: str, log: Log) -> None:
    good = codec_record(log, CODECS[0])
    codecs: dict[str, Callable[[], int]] = {
        "codec that is none": lambda: codec_record(log, None),
        "codec behind the end": lambda: 2_000_000_000,
        "codec in the header": lambda: 1,
        "slots as codec": lambda: append_part(log, lambda at: payload_at(at, b"abc", good)),
        "codec that does not learn": lambda: codec_record(log, get_codec("zstd")),
    }
    codec = codecs[kind]() if kind in codecs else good
    nbytes = {"payload of too many bytes": 100_000_000, "payload of 2**32 - 1 bytes": 2**32 - 1}.get(kind)
    first = append_part(log, lambda at: payload_at(at, b"abc", codec, nbytes=nbytes))
    second = append_part(log, lambda at: payload_at(at, b"def", 0 if kind == "codec of one payload only" else codec))
    n = {"no payloads": 0, "more payloads than bytes": 200_000, "2**32 - 1 payloads": 2**32 - 1}.get(kind)
    place = {"payload in the header": 3, "payload behind the end": 2_000_000_000, "payload at 2**32 - 1": 2**32 - 1}
    as_slot = log.last.next_offset
    places = [] if n == 0 else [place.get(kind, as_slot if kind == "slot as payload" else first), second]
    slot = append_part(log, lambda at: slot_at(at, places, n=n))
    addresses = np.array([address_of(FIRST, slot)])
    if way == "gather" and kind in UNLIKE_TWO_LEARNED_PAYLOADS:
        assert SlotReader(log).gather(addresses, 2) is None
    else:
        with pytest.raises(CorruptPayload if way == "load" else (CorruptPayload, CorruptStorage)):
            READERS[way](SlotReader(log), addresses)


FUZZ_ADDRESSES = """
import sys
from pathlib import Path
import numpy as np
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage.log_slot_store import SlotReader, StoredSlots
from storage.test_slots import keep, new_log, opened

folder, state = Path(sys.argv[1]), sys.argv[2]
log = new_log(folder, 5_000_000)
codec = Delta(1)
written = []
for number in range(4):
    if number:
        log.begin_segment(5_000_000)
    stored = StoredSlots(log)
    written += stored.write([(codec, bytes([k]) * 50, bytes([k + 1]) * 50) for k in range(50)]).tolist()
keep(log, [1, 3, 4])
reader = stored.reader
if state == "reader":
    reader = SlotReader(opened(folder))
    reader.load(np.array(written[:3] + written[-3:]))
    log.begin_segment(1000)
    log.close()
elif state == "closed":
    reader.load(np.array(written[:3] + written[-3:]))
    log.close()

rng = np.random.default_rng(0)
addresses = [-1, -(1 << 32), -(1 << 63), (1 << 63) - 1, 1 << 32, 1, 31, 32, 0xFFFFFFFF, 5 << 32]
for number in (0, 1, 2, 3, 4, 5, 6, 1 << 20):
    for most in (100, 6000, 5_000_000, 20_000_000, 1 << 32):
        addresses += [number << 32 | int(offset) for offset in rng.integers(0, most, 100)]
addresses += [address + delta for address in written[::9] for delta in (-1, 1, 8, -100)]
addresses += rng.integers(-(1 << 63), (1 << 63) - 1, 200).tolist()
known, outcomes = set(written), {}
for address in addresses:
    if address in known or not address:
        continue
    for name, read in {
        "load": lambda array: reader.load(array),
        "gather": lambda array: reader.gather(array, 2),
        "codec": lambda array: reader.codec(int(array[0])),
    }.items():
        try:
            found = read(np.array([address]))
            outcome = "None" if found is None else "found"
        except (CorruptPayload, CorruptStorage) as error:
            outcome = type(error).__name__
        outcomes.setdefault(name, set()).add(outcome)
for name, found in outcomes.items():
    print(name, *sorted(found))
print(len(reader.load(np.array(written[:50]))), reader.gather(np.array(written[-50:]), 2) is not None)
"""


@pytest.mark.parametrize("state", ["writer", "reader", "closed"])
def test_no_address_is_a_crash(state: str, tmp_path: Path) -> None:
    """Whatever part of a file there is no more, or was deleted, or has never been."""
    *outcomes, last = run(FUZZ_ADDRESSES, tmp_path, state).splitlines()
    assert outcomes[0] == "load CorruptPayload"
    assert outcomes[1] in ("gather CorruptPayload", "gather CorruptPayload None")
    assert outcomes[2] in ("codec CorruptStorage", "codec CorruptStorage found")
    assert last == "50 True"


def test_an_address_is_not_taken_for_that_of_a_payload(log: Log) -> None:
    stored = StoredSlots(log)
    [address] = stored.write([(CODECS[0], b"first", b"second")])
    for place in range(log.last.end):
        with pytest.raises(CorruptPayload):
            stored.load(np.array([address, ~address_of(FIRST, place)]))


@pytest.mark.parametrize("way", READERS)
def test_slots_of_one_segment_do_not_pass_for_those_of_another(way: str, log: Log, tmp_path: Path) -> None:
    """Though number, offsets and lengths are the same, as in a copy of the folder that was written to as well."""
    other = new_log(tmp_path / "other")
    addresses = []
    for each, content in ((log, b"ours"), (other, b"else")):
        stored = StoredSlots(each)
        stored.writer.place_of_codec(CODECS[0])
        start = each.last.next_offset
        addresses.append(stored.write([(CODECS[0], content, content)]))
    assert addresses[0].tolist() == addresses[1].tolist()
    theirs = (tmp_path / "other" / "00000001.log").read_bytes()[start : other.last.end]
    with open(tmp_path / "00000001.log", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), theirs, start)
    with pytest.raises(CorruptPayload, match=r"00000001\.log, the slot at byte \d+, is damaged"):
        READERS[way](SlotReader(log), addresses[0])
    assert_same_slots(SlotReader(other).load(addresses[1]), [(CODECS[0], b"else", b"else")])
    other.close()


def test_what_was_taken_back_is_written_again(log: Log) -> None:
    stored = StoredSlots(log)
    before = stored.write([(CODECS[0], b"before")])
    end = log.last.end
    slots: list[Slot] = [(CODECS[0], b"before"), (CODECS[1], b"first", b"second"), (CODECS[1], b"second", b"third")]
    stored.write(slots)
    log.last.truncate(end)
    stored.writer.reset()
    log.segment_to_write().append(9, bytes(3))
    assert_same_slots(stored.load(stored.write(slots)), slots)
    assert_same_slots(stored.load(before), slots[:1])


def test_codecs_are_forgotten_with_their_segments(log: Log) -> None:
    stored = StoredSlots(log)
    places = [stored.writer.place_of_codec(CODECS[0])]
    log.begin_segment(1000)
    places.append(stored.writer.place_of_codec(CODECS[0]))
    codecs = [stored.reader.codec(place) for place in places]
    stored.reader.forget_others([2])
    again = [stored.reader.codec(place) for place in places]
    assert again == codecs == [CODECS[0]] * 2
    assert [ours is theirs for ours, theirs in zip(again, codecs, strict=True)] == [False, True]


def test_a_writer_does_not_keep_all_it_ever_wrote(log: Log) -> None:
    writer = SlotWriter(log)
    payloads = [os.urandom(10) for _ in range(20_000)]
    before = [sys.getrefcount(payload) for payload in payloads]
    for payload in payloads:
        writer.write([payload])
    after = [sys.getrefcount(payload) for payload in payloads]
    assert sum(many > few for few, many in zip(before, after, strict=True)) < 2000
