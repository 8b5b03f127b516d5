"""The processor and library versions of a measurement."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = [
    *("stable_baselines3", "torch", "numpy", "numba", "zstandard", "isal", "lz4", "sb3-compressed"),
    *("sb3-extra-buffers", "zstd", "torchrl", "tensordict", "cpprb", "ray"),
    *("minari", "h5py"),
]
PRINT_VERSIONS = """
import json, sys
from importlib.metadata import version, PackageNotFoundError
found = {}
for name in sys.argv[1:]:
    try: found[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(found))
"""


def version() -> str:
    """Return the version and the commit of this checkout, ``0.3.0 at 1a2b3c4``; ``-dirty`` marks other changes.

    Results that were written since do not count.
    """
    import sb3_compressed

    try:
        commit = _git("describe", "--always", "--exclude", "*")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):  # no Git, or no repository
        return sb3_compressed.__version__
    return f"{sb3_compressed.__version__} at {commit}{'-dirty' if changes else ''}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine(*interpreters: str | Path) -> dict[str, Any]:
    """Return the processor, the CUDA device if any, the system, and the versions installed for each interpreter."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": [_versions(interpreter) for interpreter in interpreters if Path(interpreter).exists()],
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions(interpreter: str | Path) -> dict[str, str]:
    done = subprocess.run([interpreter, "-c", PRINT_VERSIONS, *LIBRARIES], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
