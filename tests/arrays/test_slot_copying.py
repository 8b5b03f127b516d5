"""Copies of slots, between logs in memory and on disk and within one: the same items, what they share once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn_examples import FACTOR, examples
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from interrupts import bytecodes, call_within, evenly
from numpy.typing import NDArray
from slot_objects import LogOfCodec, Slot, batch_of, load_slots, write_slots
from storage.folders import damage, names
from storage.slot_logs import assert_same_slots, new_log

from sb3_compressed import CompressedArray, CompressedReplayBuffer, load_checkpoint
from sb3_compressed.arrays import memory_log, slot_copying
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_copying import copying_kernels
from sb3_compressed.arrays.slot_format import OFFSET, PAYLOAD_HEADER, SLOT_HEADER
from sb3_compressed.arrays.slot_log import SlotLog
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.storage import log as log_module
from sb3_compressed.storage import segment
from sb3_compressed.storage.log import Log

N_ROWS, N_ENVS = 200, 2
CODECS = ["none", "zstd3", "delta", "zstd-dict"]
ROUTES = [
    ("memory", "memory"), ("memory", "folder"), ("folder", "memory"), ("folder", "folder"),
    ("memory", "itself"), ("folder", "itself"),
]  # fmt: skip


def stacks() -> NDArray[np.uint8]:
    """Return stacks of four frames of a background on which a thing moves, ``(N_ROWS, N_ENVS, 4, 16, 16)``."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 16, 16), np.uint8), (N_ROWS + 3) * N_ENVS, axis=0)
    for frame, (row, column) in zip(frames, rng.integers(0, 12, (len(frames), 2)), strict=True):
        frame[row : row + 4, column : column + 4] = 255
    frames = frames.reshape(N_ROWS + 3, N_ENVS, 16, 16)
    return np.stack([frames[index : index + N_ROWS] for index in range(4)], axis=2)


