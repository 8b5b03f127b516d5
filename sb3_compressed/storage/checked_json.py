"""Small JSON files of a folder that may be untrusted: they are replaced atomically, and may have a checksum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sb3_compressed.errors import CorruptStorage
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.files import UNFINISHED, flush_path, open_regular_file

__all__ = ["read_object", "with_checksum", "without_checksum", "write_object"]

MAX_NBYTES = 1 << 24


def write_object(path: Path, values: dict[str, Any]) -> None:
    """Write an object to a file, durably and atomically."""
    unfinished = path.with_name(f"{path.name}.{UNFINISHED}")
    unfinished.unlink(missing_ok=True)  # it may be a link
    unfinished.write_bytes(json.dumps(values).encode())
    flush_path(unfinished)
    unfinished.replace(path)
    flush_path(path.parent)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    :raises OSError: if it cannot be opened
    :raises CorruptStorage: if it is not a regular file, too large, or not an object
    """
    with open_regular_file(path) as file:
        content = file.read(MAX_NBYTES + 1)
    if len(content) > MAX_NBYTES:
        raise CorruptStorage(f"{path} has more than {MAX_NBYTES} bytes")
    try:
        values = js.load_json(content)
    except ValueError as error:
        raise CorruptStorage(f"{path} is not JSON: {error}") from None
    js.check(dict, values, str(path))
    return dict(values)


def with_checksum(values: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its checksum."""
    return {**values, "checksum": f"{checksum(json.dumps(values, sort_keys=True).encode()):016x}"}


def without_checksum(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return an object without its checksum.

    :param path: its file, for the message
    :raises CorruptStorage: if the checksum is wrong
    """
    content = {name: value for name, value in values.items() if name != "checksum"}
    if with_checksum(content) != values:
        raise CorruptStorage(f"the checksum of {path} is wrong")
    return content
