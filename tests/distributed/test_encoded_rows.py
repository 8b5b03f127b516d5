"""Rows that were appended without decoding them are those that SB3's buffer has, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed.emitted import NUMBERS, SPACES, sb3_buffer, transition
from distributed.stopped import full_disk
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.frame_layout import FrameLayout, layout_to_state
from sb3_compressed.distributed.block import Block
from sb3_compressed.distributed.codec_exchange import CodecExchange
from sb3_compressed.distributed.encoded_rows import EncodedRows, block_of, layout_of
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.persistence.buffer_state import named_arrays


class Sender:
    """Encodes segments of rows in one buffer, and appends them to another.

    :param kind: of observations
    :param n_rows: number of rows of the other buffer
    :param folder: its folder, ``None`` for memory
    :param options: of both buffers
    """

    def __init__(
        self, kind: str, n_rows: int, n_envs: int = 2, folder: Path | None = None, segment: int = 64, **options: Any
    ) -> None:
        self.kind, self.n_envs = kind, n_envs
        spec = RingSpec(SPACES[kind], NUMBERS, options)
        self.staging: Any = spec.staging(segment, n_envs, 1)
        storage: dict[str, Any] = {} if folder is None else {"storage": folder, "storage_mode": "create"}
        self.ring: Any = spec.ring(n_rows, n_envs, **storage)
        self.expected: Any = sb3_buffer(kind, n_rows, n_envs)
        self.codecs = CodecExchange(8)
        self.next = 0

    def block(self, n_rows: int) -> Block:
        """Return the next rows."""
        for number in range(self.next, self.next + n_rows):
            step = transition(self.kind, number, self.n_envs)
            step.add_to(self.staging)
            step.add_to(self.expected)
        self.next += n_rows
        block = block_of(self.staging, np.arange(n_rows))
        self.staging.reset()
        return block

    def received(self, n_rows: int) -> EncodedRows:
        """Return the next rows as another process receives them."""
        return received(self.block(n_rows), self.ring, self.codecs)

    def send(self, *segments: int) -> None:
        """Append rows, in segments of these lengths."""
        for n_rows in segments:
            self.received(n_rows).append_to(self.ring)

    def assert_equal(self) -> None:
        """Assert that the ring is what SB3's buffer is."""
        assert_equal_content(self.ring, self.expected)


def received(block: Block, ring: Any, ours: CodecExchange | None = None) -> EncodedRows:
    """Return the rows in a block as another process receives them, which has some codecs."""
    theirs, ours = CodecExchange(8), CodecExchange(8) if ours is None else ours
    digests = [theirs.add(codec) for batch in block.batches.values() for codec in batch.codecs]
    ours.receive(theirs.configs_of(digests))
    return EncodedRows.from_block(Block.unpack(block.pack(), ours), ring)


def assert_equal_content(ours: Any, theirs: Any) -> None:
    """Assert that two buffers have the same content in the same rows."""
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    found, expected = named_arrays(ours), named_arrays(theirs)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        n_rows = theirs.size()  # SB3 does not write the others
        assert np.asarray(found[name][:n_rows]).tobytes() == array[:n_rows].tobytes(), name


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("kind", SPACES)
def test_appended_rows_are_those_of_sb3(kind: str, where: str, tmp_path: Path) -> None:
    sender = Sender(kind, 50, folder=tmp_path / "ring" if where == "folder" else None)
    sender.send(1, 2, 7, 31, 20, 50)  # whole items before the layout is found; the last one is the whole ring
    sender.assert_equal()
    sender.send(3)
    sender.assert_equal()


@pytest.mark.parametrize("codec", ["delta", "zstd-dict", "zstd3"])
def test_codecs_with_and_without_training(codec: str) -> None:
    sender = Sender("transposed", 200, compression_method=codec)
    sender.send(*[64] * 5)
    sender.assert_equal()
    array = sender.ring.observations
    if codec in ("delta", "zstd-dict"):
        codecs = {id(each) for each in array.store.codecs(array.slots)}
        assert len(codecs) > 1, "trained between segments"


@pytest.mark.filterwarnings("ignore:frames do not repeat")
def test_levels_and_explicit_stacks() -> None:
    sender = Sender("transposed", 30, compression_method="zstd-3", frame_stack=2)
    assert sender.ring.observations.layout == FrameLayout((4, 20, 20), 0, 2)
    sender.send(20, 20)
    sender.assert_equal()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("dict", {"dtypes": {"image": np.uint8, "vector": np.float64}}), ("floats", {"dtypes": np.float64})],
)
@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.filterwarnings("ignore:dtypes stores")  # wider than necessary
def test_stored_dtypes(kind: str, options: dict[str, Any], where: str, tmp_path: Path) -> None:
    sender = Sender(kind, 50, folder=tmp_path / "ring" if where == "folder" else None, **options)
    sender.send(20, 30, 10)
    sender.assert_equal()


