"""Files that released versions wrote: they load, contain what they contained, and the work goes on with them.

``record.py`` wrote them, ``compatibility_cases.py`` defines their content. ``names.txt`` of each release lists what its
pickles import, which must stay importable under these names, whatever the modules are called today. 0.5.0 is the first
release whose files stay readable; ``test_refused.py`` is about those of earlier ones.
"""

from __future__ import annotations

import importlib
import json
import lzma
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import compatibility_cases as cases
import gymnasium
import numpy as np
import pytest

from sb3_compressed import (
    BufferCheckpointCallback,
    CompressedReplayBuffer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.datasets import trajectories
from sb3_compressed.recording import RecordBuffer

#: The folder of all releases; another one for files that ``test_record.py`` has recorded.
FIXTURES = Path(os.environ.get("SB3_COMPRESSED_FIXTURES") or Path(__file__).parent / "fixtures")
RELEASES = sorted(path.parent for path in FIXTURES.glob("*/versions.json"))
if not RELEASES:
    pytest.skip(f"{FIXTURES} contains files of no release yet: 0.5.0 is the first", allow_module_level=True)

FOLDERS: dict[str, Any] = {
    "checkpoints/*.tar.xz": cases.CHECKPOINTS,
    "storage/*.tar.xz": cases.STORAGE,
    "killed/*.tar.xz": cases.STORAGE,
    "mixed/*.tar.xz": ("parts",),
    "callback/*.tar.xz": ("run",),
}
PICKLES: dict[str, Any] = {
    "replay/*.pkl.xz": cases.REPLAY,
    "rollout/*.pkl.xz": cases.ROLLOUT,
    "objects/array-*.pkl.xz": cases.ARRAYS,
    "objects/codec-*.pkl.xz": cases.CODECS,
    "objects/*-report.pkl.xz": cases.REPORTS,
    "objects/recording*.pkl.xz": cases.RECORDINGS,
    "models/*.zip": cases.MODELS,
    "mixed/*.pkl.xz": ("parts",),
}
N_MORE = 20  # more than the rows of most buffers


def name_of(path: Path) -> str:
    """Return the name of the case that a file was recorded of."""
    return path.name.partition(".")[0]


def fixtures(*patterns: str) -> pytest.MarkDecorator:
    """Parametrise a test with the files of all releases."""
    paths = [path for release in RELEASES for pattern in patterns for path in sorted(release.glob(pattern))]
    assert paths, f"there are no fixtures {patterns} in {FIXTURES}"
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.relative_to(FIXTURES).as_posix())


def require_versions(path: Path) -> None:
    """Skip a test of a pickle if NumPy or Gymnasium are older than what wrote it, which neither of them supports."""
    recorded = json.loads((FIXTURES / path.relative_to(FIXTURES).parts[0] / "versions.json").read_text("utf-8"))
    for package in (np, gymnasium):
        wrote = recorded[package.__name__]
        if int(package.__version__.partition(".")[0]) < int(wrote.partition(".")[0]):
            pytest.skip(f"{package.__name__} {package.__version__} does not read pickles of {wrote}")


def recorded_arrays(path: Path) -> cases.Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def contents_of(case_name: str, path: Path) -> cases.Arrays:
    """Return what a replay buffer contained that was saved in some way."""
    return recorded_arrays(path.parents[1] / "replay" / f"{case_name}.npz")


def unpacked(path: Path, folder: Path) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def assert_same(ours: cases.Arrays, theirs: cases.Arrays) -> None:
    """Verify that arrays of the same names are equal bit by bit."""
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        assert ours[name].tobytes() == array.tobytes(), name


def assert_contains(buffer: Any, expected: cases.Arrays) -> None:
    """Verify the contents of a replay buffer, and that it draws the batch that was recorded."""
    assert_same({**cases.contents(buffer), **cases.sample(buffer)}, expected)


