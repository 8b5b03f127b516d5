"""The functions of ISA-L (https://github.com/intel/isa-l) that python-isal contains; see :mod:`.c_library`."""

from __future__ import annotations

import ctypes
import threading
import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from sb3_compressed.codecs.c_library import addresses_of
from sb3_compressed.common.probes import holds

__all__ = ["IsalFunctions", "inflate_state", "isal_functions"]


class IsalFunctions(NamedTuple):
    """Addresses of functions of the library, named as in ``igzip_lib.h`` and ``crc.h``."""

    inflate_stateless: int
    crc32_gzip_refl: int


EXPORTED = "isal_inflate_stateless", "crc32_gzip_refl"
#: More than three times the size of ``struct inflate_state``, which the library does not export.
STATE_NBYTES = 1 << 18

_states = threading.local()


@cache
def isal_functions() -> IsalFunctions | None:
    """Return the functions, ``None`` where the extension module does not export them."""
    return _addresses() if holds(_decodes) else None


def _addresses() -> IsalFunctions:
    return IsalFunctions(*addresses_of(ctypes.CDLL(isal_zlib.__file__), EXPORTED))


def inflate_state() -> NDArray[np.uint8]:
    """Return the initialized ``struct inflate_state`` of this thread."""
    try:
        state: NDArray[np.uint8] = _states.state
    except AttributeError:
        state = _states.state = np.zeros(STATE_NBYTES, dtype=np.uint8)
        ctypes.CDLL(isal_zlib.__file__).isal_inflate_init(ctypes.c_void_p(state.ctypes.data))
    return state


def _decodes() -> bool:
    """Return whether the exported functions decode what zlib encodes, and the state begins with the known fields."""
    content = bytes(range(256)) * 4
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    payload = compressor.compress(content) + compressor.flush()
    functions, state, out = _addresses(), inflate_state(), np.zeros(1024, dtype=np.uint8)
    source = np.frombuffer(payload, dtype=np.uint8)
    fields = state[:40].view("<u8")
    fields[[0, 1, 2, 4]] = out.ctypes.data, out.nbytes, source.ctypes.data, source.nbytes
    pointer, integer = ctypes.c_void_p, ctypes.c_uint32
    failed = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(functions.inflate_stateless)(state.ctypes.data)
    checksum = ctypes.CFUNCTYPE(integer, integer, pointer, ctypes.c_uint64)(functions.crc32_gzip_refl)
    return (
        not failed
        and out.tobytes() == content
        and fields[[0, 2]].tolist() == [out.ctypes.data + out.nbytes, source.ctypes.data + source.nbytes]
        and fields[1] == len(content) << 32  # none left, and the total
        and checksum(0, out.ctypes.data, out.nbytes) == zlib.crc32(content)
    )
