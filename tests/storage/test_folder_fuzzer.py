"""Arbitrary folders either open or raise an error that names the problem, in bounded memory and time.

The folders are valid ones with random changes of metadata, arrays, bytes or files. They are opened in another process
with limited memory, which contains crashes and memory bombs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and measured as on Linux")

N_FOLDERS = int(os.environ.get("SB3_COMPRESSED_FOLDERS", "40"))
#: Memory that may be allocated for a folder of some kilobytes.
MOST_NBYTES = 64 << 20


@pytest.fixture(scope="module")
def opener() -> Iterator[crafted.Opener]:
    found = crafted.Opener()
    yield found
    found.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a valid folder of each kind."""
    found = {kind: tmp_path_factory.mktemp("valid") / kind for kind in crafted.KINDS}
    for kind, folder in found.items():
        crafted.make_folder(kind, folder)
    return found


# -- what is changed -------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**16, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.0, -0.5, 1e300, float("inf"), float("-inf"), float("nan")),
    *("", "x", "O", "(,)i4", "<f4", "<i8", "|u1", "f16", "zstd", "delta", "none", "\ud800", "\0", "x" * 10_000),
    *([], {}, [[]], {"": {}}, [0], [0, 4], [-1, 2**40], [2**40, 2**40], {"dtype": "(,)i4"}, {"codec": None}),
    json.loads("[" * 80 + "]" * 80),
]


def changed_json(value: Any, random: random.Random) -> Any:
    """Return JSON with a random change."""
    parts: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        keys = part.keys() if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            parts.append((part, key))
            visit(part[key])

    visit(value)
    if not parts or random.random() < 0.02:
        return deepcopy(random.choice(VALUES))  # which later changes may change
    part, key = random.choice(parts)
    way = random.randrange(6)
    if way == 0:
        del part[key]
    elif way == 1 and isinstance(part, dict):
        part[random.choice(["", "x", "pos", "content", "shape"])] = part.pop(key)
    elif way == 2:
        other, from_key = random.choice(parts)
        part[key] = json.loads(json.dumps(other.get(from_key) if isinstance(other, dict) else None))
    elif way == 3 and isinstance(part[key], int):
        part[key] += random.choice([-1, 1, 100, -100])
    elif way == 4:
        text = json.dumps(value)
        at = random.randrange(len(text))
        return (text[:at] + random.choice(["", '"', "{", "[", "NaN", "1e999", "9" * 400]) + text[at + 1 :]).encode()
    else:
        part[key] = deepcopy(random.choice(VALUES))
    return value


def change_manifest(folder: Path, random: random.Random) -> None:
    crafted.forge(folder, change_manifest=lambda manifest: changed_json(manifest, random))


def change_commit(folder: Path, random: random.Random) -> None:
    crafted.forge(folder, change_commit=lambda commit: changed_json(commit, random))


def change_codec(folder: Path, random: random.Random) -> None:
    crafted.forge(folder, change_codec=lambda codec: changed_json(codec, random))


def change_much(folder: Path, random: random.Random) -> None:
    def change(value: Any) -> Any:
        for _ in range(random.randrange(3)):
            if not isinstance(value, bytes):
                value = changed_json(value, random)
        return value

    crafted.forge(folder, change, change, change)


def change_arrays(folder: Path, random: random.Random) -> None:
    def change(arrays: dict[str, Any]) -> None:
        for _ in range(random.randrange(1, 4)):
            array = random.choice([array for array in arrays.values() if array.size])
            flat = array.reshape(-1)
            at = random.randrange(flat.size)
            if array.dtype == np.int64 and random.random() < 0.7:
                some = int(flat[random.randrange(flat.size)])
                flat[at] = random.choice([some, some + 1, some ^ 1 << random.randrange(62), -1, 1, 0, 10**6, -(2**63)])
            else:
                flat.view(np.uint8)[random.randrange(flat.nbytes)] ^= 1 << random.randrange(8)

    crafted.forge(folder, change_arrays=change)


def change_bytes(folder: Path, random: random.Random) -> None:
    path = random.choice(sorted(folder.glob("*.log")))
    content = bytearray(path.read_bytes())
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(min(len(content), random.choice([64, 4096, len(content)])))
        if random.random() < 0.5:
            content[at] ^= 1 << random.randrange(8)
        else:
            content[at : at + 8] = random.choice([bytes(8), b"\xff" * 8, random.randbytes(8), b"", bytes(100)])
    path.write_bytes(content)


CHANGES: list[Callable[[Path, random.Random], None]] = [
    *(change_manifest, change_commit, change_codec, change_much, change_arrays, change_bytes),
]


@pytest.mark.slow
@settings(
    max_examples=N_FOLDERS,
    derandomize="SB3_COMPRESSED_FOLDERS" not in os.environ,
)
@given(
    kind=st.sampled_from(sorted(crafted.KINDS)),
    change=st.sampled_from(CHANGES),
    random=st.randoms(use_true_random=False),
)
def test_arbitrary_folders_are_rejected_or_opened(
    kind: str,
    change: Callable[[Path, random.Random], None],
    random: random.Random,
    folders: dict[str, Path],
    opener: crafted.Opener,
    tmp_path: Path,
) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folders[kind], folder)
    victim.write_text("content")
    change(folder, random)
    answer = opener.open(kind, folder)
    assert answer["error"] is None, answer["error"]
    assert answer["nbytes"] < MOST_NBYTES, answer
    assert victim.read_text() == "content"
    for outcome in answer["outcomes"]:
        is_named = str(folder) in outcome or "corrupt payload in slot" in outcome
        assert outcome.endswith("fine") or is_named, f"the error names no file: {outcome}"