def restored_in_sb3(case: cases.ReplayCase, expected: cases.Arrays) -> Any:
    """Return SB3's own buffer with these contents."""
    buffer = case.new_of_sb3()
    for name, array in expected.items():
        attribute, _, key = name.partition("/")
        if attribute in ("pos", "full"):
            setattr(buffer, attribute, array.item())
        elif attribute != "sample" and key:
            getattr(buffer, attribute)[key] = array.copy()
        elif attribute != "sample":
            setattr(buffer, attribute, array.copy())
    return buffer


def assert_goes_on(buffer: Any, case: cases.ReplayCase, expected: cases.Arrays) -> None:
    """Verify that a loaded buffer takes further transitions as SB3's own buffer with the same contents does."""
    theirs = restored_in_sb3(case, expected)
    for each in (buffer, theirs):
        case.fill(each, N_MORE, case.n_steps)
    assert_same(cases.contents(buffer), cases.contents(theirs))
    if not {"output_dtype", "sampler"} & {*case.options}:  # SB3 has no such options
        assert_same(cases.sample(buffer), cases.sample(theirs))


def test_every_compatibility_case_has_a_fixture() -> None:
    for pattern, names in {**FOLDERS, **PICKLES}.items():
        found = {name_of(path) for release in RELEASES for path in release.glob(pattern)}
        assert found == set(names), pattern


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_what_pickles_import_can_be_imported(release: Path) -> None:
    names = (release / "names.txt").read_text("utf-8").splitlines()
    assert names
    for line in names:
        module, name = line.split(" ")
        assert hasattr(importlib.import_module(module), name), line


def loaded_by_sb3(path: Path, case: cases.ReplayCase) -> tuple[Any, Any]:
    """Return a model that has loaded a replay buffer, and the buffer."""
    model = cases.MODELS["dqn-her" if case.kind in cases.BITS else "dqn-vector"].new()
    model.load_replay_buffer(path, truncate_last_traj=False)  # which is for hindsight replay only
    return model, model.replay_buffer


@fixtures("replay/*.pkl.xz")
def test_replay_buffers_pickled_by_earlier_versions_load(path: Path, tmp_path: Path) -> None:
    require_versions(path)
    case, expected = cases.REPLAY[name_of(path)], contents_of(name_of(path), path)
    (tmp_path / "buffer.pkl").write_bytes(lzma.decompress(path.read_bytes()))
    model, buffer = loaded_by_sb3(tmp_path / "buffer.pkl", case)
    assert type(buffer) is type(case.new())
    assert_contains(buffer, expected)
    model.save_replay_buffer(tmp_path / "again")
    assert_goes_on(buffer, case, expected)
    _, again = loaded_by_sb3(tmp_path / "again.pkl", case)
    assert_contains(again, expected)
    assert_goes_on(again, case, expected)


@fixtures("checkpoints/*.tar.xz")
def test_checkpoints_of_earlier_versions_load(path: Path, tmp_path: Path) -> None:
    case, expected = cases.REPLAY[name_of(path)], contents_of(name_of(path), path)
    folder, arguments = unpacked(path, tmp_path / "checkpoint"), {"device": "cpu"} | env_of(case)
    buffer = load_checkpoint(folder, **arguments)
    assert type(buffer) is type(case.new())
    assert_contains(buffer, expected)
    assert_goes_on(buffer, case, expected)
    save_checkpoint(buffer, folder)
    assert_contains(load_checkpoint(folder, **arguments), {**cases.contents(buffer), **cases.sample(buffer)})


@fixtures("mixed/*.tar.xz")
def test_mixed_checkpoints_of_earlier_versions_load(path: Path, tmp_path: Path) -> None:
    assert_is_mixed(load_checkpoint(unpacked(path, tmp_path / "mixed"), device="cpu"), path)


@fixtures("mixed/*.pkl.xz")
def test_mixed_buffers_pickled_by_earlier_versions_load(path: Path) -> None:
    require_versions(path)
    mixed = pickle.loads(lzma.decompress(path.read_bytes()))
    again = pickle.loads(pickle.dumps(mixed))
    for each in (mixed, again):
        assert_is_mixed(each, path)


