"""Compilation with numba: at import, for one signature, without the GIL, and cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from sb3_compressed.kernel_cache import new_kernel_cache

__all__ = [
    "BYTES",
    "BYTE_ROWS",
    "INTS",
    "INT_ROWS",
    "READ_BYTES",
    "READ_BYTE_ROWS",
    "SHORT_INTS",
    "byte_at",
    "c_function",
    "first_byte_of",
    "kernel",
    "last_byte_of",
    "pointer_to",
    "prefetch",
    "put_byte",
    "put_word",
    "word_at",
]

BYTES = types.Array(types.uint8, 1, "C")
"""A contiguous byte vector that a kernel writes."""
READ_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""A contiguous byte vector that a kernel reads; writable arrays are accepted as well."""

BYTE_ROWS = types.Array(types.uint8, 2, "C")
"""Rows of bytes that a kernel writes."""
READ_BYTE_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
"""Rows of bytes that a kernel reads; writable arrays are accepted as well."""
INTS = types.Array(types.int64, 1, "C")
"""A contiguous vector of integers."""
INT_ROWS = types.Array(types.int64, 2, "C")
"""Rows of integers."""
SHORT_INTS = types.Array(types.int32, 1, "C")
"""A contiguous vector of 32-bit integers."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(result: types.Type, *arguments: types.Type, nogil: bool = True) -> Callable[[Function], Function]:
    """Compile a function for one signature when its module is imported.

    Importing a module of kernels thus compiles everything it will ever run, and nothing is compiled during training or
    in worker processes. The machine code is cached beside the source if that folder is writable, else in the user's
    cache folder (``NUMBA_CACHE_DIR`` overrides both); if neither is, each process compiles it. See
    :class:`~sb3_compressed.kernel_cache.KernelCache`.

    :param result: type of the returned value
    :param arguments: types of the arguments
    :param nogil: whether to release the GIL; ``False`` for short work on memory that other threads may change
    """

    def compile_function(function: Function) -> Function:
        compiled: Any = numba.njit(nogil=nogil)(function)
        code_cache = new_kernel_cache(function)
        if code_cache is not None:
            compiled._cache = code_cache  # numba's enable_caching() sets its own in the same way
        compiled.compile(result(*arguments))
        compiled.disable_compile()
        return cast("Function", compiled)

    return compile_function


# Single machine instructions that NumPy arrays cannot express. For kernels only, which must check the bounds.


def _pointer(builder: Any, address: Any, n_bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(n_bits).as_pointer())


@intrinsic
def _byte_at(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, arguments[0], 8))

    return types.uint8(types.int64), codegen


@intrinsic
def _word_at(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, arguments[0], 64), align=1)

    return types.uint64(types.int64), codegen


@intrinsic
def _put_byte(typingctx: Any, address: Any, byte: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer(builder, arguments[0], 8))

    return types.void(types.int64, types.uint8), codegen


@intrinsic
def _put_word(typingctx: Any, address: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer(builder, arguments[0], 64), align=1)

    return types.void(types.int64, types.uint64), codegen


@intrinsic
def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], 8)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        )
        read, keep_in_all_caches, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep_in_all_caches, data])

    return types.void(types.int64), codegen


@intrinsic
def _first_byte_of(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        n_zero_bits = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(n_zero_bits, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), codegen


@intrinsic
def _last_byte_of(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        n_zero_bits = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        n_zero_bytes = builder.lshr(n_zero_bits, ir.Constant(ir.IntType(64), 3))
        return builder.sub(ir.Constant(ir.IntType(64), 7), n_zero_bytes)

    return types.int64(types.uint64), codegen


def c_function(arguments: str) -> Callable[[int, tuple[int, ...]], int]:
    """Return a function for kernels that calls a C function at an address, which takes integers and returns an ``int``.

    :param arguments: for each argument ``"p"`` for a pointer or ``"i"`` for an ``int``
    """
    c_types = [ir.IntType(64 if kind == "p" else 32) for kind in arguments]

    @intrinsic
    def call(typingctx: Any, address: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            unpacked = cgutils.unpack_tuple(builder, given[1], len(c_types))  # type: ignore[no-untyped-call]
            passed = [
                value if c_type.width == 64 else builder.trunc(value, c_type)
                for value, c_type in zip(unpacked, c_types, strict=True)
            ]
            function_type = ir.FunctionType(ir.IntType(32), c_types)
            result = builder.call(builder.inttoptr(given[0], function_type.as_pointer()), passed)
            return builder.sext(result, ir.IntType(64))

        return types.int64(types.int64, types.UniTuple(types.int64, len(c_types))), codegen  # type: ignore[no-untyped-call]

    return cast("Callable[[int, tuple[int, ...]], int]", call)


@intrinsic
def _pointer_to(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _pointer(builder, arguments[0], 8)

    return types.CPointer(types.uint8)(types.int64), codegen  # type: ignore[no-untyped-call]


pointer_to = cast("Callable[[int], Any]", _pointer_to)
"""Return an address as a pointer to bytes, for :func:`numba.carray`: loops over arrays compile to SIMD instructions."""
byte_at = cast("Callable[[int], int]", _byte_at)
"""Read the byte at an address."""
word_at = cast("Callable[[int], np.uint64]", _word_at)
"""Read the 8 bytes at an address as a uint64; it need not be aligned."""
put_byte = cast("Callable[[int, int], None]", _put_byte)
"""Write a byte to an address."""
put_word = cast("Callable[[int, np.uint64], None]", _put_word)
"""Write a uint64 to the 8 bytes at an address; it need not be aligned."""
prefetch = cast("Callable[[int], None]", _prefetch)
"""Prefetch the cache line of an address. It is a hint, harmless for invalid addresses."""
first_byte_of = cast("Callable[[np.uint64], int]", _first_byte_of)
"""Return the index in memory of the first nonzero byte of a word. All platforms of numba are little-endian."""
last_byte_of = cast("Callable[[np.uint64], int]", _last_byte_of)
"""Return the index in memory of the last nonzero byte of a word."""
