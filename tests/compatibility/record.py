"""Record what this version of the package saves: ``PYTHONPATH=.:tests python tests/compatibility/record.py FOLDER``.

Run it once for each released format, with a new folder in ``tests/compatibility/fixtures``, named after year and month,
and the version if there are several of a month; it refuses to overwrite one. ``test_fixtures.py`` loads what it writes
with every later version of the package. Contents are the same whoever records them; random ids of folders, the order
of sets and the weights of models are not.

::

    replay/NAME.pkl.xz    what SB3's save_replay_buffer writes
    rollout/NAME.pkl.xz   pickled rollout buffers
    objects/NAME.pkl.xz   pickled arrays, codecs, reports and recordings
    models/NAME.zip       what SB3's save writes
    checkpoints/NAME.tar.xz, storage/NAME.tar.xz, killed/NAME.tar.xz
                          what save_checkpoint writes; folders of storage=..., closed; the same, copied while open
    mixed/parts.tar.xz, mixed/parts.pkl.xz
                          what save_checkpoint of mixed buffers writes, and what SB3's save_replay_buffer does
    callback/run.tar.xz   the folder of a BufferCheckpointCallback, with two checkpoints
    */NAME.npz            contents, and what sampling under a seed returns; folders have those of replay/NAME.npz
    names.txt             what the pickles import from this package, those in models included
    versions.json         the versions of what wrote them
"""

from __future__ import annotations

import base64
import json
import lzma
import pickle
import platform
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import compatibility_cases as cases
import numpy as np
from stable_baselines3.common.save_util import save_to_pkl

import sb3_compressed
from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedArray,
    CompressedReplayBuffer,
    MixedReplayBuffer,
    save_checkpoint,
)
from sb3_compressed.codecs import TrainableCodec


