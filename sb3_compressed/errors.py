"""The exceptions and warnings of this package.

Each exception is a subclass of the built-in that a caller would catch anyway, so ``except ValueError`` keeps working.
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
    "ShardTimeout",
    "ShardUnavailable",
    "StorageError",
    "UnknownCodec",
]


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency, for error messages.

    >>> install_command("minari")
    "pip install '.[minari]' in a copy of its repository"

    :param extra: name of the extra in ``pyproject.toml``
    """
    return f"pip install '.[{extra}]' in a copy of its repository"


class CodecError(ValueError):
    """A codec cannot be created or used as requested; the message lists what is allowed."""


class InvalidShorthand(CodecError):
    """A codec shorthand is malformed, e.g. ``"zstd--3"``."""


class UnknownCodec(CodecError):
    """No codec is registered under that name; the message lists the available ones."""


class LevelOutOfRange(CodecError):
    """A codec does not support the compression level; the message states the range."""


class ObservationSpaceError(ValueError, TypeError, AssertionError):
    """A buffer class does not support the observation space, e.g. a Dict class a Box space.

    It is also what SB3 raises in the same case: an ``AssertionError`` in Dict classes, a ``TypeError`` in the others.
    """


class BufferNotReady(ValueError, AssertionError):
    """There is nothing to sample yet: a replay buffer is empty, or a rollout buffer is not full.

    It is also what SB3 raises in the same case: a ``ValueError`` in replay buffers, an ``AssertionError`` in rollout
    buffers.
    """


class CorruptPayload(ValueError):
    """A payload that its codec cannot have written.

    :ivar reason: what is wrong with it
    :ivar index: its position in the batch of payloads
    :ivar slot: index of its slot in the array, or ``None`` if it was not decoded from an array
    """

    def __init__(self, reason: str, index: int = 0, slot: tuple[int, ...] | None = None) -> None:
        super().__init__(reason, index, slot)
        self.reason = reason
        self.index = index
        self.slot = slot

    def __str__(self) -> str:
        place = f"{self.index} of the batch" if self.slot is None else f"in slot {self.slot}"
        return f"corrupt payload {place}: {self.reason}"


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
    """A folder cannot be used as requested: it is missing, in use, of something else, or does not fit the buffer."""


def old_file(what: str) -> StorageError:
    """Return the error for a file or pickle of a version that cannot be read any more.

    It is no :class:`CorruptStorage`: there is nothing to repair.

    :param what: what was written, such as the path of a file
    """
    return StorageError(
        f"{what} was written by version 0.4 or earlier: load it with that version. 0.5.0 is the first one whose files "
        "stay readable"
    )


def old_pickle() -> StorageError:
    """Return the error for a pickle of a version that cannot be read any more."""
    return old_file("this pickle")


class CheckpointNotFound(StorageError, FileNotFoundError):
    """A folder does not exist or contains no checkpoint."""


class CorruptStorage(StorageError):
    """A file of a buffer's storage is damaged; the message names the file, and the byte where it is known.

    :ivar reason: what is damaged
    :ivar advice: what can be done about it, empty if that is not known
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(*filter(None, (reason, advice)))
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.reason, self.advice)))


class ShardUnavailable(StorageError, ConnectionError):
    """A shard of a distributed buffer failed, or was restarted, during a call; the message names it.

    The call can be repeated. A save that fails leaves the previous one as it was; a load or a reset that fails may have
    changed other shards.
    """


class ShardTimeout(ShardUnavailable, TimeoutError):
    """A shard of a distributed buffer did not answer in time; the message names it."""


class LossyDtypeWarning(UserWarning):
    """The ``elem_type`` that the user chose cannot represent every value of the array's dtype."""
