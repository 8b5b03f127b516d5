"""The exceptions a user can meet.

Each is a subclass of the built-in that a caller would catch anyway, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

__all__ = [
    "BufferNotReady",
    "CheckpointNotFound",
    "CodecError",
    "CorruptPayload",
    "CorruptStorage",
    "InvalidShorthand",
    "LevelOutOfRange",
    "LossyDtypeWarning",
    "MissingCodec",
    "ObservationSpaceError",
    "StorageError",
    "UnknownCodec",
]


class CodecError(ValueError):
    """A codec was asked for in a way that cannot be answered; the message lists what is allowed."""


class InvalidShorthand(CodecError):
    """A codec shorthand does not follow the grammar, e.g. ``"zstd--3"``."""


class UnknownCodec(CodecError):
    """No codec of that name is registered; the message lists those that are."""


class LevelOutOfRange(CodecError):
    """A codec has no such level; the message says the range."""


class ObservationSpaceError(ValueError, TypeError, AssertionError):
    """A buffer class does not support the observation space, e.g. a Dict class a Box space.

    It is whatever SB3 raises in the same place: its Dict classes an ``AssertionError``, the others a ``TypeError``.
    """


class BufferNotReady(ValueError, AssertionError):
    """There is nothing to sample yet: a replay buffer is empty, or a rollout buffer is not full.

    It is whatever SB3 raises in the same place: replay buffers a ``ValueError``, rollout buffers an ``AssertionError``.
    """


class CorruptPayload(ValueError):
    """A payload cannot have been written by the codec that is asked to decode it.

    :ivar reason: what is wrong with it
    :ivar index: its position in the batch of payloads that was being decoded
    :ivar slot: index of the slot that holds it in its array, or ``None`` where no array is involved
    """

    def __init__(self, reason: str, index: int = 0, slot: tuple[int, ...] | None = None) -> None:
        super().__init__(reason, index, slot)
        self.reason = reason
        self.index = index
        self.slot = slot

    def __str__(self) -> str:
        place = f"payload {self.index} of the batch" if self.slot is None else f"slot {self.slot}"
        return f"corrupt payload in {place}: {self.reason}"


class MissingCodec(LookupError):
    """Payloads cannot be decoded without codecs that are not there.

    :ivar digests: the digests of these codecs, see :func:`~sb3_compressed.arrays.payload_batch.codec_digest`
    """

    def __init__(self, digests: list[bytes]) -> None:
        super().__init__(digests)
        self.digests = digests

    def __str__(self) -> str:
        return f"pass the codecs with the digests {', '.join(digest.hex() for digest in self.digests)} as well"


class StorageError(ValueError):
    """A folder cannot be used as asked: of something else, in use, missing, of a buffer that does not fit."""


class CheckpointNotFound(StorageError, FileNotFoundError):
    """A folder holds no checkpoint, or does not exist."""


class CorruptStorage(StorageError):
    """A file of a buffer's storage is damaged; the message names the file and the byte."""


class LossyDtypeWarning(UserWarning):
    """The user chose an ``elem_type`` that cannot hold every value of the array's dtype."""
