"""What Ray has logged about the actors of a process."""

from __future__ import annotations

import re
from pathlib import Path

#: A line of level "error" about an actor, as Ray's core writes it; those about lost objects are no errors.
ERROR = re.compile(r"^\[[^]]+ E \d+ \d+\] .*\bActor\b.*", re.MULTILINE)


def errors_of_ray(folder: Path) -> list[str]:
    """Return the errors that processes have logged which have started actors, such as that one cannot be restarted.

    :param folder: that of a session of Ray, or one with several of them
    """
    files = folder.rglob("python-core-driver-*.log")
    return [line for file in files for line in ERROR.findall(file.read_text(encoding="utf-8", errors="replace"))]
