"""The kernels of ``rle-jit`` are compiled once for all input, with or without a cache folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run

import sb3_compressed
from sb3_compressed.codecs import get_codec, rle_kernels

CACHE_FREE = """
import sys
import numba
from sb3_compressed.codecs import get_codec, rle_kernels
assert rle_kernels.__file__.startswith(sys.argv[1]), rle_kernels.__file__
try:
    numba.njit(cache=True)(rle_kernels.encode_runs.py_func)
except RuntimeError as error:
    assert "cannot cache function" in str(error)
else:
    raise AssertionError("numba found a cache folder")

import numpy as np
frames = np.repeat(np.arange(6, dtype=np.int16), 50).reshape(2, 150)
out = np.empty_like(frames)
codec = get_codec("rle-jit")
payloads = codec.encode(frames)
codec.decode_into(payloads, out)
assert payloads == get_codec("rle").encode(frames)
assert (out == frames).all()
"""


@pytest.mark.parametrize("dtype", ["?", "u1", ">i4", "f8", "c16"])
@pytest.mark.parametrize("writeable", [False, True])
def test_every_dtype_and_layout_uses_the_same_compiled_kernel(dtype: str, writeable: bool) -> None:
    frames = np.zeros((3, 10, 10), dtype)
    frames.flags.writeable = writeable
    codec = get_codec("rle-jit", runs_type="u4")
    codec.decode_into(codec.encode(frames[:, ::2]), np.empty((3, 5, 10), dtype))
    kernels: tuple[Any, ...] = (rle_kernels.encode_runs, rle_kernels.decode_frames)
    assert [len(kernel.signatures) for kernel in kernels] == [1, 1]


def test_kernels_work_without_a_writable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files block the cache folders, since root ignores permissions."""
    package = tmp_path / "sb3_compressed"
    source = Path(sb3_compressed.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "codecs" / "__pycache__").touch()
    (package / "__pycache__").touch()
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "cache")
    folders = dict.fromkeys(("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "APPDATA"), nowhere)
    monkeypatch.chdir(tmp_path)  # the first entry of a program's sys.path
    run(CACHE_FREE, tmp_path, **folders, PYTHONDONTWRITEBYTECODE="1")
    assert not list(tmp_path.rglob("*.nb[ci]"))
