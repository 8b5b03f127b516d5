"""Names of measured buffers are parsed."""

from __future__ import annotations

import doctest

import pytest

import adapters.buffer_names
from adapters.buffer_names import split_name


def test_docstring_examples_of_buffer_names_are_correct() -> None:
    assert doctest.testmod(adapters.buffer_names).failed == 0


def test_unknown_library_lists_available_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown library 'extras' .* available: extra, torchrl, cpprb"):
        split_name("extras:zstd3")
