"""Measure what the first buffer of a process costs, whatever its size: imports, kernels and the codec.

A process imports SB3, then what a ``CompressedReplayBuffer`` of 4x84x84 frames needs, creates the buffer, and adds
frames until the codec is trained. The first process compiles the kernels, the following ones load
them from the cache. Times are CPU seconds, memory is that of the process (RSS) beyond what SB3 and torch take.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from measurement import Measurement
from ratios import Results
from session import serve
from tables import markdown

import sb3_compressed

__all__ = ["measure_startup", "startup_table"]

#: Steps that are added: the codec is trained, and the payloads take less than 1 MB.
N_STEPS = 1000


def measure() -> Measurement:
    """Return CPU seconds and bytes of memory of each step, in this process."""
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers  # noqa: F401

    torch.set_num_threads(1)
    steps = [("", *_usage())]
    from sb3_compressed import CompressedReplayBuffer

    steps.append(("import the package", *_usage()))
    import numba  # noqa: F401

    steps.append(("import numba", *_usage()))
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = CompressedReplayBuffer(2 * N_STEPS, space, spaces.Discrete(6), "cpu", num_threads=1)
    steps.append(("compile or load the kernels", *_usage()))
    frames = np.zeros((N_STEPS + 4, 84, 84), np.uint8)
    for k, frame in enumerate(frames):  # a bright object crosses a still background
        frame[60:64, :], frame[k % 60 : k % 60 + 8, k % 76 : k % 76 + 8] = 90, 200
    for k in range(N_STEPS):
        action, reward, done = np.zeros((1, 1)), np.zeros(1), np.zeros(1)
        buffer.add(frames[None, k : k + 4], frames[None, k + 1 : k + 5], action, reward, done, [{}])
    buffer.sample(32)
    steps.append((f"{N_STEPS} steps: train the codec, encode and decode", *_usage()))
    steps.append(("together", *steps[-1][1:]))
    begins = [*steps[:-2], steps[0]]
    return {
        name: {"seconds": seconds - begin[1], "nbytes": nbytes - begin[2]}
        for begin, (name, seconds, nbytes) in zip(begins, steps[1:], strict=True)
    }


def _usage() -> tuple[float, int]:
    return time.process_time(), psutil.Process().memory_info().rss


def measure_startup(rounds: int, *, compiled: bool = False) -> dict[str, Measurement]:
    """Return what each step costs the process that compiles the kernels, ``first``, and the following ones, ``others``.

    :param rounds: number of the following ones, whose median is returned
    :param compiled: use the cached kernels for all, which takes less time
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if not compiled:
            package = Path(sb3_compressed.__file__).parent  # whose copy has no cached kernels
            shutil.copytree(package, Path(folder, package.name), ignore=shutil.ignore_patterns("__pycache__"))
            environment.pop("NUMBA_CACHE_DIR", None)
            environment["PYTHONPATH"] = os.pathsep.join([folder, environment.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--one", "{}"]
        first, *others = [
            json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
            for _ in range(1 + rounds)
        ]
    median = {
        step: {key: statistics.median(each[step][key] for each in others) for key in costs}
        for step, costs in first.items()
    }
    return {"first": first, "others": median}


def startup_table(results: Results) -> str:
    """Return a table of what :func:`measure_startup` returned."""
    first, others = results["startup"]["first"], results["startup"]["others"]
    rows = [
        [step, f"{first[step]['seconds']:.1f} s", f"{each['seconds']:.2f} s", f"{each['nbytes'] / 1e6:.0f} MB"]
        for step, each in others.items()
    ]
    return markdown(["", "CPU time of the first process", "of others", "memory"], rows)


if __name__ == "__main__":
    serve(measure)
