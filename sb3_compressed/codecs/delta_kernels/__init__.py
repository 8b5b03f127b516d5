"""The numba kernels of ``delta``; :mod:`sb3_compressed.codecs.delta_format` documents the wire format."""

from sb3_compressed.codecs.delta_kernels.decoder import decode_frames
from sb3_compressed.codecs.delta_kernels.encoder import DeltaEncoder, encode_deltas
from sb3_compressed.codecs.delta_kernels.references import word_differences
from sb3_compressed.codecs.delta_kernels.source_search import index_words

__all__ = [
    "DeltaEncoder",
    "decode_frames",
    "encode_deltas",
    "index_words",
    "word_differences",
]
