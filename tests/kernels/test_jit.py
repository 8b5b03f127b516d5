"""Compiled kernels: what is cached, and that programs run correctly without a usable cache."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from programs import outcome, run

import sb3_compressed

SOURCE = Path(sb3_compressed.__file__).parent

#: Calls a kernel that contains helpers of other files, and prints how many kernels were compiled.
PROGRAM = """
import sys
from numba.core import event
with event.install_recorder("numba:compile") as compilations:
    import numpy as np
    from sb3_compressed.kernels import checksum_kernels
assert checksum_kernels.__file__.startswith(sys.argv[1]), checksum_kernels.__file__
is_right = checksum_kernels.xxh64_of(np.arange(100, dtype=np.uint8), np.uint64(0)) == 0x6AC1E58032166597
assert is_right == ("wrong" not in sys.argv)
print(len(compilations.buffer) // 2)  # each compilation records two events
"""


def copied(source: Path, folder: Path, patch: pytest.MonkeyPatch, *ignored: str) -> Path:
    """Copy the package to a folder, and let programs import that copy."""
    patch.chdir(folder)  # the first entry of a program's sys.path
    patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    patch.setenv("PYTHONPATH", str(folder))
    patch.delenv("NUMBA_CACHE_DIR", raising=False)
    return Path(shutil.copytree(source, folder / SOURCE.name, ignore=shutil.ignore_patterns(*ignored)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the package with an empty cache, which the programs of a test import."""
    return copied(SOURCE, tmp_path, monkeypatch, "__pycache__")


def n_compiled(package: Path) -> int:
    return int(run(PROGRAM, package))


def cached(package: Path) -> list[Path]:
    return sorted(package.rglob("*.nb[ci]"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package with cached kernels."""
    with pytest.MonkeyPatch.context() as patch:
        package = copied(SOURCE, tmp_path_factory.mktemp("compiled"), patch, "__pycache__")
        assert n_compiled(package) > 3
        assert n_compiled(package) == 0
    return package


@pytest.fixture
def warm(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another copy of it for one test."""
    return copied(compiled, tmp_path, monkeypatch)


def test_kernels_work_with_damaged_files(warm: Path) -> None:
    for path in cached(warm):
        path.write_bytes(path.read_bytes()[:100])
    done = outcome(PROGRAM, warm)
    assert (done.returncode, int(done.stdout) > 3) == (0, True), done.stderr
    assert done.stderr.count("cannot be cached") == 1


@pytest.mark.slow
def test_changing_a_helper_recompiles_its_callers(warm: Path) -> None:
    """Numba itself only detects changes in the file of the kernel."""
    path = warm / "kernels" / "jit.py"
    source = path.read_text()
    changed = source.replace(
        "return builder.load(_pointer(builder, address, 64), align=1)",
        "return builder.not_(builder.load(_pointer(builder, address, 64), align=1))",
    )
    assert changed != source
    times = path.stat()
    path.write_text(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert int(run(PROGRAM, warm, "wrong")) > 0
    assert int(run(PROGRAM, warm, "wrong")) == 0


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"


def test_files_that_cannot_be_written_are_logged(package: Path) -> None:
    pytest.importorskip("resource", reason="this system has no file size limits")
    done = outcome(LIMITED + PROGRAM, package)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3
    assert done.stderr.count("cannot be cached") == 1


def nowhere(tmp_path: Path) -> dict[str, str]:
    """Return variables for folders that cannot be created: root ignores permissions, but not a file in the way."""
    (tmp_path / "file").touch()
    return dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "APPDATA"), str(tmp_path / "file" / "cache"))


COMPILE = """
import runpy, sys
sys.argv[1:] = sys.argv[2:]
runpy.run_module("sb3_compressed.compile_kernels", run_name="__main__")
"""

#: Modules of kernels that other code imports at once.
KEPT = "packed_kernels.py", "lz4_kernels.py"


@pytest.mark.slow
def test_compile_kernels_caches_all_or_fails(package: Path, tmp_path: Path) -> None:
    shutil.rmtree(package / "codecs" / "delta_kernels")  # few kernels, as each is compiled twice
    for path in package.glob("*/*_kernels.py"):
        if path.parent.name != "kernels" and path.name not in KEPT:
            path.unlink()
    assert re.search(r"\d+ kernels in", run(COMPILE, "", "--portable"))
    assert int(run(PROGRAM, package, NUMBA_CPU_NAME="generic")) == 0
    for folder in package.rglob("__pycache__"):
        shutil.rmtree(folder)
        folder.touch()
    done = outcome(COMPILE, "", **nowhere(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("cannot be cached") == 2
    assert done.stderr.endswith("Error: the kernels cannot be cached\n")


def test_kernels_are_compiled_with_a_disabled_jit(warm: Path) -> None:
    """It is for debugging the user's own functions; kernels read at addresses, which Python cannot do."""
    own = "\nimport numba\nassert not hasattr(numba.njit(lambda: 1), 'py_func')"
    assert int(run(PROGRAM + own, warm, NUMBA_DISABLE_JIT="1")) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges")
def test_links_with_which_editors_lock_files_are_ignored(warm: Path) -> None:
    (warm / ".#jit.py").symlink_to("user@host.1234")
    assert n_compiled(warm) == 0


def test_kernels_only_use_modules_that_the_digest_covers() -> None:
    """It covers all modules that import ``jit``; changes in others would not be detected."""
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    modules = {path: source for path, source in sources.items() if "sb3_compressed.kernels.jit" in source}
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
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(d).startswith(("kernel(", "helper(")) for d in node.decorator_list
            ):
                n_kernels += 1
                used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                assert not used & foreign, f"{path}: {node.name} uses {used & foreign}"
    assert n_kernels > 30
