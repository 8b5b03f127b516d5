"""``zstd-dict``: Zstandard with a dictionary trained on frames (RFC 8878, section 5).

A payload is one header byte and a zstd frame without magic number and content size: the header is 0 if decoding needs
no dictionary, 1 if it needs that of the codec. Small frames of one game have much in common: a dictionary of 8 kB
makes them 3 to 10 times smaller than zstd alone, and both directions faster.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import BytesCodec, Levels, TrainableCodec, frame_bytes, raise_if_out_of_memory
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.errors import CorruptPayload

__all__ = ["ZstdDict"]

PLAIN, WITH_DICTIONARY = b"\x00", b"\x01"
#: The descriptor in the header of every zstd frame here (RFC 8878, section 3.1.1.1.1): no content size, checksum or
#: dictionary id.
NO_SIZE = b"\x00"
MAGICLESS = zstandard.FORMAT_ZSTD1_MAGICLESS


@dataclass(frozen=True)
class ZstdDict(BytesCodec, TrainableCodec):
    """Zstandard with a trained dictionary; plain Zstandard until it is trained.

    :param compresslevel: 1 (fast) to 22 (smallest), or -1 (faster) to -100 (fastest)
    :param dictionary: a zstd dictionary; empty before training
    """

    name: ClassVar[str] = "zstd-dict"
    levels: ClassVar[Levels] = Zstd.levels
    typical_ratio: ClassVar[float] = 0.04
    is_parallel: ClassVar[bool] = True
    chunk_nbytes: ClassVar[int] = 1 << 19
    library_errors: ClassVar[tuple[type[Exception], ...]] = (zstandard.ZstdError,)

    #: The size of a dictionary in bytes. Larger ones age no slower and do not compress game frames better.
    DICTIONARY_NBYTES: ClassVar[int] = 8192

    #: The smallest training sample. zstd's trainer crashes the process on samples of a few bytes.
    MIN_TRAINING_NBYTES: ClassVar[int] = 1024
    MIN_TRAINING_FRAMES: ClassVar[int] = 8
    #: Larger frames gain nothing from a dictionary: they contain as much to refer to themselves.
    MAX_FRAME_NBYTES: ClassVar[int] = 250_000

    compresslevel: int = levels.default
    dictionary: bytes = field(default=b"", repr=False)

    # Contexts are costly to create and not thread-safe, so each thread has its own.
    _contexts: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def train(self, frames: NDArray[Any]) -> ZstdDict:
        """Return a codec with a dictionary trained on these frames; see :meth:`TrainableCodec.train`."""
        rows = frame_bytes(frames)
        if rows.shape[1] > self.MAX_FRAME_NBYTES:
            return self
        samples = [row.tobytes() for row in rows]
        if sum(map(len, samples)) < self.MIN_TRAINING_NBYTES or len(samples) < self.MIN_TRAINING_FRAMES:
            return self
        try:
            # The defaults, but for a smaller table of frequencies (2 ** f), which is faster to fill and as good.
            dictionary = zstandard.train_dictionary(
                self.DICTIONARY_NBYTES, samples, level=self.compresslevel, d=8, steps=4, f=17
            )
        except zstandard.ZstdError as error:  # too few frames, or nothing in common
            raise_if_out_of_memory(error)
            return self
        return replace(self, dictionary=dictionary.as_bytes())

    @property
    def nbytes(self) -> int:
        """The size of the dictionary in bytes."""
        return len(self.dictionary)

    def release_encoder(self) -> None:
        """Free this thread's compressors; see :meth:`TrainableCodec.release_encoder`."""
        self._contexts.__dict__.pop("compressors", None)

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame; see :class:`BytesCodec`."""
        # One for each size, since payloads would depend on the size of the first frame.
        compressors: dict[int, zstandard.ZstdCompressor] = self._contexts.__dict__.setdefault("compressors", {})
        if (compressor := compressors.get(frame.size)) is None:
            compressor = compressors[frame.size] = self._new_compressor(frame.size)
        return b"".join((WITH_DICTIONARY if self.dictionary else PLAIN, compressor.compress(frame.data)))

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload; see :class:`BytesCodec`."""
        header = payload[:1]
        if header not in (PLAIN, WITH_DICTIONARY) or (header == WITH_DICTIONARY and not self.dictionary):
            raise CorruptPayload(f"its header byte {header.hex() or 'is missing'} does not match its codec")
        if payload[1:2] != NO_SIZE:  # the library would allocate whatever size it claims
            raise CorruptPayload("it contains a zstd frame with an unexpected header")
        name = "decompressor" if header == WITH_DICTIONARY else "plain_decompressor"
        try:
            decompressor: zstandard.ZstdDecompressor = getattr(self._contexts, name)
        except AttributeError:
            dictionary = zstandard.ZstdCompressionDict(self.dictionary) if header == WITH_DICTIONARY else None
            decompressor = zstandard.ZstdDecompressor(dict_data=dictionary, format=MAGICLESS)
            setattr(self._contexts, name, decompressor)
        return decompressor.decompress(payload[1:], max_output_size=nbytes, allow_extra_data=False)

    def _new_compressor(self, nbytes: int) -> zstandard.ZstdCompressor:
        dictionary = zstandard.ZstdCompressionDict(self.dictionary) if self.dictionary else None
        parameters = zstandard.ZstdCompressionParameters.from_level(
            self.compresslevel,
            source_size=nbytes,  # selects small tables
            dict_size=len(self.dictionary),
            format=MAGICLESS,
            write_content_size=False,
            write_dict_id=False,
        )
        return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
