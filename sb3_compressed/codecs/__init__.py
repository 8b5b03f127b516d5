"""Codecs, which encode frames as payloads and decode them. They depend on neither arrays, buffers nor SB3."""

import warnings
from typing import Any

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


def __getattr__(name: str) -> Any:
    if name == "LearningCodec":
        from sb3_compressed.codecs.deprecated import LearningCodec

        advice = "subclass TrainableCodec, and rename learn to train and retire to release_encoder"
        warnings.warn(f"LearningCodec is deprecated: {advice}", DeprecationWarning, stacklevel=2)
        return LearningCodec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
