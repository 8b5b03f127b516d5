"""What a process has measured is found among what else it prints."""

from __future__ import annotations

import pytest
from measurement import measurement_of


@pytest.mark.parametrize(
    ("returncode", "out", "err", "expected"),
    [
        (0, 'loading\n\n{"add": 1.5}\nthe end\n7\n', "", {"add": 1.5}),
        (0, "nothing else", "", {"error": "the process printed no measurement"}),
        (1, '{"add": 1.5}', "a warning\nno game", {"error": "the process ended with 1: no game"}),
        (-9, "", "", {"error": "the process was killed, perhaps since there was not enough memory"}),
    ],
)
def test_measurements_and_errors_are_found(returncode: int, out: str, err: str, expected: dict[str, object]) -> None:
    assert measurement_of(returncode, out, err) == expected
