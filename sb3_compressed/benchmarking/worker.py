"""The process of one training: ``python -m sb3_compressed.benchmarking.worker '{"name": "auto", ...}'``."""

from __future__ import annotations

import json
import sys

from sb3_compressed.benchmarking.training_run import count_chunks, measure_training

__all__ = ["command"]


def command() -> list[str]:
    """Return the command without its last argument, as JSON.

    That is the arguments of :func:`.measure_training`, or of :func:`.count_chunks` if ``n_chunks`` is not among them.
    """
    return [sys.executable, "-m", __spec__.name]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    measured = measure_training(**given) if "n_chunks" in given else count_chunks(**given)
    print(f"\n{json.dumps(measured)}")  # on a line of its own