def assert_is_mixed(mixed: Any, path: Path) -> None:
    """Verify the contents of a mixed buffer, and that it goes on."""
    assert mixed.weights.tolist() == [*cases.MIXED.values()]
    for name, buffer in zip(cases.MIXED, mixed.buffers, strict=True):
        expected = contents_of(name, path)
        assert_contains(buffer, expected)
        assert_goes_on(buffer, cases.REPLAY[name], expected)
    assert sorted({*mixed.sample(40).sources.tolist()}) == [0, 1]


def env_of(case: cases.ReplayCase) -> dict[str, Any]:
    """Return the argument that hindsight replay needs."""
    return {"env": case.env()} if case.kind in cases.BITS else {}


@fixtures("storage/*.tar.xz", "killed/*.tar.xz")
def test_storage_folders_of_earlier_versions_are_resumed(path: Path, tmp_path: Path) -> None:
    case, expected = cases.REPLAY[name_of(path)], contents_of(name_of(path), path)
    folder = unpacked(path, tmp_path / "storage")
    assert_contains(load_checkpoint(folder, device="cpu", **env_of(case)), expected)
    buffer = case.new(storage=folder, storage_mode="resume")
    assert_contains(buffer, expected)
    assert_goes_on(buffer, case, expected)
    expected = {**cases.contents(buffer), **cases.sample(buffer)}
    buffer.close()
    again = case.new(storage=folder, storage_mode="resume")
    assert_contains(again, expected)
    again.close()


@fixtures("rollout/*.pkl.xz")
def test_rollout_buffers_pickled_by_earlier_versions_load(path: Path) -> None:
    require_versions(path)
    case, expected = cases.ROLLOUT[name_of(path)], recorded_arrays(path.with_name(f"{name_of(path)}.npz"))
    buffer = pickle.loads(lzma.decompress(path.read_bytes()))
    again = pickle.loads(pickle.dumps(buffer))
    for each in (buffer, again):
        assert type(each) is case.compressed
        assert_same({**cases.contents(each), **cases.rollout_batches(each)}, expected)
        theirs = case.new_of_sb3()
        each.reset()
        for rollout in (each, theirs):
            case.fill(rollout, first=5)
        assert_same(cases.contents(each), cases.contents(theirs))
        assert_same(cases.rollout_batches(each), cases.rollout_batches(theirs))


@fixtures("objects/array-*.pkl.xz")
def test_arrays_pickled_by_earlier_versions_load(path: Path) -> None:
    require_versions(path)
    expected = recorded_arrays(path.with_name(f"{name_of(path)}.npz"))["content"]
    array = pickle.loads(lzma.decompress(path.read_bytes()))
    again = pickle.loads(pickle.dumps(array))
    more = cases.stacks(5, first=30)
    for each in (array, again):
        assert_same({"content": each[:]}, {"content": expected})
        each[15:20] = more
        assert_same({"content": each[:]}, {"content": np.concatenate([expected[:15], more])})


@fixtures("objects/codec-*.pkl.xz")
def test_codecs_pickled_by_earlier_versions_load(path: Path) -> None:
    require_versions(path)
    recorded = recorded_arrays(path.with_name(f"{name_of(path)}.npz"))
    frames = recorded["content"]
    payloads = [part.tobytes() for part in np.split(recorded["payloads"], recorded["ends"][:-1])]
    codec = pickle.loads(lzma.decompress(path.read_bytes()))
    for each in (codec, pickle.loads(pickle.dumps(codec))):
        assert each == codec
        for encoded in (payloads, each.encode(frames)):
            decoded = np.zeros_like(frames)
            each.decode_into(encoded, decoded)
            assert_same({"content": decoded}, {"content": frames})
    if not name_of(path).endswith("-trained"):  # what is learned may change
        assert codec == cases.CODECS[name_of(path)]()


