"""The functions of the Zstandard library (https://github.com/facebook/zstd) that python-zstandard contains.

Its extension module for other interpreters than CPython exports them; it is never imported. See :mod:`.c_library`.
Contexts lie in memory of NumPy arrays, so that nothing must be freed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from functools import cache
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.codecs.c_library import addresses_of
from sb3_compressed.common.probes import holds

__all__ = ["ZstdFunctions", "decoding_context", "loaded_dictionary", "zstd_functions"]


class ZstdFunctions(NamedTuple):
    """Addresses of functions of the library, named as in ``zstd.h``."""

    decompress_using_ddict: int
    get_frame_content_size: int
    find_frame_compressed_size: int


EXPORTED = "ZSTD_decompress_usingDDict", "ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize"
#: Constants of ``zstd.h``.
FORMAT_PARAMETER, BY_REFERENCE, ANY_CONTENT = 1000, 1, 0

_contexts = threading.local()


@cache
def zstd_functions() -> ZstdFunctions | None:
    """Return the functions, ``None`` where the extension module does not export them."""
    return ZstdFunctions(*addresses_of(_library(), EXPORTED)) if holds(_decodes) else None


@cache
def _library() -> ctypes.CDLL:
    """Return the library, whose functions have their signatures."""
    spec = importlib.util.find_spec("zstandard._cffi")
    if spec is None or spec.origin is None:
        raise OSError("python-zstandard contains no module that exports the library")
    library = ctypes.CDLL(spec.origin)
    size, pointer, integer = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("ZSTD_estimateDCtxSize", size, []),
        ("ZSTD_initStaticDCtx", pointer, [pointer, size]),
        ("ZSTD_DCtx_setParameter", size, [pointer, integer, integer]),
        ("ZSTD_estimateDDictSize", size, [size, integer]),
        ("ZSTD_initStaticDDict", pointer, [pointer, size, pointer, size, integer, integer]),
        ("ZSTD_decompress_usingDDict", size, [pointer, pointer, size, pointer, size, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def decoding_context(frame_format: int) -> NDArray[np.uint8]:
    """Return the ``ZSTD_DCtx`` of this thread for frames of a format of python-zstandard."""
    try:
        context: NDArray[np.uint8] = _contexts.by_format[frame_format]
    except (AttributeError, KeyError):
        library = _library()
        context = np.zeros(library.ZSTD_estimateDCtxSize(), dtype=np.uint8)
        if not library.ZSTD_initStaticDCtx(context.ctypes.data, context.nbytes) or library.ZSTD_DCtx_setParameter(
            context.ctypes.data, FORMAT_PARAMETER, frame_format
        ):
            raise OSError("cannot create a context of zstd") from None
        vars(_contexts).setdefault("by_format", {})[frame_format] = context
    return context


def loaded_dictionary(dictionary: bytes) -> NDArray[np.uint8]:
    """Return a ``ZSTD_DDict`` for a dictionary, which must stay alive as long as it; empty if zstd refuses it."""
    library = _library()
    loaded = np.zeros(library.ZSTD_estimateDDictSize(len(dictionary), BY_REFERENCE), dtype=np.uint8)
    pointer = library.ZSTD_initStaticDDict(
        loaded.ctypes.data, loaded.nbytes, dictionary, len(dictionary), BY_REFERENCE, ANY_CONTENT
    )
    return loaded if pointer else loaded[:0]


def _decodes() -> bool:
    """Return whether the exported functions decode what python-zstandard encodes, with and without a dictionary."""
    library = _library()
    major, minor, release = zstandard.ZSTD_VERSION
    is_same_version = library.ZSTD_versionNumber() == 10_000 * major + 100 * minor + release
    if not is_same_version or not all(addresses_of(library, EXPORTED)):
        return False
    content = dictionary = bytes(range(256)) * 4
    for frame_format in (zstandard.FORMAT_ZSTD1, zstandard.FORMAT_ZSTD1_MAGICLESS):
        parameters = zstandard.ZstdCompressionParameters(format=frame_format)
        payload = zstandard.ZstdCompressor(
            compression_params=parameters, dict_data=zstandard.ZstdCompressionDict(dictionary)
        ).compress(content)
        context, loaded, out = decoding_context(frame_format), loaded_dictionary(dictionary), np.zeros(1024, np.uint8)
        n_bytes = library.ZSTD_decompress_usingDDict(
            context.ctypes.data, out.ctypes.data, out.nbytes, payload, len(payload), loaded.ctypes.data
        )
        if n_bytes != len(content) or out.tobytes() != content:
            return False
    return True
