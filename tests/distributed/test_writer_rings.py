"""Each writer has a ring; the rings share the rows of the buffer as one ring of all writers would."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from distributed.buffers import REMOTE, add_rows, assert_true, new_buffer, pid_of, refreshed, stored, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_the_rows_of_a_writer_that_is_gone_are_used_by_others(local_ray: None, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400, n_shards=2, storage=tmp_path / "shards")
    writers = {name: buffer.writer(name, 1) for name in ("gone", "a")}
    write(buffer, "small", writers, range(300))
    assert sum(stored(buffer).values()) > 370
    a = {"a": writers["a"]}
    write(buffer, "small", a, range(20_000, 20_900))
    assert stored(buffer)["gone"] <= 24, "twice a sixteenth of its part at most"
    assert stored(buffer)["a"] > 350
    refreshed(buffer)
    seen = {*assert_true(buffer.sample(6000), "small")}
    last = REMOTE + 20_900
    assert seen >= {*range(last - stored(buffer)["a"], last)}, "the newest transitions"
    # A writer that returns can insert at once, and gets its rows back.
    write(buffer, "small", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert stored(buffer)["gone"] > 2
    write(buffer, "small", writers, range(30_000, 31_000))
    assert min(stored(buffer).values()) >= 100
    assert 360 <= sum(stored(buffer).values()) <= 400
    assert writers["gone"].n_lost == 0
    buffer.close()


def test_collectors_replace_the_transitions_of_the_learner(local_ray: None) -> None:
    buffer = new_buffer("small", 400, n_shards=2, prefetch=0)
    add_rows(buffer, "small", range(100))
    writers = {name: buffer.writer(name, 1) for name in ("a", "b")}
    write(buffer, "small", writers, range(100))
    assert stored(buffer) == {"learner-0": 100, "a": 100, "b": 100}, "all fits"
    write(buffer, "small", writers, range(100, 400))
    assert stored(buffer)["learner-0"] <= 24
    assert min(stored(buffer)["a"], stored(buffer)["b"]) > 180
    refreshed(buffer)
    assert buffer.size() == sum(stored(buffer).values()) <= 400
    seen = {*assert_true(buffer.sample(6000), "small")}
    assert len(seen) == buffer.size()
    add_rows(buffer, "small", range(500, 540))  # the learner adds again
    refreshed(buffer)
    assert set(range(532, 540)) <= {*assert_true(buffer.sample(6000), "small")}
    buffer.close()


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_restarted_shard_has_the_rows_of_before(local_ray: None, where: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage": tmp_path / "shards"} if where == "folder" else {}
    buffer = new_buffer("small", 400, **options)
    writers = {name: buffer.writer(name, 1) for name in ("a", "gone")}
    write(buffer, "small", writers, range(100))
    write(buffer, "small", {"a": writers["a"]}, range(20_000, 20_600))
    before, rows = stored(buffer), dict(buffer._group.rows)
    assert before["a"] > 350
    os.kill(pid_of(buffer), signal.SIGKILL)
    if where == "folder":
        assert stored(buffer) == before
    write(buffer, "small", {"a": writers["a"]}, range(30_000, 30_700))
    assert stored(buffer)["a"] == rows["a"]
    write(buffer, "small", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert 0 < stored(buffer)["gone"] <= 24
    refreshed(buffer)
    assert buffer.statistics().n_restarts == 1
    buffer.close()
    if where == "folder":
        again = new_buffer("small", 400, storage_mode="resume", **options)
        assert stored(again)["a"] > 350
        again.close()


@pytest.mark.parametrize("size", [200, 1000])
def test_a_checkpoint_keeps_rings_of_different_size(local_ray: None, size: int, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400)
    writers = {name: buffer.writer(name, 1) for name in ("a", "slow")}
    write(buffer, "small", writers, range(100), repeat=9)
    before = stored(buffer)
    assert before["a"] > 3 * before["slow"] > 100
    buffer.save_checkpoint(tmp_path / "checkpoint")
    buffer.close()
    again = new_buffer("small", size, n_shards=2)
    again.load_checkpoint(tmp_path / "checkpoint")
    found = stored(again)
    if size >= 400:
        assert found["slow"] >= 0.8 * before["slow"]
        assert found["a"] >= 0.8 * before["a"]
    assert 0.8 * min(size, 400) <= sum(found.values()) <= size
    assert found["a"] > 2 * found["slow"]
    again.close()


def test_a_checkpoint_of_version_0_2_is_loaded_into_equal_rings(local_ray: None, tmp_path: Path) -> None:
    buffer = new_buffer("small", 100)
    add_rows(buffer, "small", range(70))
    a = buffer.writer("a", 1)
    assert stored(buffer) == {"learner-0": 70}
    write(buffer, "small", {"a": a}, range(10))
    buffer.save_checkpoint(tmp_path / "checkpoint")
    manifest = tmp_path / "checkpoint" / "distributed.json"
    saved = json.loads(manifest.read_text())
    rings = saved.pop("rings")
    assert {name: ring["n_transitions"] for name, ring in rings.items()} == stored(buffer) == {"learner-0": 70, "a": 10}
    (tmp_path / "checkpoint" / saved["cut"]).rename(tmp_path / "checkpoint" / "cut-3")
    manifest.write_text(json.dumps({**saved, "version": 1, "cut": 3, "n_rows": 50}))
    buffer.load_checkpoint(tmp_path / "checkpoint")
    assert stored(buffer) == {"learner-0": 50, "a": 10}
    buffer.close()
