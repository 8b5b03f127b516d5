"""Compilation with numba: at import, for one signature, without the GIL, and cached on disk."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Flags, compile_internal
from numba.extending import intrinsic
from numpy.typing import NDArray

from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.kernels.kernel_cache import new_kernel_cache

__all__ = [
    "BYTES",
    "BYTE_ROWS",
    "INTS",
    "INT_ROWS",
    "READ_BYTES",
    "READ_BYTE_ROWS",
    "READ_INTS",
    "READ_WORD_ROWS",
    "SHORT_INTS",
    "byte_at",
    "bytes_at",
    "first_byte_of",
    "helper",
    "kernel",
    "last_byte_of",
    "prefetch",
    "put_byte",
    "put_word",
    "stack_ints",
    "word_at",
    "words_at",
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
READ_INTS = types.Array(types.int64, 1, "C", readonly=True)
"""A contiguous vector of integers that a kernel reads; writable arrays are accepted as well."""
INT_ROWS = types.Array(types.int64, 2, "C")
"""Rows of integers."""
READ_WORD_ROWS = types.Array(types.uint64, 2, "C", readonly=True)
"""Rows of words of 8 bytes that a kernel reads."""
SHORT_INTS = types.Array(types.int32, 1, "C")
"""A contiguous vector of 32-bit integers."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(result: types.Type, *arguments: types.Type, nogil: bool = True) -> Callable[[Function], Function]:
    """Compile a function for one signature when its module is imported.

    Importing a module of kernels thus compiles everything it will ever run, and nothing is compiled during training or
    in worker processes. The machine code is cached beside the source if that folder is writable, else in the user's
    cache folder (``NUMBA_CACHE_DIR`` overrides both); if neither is, each process compiles it. See
    :class:`~sb3_compressed.kernels.kernel_cache.KernelCache`.

    :param result: type of the returned value
    :param arguments: types of the arguments
    :param nogil: whether to release the GIL; ``False`` for short work on memory that other threads may change
    """

    def compile_function(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": nogil, "no_cfunc_wrapper": True, "_nrt": False}
        # Ctrl-C within a callback of LLVM is lost, and what is loaded then crashes the process.
        with deferred_interrupts(), _jit_enabled():
            compiled: Any = numba.njit(**options)(function)
            code_cache = new_kernel_cache(function)
            if code_cache is not None:
                compiled._cache = code_cache  # numba's enable_caching() sets its own in the same way
            compiled.compile(result(*arguments))
        compiled.disable_compile()
        return cast("Function", compiled)

    return compile_function


@contextmanager
def _jit_enabled() -> Iterator[None]:
    """Compile within the block even with ``NUMBA_DISABLE_JIT=1``, which users set to debug their own functions.

    Kernels read memory by its address, which Python cannot do.
    """
    settings: Any = config  # numba sets its attributes from environment variables, so they are not declared
    before, settings.DISABLE_JIT = settings.DISABLE_JIT, 0
    try:
        yield
    finally:
        settings.DISABLE_JIT = before


def helper(result: types.Type, *arguments: types.Type, inline: bool = False) -> Callable[[Function], Function]:
    """Declare a function that only kernels call, which is compiled as a part of them.

    It takes a fraction of the time of a kernel, which besides gets wrappers for Python and is loaded on its own.

    :param result: type of the returned value
    :param arguments: types of the arguments
    :param inline: whether callers contain its code, where LLVM would not do that: for one part of a long loop
    """

    def declare(function: Function) -> Function:
        def call(typingctx: Any, *operands: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                if not compiled:
                    compiled.append(_compile_part(context, function, signature, inline=inline))
                _link(context.active_code_library, compiled[0].library)
                return context.call_internal(builder, compiled[0].fndesc, signature, values)

            return result(*arguments), codegen

        compiled: list[Any] = []
        own = inspect.signature(call).parameters["typingctx"]
        vars(call)["__signature__"] = inspect.Signature([own, *inspect.signature(function).parameters.values()])
        return cast("Function", intrinsic(call))

    return declare


class PartialLibrary(JITCodeLibrary):
    """The code of a helper before it is optimized and translated to machine code together with that of kernels."""

    def _ensure_finalized(self) -> None:
        """Leave the code as it is: numba finalizes libraries before it links them."""


def _compile_part(context: Any, function: Callable[..., Any], signature: Any, *, inline: bool) -> Any:
    flags: Any = Flags()  # type: ignore[no-untyped-call]
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.forceinline = inline
    library = PartialLibrary(context.codegen(), function.__name__)  # type: ignore[no-untyped-call]
    return compile_internal(  # type: ignore[no-untyped-call]
        context.typing_context, context, library, function, signature.args, signature.return_type, flags, {}
    )


def _link(library: Any, part: Any) -> None:
    """Link a part and what it calls; callers precede what they call, as LLVM drops what is not called yet."""
    library.add_linking_library(part)
    if isinstance(part, PartialLibrary):
        for called in part._linking_libraries:
            _link(library, called)


# Single machine instructions that NumPy arrays cannot express. For kernels only, which must check the bounds.


def _unary(result: types.Type, argument: types.Type, emit: Callable[..., Any]) -> Any:
    """Return a function of one operand for kernels.

    :param emit: ``emit(builder, operand)`` writes the instructions and returns their result
    """

    @intrinsic
    def instruction(typingctx: Any, operand: Any) -> Any:
        return result(argument), lambda context, builder, signature, operands: emit(builder, *operands)

    return instruction


def _store(argument: types.Type, n_bits: int) -> Any:
    """Return a function for kernels that stores a value of ``n_bits`` at an unaligned address."""

    @intrinsic
    def instruction(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], _pointer(builder, arguments[0], n_bits), align=1)

        return types.void(types.int64, argument), codegen

    return instruction


def _array(context: Any, builder: Any, array_type: Any, data: Any, n: Any) -> Any:
    """Return an array of ``n`` elements from ``data`` on, which numba neither allocates nor frees."""
    from numba.np.arrayobj import populate_array  # on compilation, since importing it takes long

    array = context.make_array(array_type)(context, builder)
    itemsize = context.get_constant(types.intp, array_type.dtype.bitwidth // 8)
    data = builder.bitcast(data, array.data.type)
    populate_array(array, data=data, shape=[n], strides=[itemsize], itemsize=itemsize, meminfo=None)  # type: ignore[no-untyped-call]
    return array._getvalue()


def _array_at(array_type: Any) -> Any:
    """Return a function for kernels that returns a number of elements at an address as an array."""

    @intrinsic
    def view(typingctx: Any, address: Any, n: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = _pointer(builder, arguments[0], array_type.dtype.bitwidth)
            return _array(context, builder, array_type, data, arguments[1])

        return array_type(types.int64, types.int64), codegen

    return view


def stack_ints(n: int) -> Callable[[], NDArray[np.int64]]:
    """Return a function for kernels that returns scratch memory for ``n`` integers, valid until the kernel returns."""

    @intrinsic
    def allocate(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            memory = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), n))  # type: ignore[no-untyped-call]
            return _array(context, builder, INTS, memory, context.get_constant(types.intp, n))

        return INTS(), codegen

    return cast("Callable[[], NDArray[np.int64]]", allocate)


def _pointer(builder: Any, address: Any, n_bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(n_bits).as_pointer())


def _load_byte(builder: Any, address: Any) -> Any:
    return builder.load(_pointer(builder, address, 8))


def _load_word(builder: Any, address: Any) -> Any:
    return builder.load(_pointer(builder, address, 64), align=1)


def _prefetch(builder: Any, address: Any) -> None:
    pointer = _pointer(builder, address, 8)
    function = builder.module.declare_intrinsic(
        "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
    )
    read, keep_in_all_caches, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
    builder.call(function, [pointer, read, keep_in_all_caches, data])


def _first_byte(builder: Any, word: Any) -> Any:
    n_zero_bits = builder.cttz(word, ir.Constant(ir.IntType(1), 1))
    return builder.lshr(n_zero_bits, ir.Constant(ir.IntType(64), 3))


def _last_byte(builder: Any, word: Any) -> Any:
    n_zero_bits = builder.ctlz(word, ir.Constant(ir.IntType(1), 1))
    return builder.sub(ir.Constant(ir.IntType(64), 7), builder.lshr(n_zero_bits, ir.Constant(ir.IntType(64), 3)))


byte_at: Callable[[int], int] = _unary(types.uint8, types.int64, _load_byte)
"""Read the byte at an address."""
word_at: Callable[[int], np.uint64] = _unary(types.uint64, types.int64, _load_word)
"""Read the 8 bytes at an address as a uint64; it need not be aligned."""
bytes_at = cast("Callable[[int, int], NDArray[np.uint8]]", _array_at(BYTES))
"""Return the bytes at an address as an array: loops over arrays compile to SIMD instructions."""
words_at = cast("Callable[[int, int], NDArray[np.uint64]]", _array_at(types.Array(types.uint64, 1, "C")))
"""Return a number of words of 8 bytes at an address as an array, likewise."""
put_byte: Callable[[int, int], None] = _store(types.uint8, 8)
"""Write a byte to an address."""
put_word: Callable[[int, np.uint64], None] = _store(types.uint64, 64)
"""Write a uint64 to the 8 bytes at an address; it need not be aligned."""
prefetch: Callable[[int], None] = _unary(types.void, types.int64, _prefetch)
"""Prefetch the cache line of an address. It is a hint, harmless for invalid addresses."""
first_byte_of: Callable[[np.uint64], int] = _unary(types.int64, types.uint64, _first_byte)
"""Return the index in memory of the first nonzero byte of a word. All platforms of numba are little-endian."""
last_byte_of: Callable[[np.uint64], int] = _unary(types.int64, types.uint64, _last_byte)
"""Return the index in memory of the last nonzero byte of a word."""
