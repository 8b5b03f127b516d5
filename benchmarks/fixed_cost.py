"""Measure the memory of an empty buffer with all that is imported for it, apart from that of each transition.

    python benchmarks/fixed_cost.py --one '{"name": "auto", "shape": [4, 84, 84], "size": 20000, "n_envs": 4}'

``images.py`` runs this in a process of its own. It imports SB3 and PyTorch first, which a training requires anyway, and
nothing else of the benchmarks.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def measure(name: str, shape: list[int], size: int, n_envs: int) -> dict[str, Any]:
    """Return by how many bytes the process grows when a buffer is imported and created, as ``fixed``.

    :param name: ``SB3``, or a compression method of this package
    :param shape: of the observations, which are bytes
    :param size: transitions that the buffer has room for
    """
    import numpy as np
    import psutil
    import stable_baselines3.common.vec_env  # noqa: F401
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    process = psutil.Process()
    before = process.memory_info().rss
    cls: Any = ReplayBuffer
    arguments: dict[str, Any] = {}
    if name != "SB3":
        from sb3_compressed import CompressedReplayBuffer

        cls = CompressedReplayBuffer
        method, _, threads = name.partition("@")
        arguments = {"compression_method": method, **({"num_threads": int(threads)} if threads else {})}
    space = spaces.Box(0, 255, tuple(shape), np.uint8)
    buffer = cls(size, space, spaces.Discrete(4), device="cpu", n_envs=n_envs, **arguments)
    after = process.memory_info().rss
    del buffer
    return {"fixed": float(after - before)}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[2]))))
