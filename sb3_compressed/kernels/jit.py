"""Compilation with numba: at import, for one signature, without the GIL, and cached on disk."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from sb3_compressed.common.interrupts import deferred_interrupts

__all__ = [
    "BYTES",
    "BYTE_ROWS",
    "INTS",
    "INT_ROWS",
    "READ_BYTES",
    "READ_BYTE_ROWS",
    "READ_INTS",
    "SHORT_INTS",
    "UINT_ROWS",
    "byte_at",
    "bytes_at",
    "c_function",
    "first_byte_of",
    "helper",
    "int32_at",
    "int64_at",
    "kernel",
    "kernels",
    "last_byte_of",
    "prefetch",
    "put_byte",
    "put_word",
    "stack_memory",
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
UINT_ROWS = types.Array(types.uint32, 2, "C")
"""Rows of 32-bit integers without sign."""
WORDS = types.Array(types.uint64, 1, "C")
"""A contiguous vector of words of 8 bytes."""
SHORT_INTS = types.Array(types.int32, 1, "C")
"""A contiguous vector of 32-bit integers."""

FOLDER = Path(__file__).parent.parent
#: Text in the source of every module of kernels, and of those whose constants they contain.
IMPORT = b"sb3_compressed.kernels.jit"

Function = TypeVar("Function", bound=Callable[..., Any])

kernels: list[Any] = []
"""The kernels that this process has imported: numba's dispatchers."""

_cache_errors: list[Exception] = []
_logger = logging.getLogger(__name__)


def kernel(result: types.Type, *arguments: types.Type) -> Callable[[Function], Function]:
    """Compile a function for one signature when its module is imported.

    Importing a module of kernels thus compiles everything it will ever run, and nothing is compiled during training or
    in worker processes. Numba caches the machine code beside the source if that folder is writable, else in the user's
    cache folder; ``NUMBA_CACHE_DIR`` overrides both. Without a usable cache, each process compiles it.

    :param result: type of the returned value
    :param arguments: types of the arguments
    """

    def compile_function(function: Function) -> Function:
        # The names of cached files contain that of the function. Numba itself only detects changes in its source file.
        function.__qualname__ += f"_{_sources_digest()}"
        signature = result(*arguments)
        options: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
        # Ctrl-C within a callback of LLVM is lost, and what is loaded then crashes the process.
        with deferred_interrupts(), _jit_enabled():
            try:
                compiled = numba.njit(signature, cache=True, **options)(function)
            except Exception as error:  # no folder can be written, the disk is full, or a file is damaged
                compiled = numba.njit(signature, **options)(function)
                _report(error)
        kernels.append(compiled)
        return cast("Function", compiled)

    return compile_function


