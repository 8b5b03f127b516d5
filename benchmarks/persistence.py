"""What it costs to keep a replay buffer beyond the process: saving, loading, the disk, and sampling from it.

    python benchmarks/persistence.py --size 100000

- ``checkpoint``: this package's buffer in memory; ``save_checkpoint`` of all, again after 10,000 more transitions, and
  ``load_checkpoint``;
- ``storage``: its buffer in a folder; ``add``, ``sample`` with what it reads in the operating system's cache and after
  that was told to forget it, and resuming;
- ``pickle``: SB3's buffer, saved and loaded as ``save_replay_buffer`` does it, all of it each time;
- ``torchrl:tensors`` and ``torchrl:list``: TorchRL's ``LazyTensorStorage`` and ``CompressedListStorage`` with the
  checkpointers that they have (``dumps`` and ``loads``), all of it each time;
- ``torchrl:flat``, ``torchrl:nested``, ``torchrl:h5``: its ``LazyTensorStorage`` with the checkpointers that store each
  observation once.

Every way in a process of its own, on recorded frames. A save is over when it is on the disk (``fsync``).
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from recording import record
from session import available, parser, run_interleaved, save, serve
from tables import markdown

from sb3_compressed.benchmarking.frame_recording import Recording, Step, play
from sb3_compressed.benchmarking.metrics import median_us, one_thread, timed
from sb3_compressed.benchmarking.ratios import Results
from sb3_compressed.benchmarking.runner import Job, Measurement

N_ENVS = 4
INCREMENT = 10_000
WAYS = ["checkpoint", "storage"]
#: What a transition has to have at least.
LISTED = ["observation", "action", "next_observation", "next_reward", "next_done"]
TITLES = {
    "SB3": "SB3, pickle",
    "checkpoint": "sb3-compressed, checkpoint",
    "storage": "sb3-compressed, storage",
    "torchrl:tensors": "TorchRL, `LazyTensorStorage`",
    "torchrl:list": "TorchRL, `CompressedListStorage`",
    "torchrl:flat": "TorchRL, `FlatStorageCheckpointer`",
    "torchrl:nested": "TorchRL, `NestedStorageCheckpointer`",
    "torchrl:h5": "TorchRL, `H5StorageCheckpointer`",
}


def measure(contender: str, source: str, size: int) -> Measurement:
    """Return seconds and bytes of one way."""
    one_thread()
    rows, increment = size // N_ENVS, min(INCREMENT, size // 10) // N_ENVS
    recording = record(source, N_ENVS, rows + increment)
    steps = play(recording)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if contender.startswith("torchrl:"):
            return _torchrl(contender, recording, steps, rows, folder)
        if contender == "SB3":
            return _pickle(recording, steps, rows, folder)
        if contender == "checkpoint":
            return _checkpoint(recording, steps, rows, increment, folder)
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
        for each, times in both[:: -1 if index % 2 else 1]:  # the first one finds the observations in no cache
            times.append(timed(_add, each, step))
    result: Measurement = {"save": timed(buffer.flush)}
    result["disk"] = _nbytes(folder) / buffer.size() / N_ENVS
    result["add"] = median_us(adds) / median_us(in_memory)
    warm = {name: _sampling(each) for name, each in (("folder", buffer), ("memory", memory))}
    result["sample, warm"] = warm["folder"] / warm["memory"]
    buffer.close()
    del buffer
    _forget(folder)
    begin = time.perf_counter()
    buffer = _ours(recording, rows, storage=folder / "stored", resume=True)
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


def _torchrl(contender: str, recording: Recording, steps: Iterator[Step], rows: int, folder: Path) -> Measurement:
    import torch as th
    from torchrl.data import CompressedListStorage, LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers import checkpointers

    size = rows * N_ENVS
    kinds: dict[str, Callable[[], Any]] = {
        "torchrl:flat": checkpointers.FlatStorageCheckpointer,
        "torchrl:nested": checkpointers.NestedStorageCheckpointer,
        "torchrl:h5": checkpointers.H5StorageCheckpointer,
    }

    def new() -> Any:
        if contender == "torchrl:list":
            return ReplayBuffer(storage=CompressedListStorage(size, compression_level=3))
        checkpointer = kinds[contender]() if contender in kinds else None
        return ReplayBuffer(storage=LazyTensorStorage(size), checkpointer=checkpointer)

    buffer = new()
    for some in _as_torchrl_wants_it(list(islice(steps, rows))):
        # Its list cannot save transitions that have parts, and maps a file for each key of each transition.
        buffer.extend(some.flatten_keys("_").select(*LISTED) if contender == "torchrl:list" else some)

    def dump(what: Any, name: str) -> None:
        what.dumps(folder / name)
        for path in (folder / name).rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

    result: Measurement = {"save": timed(dump, buffer, "first")}
    shutil.rmtree(folder / "first")  # a file of HDF5 cannot be replaced
    result["increment"] = timed(dump, buffer, "dumped")
    result["disk"] = _nbytes(folder) / size
    looked_at = th.arange(0, size, max(1, size // 100))
    stored = [each.clone() for each in _observations_of(buffer[looked_at])]
    del buffer
    other = new()
    result["load"] = timed(other.loads, folder / "dumped")
    if not all(map(th.equal, stored, _observations_of(other[looked_at]))):
        return {"error": "what was loaded is not what was saved"}
    return result


def _observations_of(batch: Any) -> list[Any]:
    flat = batch.flatten_keys("_")
    return [flat["observation"], flat["next_observation"]]


def _as_torchrl_wants_it(steps: list[Step]) -> Iterator[Any]:
    """Yield transitions in its format, those of one environment after the other, as its checkpointers want them."""
    import torch as th
    from tensordict import TensorDict

    for env in range(N_ENVS):
        for first in range(0, len(steps), 100):
            some = steps[first : first + 100]
            done = th.tensor([[bool(step.done[env])] for step in some])
            if first + len(some) == len(steps):
                done[-1] = True  # what follows is of another environment
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
    buffer.add(step.obs, step.next_obs, step.action, step.reward, step.done, step.infos)


def _sampling(buffer: Any) -> float:
    """Return the microseconds of a batch of 256."""
    return median_us(timed(buffer.sample, 256) for _ in range(100))


def _nbytes(folder: Path) -> int:
    """Return what files take on the disk, holes not counted."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _forget(folder: Path) -> None:
    """Let the operating system forget what it has read of files."""
    for path in folder.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def table(results: Results) -> str:
    """Return a row for each size and way."""
    header = ["transitions", "way", "save", "save 10,000 more", "load", "disk a transition"]
    header += ["`add`", "`sample(256)`, cached", "first `sample(256)`, not cached"]
    rows = []
    for size, of_size in results.items():
        for name, found in of_size.items():
            if "save" not in found:
                continue
            seconds = [f"{found[key]:.2f} s" if key in found else "" for key in ("save", "increment", "load")]
            ratios = [f"{found[key]:.2f}x" if key in found else "" for key in ("add", "sample, warm", "sample, cold")]
            rows.append([f"{int(size):,}", TITLES[name], *seconds, f"{found['disk']:,.0f} B", *ratios])
    return markdown(header, rows) + "\n\nTimes of `add` and `sample` are those of this package's buffer in memory."


def main() -> None:
    """Run the benchmark from the command line."""
    serve(measure)
    flags = parser(__doc__, contenders=WAYS)
    flags.add_argument("--source", default="MsPacman", help="as MsPacman, MsPacman:trained (default: %(default)s)")
    flags.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="default: %(default)s")
    flags.add_argument("--most-of-others", type=int, default=100_000, help="transitions; default: %(default)s")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.sizes, arguments.rounds = [800], 1
    names = available(["SB3", *arguments.contenders], arguments.peers)
    record(arguments.source, N_ENVS, max(arguments.sizes) // N_ENVS + INCREMENT // N_ENVS)
    jobs = [
        Job(str(size), name, {"source": arguments.source, "size": size})
        for size in sorted(arguments.sizes)
        for name in names
        if name in WAYS or size <= arguments.most_of_others
    ]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(
        arguments.out, "persistence", {"source": arguments.source, "rounds": arguments.rounds}, results, arguments.peers
    )
    print(table(results))


if __name__ == "__main__":
    main()
