"""From measured trainings to a recommendation: the cost of each buffer, and which one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sb3_compressed.benchmarking.measurement import Measurement
from sb3_compressed.benchmarking.metrics import format_nbytes
from sb3_compressed.benchmarking.sb3_classes import SB3

__all__ = ["Cost", "costs", "recommend"]

#: A recommended buffer takes at most this part of SB3's memory: its ``optimize_memory_usage=True`` takes about half.
MAX_RATIO = 0.45
#: The time of the training, relative to another buffer's, that counts as equal: short trainings vary by some percent.
MAX_TIME = 1.05
#: Buffers that need more memory than the smallest one by at most this factor are recommended if they take less time.
SIMILAR = 1.1


@dataclass(frozen=True)
class Cost:
    """Memory of one buffer at full capacity, and times of a training with it; the ratios are to SB3's buffer."""

    buffer: str  # name of the buffer: SB3, or a codec; a key of `advise --json`
    transition: float  # bytes
    memory: float  # bytes
    ratio: float  # of memory
    step: float  # microseconds of a transition of the training
    time_ratio: float
    add: float  # microseconds of a call
    add_ratio: float
    read: float  # microseconds of a batch
    read_ratio: float
    equal_weights: bool  # whether the training ended with the weights of that with SB3's buffer


def costs(measured: Mapping[str, Measurement], capacity: int) -> list[Cost]:
    """Return the cost of each buffer that could be measured, SB3's first.

    :param measured: results of :func:`~sb3_compressed.benchmarking.training_run.measure_training` by buffer name
    :raises ValueError: if SB3's buffer could not be measured
    """
    base = measured[SB3]
    if "error" in base:
        raise ValueError(f"the training with SB3's buffer failed: {base['error']}")
    return [
        Cost(
            buffer=name,
            transition=one["memory"] / capacity,
            memory=one["memory"],
            ratio=one["memory"] / base["memory"],
            step=one["step"],
            time_ratio=one["step"] / base["step"],
            add=one["add"],
            add_ratio=one["add"] / base["add"],
            read=one["read"],
            read_ratio=one["read"] / base["read"],
            equal_weights=one["weights"] == base["weights"],
        )
        for name, one in measured.items()
        if "error" not in one
    ]


def recommend(costs: Sequence[Cost]) -> tuple[str, str]:
    """Return the name of the buffer to use and the reason.

    It is the one with the least memory, among those with which a training takes hardly longer; if there are none, the
    one with which it takes the least time.

    :param costs: SB3's first
    :return: SB3's own buffer if no other is clearly smaller than with ``optimize_memory_usage=True``
    """
    base, *others = costs
    if not others:
        return SB3, "No other buffer could be measured."
    small = [cost for cost in others if cost.ratio <= MAX_RATIO]
    if not small:
        best = min(others, key=lambda cost: cost.memory)
        return SB3, (
            f"Compression does not pay off here: the smallest buffer, {best.buffer}, takes "
            f"{format_nbytes(best.memory)} instead of {format_nbytes(base.memory)}; the training took "
            f"{best.time_ratio:.2f}x of the time."
        )
    fast = [cost for cost in small if cost.time_ratio <= MAX_TIME]
    smallest = min(cost.memory for cost in fast or small)
    similar = [cost for cost in fast or small if cost.memory <= SIMILAR * smallest or not fast]
    fastest = min(cost.step for cost in similar)
    best = next(cost for cost in similar if cost.step <= MAX_TIME * fastest)  # of equal ones the first, such as auto
    advice = "" if fast else " Keep SB3's buffer if its memory suffices."
    return best.buffer, (
        f"{format_nbytes(best.memory)} instead of {format_nbytes(base.memory)}, {1 / best.ratio:.3g}x smaller; "
        f"the training took {best.time_ratio:.2f}x of the time.{advice}"
    )
