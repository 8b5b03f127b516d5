"""Crafted folders, as an attacker could make them: valid ones, changed with this package's own writers.

Forged records have correct checksums, so that only validation of their content can reject them. ``serve`` opens folders
in another process, whose memory is limited.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from memory import memory_of_process
from programs import Process, start

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CorruptPayload,
    StorageError,
    load_checkpoint,
)
from sb3_compressed.storage import verify
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_format import commit_record, split_commit
from sb3_compressed.storage.commit_writer import CommitWriter, snapshot_records
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.record_kinds import CODEC, COMMIT, MANIFEST

N_ROWS, N_STEPS = 40, 90
IMAGES = spaces.Box(0, 255, (4, 12, 12), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (9,), np.float64)
GOAL = spaces.Box(-1, 1, (5,), np.float64)

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "images": (
        CompressedReplayBuffer,
        {"observation_space": IMAGES, "compression_method": "delta", "frame_stack": 4},
    ),
    "vectors": (CompressedReplayBuffer, {"observation_space": VECTOR}),
    "prioritized": (CompressedReplayBuffer, {"observation_space": VECTOR, "sampler": "prioritized"}),
    "epochs": (CompressedReplayBuffer, {"observation_space": VECTOR, "sampler": "without-replacement"}),
    "recent": (CompressedReplayBuffer, {"observation_space": VECTOR, "sampler": "recent"}),
    "dict": (
        CompressedDictReplayBuffer,
        {
            "observation_space": spaces.Dict({"screen": IMAGES, "vector": VECTOR, "number": spaces.Discrete(9)}),
            "compression_method": {"screen": "zstd-dict"},
        },
    ),
    "hindsight": (
        CompressedHerReplayBuffer,
        {
            "observation_space": spaces.Dict({"observation": VECTOR, "achieved_goal": GOAL, "desired_goal": GOAL}),
            "env": None,
        },
    ),
}


def new_buffer(kind: str, **options: Any) -> Any:
    """Return a buffer of a kind; its size is ``N_ROWS`` unless an option sets it."""
    cls, arguments = KINDS[kind]
    fixed = {"buffer_size": N_ROWS, "action_space": spaces.Discrete(3), "device": "cpu", "num_threads": 1}
    return cls(**{**fixed, **arguments, **options})


def make_folder(kind: str, folder: Path, n_steps: int = N_STEPS, **options: Any) -> None:
    """Fill a folder with a ring in its third lap, in several segments."""
    rng = np.random.default_rng(0)
    buffer = new_buffer(kind, storage=folder, **options)
    space = buffer.observation_space
    scene = rng.integers(0, 256, (4, 12, 12), np.uint8)

    def observation(step: int) -> Any:
        if kind in ("images", "dict"):
            scene[:-1] = scene[1:]
            scene[-1, step % 12] ^= 255
        if not isinstance(space, spaces.Dict):
            return scene[np.newaxis].copy() if kind == "images" else rng.normal(size=(1, 9))
        values = {"screen": scene, "number": step % 9}
        parts = {
            key: values[key] if key in values else rng.normal(size=part.shape) for key, part in space.spaces.items()
        }
        return {key: np.array(part)[np.newaxis] for key, part in parts.items()}

    obs = observation(0)
    for step in range(1, n_steps + 1):
        following = observation(step)
        buffer.add(obs, following, np.array([[step % 3]]), np.ones(1), np.array([step % 7 == 0]), [{}])
        obs = following
        if step == n_steps // 2:
            CommitWriter(buffer._storage.store).write_snapshot()
    buffer.close()


def forge(
    folder: Path,
    change_manifest: Callable[[Any], Any] = lambda manifest: manifest,
    change_commit: Callable[[Any], Any] = lambda commit: commit,
    change_codec: Callable[[Any], Any] | None = None,
    change_arrays: Callable[[dict[str, Any]], None] = lambda arrays: None,
) -> None:
    """Add a segment with other metadata to a folder; each function may change them, and returns them.

    :param change_codec: of a codec in use, which the commit then refers to in the place of the one that there was
    :param change_arrays: changes arrays in place
    """
    store = ArrayStore.open(folder, lock=FolderLock(folder))
    try:
        change_arrays(store.arrays)
        records = []
        live, codecs = store.live_segments(), dict(store.codecs)
        if change_codec is not None and codecs:
            name, address = next(iter(codecs.items()))
            record = store.log.segment(address >> 32).record_at(address & 0xFFFFFFFF, CODEC)
            codec = to_json(change_codec(json.loads(record.tobytes())))
            offset = store.log.segment_to_write().append(CODEC, codec)
            codecs[name] = store.log.last.number << 32 | offset
            live.add(store.log.last.number)
        for kind, content in snapshot_records(store, live):
            data: Any = content
            if kind == MANIFEST:
                data = to_json(change_manifest(json.loads(content)))
            elif kind == COMMIT:
                commit, patches = split_commit(np.frombuffer(content, np.uint8))
                commit["codecs"] = codecs
                text = to_json(change_commit(commit))
                # The package's own function cannot write what JSON does not allow.
                data = len(text).to_bytes(4, "little") + text + patches.tobytes()
                assert commit_record({})[:4] == bytes(4), "the format of commits is another one"
            records.append((kind, data))
        store.log.begin_segment(records)
    finally:
        store.close()


def to_json(value: Any) -> bytes:
    """Return JSON, and bytes as they are."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def read_through(buffer: Any) -> None:
    """Read the content of a buffer as training does."""
    if buffer.size():
        for array in buffer.observations.values() if isinstance(buffer.observations, dict) else [buffer.observations]:
            array[: min(buffer.size(), 2 * N_ROWS)]
        if not isinstance(buffer, CompressedHerReplayBuffer):  # which needs an environment
            buffer.sample(4)


