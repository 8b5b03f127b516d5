"""Compare storage engines for slots on disk: this package's log, LMDB, SQLite, and a plain memory-mapped arena.

    python benchmarks/stores.py --steps 40000

Each stores a ring of steps. A step replaces the oldest one and adds a payload for each of four environments, in one
transaction. Measured are this transaction, reading the payloads of a batch of 256 transitions (the frames of an
observation and of the next one), reopening, and the allocated size of the files after several laps. Then processes are
killed while writing (``kill -9``), and the last step that they reported must be there; and single bits of the files are
flipped and everything is read: is it correct, an error, wrong bytes (which only checksums can detect), or a crash?
Compare times within one machine only. The log does more than the others in its transaction: it deduplicates payloads
and writes slots.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
from session import PEERS, RESULTS, save
from tables import markdown
from typing_extensions import override

from sb3_compressed import get_codec
from sb3_compressed.arrays.codec_handle import handle_of
from sb3_compressed.codecs import TrainableCodec
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.kernels.checksum import checksum
from sb3_compressed.storage.array_store import RING_ROWS, ArrayStore
from sb3_compressed.storage.manifest import ArraySpec

ROWS, N_ENVS, N_FRAMES = 5_000, 4, 4
BATCH = 256


def payload(step: int, env: int) -> bytes:
    """Return the payload of a step, 100 to 500 incompressible bytes."""
    rng = random.Random(step * N_ENVS + env)
    return rng.randbytes(rng.randrange(100, 500))


class Engine(ABC):
    """Interface of an engine."""

    title: ClassVar[str]

    @abstractmethod
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        """Write the payloads of a step, replacing those ``ROWS`` steps before, in one transaction."""

    @abstractmethod
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        """Return the payloads of the stacks that end with these steps, in the form that decoders take."""

    @abstractmethod
    def last(self) -> int:
        """Return the last step, or -1."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class OwnLog(Engine):
    """The log of this package."""

    title: ClassVar[str] = "log of this package"

    def __init__(self, folder: Path) -> None:
        plans = {"slots": ArraySpec((ROWS, N_ENVS), "<i8", is_table=True, is_ring=True)}
        exists = folder.is_dir() and any(folder.glob("*.log"))
        self.store = (
            ArrayStore.open(folder, writable=True) if exists else ArrayStore.create(folder, {"is": "a test"}, plans, {})
        )
        self.table = self.store.arrays["slots"]
        codec = get_codec("delta")
        assert isinstance(codec, TrainableCodec)
        self.handle = handle_of(codec)
        newest = range(self.last() - N_FRAMES + 1, self.last() + 1)
        self.recent: list[Any] = [tuple(payload(step, env) for step in newest) for env in range(N_ENVS)]

    @override
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        self.recent = [(*stack[1:], new) for stack, new in zip(self.recent, payloads, strict=True)]
        self.table[step % ROWS] = self.store.slots.write([(self.handle, *stack) for stack in self.recent])
        self.store.commit([(RING_ROWS, step % ROWS, step % ROWS + 1)], {"last": step}, {})

    @override
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        return self.store.slots.gather(self.table[np.array(steps) % ROWS, np.array(envs)], N_FRAMES).payloads

    @override
    def last(self) -> int:
        return int(self.store.values.get("last", -1))

    @override
    def close(self) -> None:
        self.store.close()


class Lmdb(Engine):
    """LMDB without ``fsync``, one record per payload."""

    title: ClassVar[str] = "LMDB"

    def __init__(self, folder: Path) -> None:
        self.env = lmdb.open(str(folder), map_size=1 << 30, sync=False)

    @override
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        with self.env.begin(write=True) as transaction:
            for env, data in enumerate(payloads):
                transaction.put(key_of(step, env), data, append=True)
            if step >= ROWS + N_FRAMES:
                for env in range(N_ENVS):
                    transaction.delete(key_of(step - ROWS - N_FRAMES, env))

    @override
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        keys = [key_of(*key) for key in stacks(steps, envs)]
        with self.env.begin() as transaction:
            found = dict(transaction.cursor().getmulti(sorted(set(keys))))
            return Payloads.of([found[key] for key in keys])

    @override
    def last(self) -> int:
        with self.env.begin() as transaction:
            cursor = transaction.cursor()
            return int.from_bytes(cursor.key(), "big") // N_ENVS if cursor.last() else -1

    @override
    def close(self) -> None:
        self.env.close()


class LmdbWithChecksums(Lmdb):
    """LMDB with an XXH64 before each value, verified on reading, as in this package's log."""

    title: ClassVar[str] = "LMDB, values with checksums"

    @override
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        seeds = range(step * N_ENVS, (step + 1) * N_ENVS)
        super().put(step, [checksum(data, seed).to_bytes(8, "big") + data for data, seed in zip(payloads, seeds)])

    @override
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        seeds = [step * N_ENVS + env for step, env in stacks(steps, envs)]
        values = [*super().locate(steps, envs)]
        for value, seed in zip(values, seeds):
            if checksum(value[8:], seed).to_bytes(8, "big") != value[:8]:
                raise ValueError("a value is damaged")
        return Payloads.of([value[8:] for value in values])


