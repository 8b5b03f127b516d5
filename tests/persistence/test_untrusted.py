"""Untrusted folders: declared sizes take no memory, links are not followed, and metadata is validated."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import crafted
import numpy as np
import pytest
from gymnasium import spaces
from slot_objects import write_slots

from sb3_compressed import (
    CompressedReplayBuffer,
    CorruptPayload,
    CorruptStorage,
    MixedReplayBuffer,
    StorageError,
    get_codec,
    load_checkpoint,
)
from sb3_compressed.buffers.loading import open_to_read
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import UnknownCodec
from sb3_compressed.storage import metadata_schema, verify
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.commit_writer import CommitWriter, copy_committed
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.spaces import space_to_data

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as on Linux")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    crafted.make_folder("images", tmp_path / "folder")
    return tmp_path / "folder"


def constant_box(n: int) -> dict[str, Any]:
    """Return metadata of a Box of many elements, in few bytes."""
    data = space_to_data(spaces.Box(0, 255, (2,), np.uint8))
    for bound in ("low", "high"):
        data[bound]["shape"] = [n]
    return data


def huge_space(manifest: Any) -> Any:
    manifest["about"]["observation_space"] = constant_box(2_000_000_000)
    return manifest


def huge_part(manifest: Any) -> Any:
    parts = [["a", constant_box(5)], ["b", {"space": "Dict", "spaces": [["c", constant_box(2_000_000_000)]]}]]
    manifest["about"]["observation_space"] = {"space": "Dict", "spaces": parts}
    return manifest


def huge_action_space(manifest: Any) -> Any:
    manifest["about"]["action_space"] = {"space": "MultiBinary", "n": [50_000, 50_000]}
    return manifest


def many_rows(n: int) -> Callable[[Any], Any]:
    def change(manifest: Any) -> Any:
        for array in manifest["arrays"].values():
            array[0][0] = n
        manifest["about"]["arguments"]["buffer_size"] = n
        return manifest

    return change


def many_envs(manifest: Any) -> Any:
    for array in manifest["arrays"].values():
        array[0][1] = 1 << 40
    manifest["about"]["arguments"]["n_envs"] = 1 << 40
    manifest["about"]["arguments"]["buffer_size"] = crafted.N_ROWS << 40
    return manifest


def huge_argument(manifest: Any) -> Any:
    manifest["about"]["arguments"]["buffer_size"] = 2_000_000_000
    return manifest


HUGE: dict[str, Callable[[Any], Any]] = {
    "a Box of 2e9 elements": huge_space,
    "a part of a Dict space of 2e9 elements": huge_part,
    "an action space of 2.5e9 elements": huge_action_space,
    "1e18 rows": many_rows(10**18),
    "1e12 environments": many_envs,
    "a buffer_size of 2e9": huge_argument,
}


@pytest.fixture(scope="module")
def opener() -> Iterator[crafted.Opener]:
    found = crafted.Opener()
    yield found
    found.close()


def opened(opener: crafted.Opener, folder: Path) -> tuple[dict[str, str], int]:
    """Return the outcome of each way of opening a folder of images, and the memory that they took."""
    answer = opener.open("images", folder)
    assert answer["error"] is None, answer["error"]
    return dict(outcome.split(": ", 1) for outcome in answer["outcomes"]), answer["nbytes"]


@on_linux
@pytest.mark.parametrize("kind", HUGE)
def test_declared_sizes_are_validated_before_allocation(kind: str, images: Path, opener: crafted.Opener) -> None:
    crafted.forge(images, HUGE[kind])
    outcomes, nbytes = opened(opener, images)
    assert nbytes < 16 << 20
    del outcomes["repair"]  # which restores the previous state
    if kind == "a buffer_size of 2e9":
        del outcomes["resume"]  # whose caller passes the size

    for way, outcome in outcomes.items():
        assert outcome.startswith(("StorageError", "CorruptStorage")), (way, outcome)
        assert str(images) in outcome
    assert len(verify(images)) >= 1


@on_linux
def test_unwritten_rows_take_no_memory(images: Path, opener: crafted.Opener) -> None:
    """A new buffer of ten million rows is legitimate: only its slots take memory."""

    def change(commit: Any) -> Any:
        commit["values"]["full"] = False
        return commit

    crafted.forge(images, many_rows(10_000_000), change)
    assert verify(images) == []
    outcomes, nbytes = opened(opener, images)
    assert outcomes["verify"] == outcomes["load"] == outcomes["follow"] == "fine"
    # In memory, each of two arrays has a reference for each row.
    assert nbytes < 2 * 8 * 10_000_000 + (64 << 20)


def test_large_new_buffer_is_loaded_with_an_explicit_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_schema, "MAX_ARRAYS_NBYTES", 1 << 20)
    size, folder = 1_000_000, tmp_path / "folder"
    buffer = crafted.new_buffer("images", buffer_size=size, storage=folder)
    buffer.add(np.ones((1, 4, 12, 12), np.uint8), np.ones((1, 4, 12, 12), np.uint8), np.zeros(1), np.ones(1), [0], [{}])
    buffer.close()
    with pytest.raises(CorruptStorage, match=r"declares arrays of \d+ bytes.* pass its buffer_size"):
        load_checkpoint(folder, device="cpu")
    for follow in (True, False):
        found = load_checkpoint(folder, device="cpu", buffer_size=size, follow=follow)
        assert (found.buffer_size, found.pos) == (size, 1)
        assert found.observations[0].all()
        found.close()
    crafted.new_buffer("images", buffer_size=size, storage=folder, storage_mode="resume").close()


def test_large_space_is_loaded_if_it_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_schema, "MAX_SPACE_NBYTES", 1 << 20)
    space = spaces.Box(0, 255, (1, 2000, 2000), np.uint8)
    buffer = CompressedReplayBuffer(2, space, spaces.Discrete(2), device="cpu", storage=tmp_path / "folder")
    buffer.close()
    with pytest.raises(CorruptStorage, match=r"observation_space has items of 4000000 bytes.* pass observation_space"):
        load_checkpoint(tmp_path / "folder", device="cpu")
    found = load_checkpoint(tmp_path / "folder", device="cpu", observation_space=space)
    assert found.observation_space == space


# -- files that are no regular ones ----------------------------------------------------------------------------------

no_links = pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs, and links need privileges")


@no_links
@pytest.mark.parametrize("which", ["the lock", "the first", "the last"])
@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_regular_files_are_opened(which: str, kind: str, images: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    files = sorted(path.name for path in images.glob("*.log"))
    name = {"the lock": "lock", "the first": files[0], "the last": files[-1]}[which]
    (images / name).rename(victim)
    content = victim.read_bytes()
    if kind == "link":
        (images / name).symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(images / name)
    else:
        (images / name).mkdir()
    path = re.escape(str(images / name))
    attempts: list[Callable[[], Any]] = [
        lambda: crafted.new_buffer("images", storage=images, storage_mode="resume"),
        lambda: crafted.new_buffer("images", storage=images, storage_mode="overwrite"),
        lambda: load_checkpoint(images, device="cpu"),
        lambda: load_checkpoint(images, device="cpu", follow=True),
    ]
    for attempt in attempts:
        try:
            attempt().close()
        except (StorageError, IsADirectoryError) as error:  # noqa: PERF203
            assert re.search(rf"{path}('| is (not a regular|missing))", str(error)), error  # noqa: PT017
    verify(images)
    assert victim.read_bytes() == content


@no_links
def test_temporary_file_of_a_crash_is_replaced_not_followed(images: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("content")
    for number in range(1, 6):
        (images / f"{number:08}.unfinished").symlink_to(tmp_path / "victim")
    buffer = crafted.new_buffer("images", storage=images, storage_mode="resume")
    buffer.copy_checkpoint(tmp_path / "copy")
    buffer.close()
    assert (tmp_path / "victim").read_text() == "content"
    assert verify(images) == verify(tmp_path / "copy") == []


# -- codecs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [ZstdDict(3, b"another dictionary" * 10), get_codec("zstd")], ids=repr)
def test_slots_of_a_codec_of_another_class_raise(other: Any, images: Path) -> None:
    store = ArrayStore.open(images, lock=FolderLock(images))
    payload = other.encode(np.zeros((1, 1, 12, 12), np.uint8))[0]
    slot = (other, *[payload] * 4) if isinstance(other, ZstdDict) else (payload,) * 4
    store.arrays["observations"][5] = write_slots(store.log, [slot])
    writer = CommitWriter(store)
    writer.commit([("observations", 5, 6)], store.values, {})
    writer.close()
    name = "zstd-dict" if isinstance(other, ZstdDict) else "no trainable codec"
    match = rf"{re.escape(str(images))}/\d+.log, the slot at byte \d+: it is by {name}, not by delta"
    with pytest.raises(CorruptPayload, match=match):
        load_checkpoint(images, device="cpu")
    buffer = load_checkpoint(images, device="cpu", follow=True)
    for rows in ([5], [4, 5, 6], range(10)):
        with pytest.raises(CorruptPayload, match=match) as caught:
            buffer.observations[np.array(rows), 0]
        assert caught.value.slot == (5, 0)
    buffer.close()


def test_resuming_with_a_codec_of_another_class_raises(images: Path) -> None:
    crafted.forge(images, change_codec=lambda codec: {"name": "zstd-dict", "fields": {}})
    for options in ({}, {"follow": True}):
        with pytest.raises(CorruptStorage, match="zstd-dict"):
            load_checkpoint(images, device="cpu", **options)


def test_hindsight_episodes_outside_the_ring_raise(tmp_path: Path) -> None:
    crafted.make_folder("hindsight", tmp_path / "folder")
    for name, value in (("ep_start", crafted.N_ROWS), ("ep_length", -1), ("_current_ep_start", 10**6)):
        folder = tmp_path / name
        store = ArrayStore.open(tmp_path / "folder")
        copy_committed(store, folder)
        store.close()

        def change(arrays: dict[str, Any], name: str = name, value: int = value) -> None:
            arrays[name].reshape(-1)[0] = value

        crafted.forge(folder, change_arrays=change)
        for options in ({}, {"follow": True}, {"buffer_size": 10}):
            with pytest.raises(CorruptStorage, match=f"{name} must be integers from 0 to"):
                load_checkpoint(folder, device="cpu", env=None, **options)


# -- a lock file that is deleted -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no locked file is deleted there")
def test_writer_that_lost_its_folder_raises(images: Path) -> None:
    buffer = crafted.new_buffer("images", storage=images, storage_mode="resume")
    (images / "lock").unlink()
    other = crafted.new_buffer("images", storage=images, storage_mode="resume")
    with pytest.raises(StorageError, match="deleted or replaced"):
        buffer.flush()
    step = np.ones((1, 4, 12, 12), np.uint8)
    with pytest.raises(StorageError, match="nothing was added"):
        buffer.add(step, step, np.zeros(1), np.ones(1), np.zeros(1), [{}])
    buffer.close()
    other.add(step, step, np.zeros(1), np.ones(1), np.zeros(1), [{}])
    other.close()


@no_links
def test_new_parent_folders_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int]] = []
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        flushed.append((found.st_dev, found.st_ino))
        flush(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    crafted.new_buffer("images", storage=tmp_path / "a" / "b" / "c").close()
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert (folder.stat().st_dev, folder.stat().st_ino) in flushed, folder


# -- metadata and values ---------------------------------------------------------------------------------------------


def test_arrays_that_do_not_fit_the_metadata_raise(images: Path) -> None:
    def change(manifest: Any) -> Any:
        manifest["arrays"]["rewards"][0].append(1)
        return manifest

    crafted.forge(images, change)
    with pytest.raises(StorageError, match=rf"{re.escape(str(images))}.*: it contains rewards <f4 .*instead of <f4"):
        crafted.new_buffer("images", storage=images, storage_mode="resume")


def test_a_folder_is_followed_in_its_size(images: Path) -> None:
    with pytest.raises(StorageError, match=rf"a buffer that follows {re.escape(str(images))} must have its size"):
        load_checkpoint(images, device="cpu", follow=True, buffer_size=crafted.N_ROWS // 2)


def test_a_repair_rejects_arrays_of_another_shape(tmp_path: Path) -> None:
    crafted.make_folder("hindsight", tmp_path / "buffer")

    def change(manifest: Any) -> Any:
        manifest["arrays"]["dones"][0] = [crafted.N_ROWS, 0]
        return manifest

    crafted.forge(tmp_path / "buffer", change)
    with pytest.raises(CorruptStorage, match="the shape of dones"):
        load_checkpoint(tmp_path / "buffer", device="cpu", env=None, repair=True)


def without_rewards(manifest: Any) -> Any:
    del manifest["arrays"]["rewards"]
    return manifest


def one_more_reward(manifest: Any) -> Any:
    manifest["arrays"]["rewards"][0][0] += 1
    return manifest


def unknown_sampler(manifest: Any) -> Any:
    manifest["about"]["arguments"]["sampler"]["sampler"]["name"] = "later"
    return manifest


def unknown_codec(manifest: Any) -> Any:
    manifest["about"]["arguments"]["compression_method"] = "later"
    return manifest


def sampler_with(**changes: Any) -> Callable[[Any], Any]:
    def change(commit: Any) -> Any:
        sampler = commit["values"]["sampler"]
        sampler["step"] = changes.get("step", sampler["step"])
        sampler["state"].update({name: value for name, value in changes.items() if name != "step"})
        return commit

    return change


def layout_of_frames(commit: Any) -> Any:
    training = {"interval": 64, "usual_nbytes": 0.0}
    stream = {"layout": [0, 4, 0], "detects": False, "training": training}  # of observations of nine elements
    commit["values"]["streams"] = {"": stream}
    return commit


FORGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an array is missing": ("vectors", {"change_manifest": without_rewards}, "invalid patch .* for array 5"),
    "an array has more rows": ("vectors", {"change_manifest": one_more_reward}, "different numbers of rows: .40, 41."),
    "an unknown codec": ("images", {"change_manifest": unknown_codec}, "can be constructed from it: unknown codec"),
    "an unknown sampler": ("prioritized", {"change_manifest": unknown_sampler}, "there is no sampler 'later'"),
    "a sampler of a later step": ("prioritized", {"change_commit": sampler_with(step=1 << 40)}, "the last step is 89"),
    "a negative number of draws": ("prioritized", {"change_commit": sampler_with(n_draws=-1)}, "n_draws must be"),
    "fewer rows": ("recent", {"change_commit": sampler_with(n_written=5)}, "contains transitions, but pos is"),
    "too many rows": ("recent", {"change_commit": sampler_with(n_written=500)}, "must be those of 40 rows"),
    "frames of vectors": ("vectors", {"change_commit": layout_of_frames}, r"frame_stack=4 .* of shape \(9,\)"),
}


@pytest.mark.parametrize("what", FORGED)
def test_invalid_content_with_right_checksums_is_refused(what: str, tmp_path: Path) -> None:
    kind, change, message = FORGED[what]
    crafted.make_folder(kind, tmp_path / "folder")
    crafted.forge(tmp_path / "folder", **change)
    ways: list[Callable[[], Any]] = [
        partial(load_checkpoint, tmp_path / "folder", device="cpu"),
        partial(load_checkpoint, tmp_path / "folder", device="cpu", follow=True),
        partial(open_to_read, tmp_path / "folder"),
    ]
    for way in ways:
        with pytest.raises(CorruptStorage, match=message):
            way()


@pytest.mark.parametrize("follow", [False, True])
def test_too_little_memory_is_no_damage(follow: bool, images: Path) -> None:
    with pytest.raises(StorageError, match="not enough memory for its CompressedReplayBuffer") as caught:
        load_checkpoint(images, device="cpu", buffer_size=1 << 48, follow=follow)
    assert not isinstance(caught.value, CorruptStorage)
    assert load_checkpoint(images, device="cpu").size() == crafted.N_ROWS


def test_wrong_arguments_are_those_of_the_folder_or_of_the_user(images: Path) -> None:
    crafted.forge(images, change_manifest=unknown_codec)
    ways: list[Callable[[], Any]] = [
        partial(load_checkpoint, images, device="cpu", buffer_size=30),
        partial(MixedReplayBuffer, 40, crafted.IMAGES, spaces.Discrete(3), "cpu", demonstrations=images),
    ]
    for way in ways:
        with pytest.raises(CorruptStorage, match="can be constructed from it: unknown codec 'later'"):
            way()
    with pytest.raises(UnknownCodec, match="'other'"):
        load_checkpoint(images, device="cpu", compression_method="other")


@pytest.mark.parametrize("name", ["pos", "full"])
def test_a_repair_of_a_damaged_folder_rejects_invalid_values(name: str, images: Path) -> None:
    crafted.forge(images, change_commit=lambda commit: {**commit, "values": {**commit["values"], name: {}}})
    path = sorted(images.glob("*.log"))[0]
    content = bytearray(path.read_bytes())
    content[-len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptStorage, match=f"its values are invalid: .*{name}"):
        load_checkpoint(images, device="cpu", repair=True)
    with pytest.raises(CorruptStorage, match=f"its values are invalid: .*{name}"):
        crafted.new_buffer("images", storage=images, storage_mode="repair")
