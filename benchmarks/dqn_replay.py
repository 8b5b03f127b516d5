"""Importing checkpoints of Dopamine, the format of the DQN Replay data set: time, memory, and bytes per frame.

    python benchmarks/dqn_replay.py --sources MsPacman Pong:trained1000

Frames of a recording are written as Dopamine writes them: single frames with rows of zeros before each episode,
compressed by Python's ``gzip`` with its default level. These files are imported into a buffer in memory and into one in
a folder. Measured are the CPU time, the growth of the peak of the process's memory (RSS) after an import of the first
2,000 frames, and the size of the files. The size of a run of the data set, 50 million frames, is extrapolated from the
bytes per frame of the closed folder.
"""

from __future__ import annotations

import gzip
import resource
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import one_thread
from numpy.lib import format as npy
from ratios import Results
from session import parser, run_interleaved, save, serve
from sources import record
from tables import markdown

KINDS = ("memory", "folder")
SOURCES = ("MsPacman", "Breakout", "Pong:trained1000")
N_FRAMES, SMOKE_FRAMES = 50_000, 600
RUN_FRAMES = 50_000_000
WARM_UP_FRAMES = 2_000
PADDING = 3


def measure(name: str, source: str, n_frames: int) -> Measurement:
    """Return CPU seconds, bytes and peak memory of an import.

    :param name: ``memory`` or ``folder``
    """
    from sb3_compressed.datasets import import_dopamine

    one_thread()
    with tempfile.TemporaryDirectory() as temporary:
        files, folder = Path(temporary) / "files", Path(temporary) / "folder"
        files.mkdir()
        n_rows = write(files, source, n_frames)
        options: dict[str, Any] = {"progress_bar": False, "device": "cpu", "n_actions": 18}
        import_dopamine(files, n_steps=min(WARM_UP_FRAMES, n_frames // 2), **options)
        peak, begin = _peak_nbytes(), time.process_time()
        stored: dict[str, Any] = {"storage": folder} if name == "folder" else {}
        buffer: Any = import_dopamine(files, **options, **stored)
        if stored:
            buffer.close()
        result: Measurement = {
            "frames": buffer.size(),
            "seconds": time.process_time() - begin,
            "peak": _peak_nbytes() - peak,
            "gzip": sum(path.stat().st_size for path in files.iterdir()) / n_rows,
        }
        if stored:
            nbytes = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
            result["folder"] = nbytes / buffer.size()
        if not np.array_equal(buffer.observations[buffer.size() - 1][0], _last_observation(source, n_frames)):
            result["wrong"] = "the last observation"
        return result


def write(folder: Path, source: str, n_frames: int) -> int:
    """Write a checkpoint with the first frames of a recording, and return its number of rows."""
    recording = record(source, 1, n_frames)
    dones = [bool(step.done[0]) for step in islice(play(recording), n_frames)]
    n_rows = n_frames + PADDING * (1 + sum(dones[:-1]))
    shapes = {"observation": ((84, 84), "u1"), "action": ((), "<i4"), "reward": ((), "<f4"), "terminal": ((), "u1")}
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for name, (shape, dtype) in shapes.items():
            file = files[name] = stack.enter_context(gzip.open(folder / f"$store$_{name}_ckpt.0.gz", "wb"))
            npy.write_array_header_1_0(
                file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (n_rows, *shape)}
            )

        def add(*row: Any) -> None:
            for (name, (_, dtype)), value in zip(shapes.items(), row, strict=True):
                files[name].write(np.asarray(value, dtype).tobytes())

        begins = True
        for step in islice(play(recording), n_frames):
            for _ in range(PADDING if begins else 0):
                add(np.zeros((84, 84)), 0, 0, 0)
            begins = bool(step.done[0])
            add(_newest(step.obs), step.action[0], np.sign(step.reward[0] % 3 - 1), begins)
    with gzip.open(folder / "add_count_ckpt.0.gz", "wb") as file:
        np.save(file, np.array(n_rows))
    return n_rows


def _newest(observations: Any) -> Any:
    return observations[0, -1]


def _last_observation(source: str, n_frames: int) -> Any:
    """Return the last observation but one, unless the last one ends an episode."""
    *_, last, end = islice(play(record(source, 1, n_frames)), n_frames)
    return (end if end.done[0] else last).obs[0]


def _peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def table(results: Results) -> str:
    """Return a Markdown table of all sources."""
    header = [
        "source",
        "frames",
        "in memory",
        "in a folder",
        "peak memory, in a folder",
        "gzip files",
        "folder",
        "50 million frames: gzip files",
        "folder",
    ]
    rows = []
    for source, found in results.items():
        memory, folder = found["memory"], found["folder"]
        speeds = [f"{each['frames'] / each['seconds']:,.0f} frames/s" for each in (memory, folder)]
        nbytes = [folder["gzip"], folder["folder"]]
        rows.append(
            [
                source,
                f"{folder['frames']:,.0f}",
                *speeds,
                f"{folder['peak'] / 1e6:.0f} MB",
                *(f"{each:.0f} B/frame" for each in nbytes),
                *(f"{each * RUN_FRAMES / 1e9:.1f} GB" for each in nbytes),
            ]
        )
    text = f"Raw, a run of 50 million frames takes {RUN_FRAMES * 84 * 84 / 1e9:.0f} GB."
    return f"{markdown(header, rows)}\n\n{text}"


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--sources", nargs="+", default=list(SOURCES), help="e.g. MsPacman Pong:trained1000")
    flags.add_argument("--frames", type=int, default=N_FRAMES, help="frames of each source (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.frames = 1, SMOKE_FRAMES
    jobs = [
        Job(source, name, {"source": source, "n_frames": arguments.frames})
        for source in arguments.sources
        for name in KINDS
    ]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    options = {"frames": arguments.frames, "rounds": arguments.rounds}
    save(arguments.out, "dqn_replay", options, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()
