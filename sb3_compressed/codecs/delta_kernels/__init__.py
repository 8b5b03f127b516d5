"""The numba kernels of ``delta``; :mod:`sb3_compressed.codecs.delta` documents the wire format."""

from sb3_compressed.codecs.delta_kernels.decoder import decode_deltas
from sb3_compressed.codecs.delta_kernels.encoder import encode_deltas
from sb3_compressed.codecs.delta_kernels.packed_frames import decode_packed
from sb3_compressed.codecs.delta_kernels.references import word_differences
from sb3_compressed.codecs.delta_kernels.source_search import TABLE_BITS, index_words
from sb3_compressed.codecs.delta_kernels.unfiltering import unfilter

__all__ = [
    "TABLE_BITS",
    "decode_deltas",
    "decode_packed",
    "encode_deltas",
    "index_words",
    "unfilter",
    "word_differences",
]
