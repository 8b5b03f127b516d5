"""Damaged slots raise errors that name them: no damage, no address and no nonsense is read as a slot, or crashes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from slot_objects import Slot, load_slots, write_slots

from sb3_compressed.arrays.slot_format import SLOT_SEED
from sb3_compressed.codecs import Codec, get_codec
from sb3_compressed.errors import CorruptPayload
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.log import Log
from sb3_compressed.storage.record_kinds import CODEC, SLOTS
from storage.slot_logs import CODECS, FIRST, READERS, assert_same_slots, keep, new_log, opened

# -- damaged bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", READERS)
def test_a_slot_of_a_segment_that_is_missing_is_named(way: str, log: Log, tmp_path: Path) -> None:
    written = []
    for _ in range(3):
        written.append(write_slots(log, [(CODECS[0], b"first", b"second")]))
        log.begin_segment()
    keep(log, [1])
    reader = opened(tmp_path)
    with pytest.raises(CorruptPayload, match=r"00000002\.log is missing") as caught:
        READERS[way](reader, np.concatenate([written[0], written[1]]))
    assert caught.value.index == 1
    reader.close()


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
                    file.seek(position)
                    file.write(bytes([self.whole[position] ^ 1 << bit]))
                    yield position
                file.seek(position)
                file.write(self.whole[position : position + 1])


@pytest.mark.parametrize("way", READERS)
def test_every_flipped_bit_of_a_slot_or_payload_is_detected(way: str, log: Log, tmp_path: Path) -> None:
    slots: list[Slot] = [
        (CODECS[0], b"first", b"second"),
        (CODECS[0], b"", CODECS[1], b"1"),
        (CODECS[1], bytes(range(40)), bytes(9)),
    ]
    for codec in CODECS[:2]:
        log.address_of_codec(codec)
    start = log.last.next_offset
    addresses = write_slots(log, slots)
    end = log.last.end - 1
    path = tmp_path / "00000001.log"
    where = re_escaped(path)
    n_flips = 0
    READERS[way](log, addresses)

    assert_same_slots(load_slots(log, addresses), slots)
    for position in Damage(path).flipped(start, end):
        with pytest.raises(CorruptPayload, match=where) as caught:
            READERS[way](log, addresses)
        assert 0 <= caught.value.index < 3, position
        n_flips += 1
        others = np.delete(addresses, caught.value.index)
        if position % 3 == 0:  # each payload here is of one slot, so the others can be read
            assert_same_slots(load_slots(log, others), [s for k, s in enumerate(slots) if k != caught.value.index])
    assert n_flips == 8 * (end - start)
    assert_same_slots(load_slots(log, addresses), slots)


def re_escaped(path: Path) -> str:
    return str(path).replace(".", r"\.")


# -- crafted parts -------------------------------------------------------------------------------------------


class At(NamedTuple):
    """Where a part is: the offset in a segment, and the id of that."""

    offset: int
    segment_id: int


def part(data: bytes, at: At, seed: int = 0) -> bytes:
    """Return bytes after their checksum, as they are at an offset."""
    return (checksum(data, (at.offset + seed) ^ at.segment_id) & 0xFFFFFFFF).to_bytes(4, "little") + data


def payload_at(at: At, content: bytes, codec: int, *, nbytes: int | None = None) -> bytes:
    return part(struct.pack("<II", len(content) if nbytes is None else nbytes, codec) + content, at)


def slot_at(at: At, places: list[int], *, n: int | None = None) -> bytes:
    return part(struct.pack(f"<{1 + len(places)}I", len(places) if n is None else n, *places), at, SLOT_SEED)


def append_part(log: Log, make: Callable[[At], bytes]) -> int:
    """Append a record of one part, which depends on its position; return the offset."""
    return log.segment_to_write().append(SLOTS, make(At(log.last.next_offset, log.last.id)))


def codec_record(log: Log, codec: Codec | None) -> int:
    """Append a codec, or an invalid record, and return its offset."""
    return log.segment_to_write().append(CODEC, b"[1]" if codec is None else json.dumps(codec.get_config()).encode())


def test_slots_and_payloads_on_disk_have_the_documented_format(log: Log) -> None:
    codec = codec_record(log, CODECS[0])
    first = append_part(log, lambda at: payload_at(at, b"abc", codec))
    second = append_part(log, lambda at: payload_at(at, b"", codec))
    slot = append_part(log, lambda at: slot_at(at, [second, first, second]))
    plain = append_part(log, lambda at: payload_at(at, b"plain", 0))
    whole = append_part(log, lambda at: slot_at(at, [plain]))
    found = load_slots(log, np.array([FIRST << 32 | slot, FIRST << 32 | whole]))
    assert_same_slots(found, [(CODECS[0], b"", b"abc", b""), b"plain"])


@pytest.mark.parametrize("way", READERS)
def test_a_payload_is_not_mistaken_for_a_slot(way: str, log: Log) -> None:
    """Though its bytes could be those of one of two payloads."""
    codec = codec_record(log, CODECS[0])
    payload = append_part(log, lambda at: payload_at(at, b"abc", codec))
    like = append_part(log, lambda at: part(struct.pack("<III", 2, payload, payload), at))
    with pytest.raises(CorruptPayload):
        READERS[way](log, np.array([FIRST << 32 | like]))


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize(
    "kind",
    [
        "no payloads",
        "more payloads than bytes",
        "2**32 - 1 payloads",
        "payload in the header",
        "payload beyond the end",
        "payload at 2**32 - 1",
        "slot as payload",
        "payload of too many bytes",
        "payload of 2**32 - 1 bytes",
        "codec that is none",
        "codec beyond the end",
        "codec in the header",
        "slots as codec",
        "codec that is not trainable",
        "codec of one payload only",
    ],
)
def test_invalid_parts_with_right_checksums_are_refused(way: str, kind: str, log: Log) -> None:
    good = codec_record(log, CODECS[0])
    codecs: dict[str, Callable[[], int]] = {
        "codec that is none": lambda: codec_record(log, None),
        "codec beyond the end": lambda: 2_000_000_000,
        "codec in the header": lambda: 1,
        "slots as codec": lambda: append_part(log, lambda at: payload_at(at, b"abc", good)),
        "codec that is not trainable": lambda: codec_record(log, get_codec("zstd")),
    }
    codec = codecs[kind]() if kind in codecs else good
    nbytes = {"payload of too many bytes": 100_000_000, "payload of 2**32 - 1 bytes": 2**32 - 1}.get(kind)
    first = append_part(log, lambda at: payload_at(at, b"abc", codec, nbytes=nbytes))
    second = append_part(log, lambda at: payload_at(at, b"def", 0 if kind == "codec of one payload only" else codec))
    n = {"no payloads": 0, "more payloads than bytes": 200_000, "2**32 - 1 payloads": 2**32 - 1}.get(kind)
    place = {"payload in the header": 3, "payload beyond the end": 2_000_000_000, "payload at 2**32 - 1": 2**32 - 1}
    as_slot = log.last.next_offset
    places = [] if n == 0 else [place.get(kind, as_slot if kind == "slot as payload" else first), second]
    slot = append_part(log, lambda at: slot_at(at, places, n=n))
    addresses = np.array([FIRST << 32 | slot])
    with pytest.raises(CorruptPayload):
        READERS[way](log, addresses)


@pytest.mark.parametrize("first_is_trained", [True, False])
@pytest.mark.parametrize("way", READERS)
def test_an_invalid_slot_of_payloads_that_another_one_has_is_refused(
    way: str, first_is_trained: bool, log: Log
) -> None:
    codec = codec_record(log, CODECS[0])
    trained = append_part(log, lambda at: payload_at(at, b"abc", codec))
    plain = append_part(log, lambda at: payload_at(at, b"def", 0))
    valid = FIRST << 32 | append_part(log, lambda at: slot_at(at, [trained, trained]))
    mixed = [trained, plain] if first_is_trained else [plain, trained]
    invalid = FIRST << 32 | append_part(log, lambda at: slot_at(at, mixed))
    with pytest.raises(CorruptPayload) as caught:
        READERS[way](log, np.array([valid, invalid]))
    assert caught.value.index == 1


# -- addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", READERS)
def test_slots_of_a_segment_of_another_log_are_refused(way: str, log: Log, tmp_path: Path) -> None:
    """Though number, offsets and lengths are the same, as in a copy of the folder that was changed independently."""
    other = new_log(tmp_path / "other")
    addresses = []
    for each, content in ((log, b"ours"), (other, b"else")):
        each.address_of_codec(CODECS[0])
        start = each.last.next_offset
        addresses.append(write_slots(each, [(CODECS[0], content, content)]))
    assert addresses[0].tolist() == addresses[1].tolist()
    theirs = (tmp_path / "other" / "00000001.log").read_bytes()[start : other.last.end]
    with open(tmp_path / "00000001.log", "r+b", buffering=0) as file:
        file.seek(start)
        file.write(theirs)
    with pytest.raises(CorruptPayload, match=r"00000001\.log, the slot at byte \d+, is damaged"):
        READERS[way](log, addresses[0])
    assert_same_slots(load_slots(other, addresses[1]), [(CODECS[0], b"else", b"else")])
    other.close()