class Filled(NamedTuple):
    """A store with stacks of frames, except the last rows, which were not written."""

    store: LogOfCodec
    references: NDArray[np.int64]
    items: NDArray[np.uint8]
    encoder: FrameEncoder

    def decoded(self, store: LogOfCodec, references: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Decode slots of another store."""
        items: NDArray[np.uint8] = store.log.read(references.reshape(-1), self.encoder, np.dtype(np.uint8))
        return items.reshape(*references.shape, *self.encoder.item_shape)


class Stores:
    """Creates stores, and closes the logs of folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.logs: list[Log] = []

    def new(self, kind: str, codec: Codec) -> LogOfCodec:
        if kind == "memory":
            return LogOfCodec(MemoryLog(), codec)
        self.logs.append(new_log(self._folder / str(len(self.logs))))
        return LogOfCodec(self.logs[-1], codec)

    def filled(self, kind: str, codec: str) -> Filled:
        """Return a store with stacks of frames in several segments; codecs are trained after the first ones."""
        items = np.concatenate([stacks(), np.zeros((5, N_ENVS, 4, 16, 16), np.uint8)])
        store = self.new(kind, get_codec(codec))
        array = CompressedArray(items.shape, codec=codec, frame_stack=4, new_log=lambda _: store.log)
        for row in range(N_ROWS):
            array[row] = items[row]
            if kind == "folder" and row in (80, 150):
                self.logs[-1].begin_segment()
        assert len({*(array.references[array.references != 0] >> 32).tolist()}) >= (1 if kind == "memory" else 3)
        encoder = FrameEncoder(array.item_shape, array.elem_type, array.codec, array.layout)
        table = store.new_table(array.references.shape)
        table[...] = array.references
        return Filled(store, table, items, encoder)

    def target(self, kind: str, filled: Filled) -> LogOfCodec:
        return filled.store if kind == "itself" else self.new(kind, filled.encoder.codec)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    for log in made.logs:
        log.close()


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let segments in memory, and what is copied in one call, be a few slots."""
    set_sizes(monkeypatch)


def set_sizes(monkeypatch: pytest.MonkeyPatch, call_nbytes: int = 1 << 9, segment_nbytes: int = 1 << 13) -> None:
    monkeypatch.setattr(slot_copying, "CALL_NBYTES", call_nbytes)
    monkeypatch.setattr(memory_log, "MIN_NBYTES", segment_nbytes)


def end_of(store: LogOfCodec) -> int:
    """Return where the last segment ends."""
    next_offset: int = store.log.last.next_offset
    return next_offset


def part_nbytes(store: LogOfCodec, references: NDArray[np.int64], prefix: int) -> int:
    """Return the bytes of slots and their payloads, each once, with checksums of so many bytes."""
    batch = store.gather(np.unique(references[references != 0]), 0)
    payloads = np.unique(batch.payloads.places[:, :2], axis=0)
    slots = batch.n_items * (prefix + SLOT_HEADER) + 4 * len(batch.payloads)
    return int(slots + (payloads[:, 1] + prefix + PAYLOAD_HEADER).sum())


# -- what is copied ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_entries", [1, 16, 1 << 22])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("kind", "target_kind"), ROUTES)
@pytest.mark.usefixtures("small_sizes")
def test_copies_are_the_same_slots(
    kind: str, target_kind: str, codec: str, n_entries: int, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the table of what was copied is too small, and where the target begins segments meanwhile."""
    monkeypatch.setattr(slot_copying, "MAX_ENTRIES", n_entries)
    filled = stores.filled(kind, codec)
    expected = load_slots(filled.store, filled.references)
    if codec == "delta":
        n_codecs = [sum(type(part) is not bytes for part in slot or ()) for slot in expected.reshape(-1)]
        assert max(n_codecs) == 2, "stacks with frames from before and after a training"
    target = stores.target(target_kind, filled)
    copies, copier = target.new_table(filled.references.shape), target.copier_from(filled.store)
    for first in range(0, len(copies), 50):
        copies[first : first + 50] = copier.copy(filled.references[first : first + 50])
        if isinstance(target.log, Log) and first == 50:
            target.log.begin_segment()
    assert_same_slots(load_slots(target, copies).reshape(-1), expected.reshape(-1).tolist())
    np.testing.assert_array_equal(copies == 0, filled.references == 0)
    np.testing.assert_array_equal(filled.decoded(target, copies), filled.items)
    np.testing.assert_array_equal(filled.decoded(filled.store, filled.references), filled.items)
    assert len({*(copies[:N_ROWS] >> 32).reshape(-1).tolist()}) > 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("kind", "target_kind"), ROUTES)
def test_what_slots_share_is_copied_once(kind: str, target_kind: str, codec: str, stores: Stores) -> None:
    """However many calls copy it."""
    filled = stores.filled(kind, codec)
    target = stores.target(target_kind, filled)
    log = target.log
    if isinstance(log, Log):
        log.begin_segment()
    copier = target.copier_from(filled.store)
    first = copier.copy(filled.references[:80])  # one that writes the codecs, which are records of their own
    for part in (filled.references[:80], filled.references[:1], filled.references[N_ROWS:]):
        end = end_of(target)
        np.testing.assert_array_equal(copier.copy(part), first[: len(part)] * (part != 0))
        assert end_of(target) == end
    del copier
    copier, end, prefix = target.copier_from(filled.store), end_of(target), log.checksum_nbytes
    copies = np.concatenate([copier.copy(filled.references[row : row + 30]) for row in range(0, 80, 30)])
    expected = part_nbytes(filled.store, filled.references[:90], prefix)
    assert expected <= end_of(target) - end <= expected + (0 if isinstance(log, MemoryLog) else 9 * 40)
    np.testing.assert_array_equal(filled.decoded(target, copies), filled.items[:90])


@pytest.mark.parametrize("codec", ["none", "delta"])
@pytest.mark.usefixtures("small_sizes")
def test_each_segment_of_the_target_has_what_its_slots_share_once(codec: str, stores: Stores) -> None:
    filled = stores.filled("memory", codec)
    target = stores.new("memory", filled.encoder.codec)
    copies = target.copier_from(filled.store).copy(filled.references)
    numbers = np.unique(copies[copies != 0] >> 32).tolist()
    assert len(numbers) > 2
    sources = np.unique(filled.references[filled.references != 0] >> 32).tolist()
    assert len(sources) > 2
    for number in numbers:
        is_there = copies >> 32 == number
        # A segment of the source after the other: those of two have no payload in common.
        expected = sum(
            part_nbytes(filled.store, filled.references[is_there & (filled.references >> 32 == source)], 0)
            for source in sources
        )
        assert target.log.segment(number).next_offset == expected


