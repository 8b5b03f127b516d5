"""``Shard``: a part of a distributed replay buffer, with one ring for each writer. It runs as an actor of Ray.

A shard stores the payloads of segments without decoding them, draws transitions from its rings, and returns their
payloads. Each writer appends to one ring, in order and with its position, so a segment that is sent twice is stored
once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import psutil
import ray
from numpy.typing import NDArray

from sb3_compressed import __version__
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.codecs import Codec
from sb3_compressed.distributed.block import Block, PackedBlock
from sb3_compressed.distributed.checkpoint_manifest import POSITIVE, SavedRing, ring_folder
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.encoded_rows import require_fitting
from sb3_compressed.distributed.ray_session import is_restarted
from sb3_compressed.distributed.ring import Ring
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.errors import CorruptStorage, ShardUnavailable, StorageError, old_file
from sb3_compressed.persistence.buffer_storage import StorageMode
from sb3_compressed.storage import json_schema as js
from sb3_compressed.storage.checked_json import read_object, write_object
from sb3_compressed.storage.lock import FolderInUse
from sb3_compressed.storage.log_files import newest_segment_digest

__all__ = [
    "InsertReply",
    "PriorityUpdates",
    "SampleReply",
    "Segment",
    "Shard",
    "ShardStatus",
    "WriterPosition",
    "WriterReplaced",
    "require_version",
]

#: The list of the rings of a shard: of each its number of rows and its number of environments.
RINGS = "rings.json"
VERSION = 1
SCHEMA = {
    "version": range(VERSION, VERSION + 1),
    "run": str,
    "rings": {str: (POSITIVE, POSITIVE)},
    "loads": range(1 << 63),
}
#: The group of methods that return while another one is running.
HEALTH = "health"
#: Seconds to wait for the lock of a folder, which a killed process may still have for a moment.
LOCK_TIMEOUT = 30.0
#: The same for a shard that Ray restarts after a node was lost, whose processes may not have noticed yet.
RESTART_LOCK_TIMEOUT = 120.0


class WriterReplaced(RuntimeError):
    """Another writer of the same name took over the ring."""


class ShardStatus(NamedTuple):
    """The state of a shard, which each reply contains.

    :param incarnation: names the process; it differs after a restart
    :param n_transitions: number of transitions that can be sampled
    :param mass: the sum of their priorities, or without any, their number
    :param n_inserted: number of transitions inserted since the process began
    :param n_sampled: number of transitions sampled since then
    :param n_bytes_inserted: bytes of the segments, without codecs
    :param n_bytes_sampled: bytes of the samples, without codecs
    :param memory: resident memory of the process in bytes
    :param n_skipped_updates: updates of priorities whose transitions were overwritten
    :param n_restored: number of transitions that the process has found in its folder when it began
    :param number: how many states this process has returned before
    :param n_inserted_by: number of transitions that each writer has inserted since the process began
    """

    incarnation: str
    n_transitions: int
    mass: float
    n_inserted: int
    n_sampled: int
    n_bytes_inserted: int
    n_bytes_sampled: int
    memory: int
    n_skipped_updates: int
    n_restored: int
    number: int
    n_inserted_by: dict[str, int]


class WriterPosition(NamedTuple):
    """Where a writer is in its ring, after the segments that were stored.

    :param incarnation: the process of the shard
    :param row: the row to write next
    :param n_rows: number of rows of the ring
    :param n_inserted: number of rows that the writer has inserted
    :param n_loads: how often the rings of the shard have been replaced by those of a checkpoint
    """

    incarnation: str
    row: int
    n_rows: int
    n_inserted: int
    n_loads: int


class InsertReply(NamedTuple):
    """The acknowledgement of a segment, or of a ring that was opened.

    :param position: where the writer continues
    """

    position: WriterPosition
    status: ShardStatus


class SampleReply(NamedTuple):
    """Sampled transitions.

    :param block: see :meth:`Shard.sample`; ``None`` if there is nothing to sample
    :param codecs: those that were not sent to this session before
    """

    block: PackedBlock | None
    codecs: dict[bytes, Codec]
    status: ShardStatus


class Segment(NamedTuple):
    """Rows of a writer.

    :param position: where the writer is, as the last reply says
    :param block: the packed block of :func:`.block_of`
    :param after_gap: whether rows before these were lost, so that episodes do not continue
    """

    position: WriterPosition
    block: PackedBlock
    after_gap: bool = False


class PriorityUpdates(NamedTuple):
    """Updates of priorities.

    :param rings: the ring of each transition, as in the block of :meth:`Shard.sample`, ``(n,)``
    :param numbers: their numbers in the rings, ``(n,)``
    :param td_errors: their absolute TD errors, ``(n,)``; of equal transitions, the last one counts
    """

    rings: NDArray[np.int16]
    numbers: NDArray[np.int64]
    td_errors: NDArray[Any]


def require_version(version: str) -> None:
    """Raise unless the caller has the version of this process.

    :raises RuntimeError: if it has another one
    """
    if version != __version__:
        raise RuntimeError(
            f"the learner has sb3-compressed {version}, but this node has {__version__}: install the same version on "
            "all nodes"
        )


class Shard:
    """A part of a distributed replay buffer.

    :param spec: how its rings are constructed
    :param n_rows: number of rows of rings that :meth:`resize` has not named
    :param folder: the folder to store them in, ``None`` for memory
    :param run: names the run; a shard that is restarted in the same run continues with what its folder contains
    :param mode: what to do if the folder contains rings of another run, as ``storage_mode`` of buffers
    :param seed: of its random numbers
    :param version: the version of this package that the learner has
    """

    CONCURRENCY_GROUPS: ClassVar = {HEALTH: 1}

    def __init__(
        self,
        spec: RingSpec,
        n_rows: int,
        folder: Path | None,
        run: str,
        mode: StorageMode,
        seed: int,
        version: str = __version__,
    ) -> None:
        self._spec, self._n_rows, self._folder, self._run = spec, n_rows, folder, run
        # A process that Ray has restarted must not repeat the random numbers of the one before.
        words = [seed, secrets.randbits(32)] if is_restarted() else [seed]
        self._rng = np.random.default_rng(words)
        self._incarnation = uuid.uuid4().hex
        self._rings: dict[str, Ring] = {}
        #: Number of rows of rings, also of those that are not opened yet.
        self._rows: dict[str, int] = {}
        self._n_loads = 0
        self._n_inserted_by: Counter[str] = Counter()
        self._codecs = CodecCache()
        self._learner, self._sent = "", set[bytes]()
        self._n_sampled = self._n_bytes_inserted = self._n_bytes_sampled = 0
        self._n_skipped_updates = self._n_states = self._n_restored = 0
        self._process = psutil.Process()
        # Prioritized sampling draws from NumPy's global generator, as buffers do.
        np.random.seed([word % 2**32 for word in words])  # noqa: NPY002
        #: Why it cannot be used. Ray does not return the error of a constructor, so each reply raises it.
        self._error: Exception | None = None
        self._version, self._mode = version, mode
        self._open()

    # -- rings -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the folder, or keep the error."""
        self._error = None
        try:
            require_version(self._version)
            if self._folder is not None:
                self._open_folder(self._folder, self._mode)
                self._n_restored = sum(ring.n_transitions for ring in self._rings.values())
        except Exception as error:
            self._error = error

    def _open_folder(self, folder: Path, mode: str) -> None:
        """Open the rings in the folder, but those that are open since an earlier attempt.

        :raises StorageError: if it contains rings of another run, and the mode is ``"create"``
        :raises CorruptStorage: if the list of its rings is damaged
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / RINGS
        if file.exists():
            run, rows, rings, n_loads = _read_rings(file)
            is_resumed = run == self._run or mode == "resume"
            if is_resumed:
                self._rows, self._n_loads = rows, n_loads
            if not is_resumed and mode != "overwrite":
                raise StorageError(
                    f"{folder} contains a shard; pass storage_mode='resume' to continue it, or 'overwrite' to replace "
                    "it"
                )
            for name, n_envs in rings.items():
                if not is_resumed:
                    shutil.rmtree(ring_folder(folder, name), ignore_errors=True)
                elif name not in self._rings:
                    self._include(name, self._new_ring(name, n_envs, "resume"))
            if run == self._run:
                return  # without writing, since the disk may be full
        self._save_rings()

    def _new_ring(self, name: str, n_envs: int, mode: StorageMode) -> Ring:
        storage: dict[str, Any] = {}
        if self._folder is not None:
            storage = {"storage": ring_folder(self._folder, name), "storage_mode": mode}
        deadline = time.monotonic() + (RESTART_LOCK_TIMEOUT if is_restarted() else LOCK_TIMEOUT)
        while True:
            try:
                return Ring(self._spec, self._rows.get(name, self._n_rows), n_envs, storage, self._rng)
            except FolderInUse:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _include(self, name: str, ring: Ring) -> Ring:
        """Include a ring, and return it."""
        self._rings[name] = ring
        self._share_layouts()
        return ring

    def _share_layouts(self, found: Mapping[str, FrameLayout | None] | None = None) -> None:
        """Use the first layout that is known of a stream of observations in all rings, so that batches have one.

        :param found: the layouts of rows that are about to be appended
        """
        streams = [stream for ring in self._rings.values() for stream in ring.streams.items()]
        known = {name: layout for name, layout in (found or {}).items() if layout is not None}
        known |= {name: array.layout for name, array in reversed(streams) if array.layout is not None}
        for name, array in streams:
            if array.layout is None and name in known:
                array.stream.set_layout(known[name])

    def _save_rings(self) -> None:
        if self._folder is not None:
            rings = {name: (self._rows.get(name, self._n_rows), ring.n_envs) for name, ring in self._rings.items()}
            content = {"version": VERSION, "run": self._run, "rings": rings, "loads": self._n_loads}
            write_object(self._folder / RINGS, content)

    def resize(self, rows: Mapping[str, int]) -> None:
        """Change the number of rows of rings; the newest transitions that fit stay.

        :param rows: of rings by the names of their writers, also of those that are not opened yet
        :raises OSError: if a folder cannot be written; its ring is then as it was
        """
        if rows != self._rows:
            self._rows = dict(rows)
            self._save_rings()  # first, so that a process that is killed here continues with these
        changes = [(n_rows - self._rings[name].n_rows, name) for name, n_rows in rows.items() if name in self._rings]
        for _, name in sorted(changes):  # those that grow are the last ones, so that less memory is needed
            self._rings[name].resize(rows[name])

    def reset(self) -> None:
        """Remove all transitions."""
        for ring in self._rings.values():
            ring.reset()

    def open_ring(self, name: str, session: str, n_envs: int) -> InsertReply:
        """Open the ring of a new writer, which is created if there is none; running episodes are truncated.

        :param name: the name of the writer
        :param session: names this writer; another one of the same name cannot insert any more
        :param n_envs: number of environments of the writer
        :raises ValueError: if the ring has another number of environments
        """
        ring = self._ring(name, n_envs)
        if ring.session != session:
            ring.truncate()
            ring.session, ring.n_inserted = session, 0
        return self._reply(ring)

    def _ring(self, name: str, n_envs: int) -> Ring:
        """Return the ring of a writer.

        :raises ValueError: if it has another number of environments
        """
        self.status()  # raises if the shard cannot be used
        ring = self._rings.get(name)
        if ring is None:
            ring = self._include(name, self._new_ring(name, n_envs, "overwrite"))
            self._save_rings()
        if ring.n_envs != n_envs:
            raise ValueError(f"the ring of {name!r} has {ring.n_envs} environments, the writer has {n_envs}")
        return ring

    def _reply(self, ring: Ring) -> InsertReply:
        position = WriterPosition(self._incarnation, int(ring.buffer.pos), ring.n_rows, ring.n_inserted, self._n_loads)
        return InsertReply(position, self.status())

    def insert(
        self, name: str, session: str, n_envs: int, segment: Segment, codecs: Mapping[bytes, Codec]
    ) -> InsertReply:
        """Append a segment to the ring of a writer; return when it is stored, in the folder if there is one.

        A segment that was stored before is acknowledged again.

        :param name: as for :meth:`open_ring`, and so are ``session`` and ``n_envs``
        :param codecs: those that the writer has not sent yet
        :raises WriterReplaced: if another writer has opened the ring
        :raises MissingCodec: if the shard has forgotten a codec that was sent before; nothing is stored then
        :raises ValueError: if the block does not fit the ring
        :raises OSError: if the folder cannot be written; nothing is stored then
        """
        ring = self._ring(name, n_envs)
        if ring.session not in ("", session):
            raise WriterReplaced(f"another writer of the name {name!r} has taken over the ring")
        self._codecs.receive(codecs)
        rows = Block.unpack(segment.block, self._codecs)
        require_fitting(rows, ring.buffer)
        n_rows, n_before = rows.values["n_rows"], segment.position.n_inserted
        is_stored: bool | None = ring.n_inserted == n_before + n_rows
        if not ring.session:
            is_stored = self._is_stored(ring, segment.position, n_rows)
            ring.session, ring.n_inserted = session, n_before + n_rows * bool(is_stored)
        if is_stored:
            return self._reply(ring)
        if ring.n_inserted != n_before:
            raise ValueError(f"{name!r} must continue after {ring.n_inserted} rows, got {n_before}")
        self._share_layouts(rows.values["layouts"])
        if segment.after_gap or is_stored is None:  # episodes must not continue with rows that may be there already
            ring.truncate()
        ring.append(rows, max(each.max_updated for each in self._rings.values()))
        self._n_inserted_by[name] += n_rows * ring.n_envs
        self._n_bytes_inserted += segment.block.nbytes
        return self._reply(ring)

    def _is_stored(self, ring: Ring, last: WriterPosition, n_rows: int) -> bool | None:
        """Return whether an earlier process has stored a segment; ``None`` if its ring was resized or replaced since.

        :param last: where its writer was before
        """
        if last.incarnation == self._incarnation or not ring.n_transitions:
            return False
        if (ring.n_rows, self._n_loads) != (last.n_rows, last.n_loads):
            return None
        return n_rows % ring.n_rows == (ring.buffer.pos - last.row) % ring.n_rows != 0

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, session: str, counts: Sequence[int], updates: PriorityUpdates | None = None) -> SampleReply:
        """Update priorities, and then draw the transitions of several batches.

        The block contains the arrays of :meth:`.Ring.sample`, those of a batch together, and the ring of each
        transition in ``"rings"``. Of each stream of observations it has a batch of payloads, in which the observations
        of a batch precede its next observations. With priorities, ``"total"`` is the sum of all.

        :param session: names the learner; a codec is sent once in a session
        :param counts: how many transitions of this shard each batch has
        :param updates: for :meth:`update_priorities`
        """
        if updates is not None:
            self.update_priorities(updates)
        n = sum(counts)
        rings = [ring for ring in self._rings.values() if ring.n_transitions]
        masses = np.array([ring.mass for ring in rings], dtype=np.float64)
        total = float(masses.sum()) if rings else 0.0
        if not total or not n:
            return SampleReply(None, {}, self.status())
        if session != self._learner:
            self._learner, self._sent = session, set()
        drawn = self._drawn(rings, masses / total, counts)
        drawn.values["total"] = total
        block = drawn.pack()
        new = {digest: codec for digest, codec in drawn.codecs.items() if digest not in self._sent}
        self._sent |= new.keys()
        self._n_sampled += n
        self._n_bytes_sampled += block.nbytes
        return SampleReply(block, new, self.status())

    def _drawn(self, rings: Sequence[Ring], shares: NDArray[np.float64], counts: Sequence[int]) -> Block:
        """Draw transitions from all rings, each in proportion to its share, in random order; see :meth:`sample`."""
        n = sum(counts)
        numbers = {id(ring): number for number, ring in enumerate(self._rings.values())}
        drawn = self._rng.multinomial(n, shares).tolist()
        parts = [(numbers[id(ring)], ring.sample(count)) for ring, count in zip(rings, drawn, strict=True) if count]
        blocks = [block for _, block in parts]
        # Stratified draws are in the order of their indices, and batches are consecutive parts.
        order = self._rng.permutation(n)
        arrays = {name: np.concatenate([block.arrays[name] for block in blocks])[order] for name in blocks[0].arrays}
        sizes = np.array([len(block.arrays["numbers"]) for block in blocks])
        arrays["rings"] = np.repeat([number for number, _ in parts], sizes).astype(np.int16)[order]
        # In each ring's block, as in a batch, the next observations follow the observations.
        of_observations = np.arange(n) + np.repeat(np.cumsum(sizes) - sizes, sizes)
        pairs = np.stack((of_observations, of_observations + np.repeat(sizes, sizes)))[:, order]  # [2, n]
        items = np.concatenate([pair.reshape(-1) for pair in np.split(pairs, np.cumsum(counts)[:-1], axis=1)])
        batches = {
            name: PayloadBatch.joined([block.batches[name] for block in blocks], items) for name in blocks[0].batches
        }
        return Block({"counts": list(counts), "layouts": blocks[0].values["layouts"]}, arrays, batches)

    def update_priorities(self, updates: PriorityUpdates) -> None:
        """Update the priorities of transitions; those that were overwritten or lost are skipped and counted."""
        self._n_skipped_updates += len(updates.numbers)
        for number, ring in enumerate(self._rings.values()):
            is_here = updates.rings == number
            if is_here.any():
                self._n_skipped_updates -= ring.update(updates.numbers[is_here], updates.td_errors[is_here])

    # -- state -----------------------------------------------------------------------------------------------

    def status(self) -> ShardStatus:
        """Return the state that each reply contains.

        :raises RuntimeError: if the learner has another version of this package
        :raises StorageError: if the folder contains shards of another run, which are not to be continued
        :raises CorruptStorage: if it is damaged
        :raises OSError: if it cannot be written; the next call tries again
        """
        if isinstance(self._error, OSError):
            self._open()
        if self._error is not None:
            raise self._error
        rings = self._rings.values()
        self._n_states += 1
        return ShardStatus(
            self._incarnation, sum(ring.n_transitions for ring in rings), sum(ring.mass for ring in rings),
            sum(self._n_inserted_by.values()), self._n_sampled, self._n_bytes_inserted, self._n_bytes_sampled,
            self._process.memory_info().rss, self._n_skipped_updates,
            self._n_restored, self._n_states - 1,
            dict(self._n_inserted_by),
        )  # fmt: skip

    def rings(self) -> dict[str, tuple[int, int]]:
        """Return the number of environments and of transitions of each ring by its name."""
        return {name: (ring.n_envs, ring.n_transitions) for name, ring in self._rings.items()}

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> int:
        """Return the id of the process while another call is running, such as a long save: this process answers."""
        return os.getpid()

    def save_checkpoint(self, folder: Path, cut: Path, incarnation: str) -> dict[str, SavedRing]:
        """Save all rings, and hard links of the saved state to the folder of a cut; return them by their writers.

        :param folder: receives what changed since the last save there
        :param cut: contains the rings of all shards; it must exist, since the learner removes it if a save fails
        :param incarnation: the process that the learner knows
        :raises ShardUnavailable: if this is another one, which may have lost transitions
        :raises StorageError: if the folder of the cut does not exist any more
        """
        if incarnation != self._incarnation:
            raise ShardUnavailable("a shard was restarted, so that the save would lack transitions; try again")
        rings: dict[str, SavedRing] = {}
        for name, ring in self._rings.items():
            ring.buffer.save_latest(ring_folder(folder, name))
            if not cut.is_dir():
                raise StorageError(f"{cut} was removed, since this save has failed or another one has replaced it")
            path = ring_folder(cut, name)
            ring.buffer.copy_checkpoint(path)
            digest = newest_segment_digest(path)
            assert digest is not None
            rings[name] = SavedRing(ring.n_transitions, digest)
        return rings

    def load_checkpoint(self, rings: Mapping[str, tuple[Path, int, int | None]], rows: Mapping[str, int]) -> None:
        """Replace all rings by those that were saved.

        :param rings: of each ring, by the name of its writer, the folder, the number of environments, and the number of
            transitions, ``None`` if that was not saved
        :param rows: as for :meth:`resize`
        :raises StorageError: if a folder does not contain such a ring
        :raises CorruptStorage: if it lacks transitions
        :raises OSError: if the folder of this shard cannot be written; it then contains some of these rings
        """
        for ring in self._rings.values():
            with contextlib.suppress(OSError):  # its transitions are replaced anyway
                ring.buffer.close()
        self._rows, self._rings = dict(rows), {}
        self._n_loads += 1
        self._save_rings()  # so that a process that is killed before it has loaded all of them begins without any
        for name, (folder, n_envs, size) in rings.items():
            if self._folder is None:
                ring = Ring(self._spec, rows[name], n_envs, {}, self._rng)
                ring.load(folder)
            else:
                target = ring_folder(self._folder, name)
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(folder, target, copy_function=shutil.copyfile)
                target.chmod(target.stat().st_mode | stat.S_IRWXU)  # checkpoints may be read-only
                ring = self._new_ring(name, n_envs, "resume")
            expected = ring.n_transitions if size is None else min(size, rows[name] * n_envs)
            if ring.n_transitions != expected:
                raise CorruptStorage(f"{folder} should contain {expected} transitions, got {ring.n_transitions}")
            self._include(name, ring).truncate()  # what follows is from another episode
        self._save_rings()
        if isinstance(self._error, OSError):
            self._error = None

    def close(self) -> None:
        """Flush and release the folder."""
        for ring in self._rings.values():
            ring.buffer.close()


def _read_rings(file: Path) -> tuple[str, dict[str, int], dict[str, int], int]:
    """Return the run, of each ring the number of rows and the number of environments, and how often they were replaced.

    :raises CorruptStorage: if the file is damaged
    """
    stored: Any = read_object(file)
    if "version" not in stored:
        raise old_file(str(file))
    js.check(SCHEMA, stored, str(file))
    sizes = stored["rings"].items()
    rows, rings = {name: size[0] for name, size in sizes}, {name: size[1] for name, size in sizes}
    return stored["run"], rows, rings, stored["loads"]
