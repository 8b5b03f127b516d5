"""The decoder of the LZ4 library (https://github.com/lz4/lz4) that python-lz4 contains, for use in kernels.

See :mod:`.c_library`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from lz4.block import _block

from sb3_compressed.codecs.c_library import addresses_of
from sb3_compressed.common.probes import holds

__all__ = ["MAX_DICTIONARY_NBYTES", "Lz4Functions", "lz4_functions"]

#: LZ4 copies from at most so many bytes back, so further ones of a dictionary are useless.
MAX_DICTIONARY_NBYTES = 65_536


class Lz4Functions(NamedTuple):
    """Addresses of functions of the library, named as in ``lz4.h``."""

    decompress_safe_using_dict: int


EXPORTED = ("LZ4_decompress_safe_usingDict",)


@cache
def lz4_functions() -> Lz4Functions | None:
    """Return the functions, ``None`` where the extension module does not export them."""
    return _addresses() if holds(_decodes) else None


def _addresses() -> Lz4Functions:
    return Lz4Functions(*addresses_of(ctypes.CDLL(_block.__file__), EXPORTED))


def _decodes() -> bool:
    """Return whether the extension module exports functions that decode what python-lz4 encodes."""
    functions = _addresses()
    decode = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_char_p] * 2, *[ctypes.c_int] * 2, ctypes.c_char_p, ctypes.c_int)
    payload = _block.compress(bytes(100), store_size=False)
    out = ctypes.create_string_buffer(b"\1" * 100)
    n_bytes = decode(functions.decompress_safe_using_dict)(payload, out, len(payload), 100, None, 0)
    return all(functions) and n_bytes == 100 and out.raw[:100] == bytes(100)