@pytest.mark.parametrize(("kind", "target_kind"), ROUTES)
@pytest.mark.usefixtures("small_sizes")
def test_the_order_of_references_does_not_matter(kind: str, target_kind: str, stores: Stores) -> None:
    filled = stores.filled(kind, "delta")
    order = np.random.default_rng(0).permutation(np.tile(np.arange(filled.references.size), 2))
    shuffled = filled.references.reshape(-1)[order].reshape(-1, 5)
    target = stores.target(target_kind, filled)
    copies = target.copier_from(filled.store).copy(shuffled)
    assert (copies.shape, copies.dtype) == (shuffled.shape, np.dtype(np.int64))
    np.testing.assert_array_equal(
        filled.decoded(target, copies).reshape(-1, 4, 16, 16), filled.items.reshape(-1, 4, 16, 16)[order]
    )
    found = dict(zip(shuffled.reshape(-1).tolist(), copies.reshape(-1).tolist(), strict=True))
    assert [found[each] for each in shuffled.reshape(-1).tolist()] == copies.reshape(-1).tolist()


def test_nothing_is_copied_of_slots_that_were_not_written(stores: Stores) -> None:
    filled = stores.filled("folder", "delta")
    target = stores.new("memory", filled.encoder.codec)
    for shape in ((0,), (0, 2), (3, 2), (2, 3, 4)):
        copies = target.copier_from(filled.store).copy(np.zeros(shape, np.int64))
        assert copies.shape == shape
        assert not copies.any()
    assert target.log.memory_nbytes == 0


def test_a_slot_may_be_larger_than_a_call_and_a_segment(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sizes(monkeypatch, 100, 1000)
    rng = np.random.default_rng(0)
    slots: list[Slot] = [b"", rng.bytes(50), tuple(rng.bytes(3000) for _ in range(3)), (b"", b"1"), rng.bytes(120_000)]
    for kind, target_kind in ROUTES:
        source = stores.new(kind, get_codec("none"))
        references = source.new_table((len(slots),))
        references[:] = write_slots(source, slots)
        target = source if target_kind == "itself" else stores.new(target_kind, get_codec("none"))
        assert_same_slots(load_slots(target, target.copier_from(source).copy(references)), slots)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Slot], list[list[int]]]:
    """Draw slots that share payloads, and which of them are copied in each call."""
    payloads = [*draw(st.lists(st.binary(max_size=30), min_size=1, max_size=6)), *[bytes([k]) * 100 for k in range(3)]]
    codecs = [None, Delta(1), Delta(2), ZstdDict(3)]

    def slot() -> Slot:
        n = draw(st.integers(0, 5))
        codec = codecs[draw(st.integers(0, 3))]
        chosen = [draw(st.sampled_from(payloads)) for _ in range(n)]
        if codec is None:
            return None if n == 0 else chosen[0] if n == 1 else tuple(chosen)
        parts: list[Any] = [codec, *chosen]
        if n > 2 and draw(st.booleans()):
            parts.insert(2, codecs[draw(st.integers(1, 3))])
        return tuple(parts) if n else None

    slots = [slot() for _ in range(draw(st.integers(1, 12)))]
    return slots, draw(st.lists(st.lists(st.integers(0, len(slots) - 1), max_size=10), min_size=1, max_size=5))