class Sqlite(Engine):
    """SQLite in WAL mode, with ``synchronous=NORMAL``."""

    title: ClassVar[str] = "SQLite"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.connection = sqlite3.connect(folder / "data.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS payloads (id INTEGER PRIMARY KEY, data BLOB)")

    @override
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        run = self.connection.execute
        run("BEGIN")
        for env, data in enumerate(payloads):
            run("INSERT INTO payloads VALUES (?, ?)", (step * N_ENVS + env, data))
        first = (step - ROWS - N_FRAMES) * N_ENVS
        run("DELETE FROM payloads WHERE id >= ? AND id < ?", (first, first + N_ENVS))
        run("COMMIT")

    @override
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        keys = [step * N_ENVS + env for step, env in stacks(steps, envs)]
        marks = ",".join("?" * len(keys))
        found = dict(self.connection.execute(f"SELECT id, data FROM payloads WHERE id IN ({marks})", keys))
        return Payloads.of([found[key] for key in keys])

    @override
    def last(self) -> int:
        [(last,)] = self.connection.execute("SELECT max(id) FROM payloads")
        return -1 if last is None else int(last) // N_ENVS

    @override
    def close(self) -> None:
        self.connection.close()


class Arena(Engine):
    """A mapped file with a cell per payload, and a file of lengths: no transactions, no checksums."""

    title: ClassVar[str] = "mapped arena"
    CELL_NBYTES = 512

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.rows = ROWS + N_FRAMES
        shape = (self.rows * N_ENVS, self.CELL_NBYTES)
        exists = (folder / "data").exists()
        self.data = np.memmap(folder / "data", np.uint8, "r+" if exists else "w+", shape=shape)
        self.sizes = np.memmap(folder / "sizes", np.int64, "r+" if exists else "w+", shape=(shape[0] + 1,))

    @override
    def put(self, step: int, payloads: Sequence[bytes]) -> None:
        for env, data in enumerate(payloads):
            cell = step % self.rows * N_ENVS + env
            self.data[cell, : len(data)] = np.frombuffer(data, np.uint8)
            self.sizes[cell] = len(data)
        self.sizes[-1] = step + 1

    @override
    def locate(self, steps: Sequence[int], envs: Sequence[int]) -> Payloads:
        keys = np.array(stacks(steps, envs))
        cells = keys[:, 0] % self.rows * N_ENVS + keys[:, 1]
        places = np.zeros((len(keys), 3), np.int64)
        places[:, 0] = self.data.ctypes.data + cells * self.CELL_NBYTES
        places[:, 1] = self.sizes[cells]
        return Payloads(places, self.data)

    @override
    def last(self) -> int:
        return int(self.sizes[-1]) - 1

    @override
    def close(self) -> None:
        pass


ENGINES: dict[str, Any] = {
    "log": OwnLog,
    "lmdb": Lmdb,
    "lmdb+checksums": LmdbWithChecksums,
    "sqlite": Sqlite,
    "arena": Arena,
}


def key_of(step: int, env: int) -> bytes:
    """Return a key in chronological order."""
    return (step * N_ENVS + env).to_bytes(8, "big")


