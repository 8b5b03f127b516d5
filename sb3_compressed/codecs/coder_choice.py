"""The choice between coders, from the payloads of a training sample and the time that they take.

An uncompressed buffer copies each frame twice when it is added, and twice when it is sampled, from memory that is not
in the cache. Of the variants of a codec whose times are below a multiple of these, the one with the smallest payloads
is chosen. Times are estimated from sizes rather than measured, so that payloads do not depend on what else the machine
does: coders that copy take time for each piece that they copy, and entropy coders for each byte of a payload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sb3_compressed.codecs.delta_headers import FIRST_REFERENCE, LZ4_BLOCK, RAW

__all__ = ["OBJECTIVES", "Variant", "best_variant", "coder_of"]


class Limits(NamedTuple):
    """The most time that a frame may take, relative to an uncompressed buffer.

    :param decoding: of decoding
    :param encoding: of encoding
    """

    decoding: float
    encoding: float


OBJECTIVES = {"small": Limits(3.0, math.inf), "balanced": Limits(1.25, 2.0), "fast": Limits(0.5, 1.0)}


class Variant(NamedTuple):
    """What one variant of a codec makes of some frames.

    :param payloads: the payloads of the frames
    :param tries_delta: whether it tries a delta of each frame, in vain where the payload is not one
    """

    payloads: Sequence[bytes]
    tries_delta: bool


#: Nanoseconds that an uncompressed buffer takes to sample and to add a frame: in all, and for each of its bytes. All
#: times here were fitted by hand to frames of 7 to 58 kB; ``benchmarks/images.py`` measures how good they are.
SAMPLING_NS, SAMPLING_NS_PER_BYTE = 300.0, 0.15
ADDING_NS, ADDING_NS_PER_BYTE = 1_500.0, 0.6
#: What a delta costs that is larger than allowed, for each byte of the frame.
TRIED_NS_PER_BYTE = 2.3


class Cost(NamedTuple):
    """The time to process a payload, in nanoseconds: in all, for each byte of its frame, and of the payload."""

    constant: float
    of_frame: float
    of_payload: float

    def of(self, payload_nbytes: float, frame_nbytes: int) -> float:
        """Return the time for a payload."""
        return self.constant + self.of_frame * frame_nbytes + self.of_payload * payload_nbytes


DECODING = {
    "zstd": Cost(1_500, 0.25, 3.0),
    "delta": Cost(250, 0.03, 0.9),
    "lz4": Cost(250, 0.03, 6.0),
    "raw": Cost(100, 0.06, 0),
}
ENCODING = {
    "zstd": Cost(3_000, 1.0, 9.0),
    "delta": Cost(500, 0.4, 6.0),
    "lz4": Cost(500, 0.3, 1.9),
    "raw": Cost(200, 0.15, 0),
}


def coder_of(payload: bytes) -> str:
    """Return which coder wrote a payload of ``delta``."""
    header = payload[0] if payload else 0
    return "zstd" if header < FIRST_REFERENCE else {LZ4_BLOCK: "lz4", RAW: "raw"}.get(header, "delta")


def decoding_ns(payload: bytes, frame_nbytes: int) -> float:
    """Estimate the time to decode a payload."""
    coder, nbytes = coder_of(payload), float(len(payload))
    if coder == "lz4":  # the number of pieces: their literals are longer where less is copied
        nbytes /= 5 + 6 * nbytes / max(frame_nbytes, 1)
    return DECODING[coder].of(nbytes, frame_nbytes)


def encoding_ns(payload: bytes, frame_nbytes: int, *, tries_delta: bool) -> float:
    """Estimate the time that it took to encode a payload."""
    coder = coder_of(payload)
    in_vain = TRIED_NS_PER_BYTE * frame_nbytes if tries_delta and coder != "delta" else 0.0
    return in_vain + ENCODING[coder].of(len(payload), frame_nbytes)


def best_variant(objective: str, variants: Sequence[Variant], frame_nbytes: int) -> int:
    """Return the index of the variant with the smallest payloads among those that are fast enough.

    :param objective: one of :data:`OBJECTIVES`
    :param variants: variants with the payloads of the same frames
    :param frame_nbytes: bytes of a frame
    """
    limits, n_frames = OBJECTIVES[objective], len(variants[0].payloads)
    most_decoding = limits.decoding * n_frames * (SAMPLING_NS + SAMPLING_NS_PER_BYTE * frame_nbytes)
    most_encoding = limits.encoding * n_frames * (ADDING_NS + ADDING_NS_PER_BYTE * frame_nbytes)

    def excess(variant: Variant) -> float:
        """Return by which factor it is too slow, 1 if it is not."""
        decoding = sum(decoding_ns(payload, frame_nbytes) for payload in variant.payloads)
        encoding = sum(encoding_ns(each, frame_nbytes, tries_delta=variant.tries_delta) for each in variant.payloads)
        return max(decoding / most_decoding, encoding / most_encoding, 1.0)

    def rank(index: int) -> tuple[float, int]:
        return excess(variants[index]), sum(map(len, variants[index].payloads))

    return min(range(len(variants)), key=rank)
