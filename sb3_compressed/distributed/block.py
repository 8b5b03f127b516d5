"""``Block``: named arrays and payload batches, and how Ray sends them to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from sb3_compressed.arrays.payload_batch import PackedPayloads, PayloadBatch, codec_digest
from sb3_compressed.codecs import Codec

__all__ = ["Block", "PackedBlock"]


class PackedBlock(NamedTuple):
    """A block for another process: Ray sends its arrays without pickling them, and they are received without a copy."""

    values: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    batches: dict[str, PackedPayloads]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays."""
        parts: list[Any] = [*self.arrays.values(), *self.batches.values()]
        return sum(part.nbytes for part in parts)


@dataclass
class Block:
    """Named arrays and payload batches.

    :param values: what else is to be sent
    :param arrays: numeric arrays by their names
    :param batches: payload batches by their names; their codecs are sent separately, by their digests
    """

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    batches: dict[str, PayloadBatch] = field(default_factory=dict)

    @property
    def codecs(self) -> dict[bytes, Codec]:
        """The codecs of all payloads by their digests."""
        return {codec_digest(codec): codec for batch in self.batches.values() for codec in batch.codecs}

    def pack(self) -> PackedBlock:
        """Return the block for another process.

        :raises CodecError: if a codec has no configuration that can be stored
        """
        return PackedBlock(self.values, self.arrays, {name: batch.pack() for name, batch in self.batches.items()})

    @classmethod
    def unpack(cls, packed: PackedBlock, codecs: Mapping[bytes, Codec]) -> Block:
        """Return the block that :meth:`pack` packed, in its memory.

        :param codecs: codecs by their digests
        :raises CorruptPayload: if its parts do not fit each other
        :raises MissingCodec: if codecs are missing; ``digests`` lists them
        """
        batches = {name: PayloadBatch.unpack(batch, codecs) for name, batch in packed.batches.items()}
        return cls(packed.values, packed.arrays, batches)