@pytest.mark.parametrize("segment", [1, 3])
@pytest.mark.parametrize("n_rows", [1, 2, 7])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_small_rings(n_rows: int, segment: int, where: str, tmp_path: Path) -> None:
    sender = Sender("images", n_rows, folder=tmp_path / "ring" if where == "folder" else None)
    for _ in range(5):
        sender.send(min(segment, n_rows))
        sender.assert_equal()


def test_a_segment_longer_than_the_ring_leaves_its_newest_rows() -> None:
    sender = Sender("images", 10)
    sender.send(4, 25)
    sender.assert_equal()


def test_payloads_are_stored_as_they_are() -> None:
    sender = Sender("images", 50)
    sender.send(20)
    rows = sender.received(10)
    batch = rows.batches["observations"]
    payloads = [*batch.payloads]
    rows.append_to(sender.ring)
    stored = sender.ring.observations.slots_at(np.arange(20, 30))
    assert {part for slot in stored.ravel() for part in slot if type(part) is bytes} <= set(payloads)
    assert len(set(payloads)) < len(payloads) / 5, "frames are shared"
    sender.assert_equal()


def test_frames_are_shared_in_memory() -> None:
    sender = Sender("images", 50)
    sender.send(20, 20)
    arrays = sender.ring.observations, sender.ring.next_observations
    slots = [slot for array in arrays for slot in array.slots_at(slice(24, 40)).ravel()]
    payloads = [part for slot in slots for part in slot if type(part) is bytes]
    assert len(payloads) == 2 * 2 * 16 * 4
    assert len({id(payload) for payload in payloads}) <= 2 * (16 + 4), "one object for each frame"


def test_codecs_are_written_to_a_folder_once(tmp_path: Path) -> None:
    sender = Sender("images", 300, folder=tmp_path / "ring")
    sender.send(*[20] * 10)
    sender.ring.flush()
    segments = list((tmp_path / "ring").rglob("*"))
    written = b"".join(path.read_bytes() for path in segments if path.is_file())
    # The configuration of the codec of rings, and of two or three trained ones.
    assert written.count(b'{"name": "delta"') < 12


# -- layouts -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:frames do not repeat")
def test_rows_of_another_layout_are_encoded_again() -> None:
    sender = Sender("images", 50)
    sender.send(20)
    ring = RingSpec(SPACES["images"], NUMBERS, {"frame_stack": 2}).ring(50, 2)
    sender.ring = ring
    sender.expected.reset()
    sender.send(20)
    sender.assert_equal()
    assert isinstance(ring.observations, CompressedArray)
    assert ring.observations.layout == FrameLayout((4, 20, 20), 0, 2)


def test_rows_of_another_codec_are_encoded_again() -> None:
    sender = Sender("images", 50, compression_method="lz4-block")
    sender.ring = RingSpec(SPACES["images"], NUMBERS, {"compression_method": "zstd"}).ring(50, 2)
    sender.send(20, 20)
    sender.assert_equal()
    assert sender.ring.observations.codec.name == "zstd"


def test_a_ring_takes_over_the_layout_of_rows() -> None:
    sender = Sender("channel-last", 50)
    assert sender.ring.observations.layout is None
    sender.send(2)
    assert sender.ring.observations.layout is None
    sender.send(20)
    assert sender.ring.observations.layout == FrameLayout((20, 20, 4), -1, 4)
    sender.assert_equal()


@pytest.mark.parametrize("layout", [None, FrameLayout((4, 20, 20), 0, 4), FrameLayout((20, 20, 12), -1, 4)])
def test_layouts_are_sent_as_numbers(layout: FrameLayout | None) -> None:
    shape = (4, 20, 20) if layout is None else layout.item_shape
    assert layout_of(shape, layout_to_state(layout)) == layout


# -- what does not fit ---------------------------------------------------------------------------------------


def changed(block: Block, **changes: Any) -> Block:
    return Block(
        {**block.values, **changes.get("values", {})},
        {name: array for name, array in {**block.arrays, **changes.get("arrays", {})}.items() if array is not None},
        {name: batch for name, batch in {**block.batches, **changes.get("batches", {})}.items() if batch is not None},
    )


def array_like(block: Block, name: str, shape: tuple[int, ...] | None = None, dtype: Any = None) -> NDArray[Any]:
    array = block.arrays[name]
    return np.zeros(array.shape if shape is None else shape, array.dtype if dtype is None else dtype)


