"""Damaged segments: every flipped bit is detected and loses one record; other files are rejected unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.segment_header import FORMAT_VERSION
from storage.segments import (
    COPY_NBYTES,
    HEADER_NBYTES,
    kind_of,
    put,
    read_segment,
    record_nbytes,
    records_of,
    write_segment,
)

# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_zeros", [0, 100], ids=["as short as can be", "with room"])
def test_every_flipped_bit_is_detected_and_loses_at_most_one_record(n_zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    written = write_segment(path, [b"", b"a", bytes(12), bytes(range(30)), b"\xff", b"\xff" * 20])
    original = path.read_bytes()
    lost_at = [k for k, (_, content) in enumerate(written) for _ in range(record_nbytes(len(content)))]
    for bit in range(8 * len(original)):
        damaged = bytearray(original + bytes(n_zeros))
        damaged[bit // 8] ^= 1 << bit % 8
        put(path, damaged)
        if bit // 8 < HEADER_NBYTES:
            assert read_segment(path) == written, "the other copy of the header is intact"
            continue
        with pytest.raises(CorruptStorage, match=str(path)):
            read_segment(path)
        segment = Segment(path)
        problems: list[str] = []
        found = records_of(segment, problems=problems)
        segment.close()
        lost = lost_at[bit // 8 - HEADER_NBYTES]
        assert found == [record for k, record in enumerate(written) if k != lost]
        [problem] = problems
        assert str(path) in problem


@pytest.mark.parametrize(("content", "writable"), [(b"", True), (b"SB3CMPR\r", True), (b"PK\3\4" + bytes(100), False)])
def test_other_files_are_rejected_unchanged(content: bytes, writable: bool, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(content)
    with pytest.raises(CorruptStorage, match=f"{path} is not a file of this package"):
        Segment(path, writable=writable)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("version", "copies"), [(2, {0, 1}), (2, {1}), (FORMAT_VERSION + 1, {0}), (FORMAT_VERSION + 1, {1})]
)
def test_unknown_version_is_rejected(copies: set[int], version: int, tmp_path: Path) -> None:
    """The other copy of the header may be damaged."""
    path = tmp_path / "segment"
    write_segment(path, [b"content"])
    original = path.read_bytes()
    fields = original[:8] + version.to_bytes(4, "little") + original[12 : COPY_NBYTES - 8]
    header = fields + checksum(fields).to_bytes(8, "little")
    put(path, b"".join(header if k in copies else bytes(COPY_NBYTES) for k in range(2)) + original[HEADER_NBYTES:])
    message = f"{path} was written by version 0.4" if version < FORMAT_VERSION else f"{path} has version {version} "
    with pytest.raises(StorageError, match=message) as caught:
        Segment(path)
    assert not isinstance(caught.value, CorruptStorage), "a repair would drop it"


def test_header_with_two_damaged_copies_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    write_segment(path, [b"content"])
    original = path.read_bytes()
    for position in range(COPY_NBYTES):
        damaged = bytearray(original)
        damaged[position] ^= 4
        damaged[COPY_NBYTES + (position * 5 + 3) % COPY_NBYTES] ^= 1
        for content in (damaged, original[: COPY_NBYTES - 1], original[:position]):
            put(path, content)
            with pytest.raises(CorruptStorage, match=str(path)):
                Segment(path)


# -- segments that are alike ---------------------------------------------------------------------------------


def test_record_of_another_segment_is_rejected(tmp_path: Path) -> None:
    """Number, identity, offsets and content are the same."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        write_segment(path, [b"first", b"second", b"third"])
    ours, theirs = (path.read_bytes() for path in paths)
    start = HEADER_NBYTES
    for index, content in enumerate([b"first", b"second", b"third"]):
        end = start + record_nbytes(len(content))
        put(paths[0], ours[:start] + theirs[start:end] + ours[end:])
        with pytest.raises(CorruptStorage, match=f"{paths[0]} is damaged at byte {start}"):
            read_segment(paths[0])
        segment = Segment(paths[0])
        kinds = [record.kind for record in segment.records(problems=[])]
        assert kinds == [kind_of(k) for k in range(3) if k != index]
        segment.close()
        start = end
