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


def _replay(name: str, recording: str, **arguments: Any) -> dict[str, Any]:
    recorded = Recording.open(Path(recording))
    return measure_replay(partial(make_replay, name, recorded), recorded, **arguments)


def _rollout(name: str, recording: str, **arguments: Any) -> dict[str, Any]:
    recorded = Recording.open(Path(recording))
    return measure_rollout(partial(make_rollout, name, recorded), recorded, **arguments)


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {"replay": _replay, "rollout": _rollout}

if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]](**json.loads(sys.argv[2]))))