def misfits(block: Block) -> dict[str, dict[str, Any]]:
    """Return changes of a block of 5 rows of 2 environments."""
    batch = block.batches["observations/image"]
    return {
        "no rows": {"values": {"rows": 0}},
        "more rows": {"values": {"rows": 6}},
        "rows of another type": {"values": {"rows": 5.0}},
        "rows of text": {"values": {"rows": "5"}},
        "very many rows": {"values": {"rows": 1 << 70}},
        "other environments": {"values": {"envs": 1}},
        "no formats": {"values": {"formats": None}},
        "another shape": {"values": {"formats": {"observations/image": [[20, 20, 4], "|u1"]}}},
        "another dtype": {"values": {"formats": {"observations/image": [[4, 20, 20], "|i1"]}}},
        "no layouts": {"values": {"layouts": None}},
        "layouts of nothing": {"values": {"layouts": {}}},
        "an impossible layout": {"values": {"layouts": {"observations/image": [0, 3]}}},
        "another layout": {"values": {"layouts": {"observations/image": [0, 2]}}},
        "no layout": {"values": {"layouts": {"observations/image": None}}},
        "half a layout": {"values": {"layouts": {"observations/image": [0]}}},
        "a layout of text": {"values": {"layouts": {"observations/image": ["0", "4"]}}},
        "no actions": {"arrays": {"actions": None}},
        "unknown arrays": {"arrays": {"infos": np.zeros((5, 2))}},
        "no image": {"batches": {"observations/image": None}},
        "an unknown image": {"batches": {"observations/other": batch}},
        "an image as actions": {"batches": {"actions": batch}, "arrays": {"actions": None}},
        "next images alone": {"batches": {"next_observations/image": batch}},
        "other rewards": {"arrays": {"rewards": array_like(block, "rewards", (4, 2))}},
        "rewards of rows": {"arrays": {"rewards": array_like(block, "rewards", (5,))}},
        "integer rewards": {"arrays": {"rewards": array_like(block, "rewards", dtype=np.int32)}},
        "float actions": {"arrays": {"actions": array_like(block, "actions", dtype=np.float64)}},
        "vectors of another length": {"arrays": {"observations/vector": np.zeros((5, 2, 8))}},
        "fewer images": {"batches": {"observations/image": batch.part(0, 18)}},
    }


KINDS = list(misfits(Sender("dict", 10).block(5)))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_fit_are_refused(kind: str) -> None:
    sender = Sender("dict", 50)
    sender.send(20)
    good = sender.block(5)
    block = changed(good, **misfits(good)[kind])
    with pytest.raises(CorruptPayload):
        received(block, sender.ring)


@pytest.mark.parametrize("envs", [1, 3])
def test_rows_of_other_numbers_of_environments_are_refused(envs: int) -> None:
    sender = Sender("images", 50)
    with pytest.raises(CorruptPayload, match=f"5 rows of {envs} environments"):
        received(Sender("images", 50, n_envs=envs).block(5), sender.ring)


@pytest.mark.parametrize("kind", ["channel-last", "rgb", "floats", "vector", "dict"])
def test_rows_of_other_spaces_are_refused(kind: str) -> None:
    with pytest.raises(CorruptPayload):
        received(Sender(kind, 50).block(5), Sender("images", 50).ring)


def test_a_damaged_payload_that_must_be_decoded_changes_nothing() -> None:
    sender = Sender("images", 50, compression_method="zstd", frame_stack=4)
    sender.send(20)
    before = {name: np.array(array[:50]) for name, array in named_arrays(sender.ring).items()}
    block = sender.block(5)
    batch = block.batches["observations"]
    batch.payloads.places[7, 1] -= 1
    rows = received(block, sender.ring)
    ring = RingSpec(SPACES["images"], NUMBERS, {"compression_method": "lz4-block"}).ring(50, 2)
    with pytest.raises(CorruptPayload):
        rows.append_to(ring)
    assert ring.pos == 0
    for name, array in named_arrays(sender.ring).items():
        np.testing.assert_array_equal(array[:50], before[name])


def test_what_a_ring_receives_need_not_stay_in_memory() -> None:
    sender = Sender("dict", 50)
    packed = sender.block(20).pack()
    codecs = CodecExchange(8)
    for codec in (sender.staging.observations["image"].codec,):
        codecs.add(codec)
    EncodedRows.from_block(Block.unpack(packed, codecs), sender.ring).append_to(sender.ring)
    packed[:] = 0
    sender.assert_equal()


def test_a_full_disk_leaves_a_ring_as_it_was(tmp_path: Path) -> None:
    sender = Sender("dict", 50, folder=tmp_path / "ring", compression_method={"image": "none"})
    sender.send(30)
    end = sender.ring._storage.store.log.last.end
    rows = sender.received(30)
    n_failed = 0
    for room in range(0, 2_000_000, 20_000):
        try:
            with full_disk(end + room):
                rows.append_to(sender.ring)
            break
        except OSError:
            n_failed += 1
            assert (sender.ring.pos, sender.ring.full) == (30, False)
    assert n_failed > 3
    sender.assert_equal()
    sender.ring.close()
    sender.ring = RingSpec(SPACES["dict"], NUMBERS, {"compression_method": {"image": "none"}}).ring(
        50, 2, storage=tmp_path / "ring", storage_mode="resume"
    )
    sender.assert_equal()
