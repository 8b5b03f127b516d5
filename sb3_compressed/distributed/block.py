"""``Block``: named arrays and payload batches as one contiguous block of bytes, for another process.

The arrays of a block are in its memory, so a block in shared memory is read without a copy. Blocks are validated like
files that may be untrusted: nothing in them is evaluated or unpickled, and no index leads out of the block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PayloadBatch, Section, pack_sections, unpack_sections
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.config import dtype_from_text
from sb3_compressed.errors import CorruptPayload

__all__ = ["Block"]

CONTENT = "Content"
MAX_PARTS = 10_000  # of each kind, since the names of sections are short


@dataclass
class Block:
    """Named arrays and payload batches.

    :param values: what else is to be sent, for JSON
    :param arrays: numeric arrays by their names
    :param batches: payload batches by their names; the codecs are sent separately, and named by their digests
    """

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    batches: dict[str, PayloadBatch] = field(default_factory=dict)

    def pack(self) -> NDArray[np.uint8]:
        """Return the block as bytes.

        :raises CodecError: if a codec has no configuration that can be stored
        """
        arrays = [(name, array.dtype.str, list(array.shape)) for name, array in self.arrays.items()]
        content = {"values": self.values, "arrays": arrays, "batches": list(self.batches)}
        sections: dict[str, Section] = {CONTENT: json.dumps(content, separators=(",", ":")).encode()}
        for number, array in enumerate(self.arrays.values()):
            sections[f"Array.{number}"] = np.ascontiguousarray(array).reshape(-1)
        for number, batch in enumerate(self.batches.values()):
            sections |= {f"{name}.{number}": section for name, section in batch.sections().items()}
        return pack_sections(sections)

    @classmethod
    def unpack(cls, data: NDArray[np.uint8], codecs: Mapping[bytes, Codec]) -> Block:
        """Return the block that :meth:`pack` packed, in its memory.

        :param data: must not change as long as the block is used
        :param codecs: codecs by their digests
        :raises CorruptPayload: if it is damaged
        :raises MissingCodec: if codecs are missing; ``digests`` lists them
        """
        sections = unpack_sections(data)
        try:
            content = json.loads(sections.pop(CONTENT).tobytes())
            values, specs, names = content["values"], content["arrays"], content["batches"]
            if not isinstance(values, dict) or max(len(specs), len(names)) > MAX_PARTS:
                raise ValueError("its parts are not as declared")
            arrays = {
                str(name): _array(sections.pop(f"Array.{number}"), dtype, shape)
                for number, (name, dtype, shape) in enumerate(specs)
            }
            parts: list[dict[str, NDArray[np.uint8]]] = [{} for _ in names]
            for name, section in sections.items():
                kind, _, number = name.partition(".")
                parts[int(number)][kind] = section
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise CorruptPayload(f"the content of the block is invalid: {error!r}") from error
        batches = {str(name): PayloadBatch.from_sections(part, codecs) for name, part in zip(names, parts, strict=True)}
        return cls(values, arrays, batches)


def _array(section: NDArray[np.uint8], dtype: Any, shape: Any) -> NDArray[Any]:
    """Return a section as an array.

    :raises ValueError: if it does not have that dtype and shape
    """
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"an array cannot have the shape {shape!r}")
    return section.view(dtype_from_text(dtype)).reshape(shape)
