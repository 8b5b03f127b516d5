"""Compiles and caches all kernels, for instance when a container is built.

``python -m sb3_compressed.compile_kernels`` caches the machine code beside the source if that folder is writable, else
in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both. Processes use a folder that they can write.
The code is for the processor of this machine; with ``--portable`` it is for every processor of the same architecture,
as with ``NUMBA_CPU_NAME=generic``, which must then be set where it is used.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from importlib import import_module

import sb3_compressed

__all__ = ["main"]


def main() -> None:
    """Run the command and exit; the exit code is 1 if a kernel cannot be cached."""
    parser = argparse.ArgumentParser(prog="python -m sb3_compressed.compile_kernels", description=__doc__)
    parser.add_argument("--portable", action="store_true", help="for any processor of the same architecture")
    if parser.parse_args().portable:
        os.environ["NUMBA_CPU_NAME"] = "generic"  # which numba reads when it is imported
    folders = cache_folders()
    if None in folders:
        sys.exit("Error: the kernels cannot be cached")
    print(f"{len(folders)} kernels in {', '.join(sorted({str(folder) for folder in folders}))}")


def cache_folders() -> list[str | None]:
    """Compile all kernels that are not cached, and return their folders, ``None`` for those that cannot be cached."""
    from sb3_compressed.kernels.jit import kernels

    for module in pkgutil.walk_packages(sb3_compressed.__path__, "sb3_compressed."):
        if "kernels" in module.name and module.name != __name__:
            import_module(module.name)
    return [kernel.stats.cache_path for kernel in kernels]


if __name__ == "__main__":
    main()