@examples(200)
@given(
    case=cases(),
    route=st.sampled_from([route for route in ROUTES if route[1] != "itself"]),
    sizes=st.tuples(*map(st.sampled_from, ([1, 60, 1 << 17], [64, 1024], [1, 2, 8, 1 << 22]))),
    new_segments=st.booleans(),
)
def test_any_slots_are_copied(
    case: tuple[list[Slot], list[list[int]]],
    route: tuple[str, str],
    sizes: tuple[int, int, int],
    new_segments: bool,
    folders: Callable[[int], Log],
) -> None:
    slots, calls = case
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, sizes[0], sizes[1])
        patch.setattr(slot_copying, "MAX_ENTRIES", sizes[2])
        source, target = (any_log(kind, folders(number)) for number, kind in enumerate(route))
        references = source.new_table((len(slots),))
        references[: len(slots) // 2] = write_slots(source, slots[: len(slots) // 2])
        if new_segments and isinstance(source, Log):
            source.begin_segment()
        references[len(slots) // 2 :] = write_slots(source, slots[len(slots) // 2 :])
        copier = target.copier_from(source)
        copies = []
        for call in calls:
            copies.append(copier.copy(references[call]))
            if new_segments and isinstance(target, Log):
                target.begin_segment()
        for call, found in zip(calls, copies, strict=True):
            assert_same_slots(load_slots(target, found), [slots[k] for k in call])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Log]]:
    logs = [new_log(tmp_path_factory.mktemp("log")) for _ in range(2)]
    yield logs.__getitem__
    for log in logs:
        log.close()


def any_log(kind: str, log: Log) -> SlotLog:
    """Return a log for slots of any trainable codecs, and of none."""
    return log if kind == "folder" else MemoryLog()


# -- damage --------------------------------------------------------------------------------------------------


class Damaged(NamedTuple):
    """A folder in which slots cannot be read.

    :param store: the folder
    :param references: of its slots
    :param is_damaged: which of them cannot be read
    :param message: what the error says of the first one
    """

    store: LogOfCodec
    references: NDArray[np.int64]
    is_damaged: NDArray[np.bool_]
    message: str


def damaged_folder(part: str, filled: Filled, log: Log) -> Damaged:
    """Damage a part of a slot in the second segment of a folder."""
    references, row = filled.references.copy(), 100
    slot = int(references[row, 1])
    number, at = slot >> 32, slot & OFFSET
    path, data = Path(log.name(number)), log.segment(number).bytes.copy()  # Windows does not change what is mapped
    payload = payloads_of_slot(data, at)[0]
    codec = int.from_bytes(data[payload + 8 : payload + 12].tobytes(), "little")
    log.close()
    is_there = references >> 32 == number
    if part == "slot":
        damage(path, at + 13)
        is_damaged, message = references == slot, f"{path}, the slot at byte {at}, is damaged"
    elif part == "payload":
        damage(path, payload + 20)
        is_damaged = np.zeros(references.shape, np.bool_)
        is_damaged[is_there] = [payload in payloads_of_slot(data, int(each) & OFFSET) for each in references[is_there]]
        message = f"{path}, the payload at byte {payload}, is damaged"
    elif part == "rest of the file":
        with open(path, "r+b") as file:
            file.truncate(at + 9)
        is_damaged, message = is_there & (references >= slot), f"{path}, the slot at byte {at}, is "
    elif part == "file":
        path.unlink()
        is_damaged, message = is_there, f"{path} is missing"
    else:
        damage(path, codec + 9)
        is_damaged, message = is_there, f"{path}.* byte {codec}"
    reader = Log.open(log.folder)
    reader.ids = log.ids
    reader.set_chain([reader.open_segment(1)])
    return Damaged(LogOfCodec(reader, filled.encoder.codec), references, is_damaged, message)


def payloads_of_slot(data: NDArray[np.uint8], slot: int) -> list[int]:
    """Return where the payloads of a stack begin in the segment of a folder, given where its slot begins."""
    return [*struct.unpack("<4I", data[slot + 8 : slot + 24].tobytes())]


