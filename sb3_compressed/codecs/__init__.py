"""Codecs, which encode frames as payloads and decode them. They depend on neither arrays, buffers nor SB3."""

from sb3_compressed.codecs.codec import BytesCodec, Codec, Levels, TrainableCodec, decompress_bounded
from sb3_compressed.codecs.registry import available_codecs, codec_from_config, get_codec, register_codec

__all__ = [
    "BytesCodec",
    "Codec",
    "Levels",
    "TrainableCodec",
    "available_codecs",
    "codec_from_config",
    "decompress_bounded",
    "get_codec",
    "register_codec",
]
