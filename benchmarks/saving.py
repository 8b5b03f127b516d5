"""Folders and checkpoints: saving and loading a replay buffer, its size on disk, and sampling from disk.

    python benchmarks/saving.py
    python benchmarks/saving.py --size 1000000 --buffers checkpoint storage

- ``checkpoint``: our buffer in memory; a full ``save_checkpoint``, another after a tenth more transitions, and
  ``load_checkpoint``;
- ``large``: the same with ten times the transitions, the recording repeated, beside writing as many bytes;
- ``storage``: our buffer in a folder; ``add``, ``sample`` with a warm and a cold page cache, and resuming;
- ``SB3``: SB3's buffer, saved and loaded in full as by ``save_replay_buffer``;
- ``torchrl:tensors`` and ``torchrl:list``: TorchRL's ``LazyTensorStorage`` and ``CompressedListStorage`` with their
  default checkpointers (``dumps`` and ``loads``), in full;
- ``torchrl:flat`` and ``torchrl:h5``: its ``LazyTensorStorage`` with checkpointers that store each observation once.

Each method has its own process and runs on recorded frames. A save ends with ``fsync``.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
from frame_recording import Recording, play
from measurement import Job, Measurement
from metrics import median_us, one_thread, timed
from ratios import Results
from session import available, parser, run, save, serve
from sources import record
from tables import markdown

from sb3_compressed.step import Step

TITLE = "Saving and loading"
N_ENVS = 4
SOURCE, SIZE, SMOKE_SIZE, INCREMENT = "MsPacman", 30_000, 800, 1 / 10
CHECKPOINT, LARGE, STORAGE, PICKLE = "checkpoint", "large", "storage", "SB3"
METHODS = [CHECKPOINT, LARGE, STORAGE, PICKLE, "torchrl:tensors", "torchrl:list", "torchrl:flat", "torchrl:h5"]
#: How often ``large`` repeats the recording.
LAPS = 10
#: Fields of a transition that CompressedListStorage stores.
LIST_FIELDS = ["observation", "action", "next_observation", "next_reward", "next_done"]
NAMES = {
    "SB3": "SB3, pickle",
    "checkpoint": "sb3-compressed, checkpoint",
    "storage": "sb3-compressed, storage",
    "torchrl:tensors": "TorchRL, `LazyTensorStorage`",
    "torchrl:list": "TorchRL, `CompressedListStorage`",
    "torchrl:flat": "TorchRL, `FlatStorageCheckpointer`",
    "torchrl:h5": "TorchRL, `H5StorageCheckpointer`",
}


def measure(name: str, size: int) -> Measurement:
    """Return the seconds and bytes of one method."""
    one_thread()
    rows, increment = size // N_ENVS, int(size * INCREMENT) // N_ENVS
    recording = record(SOURCE, N_ENVS, rows + increment)
    steps = play(recording)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if name.startswith("torchrl:"):
            return _torchrl(name, recording, steps, rows, folder)
        if name == PICKLE:
            return _pickle(recording, steps, rows, folder)
        if name == CHECKPOINT:
            return _checkpoint(recording, steps, rows, increment, folder)
        if name == LARGE:
            return _large(recording, rows * LAPS, increment * LAPS, folder)
        return _storage(recording, steps, rows, increment, folder)


def _checkpoint(recording: Recording, steps: Iterator[Step], rows: int, increment: int, folder: Path) -> Measurement:
    from sb3_compressed import load_checkpoint

    buffer = _ours(recording, rows)
    for step in islice(steps, rows):
        _add(buffer, step)
    result: Measurement = {"save": timed(buffer.save_checkpoint, folder / "saved")}
    result["disk"] = _nbytes(folder) / buffer.size() / N_ENVS
    for step in islice(steps, increment):
        _add(buffer, step)
    result["increment"] = timed(buffer.save_checkpoint, folder / "saved")
    result["load"] = timed(load_checkpoint, folder / "saved")
    return result


def _large(recording: Recording, rows: int, increment: int, folder: Path) -> Measurement:
    """Return the seconds of saves and of a load relative to those of writing as many bytes with ``fsync``."""
    from sb3_compressed import load_checkpoint

    buffer = _ours(recording, rows)
    steps = chain.from_iterable(play(recording) for _ in count())
    result: Measurement = {}
    for name, n_rows in (("save", rows), ("increment", increment)):
        for step in islice(steps, n_rows):
            _add(buffer, step)
        before = _nbytes(folder)
        seconds = timed(buffer.save_checkpoint, folder / "saved")
        written = os.urandom(1 << 16) * max((_nbytes(folder) - before) >> 16, 1)
        result[name] = seconds / timed(_write, folder / "written", written)
        (folder / "written").unlink()
    written = os.urandom(1 << 16) * max(_nbytes(folder) >> 16, 1)
    result["load"] = timed(load_checkpoint, folder / "saved") / timed(_write, folder / "written", written)
    return result


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())


def _storage(recording: Recording, steps: Iterator[Step], rows: int, increment: int, folder: Path) -> Measurement:
    buffer = _ours(recording, rows, storage=folder / "stored")
    memory = _ours(recording, rows)
    for step in islice(steps, rows - increment):
        _add(buffer, step)
        _add(memory, step)
    adds: list[float] = []
    in_memory: list[float] = []
    for index, step in enumerate(islice(steps, increment)):
        both = [(buffer, adds), (memory, in_memory)]
        for each, times in both[:: -1 if index % 2 else 1]:  # the first one reads the observations into the caches
            times.append(timed(_add, each, step))
    result: Measurement = {"save": timed(buffer.flush)}
    result["disk"] = _nbytes(folder) / buffer.size() / N_ENVS
    result["add"] = median_us(adds) / median_us(in_memory)
    warm = {name: _sampling(each) for name, each in (("folder", buffer), ("memory", memory))}
    result["sample, warm"] = warm["folder"] / warm["memory"]
    buffer.close()
    del buffer
    _drop_page_cache(folder)
    begin = time.perf_counter()
    buffer = _ours(recording, rows, storage=folder / "stored", storage_mode="resume")
    result["load"] = time.perf_counter() - begin
    result["sample, cold"] = timed(buffer.sample, 256) * 1e6 / warm["memory"]
    return result


def _pickle(recording: Recording, steps: Iterator[Step], rows: int, folder: Path) -> Measurement:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(
        rows * N_ENVS, recording.observation_space, recording.action_space, device="cpu", n_envs=N_ENVS
    )
    for step in islice(steps, rows):
        _add(buffer, step)
    path = folder / "buffer.pkl"

    def dump(what: ReplayBuffer) -> None:
        with open(path, "wb") as file:
            pickle.dump(what, file, protocol=pickle.HIGHEST_PROTOCOL)
            os.fsync(file.fileno())

    def load() -> None:
        with open(path, "rb") as file:
            pickle.load(file)

    result: Measurement = {"save": timed(dump, buffer)}
    result["increment"] = timed(dump, buffer)
    result["disk"] = _nbytes(folder) / (rows * N_ENVS)
    del buffer
    result["load"] = timed(load)
    return result


def _torchrl(name: str, recording: Recording, steps: Iterator[Step], rows: int, folder: Path) -> Measurement:
    import torch as th
    from torchrl.data import CompressedListStorage, LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers import checkpointers

    size = rows * N_ENVS
    kinds: dict[str, Callable[[], Any]] = {
        "torchrl:flat": checkpointers.FlatStorageCheckpointer,
        "torchrl:h5": checkpointers.H5StorageCheckpointer,
    }

    def new() -> Any:
        if name == "torchrl:list":
            return ReplayBuffer(storage=CompressedListStorage(size, compression_level=3))
        checkpointer = kinds[name]() if name in kinds else None
        return ReplayBuffer(storage=LazyTensorStorage(size), checkpointer=checkpointer)

    buffer = new()
    for some in _torchrl_batches(list(islice(steps, rows))):
        # Its list cannot save nested transitions, and maps a file per key of each transition.
        buffer.extend(some.flatten_keys("_").select(*LIST_FIELDS) if name == "torchrl:list" else some)

    def dump(what: Any, target: str) -> None:
        what.dumps(folder / target)
        for path in (folder / target).rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

    result: Measurement = {"save": timed(dump, buffer, "first")}
    shutil.rmtree(folder / "first")  # an HDF5 file cannot be replaced
    result["increment"] = timed(dump, buffer, "dumped")
    result["disk"] = _nbytes(folder) / size
    compared = th.arange(0, size, max(1, size // 100))
    stored = [each.clone() for each in _observations_of(buffer[compared])]
    del buffer
    other = new()
    result["load"] = timed(other.loads, folder / "dumped")
    if not all(map(th.equal, stored, _observations_of(other[compared]))):
        return {"error": "loaded data differs from saved data"}
    return result


def _observations_of(batch: Any) -> list[Any]:
    flat = batch.flatten_keys("_")
    return [flat["observation"], flat["next_observation"]]


def _torchrl_batches(steps: list[Step]) -> Iterator[Any]:
    """Yield transitions in its format, environment by environment, as its checkpointers require."""
    import torch as th
    from tensordict import TensorDict

    for env in range(N_ENVS):
        for first in range(0, len(steps), 100):
            some = steps[first : first + 100]
            done = th.tensor([[bool(step.done[env])] for step in some])
            if first + len(some) == len(steps):
                done[-1] = True  # the next transition is of another environment
            never = th.zeros_like(done)
            after = {
                "observation": th.as_tensor(np.stack([step.next_obs[env] for step in some])),
                "reward": th.tensor([[float(step.reward[env])] for step in some]),
                **{"done": done, "terminated": done, "truncated": never},
            }
            before = {
                "observation": th.as_tensor(np.stack([step.obs[env] for step in some])),
                "action": th.as_tensor(np.stack([step.action[env] for step in some])),
                **{"done": never, "terminated": never, "truncated": never},
            }
            yield TensorDict({**before, "next": TensorDict(after, batch_size=[len(some)])}, batch_size=[len(some)])


def _ours(recording: Recording, rows: int, **options: Any) -> Any:
    from sb3_compressed import CompressedReplayBuffer

    spaces = recording.observation_space, recording.action_space
    return CompressedReplayBuffer(rows * N_ENVS, *spaces, device="cpu", n_envs=N_ENVS, **options)


def _add(buffer: Any, step: Step) -> None:
    step.add_to(buffer)


def _sampling(buffer: Any) -> float:
    """Return the microseconds of a batch of 256."""
    return median_us(timed(buffer.sample, 256) for _ in range(100))


def _nbytes(folder: Path) -> int:
    """Return the bytes allocated for the files in a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _drop_page_cache(folder: Path) -> None:
    """Remove the files in a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    [(label, found)] = results.items()
    ours, base = found[CHECKPOINT], found[PICKLE]
    folder = found[STORAGE]
    return (
        f"A checkpoint of {label} is written in {ours['save']:.2f} s and takes {ours['disk']:,.0f} B a transition, "
        f"SB3's pickle {base['save']:.1f} s and {base['disk']:,.0f} B. After {INCREMENT:.0%} more transitions, the "
        f"next one takes {ours['increment']:.2f} s, another pickle {base['increment']:.1f} s. With `storage=`, all is "
        f"on disk at any time, `add` takes {folder['add']:.2f} times as long as in memory, and a batch from the page "
        f"cache {folder['sample, warm']:.2f} times."
    )


def sections(results: Results) -> list[str]:
    """Return the table."""
    header = ["method", "save", "save again", "load", "disk per transition"]
    header += ["`add`", "`sample(256)`, cached", "first `sample(256)`, not cached"]
    rows = []
    for found_of_size in results.values():
        for name, found in found_of_size.items():
            if name == LARGE:
                continue
            if "save" not in found:
                rows.append([NAMES[name], "failed", *[""] * 6])
                continue
            seconds = [f"{found[key]:.2f} s" if key in found else "" for key in ("save", "increment", "load")]
            ratios = [f"{found[key]:.2f}x" if key in found else "" for key in ("add", "sample, warm", "sample, cold")]
            rows.append([NAMES[name], *seconds, f"{found['disk']:,.0f} B", *ratios])
    return [
        f"{SOURCE}, random actions, {N_ENVS} environments. Times are of this machine; those of `add` and `sample` are "
        "relative to this package's buffer in memory. A save ends with `fsync`. The second checkpoint of this package "
        f"follows {INCREMENT:.0%} more transitions; the others save all of theirs again.",
        markdown(header, rows),
        *_beside_writing(results),
    ]


def _beside_writing(results: Results) -> list[str]:
    """Return a table of saves and loads relative to writing as many bytes."""
    found = [found_of_size[LARGE] for found_of_size in results.values() if "save" in found_of_size.get(LARGE, {})]
    if not found:
        return []
    return [
        "## Beside writing the bytes",
        f"A checkpoint of {LAPS} times as many transitions, the recording repeated, relative to writing a file of as "
        "many bytes with `fsync` just after it. A load is compared with writing all bytes of the folder.",
        markdown(
            ["save", f"save again, after {INCREMENT:.0%} more", "load"],
            [[f"{each[key]:.1f}x" for key in ("save", "increment", "load")] for each in found],
        ),
    ]


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=METHODS)
    flags.add_argument("--size", type=int, default=SIZE, help="transitions (default: %(default)s)")
    arguments = flags.parse_args()
    size = SMOKE_SIZE if arguments.smoke else arguments.size
    names = available(arguments.buffers, arguments.peers)
    record(SOURCE, N_ENVS, int(size * (1 + INCREMENT)) // N_ENVS)
    jobs = [Job(f"{size:,} transitions", name, {"size": size}) for name in names]
    results = run(measure, jobs, arguments, rounds=arguments.rounds)
    save(arguments, "saving", {"rounds": arguments.rounds}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()
