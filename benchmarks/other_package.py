"""Run a script of the benchmarks with another version of the package.

    python benchmarks/other_package.py /path/to/checkout benchmarks/images.py --one '{...}'

The buffers are those of the other version: of that folder or, if the first argument is empty, of the environment of the
interpreter. The code that measures them, in this folder, is that of this checkout for all versions.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def use_package(folder: str) -> None:
    """Import the package of a folder instead of that of this checkout.

    :param folder: contains the package; empty for the installed one
    :raises ImportError: if the package is another one, or no other one than that of this checkout is installed
    """
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != ROOT]
    if folder:
        sys.path.insert(0, folder)
    import sb3_compressed

    location = Path(sb3_compressed.__file__).resolve().parent
    if location.parent != Path(folder).resolve() if folder else location.parent == ROOT:
        raise ImportError(f"expected sb3_compressed of {folder or 'the environment'}, got {location}")


if __name__ == "__main__":
    use_package(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
