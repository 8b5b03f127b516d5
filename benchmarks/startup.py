"""What the first buffer of a process costs, whatever its size: time and memory for imports, kernels and the codec.

    python benchmarks/startup.py

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
from session import parser, save, serve
from tables import markdown

import sb3_compressed

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
    return {name: (seconds - steps[k][1], nbytes - steps[k][2]) for k, (name, seconds, nbytes) in enumerate(steps[1:])}


def _usage() -> tuple[float, int]:
    return time.process_time(), psutil.Process().memory_info().rss


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    arguments = parser(__doc__, rounds=5).parse_args()
    rounds = 1 if arguments.smoke else arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        package = Path(sb3_compressed.__file__).parent  # whose copy has no cached kernels
        shutil.copytree(package, Path(folder, package.name), ignore=shutil.ignore_patterns("__pycache__"))
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        environment |= {"PYTHONPATH": os.pathsep.join([folder, environment.get("PYTHONPATH", "")])}
        command = [sys.executable, __file__, "--one", "{}"]
        cold, *warm = [
            json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
            for _ in range(1 + rounds)
        ]
    rows = [
        [cold[name][0], *(statistics.median(steps[name][column] for steps in warm) for column in (0, 1))]
        for name in cold
    ]
    rows.append([sum(column) for column in zip(*rows, strict=True)])
    names = [*cold, "together"]
    cells = [
        [name, f"{first:.1f} s", f"{others:.2f} s", f"{nbytes / 1e6:.0f} MB"]
        for name, (first, others, nbytes) in zip(names, rows, strict=True)
    ]
    print(markdown(["", "first process", "others", "memory"], cells))
    columns = ("first process, s", "others, s", "memory")
    results = {name: dict(zip(columns, row, strict=True)) for name, row in zip(names, rows, strict=True)}
    save(arguments, "startup", {"rounds": rounds}, results)


if __name__ == "__main__":
    main()
