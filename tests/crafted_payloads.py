"""Crafted payloads: valid ones composed at random, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = [
    "MALFORMED_BLOCKS",
    "MALFORMED_PACKED",
    "MUTATIONS",
    "PACKED_SHAPE",
    "VALID_BLOCK",
    "Mutation",
    "composed",
    "pieces",
    "sequence",
]

Mutation = Callable[[np.random.Generator, bytes], bytes]
"""Returns a damaged payload, of one that is not empty."""


def flipped(rng: np.random.Generator, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for at in rng.integers(0, len(payload), rng.integers(1, 4)):
        changed[at] ^= 1 << rng.integers(8)
    return bytes(changed)


def replaced(rng: np.random.Generator, payload: bytes) -> bytes:
    at, n = rng.integers(0, len(payload)), rng.integers(1, 6)
    return payload[:at] + rng.bytes(int(n)) + payload[at + n :]


def cut(rng: np.random.Generator, payload: bytes) -> bytes:
    at, n = rng.integers(0, len(payload)), rng.integers(1, 6)
    return payload[:at] + payload[at + n :]


def inserted(rng: np.random.Generator, payload: bytes) -> bytes:
    at = rng.integers(0, len(payload) + 1)
    more = (b"\xff" * 5, b"\0\0", rng.bytes(3))[rng.integers(3)]
    return payload[:at] + more + payload[at:]


MUTATIONS: list[Mutation] = [flipped, replaced, cut, inserted]


def composed(rng: np.random.Generator, size: int) -> bytes:
    """Return a frame of noise, repeated bytes, and copies of what precedes them."""
    frame = b""
    while len(frame) < size:
        n = int(rng.integers(1, rng.choice([6, 40, 300])))
        match rng.integers(3):
            case 0:
                frame += rng.bytes(n)
            case 1:
                frame += rng.bytes(int(rng.integers(1, 40))) * n
            case 2 if frame:
                start = int(rng.integers(len(frame)))
                frame += frame[start : start + n]
    return frame[:size]


def sequence(literals: bytes, offset: int = 0, length: int = 0) -> bytes:
    """Return a sequence of LZ4: literals and, unless its length is 0, a match."""

    def rest(number: int) -> bytes:
        return b"" if number < 15 else b"\xff" * ((number - 15) // 255) + bytes([(number - 15) % 255])

    n, more = len(literals), max(length - 4, 0)
    match = offset.to_bytes(2, "little") + rest(more) if length else b""
    return bytes([min(n, 15) << 4 | min(more, 15)]) + rest(n) + literals + match


def pieces(rng: np.random.Generator, n_references: int, size: int) -> bytes:
    """Return a payload of ``delta`` of random pieces, of which most sources are valid.

    :param n_references: the number of references of its codec
    :param size: bytes of the frame
    """

    def number(n: int) -> bytes:
        return bytes([n]) if n < 255 else b"\xff" + n.to_bytes(2, "little")

    payload = bytes([2 + rng.integers(n_references)])
    position = 0
    while True:
        n = min(int(rng.integers(rng.choice([2, 8, 60, 400]))), size - position)
        payload += number(n)
        position += n
        if position == size:
            return payload
        match rng.integers(4):
            case 0:
                payload += bytes([0, rng.integers(4)])
            case 1:
                latest = max(n_references * size + position - 32, n)
                start = int(rng.integers(latest + 1)) if rng.random() < 0.7 else latest + int(rng.integers(-n, 2))
                payload += bytes([0, 4 + (start >> 16)]) + (start & 0xFFFF).to_bytes(2, "little")
            case _:
                n = min(int(rng.integers(1, rng.choice([4, 40, 300]))), size - position)
                payload += number(n) + rng.bytes(n)
                position += n


_END = sequence(b"12345")
VALID_BLOCK = sequence(b"abc", 3, 40) + _END  # of 48 bytes

#: Blocks of LZ4 that are not valid, and the size of the frame.
MALFORMED_BLOCKS: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 48),
    "offset 0": (sequence(b"abc", 0, 40) + _END, 48),
    "before the frame": (sequence(b"abc", 4, 40) + _END, 48),
    "too long": (sequence(b"abc", 3, 41) + _END, 48),
    "too short": (sequence(b"abc", 3, 39) + _END, 48),
    "in the last 5 bytes": (sequence(b"abc", 3, 41) + sequence(b"1234"), 48),
    "at the end": (sequence(b"abc", 3, 45) + sequence(b""), 48),
    "no last literals": (sequence(b"abc", 3, 45), 48),
    "in the last 12 bytes": (sequence(bytes(37), 3, 6) + _END, 48),
    "literals after the frame": (sequence(b"abc", 3, 40) + sequence(b"123456"), 48),
    "a byte follows": (VALID_BLOCK + b"\0", 48),
    "a block follows": (VALID_BLOCK + VALID_BLOCK, 48),
    "endless number of literals": (b"\xf0" + b"\xff" * 70_000, 48),
    "endless length": (b"\x1fa\1\0" + b"\xff" * 70_000, 48),
    "no offset": (b"\x1fa", 48),
    "half of an offset": (b"\x1fa\1", 48),
}

#: Five blocks a plane, of which 3 bits are used in the last one; 15 blocks, and 2 groups.
PACKED_SHAPE = 3, 5, 7
#: Packed differences of such a frame that are never written, in hexadecimal digits.
MALFORMED_PACKED = [
    "6a",  # no widths
    "6b 00",  # of frames of another size
    "6a 05",  # a group of widths that have 5 bits
    "6a 10",  # no bytes of the second group
    "6a 01 00",  # a group whose widths have fewer bits than its own
    "6a 01 01",  # no bytes of a block
    "6a 01 01 00",  # a block whose values have fewer bits than its width
    "6a 01 01 01 00",  # a byte too many
    "6a 00 00",
    "6a 01 10 08",  # a value after the 35 of a plane
    "6a 10 80 01",  # a width after the 15 of all blocks
    "6a 04 01000001" + "ff" * 9,  # a width of 9
]
