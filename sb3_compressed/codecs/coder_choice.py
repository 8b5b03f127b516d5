"""The choice between coders, from the payloads of a training sample and the time that they take.

An uncompressed buffer copies each frame twice when it is added, and twice when it is sampled, from memory that is not
in the cache. Of the variants of a codec whose times are within limits relative to these, the one with the smallest
payloads is chosen. The present one is kept as long as it is not much worse: a choice that changes with each sample
would help no one.

Times are estimated rather than measured, so that payloads do not depend on what else the machine does: a time is a sum
of things that can be counted, such as bytes of payloads, each with its cost. ``python benchmarks/coder_times.py``
measures recorded frames and prints the costs with the smallest relative errors. Those below are of the sources that
``benchmarks/sources.py`` lists as used for tuning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.delta_headers import FIRST_REFERENCE, LZ4_BLOCK, RAW
from sb3_compressed.codecs.payloads import Payloads

__all__ = [
    "COSTS",
    "COUNTS",
    "OBJECTIVES",
    "Limits",
    "Variant",
    "Work",
    "best_variant",
    "coder_of",
    "decodes_slowly",
    "decoding_work",
    "encoding_work",
    "estimated_ns",
    "frame_work",
    "payload_work",
]

COUNTS = "frames", "frame_bytes", "payload_bytes", "coded_bytes", "sequences", "long_matches", "overlapping_bytes"
"""What is counted of frames and payloads. Coded bytes are those of payloads without the share that compression does not
save: bytes that do not compress are stored as they are. The last three are of LZ4, see :func:`.count_sequences`."""

COLOR_DELTAS = {"delta": "color_delta", "useless_delta": "useless_color_delta"}

Work = dict[str, NDArray[np.float64]]
"""Sums of the counts ``(len(COUNTS),)`` by coder, or by other work."""

#: Nanoseconds for each of the counts. Sampling and adding are those of SB3's buffer, where colors that are added in
#: channel-last memory order take longer; ``storing`` is what the buffer does besides encoding. Separation is decoding
#: frames that are stored in that order.
COSTS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "sampling": {
        "sb3": {"frames": 228, "frame_bytes": 0.0776},
    },
    "adding": {
        "channel_last": {"frames": 1240, "frame_bytes": 0.589},
        "contiguous": {"frames": 1300, "frame_bytes": 0.0744},
        "storing": {"frames": 3370, "frame_bytes": 0.234},
    },
    "decoding": {
        "color_delta": {"payload_bytes": 2.18},
        "delta": {"frames": 259, "coded_bytes": 1.26},
        "lz4": {"payload_bytes": 0.073, "sequences": 5.82, "long_matches": 7.43, "overlapping_bytes": 0.0712},
        "raw": {"frames": 65.6, "frame_bytes": 0.0741},
        "separation": {"frames": 293},
        "zstd": {"frames": 588, "payload_bytes": 0.029, "coded_bytes": 5.92},
    },
    "encoding": {
        "color_delta": {"frames": 1520, "payload_bytes": 16.4},
        "delta": {"frames": 1850, "payload_bytes": 1.65, "coded_bytes": 6.2},
        "lz4": {
            "frames": 1820,
            "payload_bytes": 2.55,
            "coded_bytes": 3.19,
            "sequences": 0.395,
            "overlapping_bytes": 2.02,
        },
        "raw": {"frames": 779, "frame_bytes": 0.0311},
        "useless_color_delta": {"frames": 10200, "frame_bytes": 1.06},
        "useless_delta": {"frames": 16700},
        "zstd": {"frames": 725, "frame_bytes": 0.103, "payload_bytes": 1.24, "coded_bytes": 14.9},
    },
}


class Limits(NamedTuple):
    """The most time that a frame may take: a multiple of SB3's time plus some nanoseconds.

    :param sampling: multiple of the time that SB3's buffer takes to sample a frame
    :param sampling_ns: nanoseconds added to it
    :param adding: multiple of the time that SB3's buffer takes to add a frame
    :param adding_ns: nanoseconds added to it. Encoding may always take this long
    """

    sampling: float
    sampling_ns: float
    adding: float
    adding_ns: float


OBJECTIVES = {
    "small": Limits(6.5, 0, math.inf, math.inf),
    "balanced": Limits(1.0, 250, 1.2, 3_500),
    "fast": Limits(0.5, 0, 1.0, 1_500),
}
#: Frames that are not added in channel-last order are usually those of one color, which are stacked: SB3's buffer
#: copies each several times, but a codec gets it only once. What storing takes does not count for them, and this many
#: times the nanoseconds are allowed. Of the eight frames of a transition of four stacked ones, five are decoded.
STACKED, STACKED_SAMPLING = 2.3, 8 / 5
#: By which factor the present variant may exceed the limits, and another one has to be smaller to replace it.
TOLERANCE, CLEARLY_SMALLER = 1.25, 0.85
#: By which factor recent payloads may exceed the limit for decoding, before another coder replaces the present one.
FAR_TOO_SLOW = 2.0
#: Of variants whose payloads are larger by at most this factor, the one that is decoded fastest is chosen.
SIMILAR = 1.1
#: Where memory does not come first, a variant that takes at most this part of the time to decode is chosen even if its
#: payloads are larger by this share of the frames: hardly any memory. Those of Pong are tiny anyway.
CLEARLY_FASTER, HARDLY_ANY = 0.85, 0.01
#: Bytes of a payload besides its content: the header of a Python object, and a reference to it.
OBJECT_NBYTES = 48


class Variant(NamedTuple):
    """What one variant of a codec makes of some frames.

    :param payloads: the payloads of the frames
    :param tries_delta: whether it tries a delta of each frame, in vain where the payload is not one
    :param coder: what encodes frames without a small delta
    :param tried: the payloads of this coder, stored or not; an uncompressed one was tried in vain
    """

    payloads: Sequence[bytes]
    tries_delta: bool
    coder: str
    tried: Sequence[bytes]


def coder_of(payload: bytes) -> str:
    """Return which coder wrote a payload of ``delta``."""
    header = payload[0] if payload else 0
    return "zstd" if header < FIRST_REFERENCE else {LZ4_BLOCK: "lz4", RAW: "raw"}.get(header, "delta")


def frame_work(name: str, n_frames: int, frame_nbytes: int) -> Work:
    """Return work that is the same for all frames.

    :param frame_nbytes: bytes of a frame
    """
    return {name: np.array([n_frames, n_frames * frame_nbytes, *[0] * len(COUNTS[2:])], dtype=np.float64)}


def payload_work(payloads: Sequence[bytes], frame_nbytes: int) -> Work:
    """Return the counts of payloads by coder."""
    # On first use, since importing numba takes long.
    from sb3_compressed.codecs.lz4_statistics_kernels import count_sequences

    batch, sequences = Payloads.of(payloads), np.empty((len(payloads), 3), dtype=np.int64)
    count_sequences(batch.places, sequences)
    counts = np.empty((len(payloads), len(COUNTS)))
    nbytes = counts[:, 2] = batch.places[:, 1]
    counts[:, 0], counts[:, 1] = 1, frame_nbytes
    counts[:, 3] = nbytes * np.maximum(1 - nbytes / max(frame_nbytes, 1), 0)
    counts[:, 4:] = sequences
    coders = np.array([*map(coder_of, payloads)], dtype=object)
    return {coder: counts[coders == coder].sum(axis=0) for coder in dict.fromkeys(coders.tolist())}


def decoding_work(payloads: Sequence[bytes], frame_nbytes: int, *, is_channel_last: bool) -> Work:
    """Return the work of decoding payloads.

    :param is_channel_last: whether the codec stores frames in channel-last order
    """
    work = payload_work(payloads, frame_nbytes)
    if is_channel_last:
        work = _of_colors(work) | frame_work("separation", len(payloads), frame_nbytes)
    return work


def encoding_work(variant: Variant, frame_nbytes: int, *, is_channel_last: bool) -> Work:
    """Return the work of encoding the frames of a variant, with what it tries in vain.

    :param is_channel_last: whether the codec stores frames in channel-last order
    """
    deltas = [payload for payload in variant.payloads if coder_of(payload) == "delta"]
    work = payload_work(deltas, frame_nbytes) | payload_work(variant.tried, frame_nbytes)
    if variant.tries_delta:
        work |= frame_work("useless_delta", len(variant.payloads) - len(deltas), frame_nbytes)
    if variant.coder == "lz4" and "raw" in work:
        work["lz4"] = work.get("lz4", 0.0) + work["raw"]
    return _of_colors(work) if is_channel_last else work


def _of_colors(work: Work) -> Work:
    """Return work in which deltas are those of color images: their pieces are shorter, and tiles are searched for."""
    return {COLOR_DELTAS.get(name, name): counts for name, counts in work.items()}


def estimated_ns(process: str, work: Work) -> float:
    """Estimate the time for some work in nanoseconds.

    :param process: a key of :data:`COSTS`
    """
    costs = COSTS[process]
    return math.fsum(counts[COUNTS.index(name)] * ns for key, counts in work.items() for name, ns in costs[key].items())


def best_variant(
    objective: str,
    variants: Sequence[Variant],
    frame_nbytes: int,
    *,
    is_channel_last: bool = False,
    present: int | None = None,
) -> int:
    """Return the index of the variant with the smallest payloads among those that are fast enough.

    :param objective: one of :data:`OBJECTIVES`
    :param variants: variants with the payloads of the same frames
    :param frame_nbytes: bytes of a frame
    :param is_channel_last: whether frames are added, and stored, in channel-last memory order
    :param present: the index of the variant that is used so far, if any: it is kept if it exceeds the limits a little,
        or another one is only a little smaller
    """
    limits = _limits_ns(objective, len(variants[0].payloads), frame_nbytes, is_channel_last=is_channel_last)
    decoding = [
        estimated_ns("decoding", decoding_work(variant.payloads, frame_nbytes, is_channel_last=is_channel_last))
        for variant in variants
    ]
    encoding = [
        estimated_ns("encoding", encoding_work(variant, frame_nbytes, is_channel_last=is_channel_last))
        for variant in variants
    ]
    # By which factor each is too slow, 1 if it is not.
    slowness = [
        max(decode / limits.decoding, encode / limits.encoding, 1.0)
        for decode, encode in zip(decoding, encoding, strict=True)
    ]
    nbytes = [sum(map(len, variant.payloads)) + OBJECT_NBYTES * len(variant.payloads) for variant in variants]
    fastest = [index for index, factor in enumerate(slowness) if factor == min(slowness)]
    smallest = min(nbytes[index] for index in fastest)
    coder = "" if present is None else variants[present].coder
    similar = [index for index in fastest if nbytes[index] <= SIMILAR * smallest]

    def fastest_first(index: int) -> tuple[float, bool]:
        # Variants tie where every frame is a delta; the present coder is then kept for other frames.
        return decoding[index], variants[index].coder != coder

    best = min(similar, key=fastest_first)
    hardly_any = 0.0 if objective == "small" else HARDLY_ANY * frame_nbytes * len(variants[0].payloads)
    hardly_larger = [index for index in fastest if nbytes[index] <= smallest + hardly_any]
    faster = [index for index in hardly_larger if decoding[index] <= CLEARLY_FASTER * decoding[best]]
    best = min(faster, key=fastest_first, default=best)
    if present is None or slowness[present] > TOLERANCE * slowness[best]:
        return best
    return best if nbytes[best] < min(CLEARLY_SMALLER * nbytes[present], nbytes[present] - hardly_any) else present


def decodes_slowly(objective: str, payloads: Sequence[bytes], frame_nbytes: int, *, is_channel_last: bool) -> bool:
    """Return whether decoding takes far longer than the objective allows: other frames were expected.

    :param payloads: payloads of recent frames
    """
    limits = _limits_ns(objective, len(payloads), frame_nbytes, is_channel_last=is_channel_last)
    work = decoding_work(payloads, frame_nbytes, is_channel_last=is_channel_last)
    return estimated_ns("decoding", work) > FAR_TOO_SLOW * limits.decoding


class _LimitsNs(NamedTuple):
    """The most time in nanoseconds that decoding and encoding some frames may take."""

    decoding: float
    encoding: float


def _limits_ns(objective: str, n_frames: int, frame_nbytes: int, *, is_channel_last: bool) -> _LimitsNs:
    limits, n_frames = OBJECTIVES[objective], max(n_frames, 1)
    order = "channel_last" if is_channel_last else "contiguous"
    sampling = estimated_ns("sampling", frame_work("sb3", n_frames, frame_nbytes))
    adding = estimated_ns("adding", frame_work(order, n_frames, frame_nbytes))
    storing = estimated_ns("adding", frame_work("storing", n_frames, frame_nbytes))
    sampling_ns, adding_ns = limits.sampling_ns * n_frames, limits.adding_ns * n_frames
    decoding = limits.sampling * sampling * (1.0 if is_channel_last else STACKED_SAMPLING) + sampling_ns
    if is_channel_last:
        encoding = max(limits.adding * adding - storing, adding + adding_ns - storing, adding_ns)
    else:
        encoding = limits.adding * adding + STACKED * adding_ns
    return _LimitsNs(decoding, encoding)