@pytest.mark.parametrize("target_kind", ["memory", "folder"])
@pytest.mark.parametrize("part", ["slot", "payload", "rest of the file", "file", "codec"])
def test_damage_is_named(part: str, target_kind: str, stores: Stores) -> None:
    filled = stores.filled("folder", "delta")
    found = damaged_folder(part, filled, stores.logs[0])
    assert 0 < found.is_damaged.sum() < found.references.size
    target = stores.new(target_kind, filled.encoder.codec)
    copier = target.copier_from(found.store)
    whole = np.where(found.is_damaged, 0, found.references)
    before = copier.copy(whole[:90])
    order = np.random.default_rng(0).permutation(found.references.size)
    references = found.references.reshape(-1)[order].reshape(5, -1)
    is_damaged = found.is_damaged.reshape(-1)[order].reshape(5, -1)
    with pytest.raises(CorruptPayload, match=found.message) as caught:
        copier.copy(references)
    assert caught.value.index == np.flatnonzero(references == references[is_damaged].min())[0]
    # What can be read is copied, before and after that.
    copies = np.concatenate([before, copier.copy(whole[90:])])
    is_copied = copies != 0
    np.testing.assert_array_equal(is_copied, whole != 0)
    np.testing.assert_array_equal(filled.decoded(target, copies)[is_copied], filled.items[is_copied])
    assert isinstance(found.store.log, Log)
    found.store.log.close()


@pytest.mark.parametrize(("kind", "target_kind"), ROUTES)
@pytest.mark.parametrize(
    ("slot", "accepted", "message"),
    [
        ((ZstdDict(3), b"1"), Delta(1), "is by zstd-dict, not by delta"),
        ((Delta(1), b"1"), get_codec("zstd3"), "is by delta, not by zstd"),
        (b"1", Delta(1), "is by no trainable codec, not by delta"),
        ((Delta(1), b"1", ZstdDict(3), b"2"), Delta(1), "is by zstd-dict, not by delta"),
    ],
)
def test_slots_of_codecs_that_are_not_accepted_are_refused(
    slot: Any, accepted: Codec, message: str, kind: str, target_kind: str, stores: Stores
) -> None:
    source = stores.new(kind, accepted)
    good = (accepted, b"good") if isinstance(accepted, Delta) else b"good"
    references = source.new_table((2, 2))
    references[:] = write_slots(source, [good, slot, good, slot]).reshape(2, 2)
    target = source if target_kind == "itself" else stores.new(target_kind, accepted)
    where = f"{source.log.name(1)}, the slot at byte {references[0, 1] & OFFSET}"
    with pytest.raises(CorruptPayload, match=f"{where}: it {message}") as caught:
        target.copier_from(source).copy(references)
    assert caught.value.index == 1
    assert_same_slots(load_slots(target, target.copier_from(source).copy(references[:, 0])), [good, good])


@pytest.mark.parametrize("reference", [-1, -5, 1, 99 << 32, -(1 << 63), (1 << 63) - 1, OFFSET, 1 << 32 | OFFSET])
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_references_that_are_none_are_refused(kind: str, reference: int, stores: Stores) -> None:
    filled = stores.filled(kind, "none")
    target = stores.new("memory", filled.encoder.codec)
    references = filled.references[:3].copy()
    references[1, 1] = reference
    with pytest.raises(CorruptPayload) as caught:
        target.copier_from(filled.store).copy(references)
    assert caught.value.index == 3


# -- what is kept meanwhile ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_sizes")
def test_nothing_is_freed_or_moved_in_memory_while_a_copier_lives(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_log, "MAX_UNUSED_NBYTES", 0)
    filled, target = stores.filled("memory", "delta"), stores.new("memory", Delta())
    log, target_log, references = filled.store.log, target.log, filled.references.copy()
    assert isinstance(log, MemoryLog)
    assert isinstance(target_log, MemoryLog)
    copier = target.copier_from(filled.store)
    copies = copier.copy(references[:100])
    kept = filled.references[::20].copy()
    filled.references[:] = 0
    filled.references[::20] = kept
    n_segments = len(log.segments), len(target_log.segments)
    assert min(n_segments) > 2
    for each in (log, target_log):
        each.free_unused()
    assert (len(log.segments), len(target_log.segments)) == n_segments
    np.testing.assert_array_equal(filled.references[::20], kept)
    copies = np.concatenate([copies, copier.copy(references[100:])])
    np.testing.assert_array_equal(filled.decoded(target, copies), filled.items)
    del copier
    log.free_unused()
    target_log.free_unused()
    assert (filled.references[::20] != kept).any()
    assert len(log.segments) < n_segments[0]
    assert len(target_log.segments) == 1  # the last one
    np.testing.assert_array_equal(filled.decoded(filled.store, filled.references[::20]), filled.items[::20])


