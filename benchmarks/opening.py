"""What a buffer in a folder costs: adding to it, its files, and opening it after a kill and after ``close()``.

    python benchmarks/opening.py --vectors HalfCheetah-v5 --images MsPacman

Three buffers with ``storage=<folder>``, each filled with recorded transitions of one environment: vectors in a small
ring that is overwritten a hundred times, vectors in a large ring that is filled once, and images in a ring that is
overwritten three times. Measured are:

- the CPU time of an ``add``, the mean over all of them, and that of the same buffer in memory;
- the files: the most bytes of allocated blocks that there were while transitions were added, and those after
  ``close()``, beside the payloads, which are the bytes of the observations in the buffer as they are stored;
- the time to resume (``resume=True``) and to load (``load_checkpoint``) what a killed process leaves, and a closed
  folder. A copy of the folder that is made while the buffer has it open is what a kill at that moment leaves. All
  files are in the operating system's cache.

Besides, a DQN with ``CnnPolicy`` is trained on the images with ``BufferCheckpointCallback(keep=10)``, and the files of
the ten checkpoints are counted, each once.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from frame_recording import Playback, Recording, play
from measurement import Job, Measurement
from metrics import one_thread
from ratios import Results
from sb3_envs import wrap_as_sb3
from session import parser, run_interleaved, save, serve
from sources import record
from tables import markdown

N_ENVS = 1
#: Transitions that are read from the recording, then added to one buffer after the other.
BLOCK = 100
OPENINGS = 5
CHECKPOINTS = 10
#: The ways to open a folder.
OPENED = ("resume", "load")
#: (transitions, adds) of the buffers of vectors and of images.
VECTORS, IMAGES = [(1_000, 104_000), (100_000, 100_000)], [(10_000, 40_000)]
SMOKE_VECTORS, SMOKE_IMAGES = [(100, 450), (400, 400)], [(400, 900)]


def measure(name: str, source: str, size: int, adds: int) -> Measurement:
    """Return what a stored buffer, or a series of checkpoints, costs.

    :param name: ``storage`` or ``checkpoints``
    :param size: transitions that the buffer has room for
    :param adds: transitions that are added to it
    """
    one_thread()
    recording = record(source, N_ENVS, adds)
    with tempfile.TemporaryDirectory() as folder:
        if name == "checkpoints":
            return _checkpoints(recording, size, Path(folder))
        return _storage(recording, size, adds, Path(folder))


def _storage(recording: Recording, size: int, adds: int, folder: Path) -> Measurement:
    """Return microseconds of ``add``, bytes of files and payloads, and seconds of openings."""
    from sb3_compressed import buffer_statistics, load_checkpoint

    _add_to_both(recording, BLOCK, 3 * BLOCK, folder / "first")  # what happens once in a process
    result, buffer = _add_to_both(recording, size, adds, folder / "stored")
    killed, closed = folder / "killed", folder / "stored"
    shutil.copytree(closed, killed)
    buffer.close()
    del buffer
    result["disk, closed"] = _allocated_nbytes(closed)
    for name, path in (("killed", killed), ("closed", closed)):
        resumes, loads = [], []
        for _ in range(OPENINGS):
            copy = folder / "copy"
            shutil.copytree(path, copy)  # resuming and closing leaves another one
            begin = time.perf_counter()
            loaded = load_checkpoint(copy, device="cpu")
            loads.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            resumed = _new(recording, size, storage=copy, resume=True)
            resumes.append(time.perf_counter() - begin)
            for each in (loaded, resumed):
                if (each.pos, each.rewards[(adds - 1) % size, 0]) != (adds % size, adds - 1):
                    return {"error": f"the {name} folder is not as the buffer was"}
            resumed.close()
            shutil.rmtree(copy)
        result[f"resume, {name}"], result[f"load, {name}"] = statistics.median(resumes), statistics.median(loads)
    result["payloads"] = buffer_statistics(loaded, max_slots=4 * size).payload_nbytes
    return result


def _add_to_both(recording: Recording, size: int, adds: int, folder: Path) -> tuple[Measurement, Any]:
    """Fill a buffer in a folder and one in memory; return the costs, and the one in the folder."""
    buffer, memory = _new(recording, size, storage=folder), _new(recording, size)
    steps, seconds, most = play(recording), dict.fromkeys(("add", "add, memory"), 0.0), 0
    for first in range(0, adds, BLOCK):
        block = list(islice(steps, min(BLOCK, adds - first)))
        both = [("add", buffer), ("add, memory", memory)]
        for name, each in both[:: -1 if first // BLOCK % 2 else 1]:  # the first one finds the observations in no cache
            begin = time.process_time()
            for step in block:
                step.add_to(each)
            seconds[name] += time.process_time() - begin
        most = max(most, _allocated_nbytes(folder))
    return {"adds": adds, **{name: each / adds * 1e6 for name, each in seconds.items()}, "disk": most}, buffer


def _checkpoints(recording: Recording, size: int, folder: Path) -> Measurement:
    """Return the bytes of one model, of the other files that one checkpoint has alone, and of all that are shared."""
    from stable_baselines3 import DQN

    from sb3_compressed import BufferCheckpointCallback, CompressedReplayBuffer

    model = DQN(
        "CnnPolicy",
        wrap_as_sb3(Playback(recording), recording.n_stack),
        buffer_size=size,
        replay_buffer_class=CompressedReplayBuffer,
        learning_starts=1,
        train_freq=size // CHECKPOINTS // 2,  # before the first checkpoint, for a model that has Adam's state
        exploration_final_eps=1.0,
        device="cpu",
    )
    model.learn(size, callback=BufferCheckpointCallback(size // CHECKPOINTS, folder, keep=CHECKPOINTS))
    files = {status.st_ino: (path, status) for path, status in _files(folder)}.values()
    nbytes = Counter[str]()
    for path, status in files:
        kind = "model" if path.name == "model.zip" else "shared" if status.st_nlink > 1 else "own"
        nbytes[kind] += status.st_blocks * 512
    n_models = sum(path.name == "model.zip" for path, _ in files)
    if n_models != CHECKPOINTS:
        return {"error": f"there are {n_models} checkpoints, not {CHECKPOINTS}"}
    return {"model": nbytes["model"] / n_models, "own": nbytes["own"] / n_models, "shared": nbytes["shared"]}


def _new(recording: Recording, size: int, **options: Any) -> Any:
    from sb3_compressed import CompressedReplayBuffer

    spaces = recording.observation_space, recording.action_space
    return CompressedReplayBuffer(size, *spaces, device="cpu", n_envs=N_ENVS, **options)


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    return [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]


def _allocated_nbytes(folder: Path) -> int:
    return sum(status.st_blocks * 512 for _, status in _files(folder))


def table(results: Results) -> str:
    """Return a row for each stored buffer, and below it a row for each series of checkpoints."""
    stored, series = [], []
    for label, of_label in results.items():
        source, _, size = label.partition(", ")
        found = of_label.get("storage", {})
        if "payloads" in found:
            payloads = found["payloads"]
            cells = [f"{found[key]:.1f} us" for key in ("add", "add, memory")]
            cells += [_megabytes(payloads)]
            cells += [f"{_megabytes(found[key])} ({found[key] / payloads:.2f}x)" for key in ("disk", "disk, closed")]
            cells += [f"{found[f'{way}, {name}'] * 1e3:.1f} ms" for way in OPENED for name in ("killed", "closed")]
            stored.append([source, size, f"{found['adds']:,.0f}", *cells])
        found = of_label.get("checkpoints", {})
        if "model" in found:
            series.append([source, size, *(_megabytes(found[key]) for key in ("model", "own", "shared"))])
    header = ["observations", "transitions", "added", "`add`", "in memory", "payloads"]
    header += ["disk while open, at most", "disk closed"]
    header += [f"{way} {name}" for way in OPENED for name in ("after a kill", "closed")]
    of_checkpoints = ["observations", "transitions", "`model.zip`", "other files of one checkpoint", "shared files"]
    return "\n\n".join(
        [
            "Buffers in a folder:",
            markdown(header, stored),
            f"Files of {CHECKPOINTS} checkpoints of DQN with `CnnPolicy`; those of one checkpoint are means:",
            markdown(of_checkpoints, series),
        ]
    )


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB"


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__)
    flags.add_argument("--vectors", default="HalfCheetah-v5", help="as HalfCheetah-v5 (default: %(default)s)")
    flags.add_argument("--images", default="MsPacman", help="as MsPacman, MsPacman:trained (default: %(default)s)")
    arguments = flags.parse_args()
    vectors, images = VECTORS, IMAGES
    if arguments.smoke:
        vectors, images, arguments.rounds = SMOKE_VECTORS, SMOKE_IMAGES, 1
    jobs: list[Job] = []
    for source, ways, sizes in (
        (arguments.vectors, ["storage"], vectors),
        (arguments.images, ["storage", "checkpoints"], images),
    ):
        record(source, N_ENVS, max(adds for _, adds in sizes))
        jobs += [
            Job(f"{source}, {size:,}", way, {"source": source, "size": size, "adds": adds})
            for size, adds in sizes
            for way in ways
        ]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    options = {key: getattr(arguments, key) for key in ("vectors", "images", "rounds")}
    save(arguments.out, "opening", options, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()
