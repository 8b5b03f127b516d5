"""Compiles and caches all kernels, for installations that cannot be written later.

``python -m sb3_compressed.compile_kernels`` caches the machine code beside the source if that folder is writable, else
in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both. Processes read it even if they cannot write the folder.
It is for the processor of this machine; with ``--portable`` it is for every processor of the same architecture, and
used on those without code of their own.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import sb3_compressed

__all__ = ["main"]


def main() -> None:
    """Run the command and exit; the exit code is 1 if a kernel cannot be cached."""
    parser = argparse.ArgumentParser(prog="python -m sb3_compressed.compile_kernels", description=__doc__)
    parser.add_argument("--portable", action="store_true", help="for any processor of the same architecture")
    if parser.parse_args().portable:
        os.environ["NUMBA_CPU_NAME"] = "generic"  # which numba reads when it is imported
    files = cached_files()
    if None in files:
        sys.exit("Error: the kernels cannot be cached")
    print(f"{len(files)} kernels in {', '.join(sorted({str(file.parent) for file in files if file}))}")


def cached_files() -> list[Path | None]:
    """Compile all kernels that are not cached, and return their files, ``None`` for those that cannot be cached."""
    from sb3_compressed.kernels.kernel_cache import kernel_caches

    for module in pkgutil.walk_packages(sb3_compressed.__path__, "sb3_compressed."):
        if "kernels" in module.name and module.name != __name__:
            import_module(module.name)
    return [cache.file for cache in kernel_caches]


if __name__ == "__main__":
    main()
