"""Parsing untrusted JSON: valid documents round-trip, unusual ones are rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sb3_compressed.storage.json_schema import load_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deep|Expecting value"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
        ('["\\ud800"]', "surrogates not allowed"),
        ("9" * 5000, "digits"),
        ("", "Expecting value"),
        ("{'a': 1}", "Expecting property name"),
    ],
)
def test_unusual_json_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_json(text.encode())


def test_json_of_other_encodings_is_rejected() -> None:
    for data in (b"\xff", '{"a": 1}'.encode("utf-16"), b'"\xed\xa0\x80"'):
        with pytest.raises(ValueError, match="utf-8"):
            load_json(data)


def test_valid_json_round_trips() -> None:
    values: list[Any] = [{"ä\n\0": [1, -0.5, None, True, "\U0001f600"]}, [[]] * 100, json.loads("[" * 60 + "]" * 60)]
    for value in values:
        for is_ascii in (True, False):
            assert load_json(json.dumps(value, ensure_ascii=is_ascii).encode()) == value
