"""Kernels that add planes of bytes, and that separate the bytes of pixels into planes and join them again.

As those of :mod:`.byte_kernels`, they work at memory addresses, and callers check the bounds.
"""

from __future__ import annotations

from numba import types

from sb3_compressed.kernels.byte_kernels import INT
from sb3_compressed.kernels.jit import bytes_at, helper

__all__ = ["add_bytes", "join_pixels", "separate_pixels", "subtract_bytes"]


@helper(types.void, INT, INT, INT)
def add_bytes(source: int, target: int, n: int) -> None:
    """Add ``n`` bytes at one address to those at another, modulo 256."""
    added, to = bytes_at(source, n), bytes_at(target, n)
    for k in range(n):
        to[k] += added[k]


@helper(types.void, INT, INT, INT)
def subtract_bytes(source: int, target: int, n: int) -> None:
    """Subtract ``n`` bytes at one address from those at another, modulo 256."""
    subtracted, to = bytes_at(source, n), bytes_at(target, n)
    for k in range(n):
        to[k] -= subtracted[k]


# Constants compile to SIMD instructions, so the loops for pixels of 2 bytes (depth) and 3 bytes (RGB) are written out.


@helper(types.void, INT, INT, INT, INT)
def separate_pixels(pixels: int, interleaved: int, size: int, planes: int) -> None:
    """Copy ``size`` pixels, each of so many interleaved bytes, to one plane for each byte of a pixel."""
    values = bytes_at(pixels, interleaved * size)
    first, second = bytes_at(planes, size), bytes_at(planes + size, size)
    if interleaved == 2:
        for k in range(size):
            first[k] = values[2 * k]
            second[k] = values[2 * k + 1]
    elif interleaved == 3:
        third = bytes_at(planes + 2 * size, size)
        for k in range(size):
            first[k] = values[3 * k]
            second[k] = values[3 * k + 1]
            third[k] = values[3 * k + 2]
    else:
        for i in range(interleaved):
            plane = bytes_at(planes + i * size, size)
            for k in range(size):
                plane[k] = values[interleaved * k + i]


@helper(types.void, INT, INT, INT, INT, INT)
def join_pixels(planes: int, stride: int, interleaved: int, size: int, pixels: int) -> None:
    """Copy planes, each ``stride`` bytes after the one before, to ``size`` pixels of so many interleaved bytes."""
    values = bytes_at(pixels, interleaved * size)
    first, second = bytes_at(planes, size), bytes_at(planes + stride, size)
    if interleaved == 2:
        for k in range(size):
            values[2 * k] = first[k]
            values[2 * k + 1] = second[k]
    elif interleaved == 3:
        third = bytes_at(planes + 2 * stride, size)
        for k in range(size):
            values[3 * k] = first[k]
            values[3 * k + 1] = second[k]
            values[3 * k + 2] = third[k]
    else:
        for i in range(interleaved):
            plane = bytes_at(planes + i * stride, size)
            for k in range(size):
                values[interleaved * k + i] = plane[k]
