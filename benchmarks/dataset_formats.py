"""Data sets in formats of Minari and this package: size, time to write and load, and epochs of shuffled batches.

    python benchmarks/dataset_formats.py --source MsPacman --frames 100000

Transitions of a recorded game, with observations of four stacked frames, are written by this package's exports. Then
each reader loads the files and returns the transitions of one epoch in batches, as tensors:

- Minari's reader returns whole episodes. It is measured in two ways: one episode after the other in random order, whose
  steps are shuffled, and all episodes loaded into an array in memory, from which random batches are taken.
- This package reads its folder into memory, or in place, and its ``iterate`` returns each transition once.

Each of these has its own process, in which a small buffer was filled before. Measured are wall-clock times, the growth
of the resident memory (RSS) with the loaded data, and its peak. The files are in the page cache. ``import`` measures
imports of each format into a new folder. Rewards are serial numbers, which show that batches are right, how many
transitions an epoch contains, and how many episodes a batch is from.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import one_thread, resident_nbytes
from numpy.typing import NDArray
from ratios import Results
from session import parser, run, save, serve
from sources import record
from tables import markdown

TITLE = "Formats of data sets"
N_FRAMES, SMOKE_FRAMES = 30_000, 400
N_STACK, SIZE, BATCH_SIZE = 4, 84, 256

#: How each format is shown in tables.
FORMATS = {
    "minari": "Minari, stacks of frames",
    "minari frames": "Minari, single frames",
    "ours": "sb3-compressed",
}
MINARI_NAMES = {"minari": "stacks", "minari frames": "frames"}
READERS = {
    "minari episodes": "Minari's reader, episode by episode",
    "minari array": "Minari's reader into an array of stacks",
    "minari frames": "Minari's reader into an array of frames",
    "ours memory": "sb3-compressed, in memory",
    "ours folder": "sb3-compressed, in the folder",
}
Batch = tuple[Any, Any, NDArray[np.float32]]
"""Observations, next observations, rewards."""
Epoch = Callable[[], Iterator[Batch]]


def measure(name: str, task: str, folder: str, source: str, n_frames: int) -> Measurement:
    """Return the seconds and bytes of a task.

    :param name: of a format, or of a reader
    :param task: ``write``, ``read`` or ``import``
    :param folder: the folder with the files of all formats
    """
    one_thread()
    warnings.simplefilter("ignore")
    os.environ["MINARI_DATASETS_PATH"] = str(Path(folder) / "minari")
    if task == "write":
        return _write(name, Path(folder), source, n_frames)
    _warm_up()
    if task == "import":
        return _import(Path(folder), n_frames)
    return _read(name, Path(folder), n_frames)


# -- writing ----------------------------------------------------------------------------------------------------------


def _write(name: str, folder: Path, source: str, n_frames: int) -> Measurement:
    from sb3_compressed import datasets

    target = folder / "minari" / MINARI_NAMES[name] if name in MINARI_NAMES else folder / name
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = _filled(source, n_frames, only_newest=name == "minari frames")
    begin = time.perf_counter()
    if name == "ours":
        buffer.save_checkpoint(target)
    else:
        datasets.export_minari(buffer, f"{MINARI_NAMES[name]}/all-v0", progress_bar=False)
    seconds = time.perf_counter() - begin
    nbytes = sum(path.stat().st_blocks * 512 for path in target.rglob("*") if path.is_file())
    return {"seconds": seconds, "nbytes": nbytes, "frames": n_frames}


def _filled(source: str, n_frames: int, *, only_newest: bool) -> Any:
    """Return a buffer with the first transitions of a recording, with one row to spare: it is not a full ring."""
    from gymnasium import spaces

    from sb3_compressed import CompressedReplayBuffer

    recording = record(source, 1, n_frames)
    space = spaces.Box(0, 255, (1, SIZE, SIZE), np.uint8) if only_newest else recording.observation_space
    buffer = CompressedReplayBuffer(n_frames + 1, space, recording.action_space, device="cpu")
    for step in islice(play(recording), n_frames):
        obs, next_obs = (each[:, -1:] if only_newest else each for each in (step.obs, step.next_obs))
        buffer.add(obs, next_obs, step.action, step.reward, step.done, step.infos)
    return buffer


# -- reading ----------------------------------------------------------------------------------------------------------


def _warm_up() -> None:
    """Do everything that happens only once in a process."""
    from gymnasium import spaces

    from sb3_compressed import CompressedReplayBuffer

    space = spaces.Box(0, 255, (N_STACK, SIZE, SIZE), np.uint8)
    buffer = CompressedReplayBuffer(2000, space, spaces.Discrete(9), device="cpu", sampler="without-replacement")
    frames = np.random.default_rng(0).integers(0, 256, (1003, SIZE, SIZE), np.uint8)
    frames[:, 10:] = 0
    for step in range(999):
        stacks = frames[None, step : step + N_STACK], frames[None, step + 1 : step + 1 + N_STACK]
        buffer.add(*stacks, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    for _ in buffer.iterate(BATCH_SIZE):
        pass


def _read(name: str, folder: Path, n_frames: int) -> Measurement:
    load = {
        "minari episodes": _minari_episodes,
        "minari array": _minari_array,
        "minari frames": _minari_frames,
        "ours memory": _ours,
        "ours folder": _ours,
    }[name]
    if name.startswith("minari"):
        import minari  # noqa: F401
    before = resident_nbytes()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    begin = time.perf_counter()
    loaded, epoch = load(folder, name)
    result: Measurement = {"load": time.perf_counter() - begin, "loaded": resident_nbytes() - before}
    begin, batches = time.perf_counter(), []
    for observations, next_observations, rewards in epoch():
        assert len(observations) == len(next_observations) == len(rewards)
        batches.append(rewards)
    result["epoch"] = time.perf_counter() - begin
    result |= _statistics(batches, folder, n_frames)
    result["after"] = resident_nbytes() - before
    result["peak"] = _peak_nbytes() - before
    del loaded
    return result


def _statistics(batches: list[NDArray[np.float32]], folder: Path, n_frames: int) -> Measurement:
    """Return the share of transitions in an epoch, and the mean number of episodes in a batch."""
    from sb3_compressed import load_checkpoint

    buffer = load_checkpoint(folder / "ours", follow=True, device="cpu")
    ends = np.flatnonzero(buffer.dones[: buffer.size(), 0])
    buffer.close()
    serials = [batch.astype(np.int64) for batch in batches]
    found = np.unique(np.concatenate(serials))
    is_right = found[0] >= 0 and found[-1] < n_frames
    return {
        "share": len(found) / n_frames,
        "episodes": float(np.mean([len(np.unique(np.searchsorted(ends, each))) for each in serials])),
        "wrong": "" if is_right else "rewards",
    }


def _peak_nbytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


def _minari_episodes(folder: Path, name: str) -> tuple[Any, Epoch]:
    import minari
    import torch as th

    dataset, rng = minari.load_dataset("stacks/all-v0"), np.random.default_rng(0)

    def epoch() -> Iterator[Batch]:
        for index in rng.permutation(dataset.total_episodes):
            episode = dataset[int(index)]
            for some in _batches(rng.permutation(len(episode.rewards))):
                both = episode.observations[some], episode.observations[some + 1]
                yield *map(th.as_tensor, both), episode.rewards[some]

    return dataset, epoch


def _minari_array(folder: Path, name: str) -> tuple[Any, Epoch]:
    import minari
    import torch as th

    dataset, rng = minari.load_dataset("stacks/all-v0"), np.random.default_rng(0)
    n_steps = dataset.total_steps
    observations = np.empty((n_steps + dataset.total_episodes, N_STACK, SIZE, SIZE), np.uint8)
    rewards, rows = np.empty(n_steps, np.float32), np.empty(n_steps, np.int64)
    step = 0
    for number, episode in enumerate(dataset.iterate_episodes()):
        n = len(episode.rewards)
        observations[step + number : step + number + n + 1] = episode.observations
        rewards[step : step + n], rows[step : step + n] = episode.rewards, np.arange(n) + step + number
        step += n

    def epoch() -> Iterator[Batch]:
        for some in _batches(rng.permutation(n_steps)):
            at = rows[some]
            yield th.as_tensor(observations[at]), th.as_tensor(observations[at + 1]), rewards[some]

    return observations, epoch


def _minari_frames(folder: Path, name: str) -> tuple[Any, Epoch]:
    import minari
    import torch as th

    dataset, rng = minari.load_dataset("frames/all-v0"), np.random.default_rng(0)
    n_steps = dataset.total_steps
    frames = np.zeros((n_steps + dataset.total_episodes * N_STACK, SIZE, SIZE), np.uint8)
    rewards, rows = np.empty(n_steps, np.float32), np.empty(n_steps, np.int64)
    step = 0
    for number, episode in enumerate(dataset.iterate_episodes()):
        n, first = len(episode.rewards), step + number * N_STACK + N_STACK - 1  # after zeros
        frames[first : first + n + 1] = episode.observations[:, 0]
        rewards[step : step + n], rows[step : step + n] = episode.rewards, np.arange(n) + first
        step += n
    stack = np.arange(1 - N_STACK, 1)

    def epoch() -> Iterator[Batch]:
        for some in _batches(rng.permutation(n_steps)):
            at = rows[some][:, None] + stack
            yield th.as_tensor(frames[at]), th.as_tensor(frames[at + 1]), rewards[some]

    return frames, epoch


def _ours(folder: Path, name: str) -> tuple[Any, Epoch]:
    from sb3_compressed import load_checkpoint

    buffer = load_checkpoint(folder / "ours", follow=name == "ours folder", device="cpu", sampler="without-replacement")

    def epoch() -> Iterator[Batch]:
        for batch in buffer.iterate(BATCH_SIZE):
            yield batch.observations, batch.next_observations, batch.rewards[:, 0].numpy()

    return buffer, epoch


def _batches(order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(order), BATCH_SIZE):
        yield order[first : first + BATCH_SIZE]


# -- importing --------------------------------------------------------------------------------------------------------


def _import(folder: Path, n_frames: int) -> Measurement:
    from sb3_compressed import datasets

    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        options: dict[str, Any] = {"storage": Path(temporary) / "buffer", "device": "cpu", "progress_bar": False}
        before = resident_nbytes()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        begin = time.perf_counter()
        buffer = datasets.import_minari("stacks/all-v0", **options)
        buffer.close()  # type: ignore[attr-defined]
        return {
            "seconds": time.perf_counter() - begin,
            "peak": _peak_nbytes() - before,
            "frames": n_frames,
            "wrong": "" if buffer.size() == n_frames else f"{buffer.size()} transitions",
        }


# -- tables -----------------------------------------------------------------------------------------------------------


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    written, read = results["write"], results["read"]
    sizes = [_mb(written[name]["nbytes"]) for name in ("ours", "minari", "minari frames")]
    memory = [_mb(read[name]["peak"]) for name in ("ours folder", "ours memory", "minari frames")]
    return (
        f"The same transitions take {sizes[0]} in a folder of this package, {sizes[1]} in Minari's format, or "
        f"{sizes[2]} there without stacks. An epoch of shuffled batches needs up to {memory[0]} of memory from the "
        f"folder, {memory[1]} when it is loaded, and {memory[2]} with an array of frames from Minari's reader."
    )


def sections(results: Results) -> list[str]:
    """Return tables of files, readers and imports."""
    written, read, imported = results["write"], results["read"], results["import"]
    n_frames = next(found["frames"] for found in written.values() if "frames" in found)
    rows = [
        [title, _mb(found["nbytes"]), f"{found['nbytes'] / n_frames:,.0f} B", f"{found['seconds']:.1f} s"]
        for name, title in FORMATS.items()
        if "nbytes" in (found := written.get(name, {}))
    ]
    parts = [
        f"Files with {n_frames:,} transitions. Raw, the frames take {_mb(n_frames * SIZE**2)}, and stacks of four "
        f"{_mb(n_frames * SIZE**2 * N_STACK)}. This package writes from a buffer that is compressed already, so its "
        "time to write does not contain compression; the time of imports does.",
        markdown(["format", "size", "per transition", "time to write"], rows),
    ]
    rows = []
    for name, title in READERS.items():
        found = read.get(name, {})
        if "load" not in found:
            continue
        memory = [_mb(found[key]) for key in ("loaded", "peak")]
        of_epoch = [f"{found['epoch']:.1f} s", f"{found['share']:.0%}", f"{found['episodes']:.0f}"]
        rows.append([title, f"{found['load']:.2f} s", *of_epoch, *memory])
    header = ["reader", "time to load", "epoch", "transitions in it", "episodes per batch", "memory, loaded", "peak"]
    found = imported["minari"]
    return [
        *parts,
        f"Loading them, and one epoch in batches of {BATCH_SIZE}. Memory is the growth of the process (RSS) when "
        "the data is loaded, and its peak until the end of the epoch; files that are mapped into memory count, and "
        "were in the page cache. *Episodes per batch* shows how well it was shuffled.",
        markdown(header, rows),
        f"`import_minari` into a folder takes {found['seconds']:.1f} s, {found['frames'] / found['seconds']:,.0f} "
        f"transitions per second, with a peak of {_mb(found['peak'])}."
        if "seconds" in found
        else "`import_minari` failed.",
    ]


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, rounds=1)
    flags.add_argument("--source", default="MsPacman", help="a game, e.g. MsPacman")
    flags.add_argument("--frames", type=int, default=N_FRAMES, help="number of transitions (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.frames = 1, SMOKE_FRAMES
    record(arguments.source, 1, arguments.frames)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(task, name, {"task": task, "folder": folder, "source": arguments.source, "n_frames": arguments.frames})
            for task, names in (("write", FORMATS), ("read", READERS), ("import", ["minari"]))
            for name in names
        ]
        results = run(measure, jobs, arguments, rounds=arguments.rounds)
    settings = {"source": arguments.source, "frames": arguments.frames, "rounds": arguments.rounds}
    save(arguments, "dataset_formats", settings, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    main()
