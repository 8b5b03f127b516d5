"""``DyingShard``: a shard that kills or stops its process at a chosen point, once, or forgets its writers there."""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ray.exceptions import WorkerCrashedError

from sb3_compressed.distributed.checkpoint_manifest import SavedRing
from sb3_compressed.distributed.shard import InsertReply, SampleReply, Shard

#: The variable with the folder in which files name the points to die at. Processes of actors inherit it.
DEATHS = "DEATHS_OF_SHARDS"
#: Instead of the number of a signal.
FORGET = 0


def die_at(point: str) -> Path:
    """Make the next shard that reaches a point die there; return a file that exists until it does."""
    return _send_at(point, signal.SIGKILL)


def stop_at(point: str) -> Path:
    """Make the next shard that reaches a point stop there; return a file that contains its process id from then on."""
    _send_at(point, signal.SIGSTOP)
    stopped = Path(os.environ[DEATHS]) / f"{point}.stopped"
    stopped.unlink(missing_ok=True)
    return stopped


def forget_at(point: str) -> None:
    """Make the next shard with a folder that reaches a point forget its writers there, as a new process has.

    This takes no time, unlike a restart.
    """
    _send_at(point, FORGET)


def _send_at(point: str, number: int) -> Path:
    file = Path(os.environ[DEATHS]) / point
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(str(int(number)))
    unfinished.rename(file)  # so that no shard reads a part of it
    return file


def _is_at(point: str, shard: Shard | None = None) -> None:
    file = Path(os.environ[DEATHS]) / point
    try:
        number = int(file.read_text())
        file.unlink()
    except FileNotFoundError:
        return
    if number == FORGET:
        assert shard is not None
        shard._incarnation = uuid.uuid4().hex
        for ring in shard._rings.values():
            ring.session, ring.n_inserted = "", 0
        raise WorkerCrashedError
    if number == signal.SIGSTOP:
        stopped = file.with_suffix(".stopped")
        unfinished = stopped.with_suffix(".pid")
        unfinished.write_text(str(os.getpid()))
        unfinished.rename(stopped)
    os.kill(os.getpid(), number)
    time.sleep(1)  # another thread may receive the signal, and this one would go on until it is stopped


def _dying_copytree(source: Path, target: Path, *, copy: Any = shutil.copytree, **options: Any) -> Any:
    _is_at("load")
    return copy(source, target, **options)


class DyingShard(Shard):
    """A shard that dies, or stops, before or after it has run a method."""

    def open_ring(self, *args: Any, **kwargs: Any) -> InsertReply:
        """Die before or after a ring is opened."""
        _is_at("open", self)
        reply = super().open_ring(*args, **kwargs)
        _is_at("opened", self)
        return reply

    def insert(self, *args: Any, **kwargs: Any) -> InsertReply:
        """Die before or after a segment is stored."""
        _is_at("insert", self)
        reply = super().insert(*args, **kwargs)
        _is_at("inserted", self)
        return reply

    def sample(self, *args: Any, **kwargs: Any) -> SampleReply:
        """Die before samples are drawn."""
        _is_at("sample")
        return super().sample(*args, **kwargs)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, SavedRing]:
        """Die before or after all rings are saved."""
        _is_at("save")
        reply = super().save_checkpoint(*args, **kwargs)
        _is_at("saved")
        return reply

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Die before a ring is copied, whose folder was removed, or after all rings are loaded."""
        if self._folder is None:
            _is_at("load")
        with patch.object(shutil, "copytree", _dying_copytree):
            super().load_checkpoint(*args, **kwargs)
        _is_at("loaded")

    def work(self, seconds: float) -> bool:
        """Be busy for a while, as with a long save."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.status()
        return True

    def content(self, name: str) -> list[int]:
        """Return the actions in a ring, the oldest first."""
        ring = self._rings[name]
        buffer: Any = ring.buffer
        rows = range(buffer.pos - buffer.size(), buffer.pos)
        return [int(action) for row in rows for action in buffer.actions[row].reshape(-1)]