@pytest.mark.parametrize("is_source", [True, False])
def test_no_file_is_deleted_while_a_copier_lives(is_source: bool, stores: Stores) -> None:
    source, target = stores.filled("folder", "delta"), stores.new("folder", Delta())
    log = stores.logs[0 if is_source else 1]
    copier = target.copier_from(source.store)
    copies = copier.copy(source.references[:100])
    before = names(log.folder)
    log.begin_segment([])
    log.drop_segments([])
    assert {*before} < {*names(log.folder)}
    copies = np.concatenate([copies, copier.copy(source.references[100:])])
    np.testing.assert_array_equal(source.decoded(target, copies), source.items)
    target.log.drop_cached([])  # Windows does not delete what is mapped
    del copier
    log.begin_segment([])
    log.drop_segments([])
    assert not {*before} & {*names(log.folder)}


# -- items of a batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("kind", "target_kind"), ROUTES)
@pytest.mark.usefixtures("small_sizes")
def test_items_of_a_batch_are_appended_as_copies_are(kind: str, target_kind: str, codec: str, stores: Stores) -> None:
    filled = stores.filled(kind, codec)
    items = np.random.default_rng(0).permutation(np.tile(np.arange(filled.references.size), 2))
    batch = filled.store.gather(filled.references.reshape(-1), 4)
    target = stores.target(target_kind, filled)
    references = target.new_table((len(items),))
    references[:] = target.append_items(batch, items)
    assert_same_slots(load_slots(target, references), load_slots(filled.store, filled.references).reshape(-1)[items])
    np.testing.assert_array_equal(references == 0, filled.references.reshape(-1)[items] == 0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_items_take_as_many_bytes_as_copies(kind: str, codec: str, stores: Stores) -> None:
    filled = stores.filled("memory", codec)
    appended, copied = (stores.new(kind, filled.encoder.codec) for _ in range(2))
    batch = filled.store.gather(filled.references.reshape(-1), 4)
    appended.append_items(batch, np.arange(batch.n_items))
    copied.copier_from(filled.store).copy(filled.references)
    assert abs(end_of(appended) - end_of(copied)) <= (0 if kind == "memory" else 100)  # headers of records


def row_before(slots: list[Slot], kind: str, stores: Stores) -> tuple[LogOfCodec, NDArray[np.int64], PayloadBatch]:
    """Return a store with a row of slots, references to them, and a batch of them at another place."""
    store = stores.new(kind, Delta(1))
    table = store.new_table((len(slots),))
    table[:] = write_slots(store, slots)
    return store, table, batch_of(slots, 2)


ROW: list[Slot] = [(Delta(1), b"%d" % env * 40, b"shared" * 9) for env in range(3)]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_row_that_repeats_the_row_before_is_not_written_again(kind: str, stores: Stores) -> None:
    store, before, batch = row_before(ROW, kind, stores)
    end = end_of(store)
    found = store.append_items(batch, np.array([0, 1, 2, 1, 0]), before)
    np.testing.assert_array_equal(found, before[[0, 1, 2, 1, 0]])
    assert end_of(store) == end


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_row_shares_payloads_with_the_row_before(kind: str, stores: Stores) -> None:
    store, before, _ = row_before(ROW, kind, stores)
    following: list[Slot] = [(slot[0], slot[1], b"new %d" % env * 30) for env, slot in enumerate(ROW)]  # type: ignore[index]
    end = end_of(store)
    found = store.append_items(batch_of(following, 2), np.arange(3), before)
    prefix = store.log.checksum_nbytes
    expected = 3 * (prefix + SLOT_HEADER + 8) + 3 * (prefix + PAYLOAD_HEADER + 150)
    assert expected <= end_of(store) - end <= expected + (0 if kind == "memory" else 40)
    assert_same_slots(load_slots(store, found), following)
    assert_same_slots(load_slots(store, before), ROW)


@pytest.mark.parametrize("kind", ["memory", "folder"])
@pytest.mark.parametrize(
    "slots",
    [
        [(Delta(2), *slot[1:]) for slot in ROW],  # type: ignore[index]
        [(Delta(1), slot[2], slot[1]) for slot in ROW],  # type: ignore[index]
        [(Delta(1), slot[1][:-1], slot[2]) for slot in ROW],  # type: ignore[index]
        [(Delta(1), slot[1][:-1] + b"?", slot[2]) for slot in ROW],  # type: ignore[index]
        [(Delta(1), *slot[1:], slot[1]) for slot in ROW],  # type: ignore[index]
        [(Delta(1), slot[1]) for slot in ROW],  # type: ignore[index]
        [None] * 3,
    ],
    ids=["codec", "order", "length", "last byte", "one more", "one fewer", "unwritten"],
)
def test_other_items_are_not_taken_for_those_of_the_row_before(kind: str, slots: list[Slot], stores: Stores) -> None:
    store, before, _ = row_before(ROW, kind, stores)
    found = store.append_items(batch_of(slots, 3), np.arange(3), before)
    assert_same_slots(load_slots(store, found), slots)
    assert not {*found.tolist()} & {*before.tolist()}


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_references_of_the_row_before_may_be_of_any_segment(kind: str, stores: Stores) -> None:
    """Then nothing of it can be shared, and whatever the references are, nothing else is read."""
    store, before, batch = row_before(ROW, kind, stores)
    number, end = int(before[0]) >> 32, end_of(store)
    table = store.new_table((3,))
    for wrong in (0, -1, 99, (number + 1) << 32 | 8, number << 32 | OFFSET, number << 32 | end - 5, (1 << 63) - 1):
        table[:] = store.append_items(batch, np.arange(3), np.array([wrong] * 3))
        assert_same_slots(load_slots(store, table), ROW)
        assert end_of(store) > end
    for at in range(0, 60):  # what is no slot
        table[:] = store.append_items(batch, np.arange(3), np.array([number << 32 | at] * 3))
        assert_same_slots(load_slots(store, table), ROW)


# -- replacing references ------------------------------------------------------------------------------------


@examples(200)
@given(
    old=st.lists(st.integers(-5, 60), unique=True, max_size=30).map(sorted),
    table=st.lists(st.integers(-5, 60), max_size=60),
)
def test_references_are_replaced(old: list[int], table: list[int]) -> None:
    for each in (table, sorted(table), old, old[::2], old[::-1]):
        found = np.array(each, np.int64)
        new = np.arange(len(old), dtype=np.int64) + 1000
        n_replaced = copying_kernels().replace_references(found, np.array(old, np.int64), new)
        replaced = dict(zip(old, new.tolist(), strict=True))
        assert found.tolist() == [replaced.get(reference, reference) for reference in each]
        assert n_replaced == len([reference for reference in each if reference in replaced])


# -- what real sizes and other callers need --------------------------------------------------------------------


def test_rows_of_many_environments_are_not_copied_to_each_segment() -> None:
    """A segment begins with what the next row shares: several calls of the kernel, and more than a segment has else."""
    n_envs, n_rows = 64, 24
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (n_rows + 4, n_envs, 84, 84), np.uint8)
    array = CompressedArray((n_rows, n_envs, 4, 84, 84), np.uint8, "none", frame_stack=4)
    for row in range(n_rows):
        array[row] = frames[row : row + 4].swapaxes(0, 1)
    assert array.nbytes < 1.6 * frames.nbytes
    np.testing.assert_array_equal(array[-1], frames[-5:-1].swapaxes(0, 1))


