"""What programs print on a pseudo-terminal."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator

__all__ = ["read_terminal", "words"]


def read_terminal(descriptor: int) -> Iterator[str]:
    """Yield what is printed on a pseudo-terminal until its other end is closed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        try:
            printed = os.read(descriptor, 65536)
        except OSError:  # Linux: the other end is closed
            printed = b""
        if not printed:
            return
        yield decoder.decode(printed)


def words(text: str) -> str:
    """Return the text without colors, boxes and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e]", " ", text).split())
