"""Measurements of several rounds are combined."""

from __future__ import annotations

from typing import Any

from measurement import medians


def test_rounds_have_medians_and_keep_their_numbers() -> None:
    runs: list[Any] = [
        {"add": 10.0 * number, "quartiles": {"add": [number, 2 * number]}, "wrong": "", "name": "auto"}
        for number in range(3)
    ]
    expected = {"add": 10.0, "quartiles": {"add": [1, 2]}, "wrong": "", "name": "auto"}
    assert medians(runs) == expected | {"runs": {"add": [0.0, 10.0, 20.0]}}
    assert medians(runs[1:2]) == expected
