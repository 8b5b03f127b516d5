"""``DriftDetector``: whether payloads are so large that the codec should be trained again."""

from __future__ import annotations

from sb3_compressed.codecs.payloads import Payloads

__all__ = ["DriftDetector"]


class DriftDetector:
    """Compares the sizes of new payloads with those of the first ones after the codec was trained.

    After a change of scene, in a new level of a game, or when an agent has learned to get further, frames resemble none
    that the codec was trained on, and their payloads grow. They are measured from time to time, and averaged over
    blocks of frames. A training is due when the payloads of a block are half as large again as those of the first one.
    It is also due when they are nearly as large as frames, which they cannot outgrow: the first block may have been of
    a scene that has passed.

    Data that does not become smaller by training, such as noise in some frames, must not be trained on again and again.
    So each training that was in vain or soon after the last one doubles the number of frames before another.

    :ivar usual_nbytes: mean size of the payloads of the first block, 0 until it is complete
    """

    #: Frames between two measurements, unless one call has more, and in a block.
    EVERY, BLOCK = 32, 128
    #: How much larger the payloads of a block have to be, as a factor and in bytes.
    FACTOR, MIN_GROWTH = 1.5, 64
    #: Payloads that are larger than this fraction of their frames are always large.
    LARGE = 2 / 3
    #: The smallest and largest number of frames between two reactions.
    SHORTEST, LONGEST = 512, 16_384

    def __init__(self) -> None:
        self._since = self.LONGEST  # frames since the last reaction
        self._wait = self.SHORTEST  # and those between two
        self.restart()

    def restart(self, usual_nbytes: float = 0.0) -> None:
        """Reset the sizes of payloads, because another codec is used.

        :param usual_nbytes: the mean size of its payloads, 0 if it is not known
        """
        self.usual_nbytes = usual_nbytes
        self._n_frames = self._n_measured = self._nbytes = 0  # of this block

    def next_measurement(self, n_frames: int) -> int:
        """Return how many frames may pass until :meth:`observe` is called again.

        :param n_frames: the number of frames in a call
        """
        return min(8 * n_frames, self.EVERY)

    def observe(self, payloads: Payloads, n_passed: int, frame_nbytes: int) -> bool:
        """Measure payloads and return whether the codec should be trained.

        :param payloads: those of the last frames
        :param n_passed: the number of frames since the last call, these included
        :param frame_nbytes: the size of an uncompressed frame
        """
        self._n_frames += n_passed
        self._n_measured += len(payloads)
        self._nbytes += int(payloads.places[:, 1].sum())
        if self._n_frames < self.BLOCK:
            return False
        self._since += self._n_frames
        mean = self._nbytes / self._n_measured
        self._n_frames = self._n_measured = self._nbytes = 0
        if not self.usual_nbytes:
            self.usual_nbytes = mean
        large = min(self.FACTOR * self.usual_nbytes + self.MIN_GROWTH, self.LARGE * frame_nbytes)
        return mean > large and self._since >= self._wait

    def reacted(self, *, helped: bool) -> None:
        """Report that a training on recent frames has ended.

        :param helped: whether it has made payloads much smaller
        """
        is_rare = self._since >= 4 * self._wait
        self._wait = self.SHORTEST if helped and is_rare else min(2 * self._wait, self.LONGEST)
        self._since = 0