def test_a_save_begins_further_segments_in_the_middle_of_a_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Offsets have 32 bits, and a part of large observations may have more bytes."""
    space = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    options: Any = {"compression_method": "none", "n_envs": 8, "device": "cpu"}
    buffer = CompressedReplayBuffer(8 * 4096, space, spaces.Discrete(2), **options)
    obs = np.random.default_rng(0).integers(0, 256, (4097, 8, *space.shape), np.uint8)
    zeros = np.zeros((4096, 8))
    buffer.extend(obs[:-1], obs[1:], zeros[..., np.newaxis], zeros, zeros, timeouts=zeros)
    monkeypatch.setattr(segment, "MAX_NBYTES", 4 << 20)
    monkeypatch.setattr(log_module, "MAX_SEGMENT_NBYTES", 2 << 20)
    buffer.save_checkpoint(tmp_path)
    loaded = load_checkpoint(tmp_path, device="cpu")
    np.testing.assert_array_equal(loaded.observations, obs[:-1])
    np.testing.assert_array_equal(loaded.next_observations, obs[1:])


@pytest.mark.parametrize("by_row", [False, True])
def test_what_is_assigned_after_its_segment_was_deleted(by_row: bool, tmp_path: Path) -> None:
    """The item that was assigned last may be repeated when no table refers to it any more."""
    space = spaces.Box(0, 255, (64, 64), np.uint8)
    options: Any = {"compression_method": "none", "n_envs": 2, "device": "cpu"}
    buffer = CompressedReplayBuffer(200, space, spaces.Discrete(2), storage=tmp_path / "folder", **options)
    rng = np.random.default_rng(0)
    index: Any = -1 if by_row else (-1, 0)
    final = rng.integers(0, 256, (2, 64, 64), np.uint8)
    item = final if by_row else final[0]
    zeros = np.zeros((50, 2))
    for n_parts in (1, 60):
        for _ in range(n_parts):
            obs = rng.integers(0, 256, (50, 2, 64, 64), np.uint8)
            buffer.extend(obs, obs, zeros[..., np.newaxis], zeros, zeros, timeouts=zeros)
        for _ in range(2):  # the second one continues the first one
            buffer.next_observations[index] = item
        np.testing.assert_array_equal(buffer.next_observations[index], item)
    buffer.close()
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "folder", device="cpu").next_observations[index], item)


def test_single_items_beside_whole_rows_share_frames() -> None:
    rng = np.random.default_rng(0)
    sizes = []
    for has_items in (False, True):
        array = CompressedArray((100, 2, 4, 40, 40), np.uint8, "none", frame_stack=4)
        following = array.new_sharing_frames()
        frames = rng.integers(0, 256, (105, 2, 40, 40), np.uint8)
        for row in range(100):
            obs, next_obs = (frames[first : first + 4].swapaxes(0, 1) for first in (row, row + 1))
            for each, references in zip((array, following), array.stream.append(obs, next_obs), strict=True):
                each.write_encoded(row, references)
            if has_items and row % 5 == 0:
                following[row, 1] = next_obs[1]
                np.testing.assert_array_equal(following[row, 1], next_obs[1])
        sizes.append(array.nbytes)
    assert sizes[1] < sizes[0] + 20 * (1600 + 8 + 20) + 1000  # each has one new frame


def test_writing_within_compaction() -> None:
    """The handler of a signal assigns a row while slots are moved; neither overwrites the other."""
    rng = np.random.default_rng(0)
    content = rng.integers(0, 256, (600, 1, 64, 64), np.uint8)
    kept = np.arange(600) % 4 == 0

    def sparse() -> CompressedArray:
        array = CompressedArray(content.shape, np.uint8, "none", frame_stack=None)
        for row in range(600):
            array[row] = content[row]
        array[~kept] = content[0, 0]
        return array

    array = sparse()
    found = bytecodes(array.stream.log.free_unused)
    # Since Python 3.11, no handler is called within the lines of `claim` that change `next_offset`.
    names = "copy_distinct", "_copy_from_segment", "_move_slots", "_make_room"
    expected = np.where(kept[:, np.newaxis, np.newaxis, np.newaxis], content, content[0])
    expected[5] = new = rng.integers(0, 256, (1, 64, 64), np.uint8)
    for at in evenly([at for at in found if at[0].co_name in names], 40 if FACTOR is None else 400):
        array = sparse()

        def handler(array: CompressedArray = array) -> None:
            array[5] = new

        call_within(array.stream.log.free_unused, at, handler)
        np.testing.assert_array_equal(array, expected)
