"""``KernelCache``: the machine code of kernels on disk, where damaged and outdated files are never used."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite
import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

__all__ = ["KernelCache", "new_kernel_cache", "source_digest"]

PACKAGE = "sb3_compressed"
FOLDER = Path(__file__).parent.parent
#: Text in the source of every module of kernels, and of those whose constants they contain.
IMPORT = f"{PACKAGE}.kernels.jit".encode()
#: The model and features of a processor in numba's terms, for code that runs on every processor of an architecture.
ANY_PROCESSOR = ("generic", "")
#: Settings of numba that change machine code.
SETTINGS = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DEBUGINFO_DEFAULT", "FASTMATH")
CHECKSUM_NBYTES = hashlib.sha256().digest_size

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
    return KernelCache(function, digest)


class KernelCache:
    """The cached machine code of one kernel, in the folder that numba would use.

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
        # Not numba's name, which contains the line number: outdated files are found by what precedes the digest.
        module = Path(function.__code__.co_filename).stem
        version = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        self._stem = f"{module}.{function.__qualname__}.{version}-"
        self.folder = _writable_folder(function)
        """Where the code is written, ``None`` if it cannot be."""
        self.file: Path | None = None
        """The file that the code was read from or written to, ``None`` if there is none yet."""
        folders = [*_readable_folders(function)] if self.folder is None else [self.folder, *_readable_folders(function)]
        self._folders = [*dict.fromkeys(folders)]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code for a signature, ``None`` if no usable file exists."""
        processor = target_context.codegen().magic_tuple()
        for name in (self._name(sig, processor), self._name(sig, (processor[0], *ANY_PROCESSOR))):
            for folder in self._folders:
                code = _read(folder / name, target_context)
                if code is not None:
                    self.file = folder / name
                    return code
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code compiled for a signature; a failure leaves no file behind."""
        if self.folder is None:
            _report("no cache folder can be written")
            return
        if data.library.has_dynamic_globals or source_digest() != self._digest:
            return  # the package may have been updated while this process was compiling
        code = dumps(data._reduce())  # type: ignore[no-untyped-call]
        path = self.folder / self._name(sig, data.library.codegen.magic_tuple())
        temporary = path.with_name(f"{path.name}.tmp.{uuid4().hex[:16]}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(hashlib.sha256(code).digest() + code)
                os.replace(temporary, path)  # atomic: other processes may write the same file
            finally:
                temporary.unlink(missing_ok=True)
            self.file = path
            self._remove_outdated(self.folder)
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


def _writable_folder(function: Callable[..., Any]) -> Path | None:
    """Return the folder that numba would use."""
    try:
        return Path(CompileResultCacheImpl(function).locator.get_cache_path())  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError):  # "cannot cache function ...: no locator available"
        return None


def _readable_folders(function: Callable[..., Any]) -> Iterator[Path]:
    """Yield the folders that numba would use if they could be written, as at installation."""
    locators: Any = CompileResultCacheImpl._locator_classes[:3]
    user_provided, in_tree, user_wide = locators
    is_provided = getattr(config, "CACHE_DIR", "")
    for locator in (user_provided, in_tree, user_wide) if is_provided else (in_tree, user_wide):
        yield Path(locator(function, function.__code__.co_filename).get_cache_path())


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
