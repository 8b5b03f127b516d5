"""The filter that 0.3.0 applied to smooth pictures before Zstandard, of which only the inverse is left.

What was stored are the differences from the line above, the filter "Up" of PNG
(https://www.w3.org/TR/png-3/#9Filters), and red and blue as differences from green. Planes of one color follow each
other, in the order that PyTorch reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    def unfilter(self, frame: NDArray[np.uint8]) -> None:
        """Undo the filter of a frame that consists of such planes, ``(frame_nbytes,)``, in place."""
        planes = frame.reshape(-1, self.plane_nbytes // self.line_nbytes, self.line_nbytes)
        np.add.accumulate(planes, axis=1, dtype=np.uint8, out=planes)  # modulo 256
        if len(planes) == 3:
            planes[0] += planes[1]
            planes[2] += planes[1]
