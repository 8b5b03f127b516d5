"""Rows that were appended without decoding them are those that SB3's buffer has, bit for bit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gathering import loaded_slots

from distributed.emitted import NUMBERS, SIZE, SPACES, sb3_buffer, transition
from distributed.stopped import full_disk
from sb3_compressed import CompressedArray
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.distributed.block import Block
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.encoded_rows import append_rows, block_of, require_fitting
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
        self.codecs = CodecCache()
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

    def received(self, n_rows: int) -> Block:
        """Return the next rows as another process receives them."""
        return received(self.block(n_rows), self.codecs)

    def send(self, *segments: int) -> None:
        """Append rows, in segments of these lengths."""
        for n_rows in segments:
            append_rows(self.ring, self.received(n_rows))

    def assert_equal(self) -> None:
        """Assert that the ring is what SB3's buffer is."""
        assert_equal_content(self.ring, self.expected)


def received(block: Block, ours: CodecCache | None = None) -> Block:
    """Return a block as another process receives it, which has some codecs."""
    ours = CodecCache() if ours is None else ours
    ours.receive(block.codecs)
    return Block.unpack(pickle.loads(pickle.dumps(block.pack())), ours)


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
        codecs = {id(each) for each in array.stream.log.trained_codecs()}
        assert len(codecs) > 1, "trained between segments"


@pytest.mark.filterwarnings("ignore:frames do not repeat")
def test_levels_and_explicit_stacks() -> None:
    sender = Sender("transposed", 30, compression_method="zstd-3", frame_stack=2)
    assert sender.ring.observations.layout == FrameLayout((4, SIZE, SIZE), 0, 2)
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


def test_frames_are_shared_in_memory() -> None:
    sender = Sender("images", 50)
    sender.send(20, 20)
    slots = loaded_slots(sender.ring.observations, sender.ring.next_observations)
    payloads = [part for each in slots for slot in each[24:40].ravel() for part in slot if type(part) is bytes]
    assert len(payloads) == 2 * 2 * 16 * 4
    assert len({id(payload) for payload in payloads}) <= 2 * (16 + 4), "one object for each frame"


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
    assert ring.observations.layout == FrameLayout((4, SIZE, SIZE), 0, 2)


def test_a_ring_takes_over_the_layout_of_rows() -> None:
    sender = Sender("channel-last", 50)
    assert sender.ring.observations.layout is None
    sender.send(2)
    assert sender.ring.observations.layout is None
    sender.send(20)
    assert sender.ring.observations.layout == FrameLayout((SIZE, SIZE, 4), -1, 4)
    sender.assert_equal()


# -- what does not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("images", {"n_envs": 3}), ("rgb", {}), ("floats", {}), ("vector", {}), ("dict", {}),
        ("images", {"dtypes": np.int16}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:dtypes stores")  # wider than necessary
def test_rows_of_other_buffers_are_refused(kind: str, options: dict[str, Any]) -> None:
    block = Sender(kind, 50, **options).block(5)
    with pytest.raises(ValueError, match="the rows are"):
        require_fitting(block, Sender("images", 50).ring)


def test_a_damaged_payload_that_must_be_decoded_changes_nothing() -> None:
    sender = Sender("images", 50, compression_method="zstd", frame_stack=4)
    sender.send(20)
    before = {name: np.array(array[:50]) for name, array in named_arrays(sender.ring).items()}
    block = sender.block(5)
    batch = block.batches["observations"]
    batch.payloads.places[7, 1] -= 1
    rows = received(block)
    ring = RingSpec(SPACES["images"], NUMBERS, {"compression_method": "lz4-block"}).ring(50, 2)
    with pytest.raises(CorruptPayload):
        append_rows(ring, rows)
    assert ring.pos == 0
    for name, array in named_arrays(sender.ring).items():
        np.testing.assert_array_equal(array[:50], before[name])


def test_what_a_ring_receives_need_not_stay_in_memory() -> None:
    sender = Sender("dict", 50)
    block = sender.block(20)
    packed = block.pack()
    append_rows(sender.ring, Block.unpack(packed, block.codecs))
    for array in (*packed.arrays.values(), *(each.content for each in packed.batches.values())):
        array[:] = 0
    sender.assert_equal()


def test_a_full_disk_leaves_a_ring_as_it_was(tmp_path: Path) -> None:
    sender = Sender("dict", 50, folder=tmp_path / "ring", compression_method={"image": "none"})
    sender.send(30)
    log = sender.ring._storage.store.log
    rows = sender.received(30)
    n_failed = 0
    for room in range(0, 20_000_000, 100_000):
        try:
            with full_disk(log.last.end + room):  # what was written of a part of the rows stays in the file, unused
                append_rows(sender.ring, rows)
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


def test_overwritten_rows_are_freed_in_memory() -> None:
    sender = Sender("images", 64, compression_method="none")
    sizes = []
    for _ in range(12):
        sender.send(*[64] * 8)
        sizes.append(sender.ring.observations.stream.log.nbytes)  # nbytes of the array would free what is unused
    assert sizes[-1] < max(3_000_000, 4 * sizes[0])
    sender.assert_equal()