def stacks(steps: Sequence[int], envs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the step and environment of every frame of the stacks that end with these steps."""
    return [(step - age, env) for step, env in zip(steps, envs) for age in range(N_FRAMES - 1, -1, -1)]


def measure(name: str, folder: Path, n_steps: int) -> dict[str, float]:
    """Return median times, and bytes on disk per byte of payload."""
    engine = ENGINES[name](folder)
    puts, gets = [], []
    for step in range(n_steps):
        payloads = [payload(step, env) for env in range(N_ENVS)]
        begin = time.perf_counter()
        engine.put(step, payloads)
        puts.append(time.perf_counter() - begin)
    rng = np.random.default_rng(0)
    for _ in range(200):
        steps = rng.integers(n_steps - ROWS + N_FRAMES, n_steps - 1, BATCH)
        envs = rng.integers(0, N_ENVS, BATCH)
        both, twice = [*steps.tolist(), *(steps + 1).tolist()], [*envs.tolist()] * 2
        begin = time.perf_counter()
        engine.locate(both, twice)
        gets.append(time.perf_counter() - begin)
    engine.close()
    openings = [opening(name, folder) for _ in range(5)]
    payload_nbytes = sum(len(payload(step, env)) for step in range(n_steps - ROWS, n_steps) for env in range(N_ENVS))
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    return {
        "put, us": statistics.median(puts[ROWS:]) * 1e6,
        "put, 99th percentile, us": float(np.quantile(puts[ROWS:], 0.99)) * 1e6,
        "get 256, us": statistics.median(gets) * 1e6,
        "open, ms": statistics.median(openings) * 1e3,
        "disk / payloads": on_disk / payload_nbytes,
    }


def opening(name: str, folder: Path) -> float:
    """Return the seconds to open a folder for writing and find the last step."""
    begin = time.perf_counter()
    engine = ENGINES[name](folder)
    engine.last()
    seconds = time.perf_counter() - begin
    engine.close()
    return seconds


def read_all(name: str, folder: Path) -> str:
    """Read all of a folder in a new process; return ``right``, ``other bytes``, ``error`` or ``process died``."""
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
        try:
            engine = ENGINES[name](folder)
            last = engine.last()
            steps = range(max(last - ROWS + N_FRAMES, N_FRAMES - 1), last + 1)
            is_correct = True
            for env in range(N_ENVS):
                found = engine.locate([*steps], [env] * len(steps))
                is_correct &= [*found] == [payload(*key) for key in stacks(steps, [env] * len(steps))]
            (folder.parent / "last").write_text(str(last))
            os._exit(0 if is_correct else 2)
        except BaseException:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "right", 1: "error", 2: "other bytes"}.get(code, "process died")


def kills(name: str, folder: Path, n_kills: int) -> Counter[str]:
    """Repeatedly kill a process that writes to a folder; count the outcomes of reading the folder afterwards."""
    outcomes: Counter[str] = Counter()
    rng = random.Random(name)
    for _ in range(n_kills):
        command = [sys.executable, __file__, "--write", name, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 3000))]
            process.kill()
            reported = int([*lines, *process.stdout.readlines()][-1])
        outcome = read_all(name, folder)
        if outcome == "right" and int((folder.parent / "last").read_text()) < reported:
            outcome = "steps missing"
        outcomes[outcome] += 1
    return outcomes


def flips(name: str, folder: Path, n_flips: int) -> Counter[str]:
    """Repeatedly flip one bit of the files of a folder; count the outcomes of reading the folder afterwards."""
    outcomes: Counter[str] = Counter()
    rng = random.Random(0)
    last = int((folder.parent / "last").read_text())
    for _ in range(n_flips):
        damaged = folder.parent / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(folder, damaged)
        files = sorted(path for path in damaged.rglob("*") if path.is_file() and path.stat().st_size)
        path = rng.choices(files, [file.stat().st_size for file in files])[0]
        with open(path, "r+b") as file:
            position = rng.randrange(path.stat().st_size)
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
        outcome = read_all(name, damaged)
        if outcome == "right" and int((folder.parent / "last").read_text()) != last:
            outcome = "steps missing"  # silently
        outcomes[outcome] += 1
    return outcomes


def write_until_killed(name: str, folder: Path) -> None:
    """Write steps, and print each one when it is written."""
    engine = ENGINES[name](folder)
    step = engine.last() + 1
    while True:
        engine.put(step, [payload(step, env) for env in range(N_ENVS)])
        os.write(1, b"%d\n" % step)
        step += 1


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return a row per engine."""
    header = [
        "engine",
        "put",
        "99th percentile",
        "get 256 transitions",
        "open",
        "disk / payloads",
        "after kill -9",
        "flipped bits",
    ]
    rows = []
    for name, found in results.items():
        outcomes = [", ".join(f"{count} {what}" for what, count in found[key].items()) for key in ("kills", "flips")]
        cells = [f"{found[key]:.1f} us" for key in ("put, us", "put, 99th percentile, us", "get 256, us")]
        rows.append(
            [ENGINES[name].title, *cells, f"{found['open, ms']:.1f} ms", f"{found['disk / payloads']:.2f}x", *outcomes]
        )
    return markdown(header, rows)


def main() -> None:
    """Run from the command line."""
    if sys.argv[1:2] == ["--write"]:
        write_until_killed(sys.argv[2], Path(sys.argv[3]))
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    flags.add_argument("--steps", type=int, default=40_000, help="steps to write (default: %(default)s)")
    flags.add_argument("--kills", type=int, default=20, help="kills per engine (default: %(default)s)")
    flags.add_argument("--flips", type=int, default=300, help="bit flips per engine (default: %(default)s)")
    flags.add_argument("--smoke", action="store_true", help="only test that the script works, in seconds")
    flags.add_argument(
        "--out",
        type=Path,
        default=RESULTS / "stores.json",
        help="write the results to this JSON file (default: %(default)s)",
    )
    flags.add_argument("--peers", type=Path, default=PEERS, help="another interpreter whose library versions to record")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.steps, arguments.kills, arguments.flips = ROWS + 200, 1, 2
    results: dict[str, dict[str, Any]] = {}
    for name in arguments.engines:
        with tempfile.TemporaryDirectory() as folder:
            found: dict[str, Any] = measure(name, Path(folder) / "measured", arguments.steps)
            found["kills"] = kills(name, Path(folder) / "killed", arguments.kills)
            found["flips"] = flips(name, Path(folder) / "killed", arguments.flips)
        results[name] = found
        print(name, found, flush=True)
    save(
        arguments.out,
        "stores",
        {key: getattr(arguments, key) for key in ("steps", "kills", "flips")},
        results,
        arguments.peers,
    )
    print(table(results))


if __name__ == "__main__":
    main()
