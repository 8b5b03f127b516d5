"""The filter that 0.3.0 applied to smooth pictures before Zstandard, of which only the inverse is left.

What was stored are the differences from the line above, the filter "Up" of PNG
(https://www.w3.org/TR/png-3/#9Filters), and red and blue as differences from green. Planes of one color follow each
other, in the order that PyTorch reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from sb3_compressed.errors import CodecError

__all__ = ["PlaneLayout"]


@dataclass(frozen=True)
class PlaneLayout:
    """The lines and planes of a frame in C order.

    :param line_nbytes: bytes of a line
    :param plane_nbytes: bytes of a plane: a channel, or all of a frame whose channels are its last axis. Both are 0 for
        frames that are no pictures
    """

    line_nbytes: int = 0
    plane_nbytes: int = 0

    def __post_init__(self) -> None:
        line, plane = self.line_nbytes, self.plane_nbytes
        if (line or plane) and not (0 < line <= plane and plane % line == 0):
            raise CodecError(f"planes of {plane} bytes cannot have lines of {line} bytes")

    def fits(self, frame_nbytes: int) -> bool:
        """Return whether frames of this size consist of such planes."""
        return 0 < self.plane_nbytes <= frame_nbytes and frame_nbytes % self.plane_nbytes == 0
