"""``Manifest``: the first record of each snapshot, with the metadata of a store; ``ArraySpec``: one of its arrays."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.codecs.config import abbreviate, dtype_from_text
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.storage.json_schema import load_json, parse
from sb3_compressed.storage.metadata_schema import CODECS, MAX_AXES
from sb3_compressed.storage.record_kinds import MANIFEST
from sb3_compressed.storage.segment import Segment
from sb3_compressed.storage.spaces import SIZE

__all__ = ["MANIFEST_SCHEMA", "ArraySpec", "Manifest"]


@dataclass(frozen=True)
class ArraySpec:
    """The specification of an array of a store.

    :param shape: its shape
    :param dtype: its dtype, as NumPy's ``dtype.str``
    :param is_table: whether its elements are addresses of slots
    :param is_ring: whether it has a row for each step; a step writes the same row of all such arrays
    """

    shape: tuple[int, ...]
    dtype: str
    is_table: bool = False
    is_ring: bool = field(default=False, compare=False)

    def zeros(self) -> NDArray[Any]:
        """Return an array of zeros of this shape and dtype.

        :raises ValueError: if its dtype is not numeric
        :raises StorageError: if there is not enough memory
        """
        try:
            return np.zeros(self.shape, dtype_from_text(self.dtype))
        except MemoryError as error:
            raise StorageError(f"not enough memory for {self}") from error

    @property
    def row_nbytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape[1:]) * dtype_from_text(self.dtype).itemsize


def parse_array_spec(data: object) -> ArraySpec:
    """Return the specification of an array.

    :raises ValueError: if it is not data that :meth:`Manifest.to_json` writes
    """
    shape, dtype, *flags = parse(([SIZE, range(1, MAX_AXES + 1)], dtype_from_text, bool, bool), data)
    spec = ArraySpec(tuple(shape), dtype.str, *flags)
    if spec.is_table and (spec.dtype != "<i8" or len(shape) != 2):
        raise ValueError(f"addresses must be a matrix of 64-bit integers, got {spec}")
    return spec


def parse_segment_ids(data: object) -> dict[int, int]:
    """Return the ids of segments, 16 hexadecimal digits, by their numbers.

    :raises ValueError: if it is something else
    """
    ids = parse({str: str}, data)
    for number, segment_id in ids.items():
        if not re.fullmatch(r"[0-9]{1,8}", number) or not re.fullmatch(r"[0-9a-f]{16}", segment_id):
            entry = abbreviate({number: segment_id})
            raise ValueError(f"{entry} is not the number of a segment and 16 hexadecimal digits")
    return {int(number): int(segment_id, 16) for number, segment_id in ids.items()}


#: The content of "about" is validated separately (:data:`.METADATA`).
MANIFEST_SCHEMA = {
    "about": dict,
    "arrays": {str: parse_array_spec},
    "segments": parse_segment_ids,
    "values": dict,
    "codecs": CODECS,
    "step": range(-1, 1 << 63),
}


@dataclass(frozen=True)
class Manifest:
    """The content of the first record of a snapshot.

    :param metadata: JSON-serializable data that is needed to create the buffer
    :param specs: the arrays, by name
    :param segments: the ids of the segments that the state refers to, by number
    :param values: some numbers and texts, as of the snapshot
    :param codecs: the addresses of the codecs in use, likewise
    :param step: the last step that wrote a row of the ring, likewise
    """

    metadata: dict[str, Any]
    specs: dict[str, ArraySpec]
    segments: dict[int, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    codecs: dict[str, int] = field(default_factory=dict)
    step: int = -1

    @classmethod
    def of_segment(cls, segment: Segment, *, is_growing: bool, problems: list[str] | None) -> Manifest:
        """Return the manifest of a snapshot, which contains two copies.

        :param is_growing: as for :meth:`Segment.records`
        :param problems: likewise
        :raises CorruptStorage: if it is missing or invalid
        """
        records = segment.records(is_growing=is_growing, problems=problems)
        record = next((each for each in records if each.kind == MANIFEST), None)
        if record is None:
            raise CorruptStorage(f"{segment.path} has no metadata")
        try:
            data = parse(MANIFEST_SCHEMA, load_json(record.content.tobytes()))
            rows = {spec.shape[0] for spec in data["arrays"].values() if spec.is_ring}
            if len(rows) > 1:
                raise ValueError(f"arrays of the ring have different numbers of rows: {sorted(rows)}")
        except ValueError as error:
            raise CorruptStorage(f"{segment.path}: invalid metadata: {error}") from error
        return cls(metadata=data.pop("about"), specs=data.pop("arrays"), **data)

    def to_json(self) -> bytes:
        """Return the content of the record."""
        data = {
            "about": self.metadata,
            "arrays": {
                name: [list(spec.shape), spec.dtype, spec.is_table, spec.is_ring] for name, spec in self.specs.items()
            },
            "segments": {str(number): f"{self.segments[number]:016x}" for number in sorted(self.segments)},
            "values": self.values,
            "codecs": self.codecs,
            "step": self.step,
        }
        return json.dumps(data).encode()
