"""What programs print on a pseudo-terminal, and what the recorded pictures of it show."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["PICTURES", "read_terminal", "texts_of", "words"]

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


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


def texts_of(picture: Path) -> list[str]:
    """Return the texts of an SVG in their order."""
    elements = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).replace("\xa0", " ") for element in elements]