def main() -> None:
    """Write all fixtures to the folder that the command line names, which must be new."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: {sys.argv[0]} FOLDER, a new one in tests/compatibility/fixtures")
    folder = Path(sys.argv[1])
    if folder.exists():
        raise SystemExit(f"{folder} exists; what was released does not change, record to another one")
    record(folder)


def record(folder: Path) -> None:
    """Write all fixtures to a folder."""
    for name in ("replay", "rollout", "objects", "models", "checkpoints", "storage", "killed", "mixed", "callback"):
        (folder / name).mkdir(parents=True)
    for name, case in cases.REPLAY.items():
        record_replay(folder / "replay", name, case)
    for name in cases.CHECKPOINTS:
        record_checkpoint(folder / "checkpoints" / f"{name}.tar.xz", cases.REPLAY[name])
    for name in cases.STORAGE:
        record_storage(folder, name, cases.REPLAY[name])
    record_mixed(folder / "mixed")
    for name, rollout_case in cases.ROLLOUT.items():
        rollout = rollout_case.fill(rollout_case.new())
        write_packed(folder / "rollout" / f"{name}.pkl.xz", pickle.dumps(rollout))
        recorded = cases.contents(rollout)
        write_arrays(folder / "rollout" / f"{name}.npz", {**recorded, **cases.rollout_batches(rollout)})
    record_objects(folder / "objects")
    record_models(folder / "models")
    record_callback(folder / "callback")
    names = sorted({name for file in sorted(folder.rglob("*")) for name in names_in_file(file)})
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    packages = ("stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "torch", "cloudpickle")
    versions = {
        "python": platform.python_version(),
        "sb3-compressed": sb3_compressed.__version__,
        **{package: version(package) for package in packages},
    }
    (folder / "versions.json").write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")


def write_arrays(path: Path, arrays: cases.Arrays) -> None:
    """Write arrays to a compressed file."""
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def write_packed(path: Path, content: bytes) -> None:
    """Write a pickle, compressed."""
    path.write_bytes(lzma.compress(content))


def record_replay(folder: Path, name: str, case: cases.ReplayCase) -> None:
    """Fill a replay buffer and save it as SB3 does."""
    with tempfile.TemporaryDirectory() as temporary:
        options = {"storage": Path(temporary) / "storage"} if case.is_in_folder else {}
        buffer = case.fill(case.new(**options))
        if case.n_steps == cases.TRAINED["n_steps"]:
            check_generations(name, buffer)
        save_to_pkl(Path(temporary) / "buffer.pkl", buffer)
        write_packed(folder / f"{name}.pkl.xz", (Path(temporary) / "buffer.pkl").read_bytes())
        write_arrays(folder / f"{name}.npz", {**cases.contents(buffer), **cases.sample(buffer)})
        buffer.close()


def check_generations(name: str, buffer: Any) -> None:
    """Verify that the slots of a buffer name several codecs: the one before a training, and the one after it."""
    array = buffer.observations["camera"] if isinstance(buffer.observations, dict) else buffer.observations
    codecs = {id(codec) for codec in array.stream.log.trained_codecs()}
    if len(codecs) < 2:
        raise SystemExit(f"{name} has payloads of one codec only; change the number of its steps")


def record_checkpoint(path: Path, case: cases.ReplayCase) -> None:
    """Save a buffer twice, so that there is more than one commit."""
    buffer = case.new()
    n_first = case.n_steps // 2
    case.fill(buffer, n_first)
    with tempfile.TemporaryDirectory() as temporary:
        save_checkpoint(buffer, temporary)
        case.fill(buffer, case.n_steps - n_first, n_first)
        save_checkpoint(buffer, temporary)
        pack(Path(temporary), path)


def record_mixed(folder: Path) -> None:
    """Save a mixed buffer, and pickle it."""
    parts = [cases.REPLAY[part].fill(cases.REPLAY[part].new()) for part in cases.MIXED]
    mixed = MixedReplayBuffer.from_buffers(parts, weights=[*cases.MIXED.values()])
    with tempfile.TemporaryDirectory() as temporary:
        mixed.save_checkpoint(temporary)
        pack(Path(temporary), folder / "parts.tar.xz")
    write_packed(folder / "parts.pkl.xz", pickle.dumps(mixed))


def record_storage(folder: Path, name: str, case: cases.ReplayCase) -> None:
    """Fill a buffer in a folder; copy it while it is open, as a kill would leave it, and again when it is closed."""
    with tempfile.TemporaryDirectory() as temporary:
        buffer = case.fill(case.new(storage=temporary))
        buffer.flush()  # priorities, which are not written with each transition
        pack(Path(temporary), folder / "killed" / f"{name}.tar.xz")
        buffer.close()
        pack(Path(temporary), folder / "storage" / f"{name}.tar.xz")


def pack(folder: Path, path: Path) -> None:
    """Write the files of a folder to an archive: segments have room that is not used yet, which takes nothing there."""
    with tarfile.open(path, "w:xz") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, file.relative_to(folder), recursive=False, filter=without_owner)


def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the metadata of a file in an archive, without the fields that depend on the machine."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def record_objects(folder: Path) -> None:
    """Pickle arrays, codecs, reports and recordings."""
    for name, report in cases.REPORTS.items():
        write_packed(folder / f"{name}.pkl.xz", pickle.dumps(report))
    for name in cases.RECORDINGS:
        write_packed(folder / f"{name}.pkl.xz", pickle.dumps(cases.new_recording(name)))
    for name, arguments in cases.ARRAYS.items():
        array = CompressedArray((20, *cases.stacks(1).shape[1:]), np.uint8, **arguments)
        array[:17] = cases.stacks(17)
        write_packed(folder / f"{name}.pkl.xz", pickle.dumps(array))
        write_arrays(folder / f"{name}.npz", {"content": array[:]})
    for name, new in cases.CODECS.items():
        codec, frames = new(), cases.frames()
        payloads = codec.encode(frames)
        write_packed(folder / f"{name}.pkl.xz", pickle.dumps(codec))
        ends = np.cumsum([len(payload) for payload in payloads])
        recorded = {"payloads": np.frombuffer(b"".join(payloads), np.uint8), "ends": ends}
        write_arrays(folder / f"{name}.npz", {**recorded, "content": frames})
        if name.endswith("-trained") and not (isinstance(codec, TrainableCodec) and codec.nbytes):
            raise SystemExit(f"{name} learned nothing from its frames")


def record_models(folder: Path) -> None:
    """Train models for some steps and save them."""
    for name, case in cases.MODELS.items():
        case.new().learn(40).save(folder / f"{name}.zip")


def record_callback(folder: Path) -> None:
    """Train a model with checkpoints."""
    model = cases.MODELS["dqn"].new()
    with tempfile.TemporaryDirectory() as temporary:
        model.learn(100, callback=BufferCheckpointCallback(30, temporary, keep=2))
        pack(Path(temporary), folder / "run.tar.xz")
        for checkpoint in sorted(Path(temporary).glob("step_*")):
            buffer = CompressedReplayBuffer.from_checkpoint(checkpoint / "buffer", device="cpu")
            write_arrays(folder / f"{checkpoint.name}.npz", {**cases.contents(buffer), **cases.sample(buffer)})


# -- names -------------------------------------------------------------------------------------------------------


def names_in_file(path: Path) -> Iterator[str]:
    """Yield what a file imports from this package when it is loaded, ``module name``."""
    if path.name.endswith(".pkl.xz"):
        yield from names_in_pickle(lzma.decompress(path.read_bytes()))
    elif path.suffix == ".zip":
        yield from names_in_model(path.read_bytes())
    elif path.name == "run.tar.xz":
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                if member.name.endswith(".zip") and (file := archive.extractfile(member)):
                    yield from names_in_model(file.read())


def names_in_model(content: bytes) -> Iterator[str]:
    """Yield what the attributes of a model import, which SB3 pickles one by one."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        data = json.loads(archive.read("data"))
    for value in data.values():
        if isinstance(value, dict) and ":serialized:" in value:
            yield from names_in_pickle(base64.b64decode(value[":serialized:"]))


class NamesUnpickler(pickle.Unpickler):
    """Loads a pickle, and lists what it imports from this package, ``module name``."""

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content))
        self.names: list[str] = []

    def find_class(self, module: str, name: str) -> Any:
        """Record a name that is imported."""
        if module.startswith("sb3_compressed"):
            self.names.append(f"{module} {name}")
        return super().find_class(module, name)


def names_in_pickle(content: bytes) -> list[str]:
    """Return what a pickle imports from this package."""
    unpickler = NamesUnpickler(content)
    unpickler.load()
    return unpickler.names


if __name__ == "__main__":
    main()
