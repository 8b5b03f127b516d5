"""Contenders are found by their names."""

from __future__ import annotations

import doctest

import pytest

import contenders.names
from contenders.names import split_name


def test_the_examples_hold() -> None:
    assert doctest.testmod(contenders.names).failed == 0


def test_an_unknown_library_is_named() -> None:
    with pytest.raises(ValueError, match="no library 'extras' in 'extras:zstd3', but extra, torchrl, cpprb"):
        split_name("extras:zstd3")
