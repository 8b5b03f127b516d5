"""The layout of a sum tree and its flags, which kernels compiled by :mod:`sb3_compressed.kernels.jit` contain."""

from __future__ import annotations

__all__ = ["ADD", "DRAWN", "FANOUT", "MAX_VALUE", "REMOVE", "UPDATE", "UPDATED", "VALID"]

FANOUT = 8
"""Number of children of a node: as many float64 as a cache line has."""
MAX_VALUE = 2.0**960
"""The largest value of an item: the sum of 2**63 of them is finite."""
VALID, DRAWN, UPDATED = 1, 2, 4
"""Flags of an item, one byte: it may be drawn, was drawn, and was updated since it was added."""
ADD, UPDATE, REMOVE = 0, 1, 2
"""What :func:`~.sum_tree_kernels.set_items` does."""
