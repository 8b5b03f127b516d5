"""The process of one measurement: ``python -m sb3_compressed.benchmarking.worker replay '{"name": ..., ...}'``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sb3_compressed.benchmarking.adapters import make_replay, make_rollout
from sb3_compressed.benchmarking.frame_recording import Recording
from sb3_compressed.benchmarking.replay_benchmark import measure_replay
from sb3_compressed.benchmarking.rollout_benchmark import measure_rollout

__all__ = ["command"]


def command(kind: Literal["replay", "rollout"]) -> list[str]:
    """Return the command without its last argument, the arguments of the measurement as JSON."""
    return [sys.executable, "-m", __spec__.name, kind]


#: By the kind of a buffer, the function that measures it and the one that creates it.
MEASURES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[..., Any]]] = {
    "replay": (measure_replay, make_replay),
    "rollout": (measure_rollout, make_rollout),
}


def measure(kind: str, name: str, recording: str, **arguments: Any) -> dict[str, Any]:
    """Measure one buffer, see :func:`.measure_replay` and :func:`.measure_rollout`."""
    function, make = MEASURES[kind]
    recorded = Recording.open(Path(recording))
    return function(partial(make, name, recorded), recorded, **arguments)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], **json.loads(sys.argv[2]))))
