"""``KernelCache``: the machine code of kernels on disk, where damaged and outdated files are never used."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite
import numba
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

__all__ = ["KernelCache", "kernel_caches", "new_kernel_cache", "source_digest"]

PACKAGE = "sb3_compressed"
FOLDER = Path(__file__).parent.parent
#: Text in the source of every module of kernels, and of those whose constants they contain.
IMPORT = f"{PACKAGE}.kernels.jit".encode()
#: The model and features of a processor in numba's terms, for code that runs on every processor of an architecture.
ANY_PROCESSOR = ("generic", "")
#: Settings of numba that change machine code.
SETTINGS = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DEBUGINFO_DEFAULT", "FASTMATH")
CHECKSUM_NBYTES = hashlib.sha256().digest_size

kernel_caches: list[KernelCache] = []
"""The caches of all kernels that this process has imported."""

_logger = logging.getLogger(__name__)


def source_digest() -> str | None:
    """Return a digest of the sources of all kernels, ``None`` if the sources cannot be read.

    Kernels are inlined into kernels of other modules, so machine code is only valid for the sources of all.
    """
    digest = hashlib.sha256()
    try:
        sources = [(path, path.read_bytes()) for path in sorted(FOLDER.rglob("*.py"))]
    except OSError:
        return None
    kernels = [(path, source) for path, source in sources if IMPORT in source or path.name == "jit.py"]
    for path, source in kernels:
        digest.update(f"{path.name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16] if kernels else None


@cache
def _digest_at_import() -> str | None:
    return source_digest()


def new_kernel_cache(function: Callable[..., Any]) -> KernelCache | None:
    """Return a cache for a kernel of this package; ``None`` without readable sources."""
    digest = _digest_at_import()
    if digest is None or not function.__module__.startswith(f"{PACKAGE}."):
        return None
    kernel_caches.append(KernelCache(function, digest))
    return kernel_caches[-1]


class KernelCache:
    """The cached machine code of one kernel.

    Numba's own cache detects changes only in the file of a function, raises on files that are truncated or cannot be
    written, loads damaged machine code, and does not read folders that it cannot write. Here the name of a file
    contains digests of the sources of all kernels and of everything else that the code depends on, and its content
    begins with a checksum. A kernel whose file cannot be read is compiled and written again; if it cannot be written,
    each process compiles it. Code for the processor is preferred to code for any.

    :param function: the kernel in Python
    :param digest: the :func:`source_digest` from before the process compiled its first kernel
    """

    def __init__(self, function: Callable[..., Any], digest: str) -> None:
        self._digest = digest
        # Outdated files are found by what precedes the digest.
        version = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        self._stem = f"{function.__module__.removeprefix(f'{PACKAGE}.')}.{function.__qualname__}.{version}-"
        self.file: Path | None = None
        """The file that the code was read from or written to, ``None`` if there is none yet."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code for a signature, ``None`` if no usable file exists."""
        processor = target_context.codegen().magic_tuple()
        for name in (self._name(sig, processor), self._name(sig, (processor[0], *ANY_PROCESSOR))):
            for folder in _folders():
                code = _read(folder / name, target_context)
                if code is not None:
                    self.file = folder / name
                    return code
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code compiled for a signature; a failure leaves no file behind."""
        folder = _writable_folder()
        if folder is None:
            _report("no cache folder can be written")
            return
        if data.library.has_dynamic_globals or source_digest() != self._digest:
            return  # the package may have been updated while this process was compiling
        code = dumps(data._reduce())  # type: ignore[no-untyped-call]
        path = folder / self._name(sig, data.library.codegen.magic_tuple())
        temporary = path.with_name(f"{path.name}.tmp.{uuid4().hex[:16]}")
        try:
            try:
                temporary.write_bytes(hashlib.sha256(code).digest() + code)
                os.replace(temporary, path)  # atomic: other processes may write the same file
            finally:
                temporary.unlink(missing_ok=True)
            self.file = path
            self._remove_outdated(folder)
        except OSError as error:
            _report(str(error))

    def _name(self, sig: Any, processor: tuple[str, ...]) -> str:
        settings = [getattr(config, name, None) for name in SETTINGS]
        key = repr((sig, processor, numba.__version__, llvmlite.__version__, sys.version, settings))
        return f"{self._stem}{self._digest}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.nbc"

    def _remove_outdated(self, folder: Path) -> None:
        for path in folder.iterdir():
            if path.name.startswith(self._stem) and not path.name.startswith(f"{self._stem}{self._digest}-"):
                path.unlink(missing_ok=True)


def _read(path: Path, target_context: Any) -> Any:
    """Return the code in a file, ``None`` if it is not usable."""
    try:
        content = path.read_bytes()
        code = content[CHECKSUM_NBYTES:]
        if hashlib.sha256(code).digest() != content[:CHECKSUM_NBYTES]:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(code))  # type: ignore[no-untyped-call]
    except Exception:  # whatever is wrong with the file, the kernel can be compiled
        return None


@cache
def _folders() -> list[Path]:
    """Return the folders that are read, the preferred one first."""
    # Installations may share a folder outside of them, and each removes files of other versions.
    name = f"{PACKAGE}_{hashlib.sha256(str(FOLDER.absolute()).encode()).hexdigest()[:16]}"
    provided = getattr(config, "CACHE_DIR", "")  # the variable NUMBA_CACHE_DIR
    folders = [Path(provided, name)] if provided else []
    folders.append(FOLDER / "__pycache__")
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/.cache")
    return [*folders, Path(user_cache, "sb3-compressed", name)]


def _writable_folder() -> Path | None:
    """Return the first folder that can be written, ``None`` if none can."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    return None


_has_reported = False


def _report(error: str) -> None:
    """Log once that kernels cannot be cached. Not a warning, which filters may turn into an error."""
    global _has_reported
    if not _has_reported:
        _has_reported = True
        _logger.warning(
            "compiled kernels cannot be cached (%s), so each process compiles them, which takes some seconds; set "
            "NUMBA_CACHE_DIR to a writable folder, or run python -m sb3_compressed.compile_kernels at installation",
            error,
        )