@fixtures("objects/*-report.pkl.xz")
def test_reports_pickled_by_earlier_versions_load(path: Path) -> None:
    require_versions(path)
    report, expected = pickle.loads(lzma.decompress(path.read_bytes())), cases.REPORTS[name_of(path)]
    assert type(report) is type(expected)
    assert_same({"dropped": report.dropped}, {"dropped": expected.dropped})
    assert (report.n_transitions, report.problems) == (expected.n_transitions, expected.problems)
    assert str(report) == str(expected)


@fixtures("objects/recording*.pkl.xz")
def test_recordings_pickled_by_earlier_versions_load_and_continue(path: Path) -> None:
    require_versions(path)
    recording = pickle.loads(lzma.decompress(path.read_bytes()))
    cls = cases.RECORDINGS[name_of(path)]
    assert type(recording) is cls
    assert len(recording) == cases.N_RECORDED - 1, "the last step waits for the next one's features"
    cases.record_steps(recording, [cases.N_RECORDED])
    episodes = [*trajectories(recording.buffer)]
    assert [(len(each), each.has_end) for each in episodes] == [(4, True), (3, True)]
    for episode, steps in zip(episodes, ([0, 1, 2, 3], [4, 5, 6]), strict=True):
        observations = episode.observations
        features = observations["features"] if cls is RecordBuffer else observations
        np.testing.assert_array_equal(features[:-1, 0], steps)
        np.testing.assert_array_equal(episode.rewards, steps)
        np.testing.assert_array_equal(episode.actions, np.array(steps) % 2)
        if cls is RecordBuffer:
            np.testing.assert_array_equal(observations["observation"][:, 0] * 8, [*steps, steps[-1] + 1])


@fixtures("models/*.zip")
def test_models_of_earlier_versions_load(path: Path, tmp_path: Path) -> None:
    require_versions(path)
    case = cases.MODELS[name_of(path)]
    model: Any = case.algorithm.load(path, env=case.env(), device="cpu")
    model.save(tmp_path / "again")
    again: Any = case.algorithm.load(tmp_path / "again", env=case.env(), device="cpu")
    for each in (model, again):
        assert getattr(each, f"{case.attribute}_class") is case.buffer_class
        assert type(getattr(each, case.attribute)) is case.buffer_class
        kwargs = getattr(each, f"{case.attribute}_kwargs")
        assert kwargs.keys() == case.buffer_kwargs().keys()
        if not name_of(path).endswith("-trained"):
            assert kwargs == case.buffer_kwargs()
        n_steps = each.num_timesteps
        assert n_steps == 40
        each.learn(40, reset_num_timesteps=False)
        assert each.num_timesteps == n_steps + 40
        assert getattr(each, case.attribute).size() > 0


@fixtures("callback/*.tar.xz")
def test_callback_resumes_checkpoints_of_earlier_versions(path: Path, tmp_path: Path) -> None:
    folder = unpacked(path, tmp_path / "run")
    checkpoints = sorted(folder.glob("step_*"))
    assert [checkpoint.name for checkpoint in checkpoints] == [file.stem for file in sorted(path.parent.glob("*.npz"))]
    for checkpoint in checkpoints:
        buffer = CompressedReplayBuffer.from_checkpoint(checkpoint / "buffer", device="cpu")
        assert_contains(buffer, recorded_arrays(path.parent / f"{checkpoint.name}.npz"))
    newest = latest_checkpoint(folder)
    assert newest == checkpoints[-1]
    model: Any = cases.MODELS["dqn"].new()
    model.num_timesteps = 100
    model.replay_buffer = CompressedReplayBuffer.from_checkpoint(newest / "buffer", device="cpu")
    callback = BufferCheckpointCallback(30, folder, keep=2, resume=True)
    model.learn(60, callback=callback, reset_num_timesteps=False)
    written = latest_checkpoint(folder)
    assert written is not None
    assert written.name > newest.name
    assert CompressedReplayBuffer.from_checkpoint(written / "buffer", device="cpu").full
