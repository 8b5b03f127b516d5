"""Each writer has a ring; the rings share the rows of the buffer as one ring of all writers would."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from distributed.buffers import REMOTE, assert_true, new_buffer, pid_of, refreshed, stored, write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def test_rings_of_idle_writers_shrink(local_ray: None, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400, n_shards=2, storage=tmp_path / "shards")
    writers = {name: buffer.writer(name, 1) for name in ("gone", "a")}
    write(buffer, "small", writers, range(300))
    assert stored(buffer) == {"gone": 200, "a": 200}
    a = {"a": writers["a"]}
    write(buffer, "small", a, range(20_000, 20_900))
    assert stored(buffer) == {"gone": 12, "a": 388}
    refreshed(buffer)
    assert buffer.size() == 400
    seen = {*assert_true(buffer.sample(6000), "small")}
    last = REMOTE + 20_900
    assert seen >= {*range(last - 388, last)}, "the newest transitions"
    # A writer that returns can insert at once, and gets its rows back later.
    write(buffer, "small", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert stored(buffer)["gone"] == 12
    write(buffer, "small", writers, range(30_000, 31_000))
    assert stored(buffer) == {"gone": 200, "a": 200}
    assert writers["gone"].n_lost == 0
    buffer.close()


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_restarted_shard_has_the_rows_of_before(local_ray: None, where: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage": tmp_path / "shards"} if where == "folder" else {}
    buffer = new_buffer("images", 400, **options)
    writers = {name: buffer.writer(name, 1) for name in ("a", "gone")}
    write(buffer, "images", writers, range(100))
    write(buffer, "images", {"a": writers["a"]}, range(20_000, 20_900))
    before, rows = stored(buffer), dict(buffer._group.rows)
    assert before == rows == {"a": 388, "gone": 12}
    os.kill(pid_of(buffer), signal.SIGKILL)
    if where == "folder":
        assert stored(buffer) == before
    write(buffer, "images", {"a": writers["a"]}, range(30_000, 30_700))
    assert stored(buffer)["a"] == rows["a"]
    write(buffer, "images", {"gone": writers["gone"]}, range(10_000, 10_010))
    assert 0 < stored(buffer)["gone"] <= 12
    refreshed(buffer)
    assert buffer.statistics().n_restarts == 1
    buffer.close()
    if where == "folder":
        again = new_buffer("images", 400, storage_mode="resume", **options)
        assert stored(again) == {"a": 388, "gone": 12}
        again.close()


def test_a_checkpoint_is_loaded_into_buffers_of_other_sizes(local_ray: None, tmp_path: Path) -> None:
    buffer = new_buffer("small", 400)
    writers = {name: buffer.writer(name, 1) for name in ("a", "slow")}
    write(buffer, "small", writers, range(100), repeat=9)
    assert stored(buffer) == {"a": 200, "slow": 100}
    buffer.save_checkpoint(tmp_path / "checkpoint")
    buffer.close()
    for size in (200, 1000):
        again = new_buffer("small", size, n_shards=2)
        again.load_checkpoint(tmp_path / "checkpoint")
        assert stored(again) == {"a": min(200, size // 2), "slow": 100}
        again.close()
