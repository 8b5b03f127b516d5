"""The cache of compiled kernels: no file in it, and no lack of room for it, breaks a program or makes it wrong."""

from __future__ import annotations

import ast
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import TIMEOUT_S, environment_with, outcome, run

import sb3_compressed

SOURCE = Path(sb3_compressed.__file__).parent

#: Uses kernels that were compiled with kernels of other files in them, and prints how many were compiled now.
PROGRAM = """
import sys
from numba.core import event
with event.install_recorder("numba:compile") as compilations:
    import numpy as np
    from sb3_compressed import byte_kernels
assert byte_kernels.__file__.startswith(sys.argv[1]), byte_kernels.__file__
some, copy = np.arange(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8)
byte_kernels.copy_bytes(some.ctypes.data, copy.ctypes.data, 99, 99)
is_right = (copy[:99] == some[:99]).all() and byte_kernels.common_length(some.ctypes.data, copy.ctypes.data, 100) == 99
assert is_right == ("wrong" not in sys.argv)
print(len(compilations.buffer) // 2)  # an event for the begin and the end of each
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the package that the programs of a test import, with an empty cache beside its files."""
    shutil.copytree(SOURCE, tmp_path / SOURCE.name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)  # where a program looks first for what it imports
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path / SOURCE.name


def n_compiled(package: Path) -> int:
    return int(run(PROGRAM, package))


def cached(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("__pycache__/*") if path.suffix != ".pyc")


@pytest.fixture
def warm(package: Path) -> Path:
    """Return such a copy of which the kernels are cached."""
    assert n_compiled(package) > 3
    assert n_compiled(package) == 0
    assert all(path.suffix == ".nbc" for path in cached(package))
    return package


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:-1000] + bytes([content[-1000] ^ 16]) + content[-999:]


def with_right_checksum(code: bytes) -> bytes:
    return hashlib.sha256(code).digest() + code


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": truncated,
    "garbage": lambda content: os.urandom(len(content)),
    "one bit": flipped,
    "no pickle": lambda content: with_right_checksum(truncated(content[32:])),
    "a pickle of something else": lambda content: with_right_checksum(pickle.dumps({})),
}


def test_damaged_files_are_replaced(warm: Path) -> None:
    whole = {path: path.read_bytes() for path in cached(warm)}
    for name, damage in DAMAGES.items():
        for path, content in whole.items():
            path.write_bytes(damage(content))
        assert n_compiled(warm) > 3, name
        assert cached(warm) == [*whole], name
        assert n_compiled(warm) == 0, name


def test_a_single_damaged_file_costs_one_compilation(warm: Path) -> None:
    for path in cached(warm)[:3]:
        path.write_bytes(b"")
        assert n_compiled(warm) == 1, path
        assert n_compiled(warm) == 0, path


def test_what_is_no_file_does_no_harm(warm: Path) -> None:
    for path in cached(warm):
        path.unlink()
        path.mkdir()
    assert n_compiled(warm) > 3
    assert n_compiled(warm) > 3
    assert all(path.is_dir() for path in cached(warm))


def test_kernels_of_an_older_numba_cache_are_left_alone(package: Path) -> None:
    """Files of numba's own cache, which earlier versions of the package used, are neither read nor removed."""
    folder = package / "__pycache__"
    folder.mkdir()
    old = folder / "byte_kernels.copy_bytes-39.py311.nbi"
    old.write_bytes(b"")
    assert n_compiled(package) > 3
    assert n_compiled(package) == 0
    assert old.exists()


def test_changing_a_kernel_renews_those_that_it_is_part_of(warm: Path) -> None:
    """Numba itself looks for changes only in the file that a kernel is in."""
    before = {*cached(warm)}
    path = warm / "jit.py"
    source = path.read_text()
    changed = source.replace(
        "return builder.load(_pointer(builder, arguments[0], 64), align=1)",
        "return builder.not_(builder.load(_pointer(builder, arguments[0], 64), align=1))",
    )
    assert changed != source
    times = path.stat()
    path.write_text(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert int(run(PROGRAM, warm, "wrong")) > 0
    assert not before & {*cached(warm)}, "what can never be used again is removed"
    assert int(run(PROGRAM, warm, "wrong")) == 0
    path.write_text(source)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert n_compiled(warm) > 0
    assert n_compiled(warm) == 0


def test_settings_that_change_machine_code_have_files_of_their_own(warm: Path) -> None:
    before = {path: path.read_bytes() for path in cached(warm)}
    assert int(run(PROGRAM, warm, NUMBA_BOUNDSCHECK="1")) > 3
    assert int(run(PROGRAM, warm, NUMBA_BOUNDSCHECK="1")) == 0
    assert n_compiled(warm) == 0
    assert {path: path.read_bytes() for path in before} == before


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"


def test_files_that_cannot_be_written_do_no_harm(package: Path) -> None:
    pytest.importorskip("resource", reason="this system has no limits of file sizes")
    for _ in range(2):
        done = outcome(LIMITED + PROGRAM, package)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 3
        assert done.stderr.count("cannot be cached") == 1, "it says so, and only once"
        assert "File too large" in done.stderr
        assert not cached(package), "nothing is left behind"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system without room."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, encoding="utf-8"
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_does_no_harm(package: Path, full_disk: Path) -> None:
    for _ in range(2):
        done = outcome(PROGRAM, package, NUMBA_CACHE_DIR=str(full_disk))
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 0, "not all of it has room"
        assert "No space left on device" in done.stderr
    assert not [path for path in full_disk.rglob("*") if ".tmp." in path.name]


@pytest.mark.parametrize("place", ["file", "missing/below/file"])
def test_a_cache_folder_that_cannot_be_made(place: str, package: Path, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert int(run(PROGRAM, package, NUMBA_CACHE_DIR=str(path / "cache"))) > 5  # beside the sources, then
    assert n_compiled(package) == 0


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_get_in_each_others_way(package: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(package)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_with())
        for _ in range(4)
    ]
    for process in started:
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors.decode()
        assert not errors
    assert all(path.suffix == ".nbc" for path in cached(package))
    assert n_compiled(package) == 0


def test_without_sources_nothing_is_cached(package: Path) -> None:
    code = """
import sb3_compressed.kernel_cache as cache
cache.IMPORT = b"is in no file"
(cache.files("sb3_compressed") / "jit.py").rename("jit.py.away")
assert cache.source_digest() is None
from sb3_compressed.kernel_cache import new_kernel_cache
def function(): pass
function.__module__ = "sb3_compressed.somewhere"
assert new_kernel_cache(function) is None
"""
    run(code)


def test_machine_code_depends_on_modules_of_kernels_only() -> None:
    """The digest covers all modules that import ``jit``: what kernels take from others would not be noticed."""
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    modules = {path: source for path, source in sources.items() if "sb3_compressed.jit" in source}
    n_kernels = 0
    for path, source in modules.items():
        tree = ast.parse(source)
        foreign = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sb3_compressed"):
                file = SOURCE.parent.joinpath(*node.module.split(".")).with_suffix(".py")
                if file not in modules and file.name != "jit.py":
                    foreign |= {alias.asname or alias.name for alias in node.names}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any("kernel(" in ast.unparse(d) for d in node.decorator_list):
                n_kernels += 1
                used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                assert not used & foreign, f"{path}: {node.name} uses {used & foreign}"
    assert n_kernels > 30