def open_in_every_way(kind: str, folder: Path) -> list[str]:
    """Open a folder in every way and return the outcome of each; ways that write come last.

    :raises Exception: if it is not an error that reports a damaged or unsuitable folder
    """
    from sb3_compressed.buffers.description import describe
    from sb3_compressed.buffers.loading import open_to_read
    from sb3_compressed.cli.sources import find_source
    from sb3_compressed.datasets import trajectories

    env: dict[str, Any] = {"env": None} if kind == "hindsight" else {}

    def inspect() -> None:
        buffer = open_to_read(find_source(folder))
        describe(buffer)
        for episode in trajectories(buffer):
            _ = episode.total_reward
        buffer.close()

    def follow() -> None:
        buffer = load_checkpoint(folder, follow=True, device="cpu", **env)
        buffer.refresh()
        read_through(buffer)
        buffer.close()

    def look() -> None:
        if found := verify(folder):
            raise StorageError(found[0])

    ways: dict[str, Callable[[], None]] = {
        "verify": look,
        "inspect": inspect,
        "follow": follow,
        "load": lambda: read_through(load_checkpoint(folder, device="cpu", **env)),
        "repair": lambda: read_through(load_checkpoint(folder, device="cpu", repair=True, **env)),
        "shrink": lambda: read_through(load_checkpoint(folder, device="cpu", buffer_size=N_ROWS // 3, **env)),
        "resume": lambda: new_buffer(kind, storage=folder, storage_mode="resume").close(),
    }
    outcomes = []
    for name, way in ways.items():
        try:
            way()
            outcomes.append(f"{name}: fine")
        except (StorageError, CorruptPayload, OSError) as error:  # noqa: PERF203
            outcomes.append(f"{name}: {type(error).__name__}: {error}")
    return outcomes


def serve(room: int) -> None:
    """Read lines with kinds and paths of folders, open each, and write the outcome as a line of JSON.

    :param room: bytes that the address space of the process may grow by
    """
    import resource

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:  # so that imports and compilation do not count
        for kind in KINDS:
            make_folder(kind, Path(folder) / kind)
            open_in_every_way(kind, Path(folder) / kind)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
    print("ready", flush=True)
    for line in sys.stdin:
        kind, _, path = line.rstrip("\n").partition(" ")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = memory_of_process("VmRSS")
        answer: dict[str, Any] = {"outcomes": [], "error": None}
        try:
            answer["outcomes"] = open_in_every_way(kind, Path(path))
        except BaseException as error:  # any error is an outcome
            import traceback

            answer["error"] = f"{type(error).__name__}: {''.join(traceback.format_exception(error))}"
        answer["nbytes"] = memory_of_process("VmHWM") - before
        print(json.dumps(answer), flush=True)


HANGS_S = 60  # far more than any folder takes
#: By how much the address space may grow: arrays of zeros count, whether they are touched or not.
ROOM = 4 << 30


class Opener:
    """A process that opens folders, restarted when it died."""

    def __init__(self) -> None:
        self._process: Process | None = None

    def open(self, kind: str, folder: Path) -> dict[str, Any]:
        """Return the outcome of opening a folder."""
        if self._process is None:
            self._process = start(f"import crafted; crafted.serve({ROOM})")
            assert self._line() == "ready\n"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {folder}\n")
        self._process.stdin.flush()
        line = self._line()
        if not line:
            self._process.kill()
            self.close()
            return {"outcomes": [], "error": "the process died, or hangs", "nbytes": 0}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], HANGS_S)
        return self._process.stdout.readline() if ready else ""

    def close(self) -> None:
        """Let the process end, which saves what coverage has measured; kill it if it hangs."""
        if self._process is not None:
            with self._process as process:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                try:
                    process.wait(HANGS_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            self._process = None