@cache
def _sources_digest() -> str:
    """Return a digest of the sources of all kernels, and of what else their machine code depends on.

    Helpers are compiled into kernels of other modules, so machine code is only valid for the sources of all.
    """
    settings: Any = numba.config
    digest = hashlib.sha256(f"{numba.__version__} {settings.BOUNDSCHECK}".encode())
    for path in sorted(FOLDER.rglob("*.py")):
        source = path.read_bytes() if path.is_file() else b""  # editors lock files with links to nowhere
        if IMPORT in source or path.name == "jit.py":
            digest.update(f"{path.name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


@contextmanager
def _jit_enabled() -> Iterator[None]:
    """Compile within the block even with ``NUMBA_DISABLE_JIT=1``, which users set to debug their own functions.

    Kernels read memory by its address, which Python cannot do.
    """
    settings: Any = numba.config  # numba sets its attributes from environment variables, so they are not declared
    before, settings.DISABLE_JIT = settings.DISABLE_JIT, 0
    try:
        yield
    finally:
        settings.DISABLE_JIT = before


def _report(error: Exception) -> None:
    """Log once that kernels cannot be cached. Not a warning, which filters may turn into an error."""
    if not _cache_errors:
        _logger.warning(
            "compiled kernels cannot be cached (%s: %s), so each process compiles them, which takes some seconds; set "
            "NUMBA_CACHE_DIR to a folder that can be written",
            type(error).__name__,
            error,
        )
    _cache_errors.append(error)


def helper(result: types.Type, *arguments: types.Type, inline: bool = False) -> Callable[[Function], Function]:
    """Declare a function that only kernels call, which is compiled for one signature, as a part of them.

    It is compiled with the first kernel of a process that is not cached. A plain ``njit`` function would be compiled
    for each combination of types of arguments, which differ by literals alone.

    :param result: type of the returned value
    :param arguments: types of the arguments
    :param inline: whether numba copies its code to its callers before it compiles them: for one part of a long loop,
        which LLVM would leave a function of its own
    """

    def declare(function: Function) -> Function:
        if inline:
            with _jit_enabled():
                return cast("Function", numba.njit(inline="always", error_model="numpy")(function))
        signature = result(*arguments)
        options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}

        def call(typingctx: Any, *operands: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                if not compiled:
                    compiled.append(numba.njit(signature, **options)(function))
                callee = context.typing_context.resolve_value_type(compiled[0])
                return context.get_function(callee, signature)(builder, values)

            return signature, codegen

        compiled: list[Any] = []
        own = inspect.signature(call).parameters["typingctx"]
        vars(call)["__signature__"] = inspect.Signature([own, *inspect.signature(function).parameters.values()])
        return cast("Function", intrinsic(call))

    return declare


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


def stack_memory(n_words: int) -> Callable[[], int]:
    """Return a function for kernels that returns the address of ``n_words`` words, valid until the kernel returns."""

    @intrinsic
    def allocate(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                memory = builder.alloca(ir.IntType(64), n_words)
            return builder.ptrtoint(memory, ir.IntType(64))

        return types.int64(), codegen

    return cast("Callable[[], int]", allocate)


def c_function(n_arguments: int) -> Callable[..., int]:
    """Return a function for kernels that calls a C function by its address.

    :param n_arguments: the number of its arguments, which are 64-bit integers or pointers, as what it returns
    """

    def call(typingctx: Any, address: Any, *arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            integer = ir.IntType(64)
            function = ir.FunctionType(integer, [integer] * n_arguments).as_pointer()
            return builder.call(builder.inttoptr(values[0], function), values[1:])

        return types.int64(*[types.int64] * (1 + n_arguments)), codegen

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _names(n_arguments)]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return cast("Callable[..., int]", intrinsic(call))


def _names(n_arguments: int) -> list[str]:
    return ["typingctx", "address", *[f"argument_{number}" for number in range(n_arguments)]]


def _pointer(builder: Any, address: Any, n_bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(n_bits).as_pointer())


def _load_byte(builder: Any, address: Any) -> Any:
    return builder.load(_pointer(builder, address, 8))


def _load_word(builder: Any, address: Any) -> Any:
    return builder.load(_pointer(builder, address, 64), align=1)


def _load_int32(builder: Any, address: Any) -> Any:
    return builder.sext(builder.load(_pointer(builder, address, 32), align=1), ir.IntType(64))


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
int64_at: Callable[[int], int] = _unary(types.int64, types.int64, _load_word)
"""Read the 8 bytes at an address as an int64, likewise."""
int32_at: Callable[[int], int] = _unary(types.int64, types.int64, _load_int32)
"""Read the 4 bytes at an address as an int32, likewise."""
put_byte: Callable[[int, int], None] = _store(types.uint8, 8)
"""Write a byte to an address."""
put_word: Callable[[int, int | np.uint64], None] = _store(types.uint64, 64)
"""Write a uint64 to the 8 bytes at an address; it need not be aligned."""
prefetch: Callable[[int], None] = _unary(types.void, types.int64, _prefetch)
"""Prefetch the cache line of an address. It is a hint, harmless for invalid addresses."""
first_byte_of: Callable[[np.uint64], int] = _unary(types.int64, types.uint64, _first_byte)
"""Return the index in memory of the first nonzero byte of a word. All platforms of numba are little-endian."""
last_byte_of: Callable[[np.uint64], int] = _unary(types.int64, types.uint64, _last_byte)
"""Return the index in memory of the last nonzero byte of a word."""


def _pointer_to(element: types.Type) -> Any:
    """Return a function for kernels that returns an address as a pointer."""

    @intrinsic
    def pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), codegen  # type: ignore[no-untyped-call]

    return pointer


_pointer_to_bytes, _pointer_to_words = _pointer_to(types.uint8), _pointer_to(types.uint64)


@helper(BYTES, types.int64, types.int64)
def bytes_at(address: int, n: int) -> NDArray[np.uint8]:
    """Return the bytes at an address as an array: loops over arrays compile to SIMD instructions."""
    return carray(_pointer_to_bytes(address), n)


@helper(WORDS, types.int64, types.int64)
def words_at(address: int, n: int) -> NDArray[np.uint64]:
    """Return a number of words of 8 bytes at an address as an array, likewise."""
    return carray(_pointer_to_words(address), n)
