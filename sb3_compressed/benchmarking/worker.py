"""The process of one training: ``python -m sb3_compressed.benchmarking.worker '{"name": "auto", ...}'``."""

from __future__ import annotations

import json
import sys

from sb3_compressed.benchmarking.training_run import measure_training

__all__ = ["command"]


def command() -> list[str]:
    """Return the command without its last argument, the arguments of :func:`.measure_training` as JSON."""
    return [sys.executable, "-m", __spec__.name]


if __name__ == "__main__":
    print(json.dumps(measure_training(**json.loads(sys.argv[1]))))
