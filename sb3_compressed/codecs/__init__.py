"""Codecs: from arrays of frames to payloads and back. They know nothing of arrays, buffers or SB3."""

from sb3_compressed.codecs.base import BytesCodec, Codec, Levels, TrainableCodec, decompress_bounded
from sb3_compressed.codecs.registry import available_codecs, get_codec, register_codec

__all__ = [
    "BytesCodec",
    "Codec",
    "Levels",
    "TrainableCodec",
    "available_codecs",
    "decompress_bounded",
    "get_codec",
    "register_codec",
]
