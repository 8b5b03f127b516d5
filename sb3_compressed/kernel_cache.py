"""``KernelCache``: keeps the machine code of kernels on disk, and never lets a broken or outdated file be used."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import llvmlite
import numba
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

if TYPE_CHECKING:  # where it is from Python 3.11 on
    from importlib.resources.abc import Traversable

__all__ = ["KernelCache", "new_kernel_cache", "source_digest"]

PACKAGE = "sb3_compressed"
#: What a module of kernels has in its source.
IMPORT = f"{PACKAGE}.jit".encode()
#: Settings of numba that change machine code. Numba's own key has the processor's kind and features.
SETTINGS = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DEBUGINFO_DEFAULT", "FASTMATH")
CHECKSUM_NBYTES = hashlib.sha256().digest_size

_logger = logging.getLogger(__name__)


def source_digest() -> str | None:
    """Return a digest of the sources of all kernels, ``None`` where the sources cannot be read.

    Kernels become part of the machine code of those that call them, so code is only valid for the sources of all.
    """
    digest = hashlib.sha256()
    found = False
    try:
        for path in _python_files(files(PACKAGE)):
            source = path.read_bytes()
            if IMPORT in source or path.name == "jit.py":
                found = True
                digest.update(f"{path.name} {len(source)}\n".encode() + source)
    except OSError:
        return None
    return digest.hexdigest()[:16] if found else None


def _python_files(folder: Traversable) -> Iterator[Traversable]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".py"):
            yield path
        elif "." not in path.name and path.name != "__pycache__" and path.is_dir():
            yield from _python_files(path)


@cache
def _digest_at_import() -> str | None:
    return source_digest()


def new_kernel_cache(function: Callable[..., Any]) -> KernelCache | None:
    """Return a cache for a kernel of this package, ``None`` where there is no place or no source to cache it by."""
    digest = _digest_at_import()
    if digest is None or not function.__module__.startswith(f"{PACKAGE}."):
        return None
    try:
        return KernelCache(function, digest)
    except (RuntimeError, OSError) as error:  # "cannot cache function ...: no locator available"
        _report(error)
        return None


class KernelCache(FunctionCache):
    """The machine code of one kernel in the folder where numba would keep it.

    Numba's own cache looks for changes only in the file that a function is in, raises on files that were cut short or
    cannot be written, and loads damaged machine code. Here a file's name has a digest of the sources of all kernels and
    of all else that the code depends on, and its content begins with a checksum. What cannot be read is compiled and
    written again; what cannot be written is compiled in each process.

    :param function: the kernel in Python
    :param digest: what :func:`source_digest` returned when the process began to compile
    :raises RuntimeError: if there is no folder for it
    """

    def __init__(self, function: Callable[..., Any], digest: str) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]  # finds the folder
        self._digest = digest
        # Not numba's name, which has the line: files of earlier sources are found by what comes before the digest.
        module = Path(function.__code__.co_filename).stem
        version = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        self._stem = f"{module}.{function.__qualname__}.{version}-"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature before, ``None`` if there is nothing that can be used."""
        target_context.refresh()
        try:
            content = self._path(sig, target_context.codegen()).read_bytes()
            code = content[CHECKSUM_NBYTES:]
            if hashlib.sha256(code).digest() != content[:CHECKSUM_NBYTES]:
                return None
            return self._impl.rebuild(target_context, pickle.loads(code))
        except Exception:  # whatever is wrong with a file, the kernel can be compiled
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled for a signature; where that fails, nothing is left behind."""
        if not self._impl.check_cachable(data) or source_digest() != self._digest:
            return  # also if the package was updated while this process was compiling
        code = dumps(self._impl.reduce(data))  # type: ignore[no-untyped-call]
        path = self._path(sig, data.codegen)
        unfinished = path.with_name(f"{path.name}.tmp.{uuid4().hex[:16]}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(hashlib.sha256(code).digest() + code)
                os.replace(unfinished, path)  # whole or not at all, whoever else writes it now
            finally:
                unfinished.unlink(missing_ok=True)
            self._remove_outdated()
        except OSError as error:
            _report(error)

    def flush(self) -> None:
        """Remove all files of this kernel."""
        self._digest = ""
        self._remove_outdated()

    def _path(self, sig: Any, codegen: Any) -> Path:
        settings = [getattr(config, name, None) for name in SETTINGS]
        numbas_key = self._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        key = repr((numbas_key, numba.__version__, llvmlite.__version__, sys.version, settings))
        return (
            Path(self._cache_path) / f"{self._stem}{self._digest}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.nbc"
        )

    def _remove_outdated(self) -> None:
        for path in Path(self._cache_path).iterdir():
            if path.name.startswith(self._stem) and not path.name.startswith(f"{self._stem}{self._digest}-"):
                path.unlink(missing_ok=True)


_has_reported = False


def _report(error: Exception) -> None:
    """Log, once, that kernels cannot be cached; no warning, which may be turned into an error: all works without."""
    global _has_reported
    if not _has_reported:
        _has_reported = True
        _logger.warning(
            "compiled kernels cannot be cached (%s), so every process compiles them, which may take half a minute; "
            "set NUMBA_CACHE_DIR to a folder that can be written to",
            error,
        )
