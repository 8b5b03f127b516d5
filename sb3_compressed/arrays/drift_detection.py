"""``DriftDetector``: whether frames have changed so much that the codec should be trained at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lz4.block
import numpy as np
from numpy.typing import NDArray

__all__ = ["DriftDetector"]

#: Kinds of changes: payloads grow, or grow to about the size of their frames, or frames that hardly compress change.
KINDS = "larger", "hard", "easier"


class DriftDetector:
    """Compares the sizes of new payloads with those of the last ones.

    Payloads are measured from time to time, and averaged over blocks of frames. After a change of scene, or in a new
    level of a game, frames resemble none that the codec was trained on, and their payloads grow. Where frames hardly
    compress, their payloads cannot show that later ones would, so LZ4 also compresses parts of some frames, with the
    same part of an earlier frame as dictionary.

    Data that only fluctuates, such as noise in some frames, must not be trained on again and again. So a block counts
    as larger if it is larger than the largest of recent blocks, and each training that was in vain or soon after the
    last one doubles the number of frames before another for the same kind of change.
    """

    #: Frames between two measurements, unless one call has more, and in a block.
    EVERY, BLOCK = 32, 128
    #: How much larger the payloads of a block have to be than those of recent ones, as a factor and in bytes.
    FACTOR, MIN_GROWTH = 1.5, 64
    #: How much larger the payloads of the first block after a training can be than those of the training sample, unless
    #: the frames have changed meanwhile.
    FRESH = 8
    #: By how much less the largest of recent blocks counts with each new one: half after about 4,500 frames.
    DECAY = 0.98
    #: Payloads larger than this fraction of their frame hardly compress. How much smaller LZ4 has to make frames then.
    HARD, EASIER = 0.5, 0.5
    #: LZ4 compresses one of so many parts of a frame at a time, and at most so many bytes.
    PARTS, PART_NBYTES = 4, 16_384
    #: The smallest and largest number of frames between two reactions.
    SHORTEST, LONGEST = 512, 16_384

    def __init__(self) -> None:
        # For each kind of change, the frames since the last reaction and those between two.
        self._since = dict.fromkeys(KINDS, self.LONGEST)
        self._waits = dict.fromkeys(KINDS, self.SHORTEST)
        self._kind = KINDS[0]  # of the last change
        self.restart()

    def restart(self, trained_nbytes: float = math.inf) -> None:
        """Forget the sizes of payloads, because another codec is used.

        :param trained_nbytes: mean size of its payloads of the frames that it was trained on
        """
        self._most = self.FRESH * trained_nbytes
        self._largest = self._largest_ratio = 0.0  # of recent blocks
        self._last_ratio = 0.0
        self._is_hard = False
        self._n_frames = self._n_measured = self._nbytes = 0  # of this block
        self._sizes: list[tuple[int, int]] = []  # of its parts of frames, before and after compression
        self._turn = 0
        self._dictionary = b""

    def next_measurement(self, n_frames: int) -> int:
        """Return how many frames may pass until :meth:`observe` is called again.

        :param n_frames: the number of frames in a call
        """
        return min(8 * n_frames, self.EVERY)

    def observe(self, frames: NDArray[Any], payloads: Sequence[bytes], n_passed: int) -> bool:
        """Measure payloads and return whether the codec should be trained.

        :param frames: ``(n, *frame_shape)``
        :param payloads: their payloads
        :param n_passed: the number of frames since the last call, these included
        """
        self._n_frames += n_passed
        self._n_measured += len(payloads)
        self._nbytes += sum(map(len, payloads))
        if self._is_hard:
            self._compress_part(frames)
        if self._n_frames < self.BLOCK:
            return False
        for kind in KINDS:
            self._since[kind] += self._n_frames
        mean = self._nbytes / self._n_measured
        self._n_frames = self._n_measured = self._nbytes = 0
        is_better, is_larger = self._compresses_better(), 0 < self._largest < (mean - self.MIN_GROWTH) / self.FACTOR
        self._is_hard = mean > self.HARD * frames[0].nbytes
        has_changed = is_larger or (is_better and self._is_hard)
        if has_changed:
            self._kind = ("easier" if is_better else "hard") if self._is_hard else "larger"
            if self._since[self._kind] < self._waits[self._kind]:
                return False  # until later
        if not self._largest:
            self._largest = min(mean, self._most)
        elif not self._is_hard:  # noise must not hide later changes
            self._largest = max(mean, self.DECAY * self._largest)
        return has_changed

    def _compress_part(self, frames: NDArray[Any]) -> None:
        """Compress a part of one of the frames, in turn; in every second call with that of the first as dictionary."""
        turn, is_second = divmod(self._turn, 2)
        self._turn += 1
        content = frames[turn % len(frames)].ravel(order="K").view(np.uint8)
        length = -(-content.size // self.PARTS)
        start = turn // len(frames) % self.PARTS * length
        part = content[start : start + min(length, self.PART_NBYTES)].tobytes()
        if not is_second:
            self._dictionary = part
        elif part:
            compressed = lz4.block.compress(part, "fast", acceleration=8, store_size=False, dict=self._dictionary)
            self._sizes.append((len(part), len(compressed)))

    def _compresses_better(self) -> bool:
        """Return whether LZ4 has compressed the parts of two blocks much better than before."""
        if not self._sizes:
            self._largest_ratio = self._last_ratio = 0.0
            return False
        before, after = map(sum, zip(*self._sizes, strict=True))
        self._sizes = []
        recent, self._last_ratio = max(after / before, self._last_ratio), after / before
        is_better = recent < self.EASIER * self._largest_ratio
        self._largest_ratio = max(recent, self.DECAY * self._largest_ratio)
        return is_better

    def reacted(self, *, helped: bool) -> None:
        """Report that a training on recent frames has ended.

        :param helped: whether it has made payloads much smaller
        """
        wait = self._waits[self._kind]
        # Frames that have become simpler are often more difficult again soon.
        is_rare = self._since[self._kind] >= 4 * wait and self._kind != "easier"
        self._waits[self._kind] = self.SHORTEST if helped and is_rare else min(2 * wait, self.LONGEST)
        self._since[self._kind] = 0
