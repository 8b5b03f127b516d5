"""Shards store each segment once, survive kills, and sample all rings with the right probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chi_square import assert_frequencies

from distributed.emitted import SPACES
from distributed.segments import Client, Samples, assert_emitted, batches_of, rewards_of, spec_of
from distributed.stopped import full_disk
from sb3_compressed import CorruptStorage, StorageError
from sb3_compressed.distributed.checkpoint_manifest import ring_folder
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.shard import PriorityUpdates, Shard, WriterReplaced
from sb3_compressed.errors import MissingCodec, ShardUnavailable
from sb3_compressed.samplers import PrioritizedSampler

WHERE = ["memory", "folder"]


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Sharded:
    """A shard, its clients, and a learner that samples.

    :param kind: of observations
    """

    def __init__(
        self, kind: str, n_rows: int = 100, folder: Path | None = None, run: str = "run", **options: Any
    ) -> None:
        self.kind, self.folder, self.n_rows, self.run = kind, folder, n_rows, run
        self.spec = spec_of(kind, **options)
        self.shard = self.opened()
        self.codecs = CodecCache()

    def opened(self, run: str | None = None, mode: Any = "create") -> Shard:
        return Shard(self.spec, self.n_rows, self.folder, run or self.run, mode, 0)

    def client(self, name: str = "w", n_envs: int = 1, first: int = 0) -> Client:
        client = Client(self.shard, self.spec, self.kind, name, n_envs, first)
        client.open()
        return client

    def batches(self, *counts: int, session: str = "learner") -> list[Samples]:
        return batches_of(self.shard.sample(session, counts), self.kind, self.codecs)

    def update(self, rings: Any, numbers: Any, errors: Any) -> Any:
        """Update priorities, with a request for one transition; return the state after it."""
        updates = PriorityUpdates(rings, numbers, errors)
        return self.shard.sample("learner", [1], updates).status

    def numbers(self, n: int = 400, n_envs: int = 1) -> list[int]:
        """Return the numbers of transitions that can be sampled, which are verified."""
        [samples] = self.batches(n)
        found: list[int] = np.unique(assert_emitted(samples, self.kind, n_envs)).tolist()
        return found


def sharded(kind: str, where: str, tmp_path: Path, **options: Any) -> Sharded:
    return Sharded(kind, folder=tmp_path / "shard" if where == "folder" else None, **options)


def content(shard: Shard, name: str = "w") -> list[int]:
    """Return the actions in a ring, the oldest first."""
    buffer: Any = shard._rings[name].buffer
    rows = np.arange(buffer.pos - buffer.size(), buffer.pos)
    actions: list[int] = buffer.actions[rows].reshape(-1).tolist()
    return actions


# -- each segment once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
def test_a_segment_that_is_sent_again_is_stored_once(where: str, tmp_path: Path) -> None:
    own = sharded("images", where, tmp_path)
    client = own.client()
    first, second = client.segment(10), client.segment(5)
    assert client.insert(first).position[1:4] == (10, 100, 10)
    for _ in range(3):
        client.insert(first)
    assert client.insert(second).position.row == 15
    client.insert(second)
    assert content(own.shard) == [*range(15)]
    assert own.shard.status().n_inserted == 15
    with pytest.raises(ValueError, match="must continue after 15 rows, got 0"):
        client.insert(first)
    assert content(own.shard) == [*range(15)]


@pytest.mark.parametrize("n_rows", [1, 2, 3, 10])
def test_a_segment_after_a_missing_one_is_refused(n_rows: int) -> None:
    own = Sharded("vector", n_rows)
    client = own.client()
    client.send(1)
    _, second = client.segment(1), client.segment(1)
    with pytest.raises(ValueError, match="must continue after 1 rows, got 2"):
        client.insert(second)
    assert content(own.shard) == [0]


def test_the_same_writer_continues_where_it_is() -> None:
    own = Sharded("vector", 10)
    client = own.client()
    client.send(7, 8)
    own.shard.resize({"w": 4})
    client.send(3)
    assert content(own.shard) == [14, 15, 16, 17]
    own.shard.reset()
    client.send(3)
    assert content(own.shard) == [18, 19, 20]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_segment_is_sent_to_a_restarted_shard(is_stored: bool, tmp_path: Path) -> None:
    own = Sharded("vector", folder=tmp_path / "shard")
    client = own.client()
    client.send(7)
    segment, position = client.segment(3), client.position
    if is_stored:
        client.insert(segment)
    own.shard.close()
    own.shard = client.shard = own.opened()
    client.position = position
    client.insert(segment)
    assert content(own.shard) == [*range(10)]
    client.send(2)
    assert content(own.shard) == [*range(12)]


def test_episodes_do_not_continue_with_a_segment_that_may_be_stored_already(tmp_path: Path) -> None:
    own = Sharded("vector", folder=tmp_path / "shard")
    client = own.client()
    client.send(7)
    segment, position = client.segment(3), client.position
    client.insert(segment)
    own.shard.resize({"w": 50})
    own.shard.close()
    own.shard = client.shard = own.opened()
    client.position = position
    client.insert(segment)
    buffer = own.shard._rings["w"].buffer
    assert content(own.shard) == [*range(10), 7, 8, 9]
    assert buffer.dones[9].all()
    assert not (buffer.dones[9] * (1 - buffer.timeouts[9])).any()


@pytest.mark.parametrize("n_rows", [3, 7])
def test_a_segment_is_stored_by_a_shard_that_was_restarted_after_a_load(n_rows: int, tmp_path: Path) -> None:
    """The checkpoint ended where the segment would end, so it was taken for stored."""
    saved = Sharded("vector", folder=tmp_path / "saved")
    saved.client(first=500).send(10)
    (tmp_path / "cut").mkdir()
    saved.shard.save_checkpoint(tmp_path / "newest", tmp_path / "cut", saved.shard.status().incarnation)
    saved.shard.close()
    own = Sharded("vector", folder=tmp_path / "shard")
    client = own.client()
    client.send(10 - n_rows)
    own.shard.load_checkpoint({"w": (ring_folder(tmp_path / "cut", "w"), 1, 10)}, {"w": 100})
    own.shard.close()
    own.shard = client.shard = own.opened()
    client.send(n_rows)
    assert content(own.shard) == [*range(500, 510), *range(10 - n_rows, 10)]
    client.send(2)
    assert content(own.shard)[-2:] == [10, 11]


def test_another_writer_takes_over_a_ring() -> None:
    own = Sharded("vector")
    first = own.client()
    first.send(5)
    second = own.client(first=1000)
    segment = first.segment(2)
    with pytest.raises(WriterReplaced, match="'w'"):
        first.insert(segment)
    second.send(2)
    assert content(own.shard) == [0, 1, 2, 3, 4, 1000, 1001]
    first.open()  # a new one of this name
    first.send(1)
    with pytest.raises(WriterReplaced):
        second.insert(second.segment(2))


def test_a_ring_stays_as_it_was_if_it_cannot_be_resized(tmp_path: Path) -> None:
    """Wherever the disk becomes full."""
    own = Sharded("images", folder=tmp_path / "shard")
    client = own.client()
    client.send(80)
    own.shard.resize({"w": 100, "x": 1})  # so that only the ring's own folder is written below
    n_failed = 0
    for limit in (1000 << each for each in range(20)):
        try:
            with full_disk(limit):
                own.shard.resize({"w": 60, "x": 1})
            break
        except OSError:
            n_failed += 1
        client.send(1)
        assert content(own.shard) == [*range(max(n_failed - 20, 0), 80 + n_failed)]
    assert n_failed > 3
    client.send(1)
    assert content(own.shard) == [*range(21 + n_failed, 81 + n_failed)]


@pytest.mark.parametrize("mode", ["create", "resume", "overwrite"])
def test_a_list_of_rings_of_a_version_before_0_5_is_refused(mode: Any, tmp_path: Path) -> None:
    own = Sharded("images", 60, folder=tmp_path / "shard")
    own.client("a").send(80)
    own.shard.close()
    stored = {"run": "run", "rows": {"a": 60}, "rings": {"a": 1}, "loads": 0}
    (tmp_path / "shard" / "rings.json").write_text(json.dumps(stored))
    before = files_in(tmp_path)
    with pytest.raises(StorageError, match=r"rings\.json was written by version 0\.4 .*0\.5\.0"):
        own.opened(mode=mode).status()
    assert files_in(tmp_path) == before


def test_rings_keep_their_number_of_environments() -> None:
    own = Sharded("vector")
    client = own.client("other", 2)
    client.n_envs = 3
    with pytest.raises(ValueError, match=r"'other' has 2 .* has 3"):
        client.open()


def test_missing_codecs_are_reported() -> None:
    own = Sharded("images")
    client = own.client()
    client.send(80)
    segment = client.segment(10)
    other = Sharded("images")
    client.shard = other.shard
    client.open()
    with pytest.raises(MissingCodec) as caught:
        client.insert(segment._replace(first=0, codecs={}))
    assert set(caught.value.digests) <= segment.codecs.keys()
    assert not other.shard.status().n_transitions
    client.insert(segment._replace(first=0))
    assert content(other.shard) == [*range(80, 90)]


# -- gaps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", ["gap", "writer", "reopened", "same"])
def test_episodes_do_not_continue_after_a_gap(how: str, where: str, tmp_path: Path) -> None:
    own = sharded("vector", where, tmp_path, n_steps=3)
    client = own.client()
    client.send(20)
    if how == "gap":
        client.insert(client.segment(5), after_gap=True)
    elif how == "writer":
        client = own.client(first=20)
        client.send(5)
    else:
        if where == "folder" and how == "reopened":
            own.shard.close()
            own.shard = client.shard = own.opened()
        client.send(5)
    [samples] = own.batches(400)
    rewards = rewards_of(samples)
    is_cut = how in ("gap", "writer")
    assert rewards[19] == pytest.approx(19 if is_cut else 19 + 0.9 * 20 + 0.81 * 21)
    assert rewards[18] == pytest.approx(18 + 0.9 * 19 if is_cut else 18 + 0.9 * 19 + 0.81 * 20)
    assert rewards[17] == pytest.approx(17 + 0.9 * 18 + 0.81 * 19)


# -- folders -------------------------------------------------------------------------------------------------


def test_a_restarted_shard_continues_with_its_folder(tmp_path: Path) -> None:
    own = Sharded("images", folder=tmp_path / "shard")
    clients = [own.client("a", 2), own.client("b/c", 1, first=5000)]
    for client in clients:
        client.send(30)
    own.shard.resize({"a": 60, "b/c": 20})
    clients[0].send(40)
    before = [content(own.shard, name) for name in ("a", "b/c")]
    own.shard.close()
    for run, mode in (("run", "create"), ("run", "overwrite"), ("run", "resume"), ("another run", "resume")):
        again = own.opened(run, mode)
        assert [content(again, name) for name in ("a", "b/c")] == before
        assert again.rings() == {"a": (2, 120), "b/c": (1, 20)}
        again.close()
    own.shard = clients[0].shard = own.opened("another run")
    clients[0].send(3)
    assert clients[0].position[1:3] == (13, 60)
    assert content(own.shard, "a") == [*range(2 * 13, 2 * 73)]


def test_a_shard_may_be_restarted_while_its_disk_is_full(tmp_path: Path) -> None:
    """It wrote the list of its rings, and could not be used any more, also when there was room again."""
    own = Sharded("images", folder=tmp_path / "shard")
    own.client().send(30)
    own.shard.close()
    with full_disk():
        assert content(own.opened()) == [*range(30)]
        continued = own.opened("another run", "resume")
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                continued.status()
    assert continued.status().n_restored == 30
    assert content(continued) == [*range(30)]
    own.shard = continued
    own.client(first=30).send(30)
    assert content(continued) == [*range(60)]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_load_that_fails_leaves_no_earlier_transitions(tmp_path: Path, is_flushed: bool) -> None:
    """Rings that could not be flushed stayed, so that batches consisted of both."""
    saved = Sharded("images", folder=tmp_path / "saved")
    for name in ("w", "x"):
        saved.client(name, 2).send(30)
    (tmp_path / "cut").mkdir()
    saved.shard.save_checkpoint(tmp_path / "newest", tmp_path / "cut", saved.shard.status().incarnation)
    saved.shard.close()
    rings = {name: (ring_folder(tmp_path / "cut", name), 2, 60) for name in ("w", "x")}
    for limit in (1 << each for each in range(0, 30, 2)):
        own = Sharded("images", folder=tmp_path / str(limit))
        own.client("w", first=500).send(40)
        ring: Any = own.shard._rings["w"]
        if is_flushed:
            ring.buffer.flush()
        else:
            ring.buffer.rewards[0] += 1
        try:
            with full_disk(limit):
                own.shard.load_checkpoint(rings, {"w": 100, "x": 100})
            break
        except OSError:
            assert all(content(own.shard, name) == [*range(60)] for name in own.shard.rings())
        client = own.client("x", 2)
        client.send(3)
        own.shard.load_checkpoint(rings, {"w": 100, "x": 100})
        assert own.shard.rings() == {"w": (2, 60), "x": (2, 60)}
        own.shard.close()
    with pytest.raises(CorruptStorage, match="should contain 61"):
        own.shard.load_checkpoint({"w": (*rings["w"][:2], 61)}, {"w": 100})
    own.shard.load_checkpoint(rings, {"w": 100, "x": 100})
    assert limit > 2000
    assert own.shard.rings() == {"w": (2, 60), "x": (2, 60)}


@pytest.mark.parametrize("where", WHERE)
def test_a_checkpoint_replaces_the_content(where: str, tmp_path: Path) -> None:
    saved = Sharded("images", folder=tmp_path / "saved")
    saved.client().send(30)
    (tmp_path / "cut").mkdir()
    incarnation = saved.shard.status().incarnation
    with pytest.raises(ShardUnavailable, match="was restarted"):
        saved.shard.save_checkpoint(tmp_path / "newest", tmp_path / "cut", "of another process")
    with pytest.raises(StorageError, match="was removed"):
        saved.shard.save_checkpoint(tmp_path / "newest", tmp_path / "missing", incarnation)
    saved.shard.save_checkpoint(tmp_path / "newest", tmp_path / "cut", incarnation)
    own = sharded("images", where, tmp_path, n_rows=20)
    own.client("x", first=500).send(40)
    own.shard.load_checkpoint({"w": (ring_folder(tmp_path / "cut", "w"), 1, 30)}, {"w": 20})
    assert content(own.shard) == [*range(10, 30)]
    own.client(first=30).send(5)
    assert content(own.shard) == [*range(15, 35)]
    assert own.numbers() == [*range(15, 35)]


@pytest.mark.parametrize("where", WHERE)
def test_a_shard_is_empty_after_a_reset(where: str, tmp_path: Path) -> None:
    own = sharded("images", where, tmp_path)
    own.client().send(30)
    own.shard.reset()
    if where == "folder":
        own.shard.close()
        own.shard = own.opened()
    assert own.shard.status().n_transitions == 0
    own.client(first=50).send(5)
    assert own.numbers() == [*range(50, 55)]


def test_the_folder_of_another_run_is_refused_or_overwritten(tmp_path: Path) -> None:
    own = Sharded("images", folder=tmp_path / "shard")
    own.client().send(30)
    own.shard.close()
    refused = own.opened("another run")
    with pytest.raises(StorageError, match="contains a shard; pass storage_mode='resume'"):
        refused.status()
    with pytest.raises(StorageError, match="contains a shard"):
        refused.open_ring("w", "s", 1)
    assert content(own.opened()) == [*range(30)]
    replaced = own.opened("another run", "overwrite")
    assert replaced.status().n_transitions == 0
    assert [path.name for path in (tmp_path / "shard").iterdir()] == ["rings.json"]
    own.shard = replaced
    own.client().send(5)
    replaced.close()
    assert content(own.opened("another run")) == [*range(5)]
    with pytest.raises(StorageError, match="contains a shard"):
        own.opened("run").status()


RINGS: dict[str, Any] = {"version": 1, "run": "run", "rings": {"w": [9, 1]}, "loads": 0}
INVALID_RINGS: list[dict[str, Any]] = [
    {"version": 2}, {"version": "1"}, {"run": 1}, {"rings": []}, {"rings": {"w": 9}}, {"rings": {"w": [9]}},
    {"rings": {"w": [0, 1]}}, {"rings": {"w": [9, "1"]}}, {"loads": -1}, {"loads": "1"},
]  # fmt: skip
DAMAGED = ["", "[]", "\xff", '{"version": 1}', *(json.dumps(RINGS | changes) for changes in INVALID_RINGS)]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_list_of_rings_is_reported(text: str, tmp_path: Path) -> None:
    own = Sharded("images", folder=tmp_path / "shard")
    own.client().send(30)
    own.shard.close()
    (tmp_path / "shard" / "rings.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageError, match=r"rings\.json"):
        own.opened().status()
    assert (tmp_path / "shard" / "ring-w").exists()


def test_a_list_of_rings_leads_to_no_other_folder(tmp_path: Path) -> None:
    own = Sharded("vector", folder=tmp_path / "shard")
    own.client("../../x").send(3)
    own.shard.close()
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]
    assert content(own.opened(), "../../x") == [0, 1, 2]


# -- sampling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", SPACES)
def test_samples_are_transitions(kind: str, where: str, tmp_path: Path) -> None:
    own = sharded(kind, where, tmp_path)
    clients = [own.client(name, first=first) for name, first in (("a", 0), ("b", 3000), ("c", 7000))]
    clients[0].send(3)
    clients[1].send(40, 1)
    clients[2].send(90, 50)
    batches = own.batches(20, 1, 0, 50)
    assert [len(samples.arrays["actions"]) for samples in batches] == [20, 1, 0, 50]
    numbers = np.concatenate([assert_emitted(samples, kind) for samples in batches])
    assert {number // 1000 for number in numbers.tolist()} >= {3, 7}
    for samples in batches:
        for ring, action, number in zip(
            *(samples.arrays[name].reshape(-1).tolist() for name in ("rings", "actions", "numbers")), strict=True
        ):
            assert action == (0, 3000, 7000)[ring] + (number if ring < 2 else action - 7000)


def test_nothing_to_sample() -> None:
    own = Sharded("images")
    assert own.shard.sample("s", [3])[:2] == (None, {})
    own.client()
    assert own.shard.sample("s", [3])[:2] == (None, {})
    own.client().send(3)
    assert own.shard.sample("s", [0, 0])[:2] == (None, {})
    assert own.shard.sample("s", [])[:2] == (None, {})


@pytest.mark.parametrize("sampler", ["uniform", "recent"])
def test_uniform_draws_over_rings(sampler: str) -> None:
    own = Sharded("vector", 40, sampler=sampler)
    for name, n_envs, n_rows, first in (("a", 1, 10, 0), ("b", 2, 20, 50), ("c", 1, 60, 200)):
        own.client(name, n_envs, first).send(n_rows)
    expected = [*range(10), *range(100, 140), *range(220, 260)]
    counts = np.zeros(300)
    firsts = np.zeros((2, 300))
    for _ in range(100):
        for batch, samples in enumerate(own.batches(100, 50)):
            drawn = samples.arrays["actions"].reshape(-1).astype(int)
            np.add.at(counts, drawn, 1)
            np.add.at(firsts[batch], drawn, 1)
    assert set(np.flatnonzero(counts)) <= {*expected}
    # Of each ring, as many as it has.
    assert_frequencies([counts[:50].sum(), counts[50:150].sum(), counts[150:].sum()], [10, 40, 40])
    if sampler == "uniform":
        for each in (counts, firsts[0], firsts[1]):
            assert_frequencies(each[expected])


def test_prioritized_draws_over_rings() -> None:
    own = Sharded("vector", 40, sampler=PrioritizedSampler(alpha=1.0, epsilon=0.0))
    for name, n_envs, n_rows, first in (("a", 1, 10, 0), ("b", 2, 20, 50), ("c", 1, 60, 200)):
        own.client(name, n_envs, first).send(n_rows)
    expected = np.array([*range(10), *range(100, 140), *range(220, 260)])
    everything = own.batches(4000)[0].arrays
    _, chosen = np.unique(everything["actions"].reshape(-1), return_index=True)
    assert len(chosen) == len(expected)
    errors = np.random.default_rng(3).uniform(0.5, 3, len(expected))
    errors[:10] *= 4
    own.update(everything["rings"][chosen], everything["numbers"][chosen], errors)
    assert own.shard.status().n_skipped_updates == 0
    np.testing.assert_allclose(own.shard.status().mass, errors.sum())
    counts = np.zeros((3, 300))
    for _ in range(60):
        reply = own.shard.sample("learner", [64, 64, 64])
        for batch, samples in enumerate(batches_of(reply, "vector", own.codecs)):
            drawn = samples.arrays["actions"].reshape(-1).astype(int)
            np.add.at(counts[batch], drawn, 1)
            np.testing.assert_array_equal(samples.arrays["priorities"], errors[np.searchsorted(expected, drawn)])
    for each in (counts.sum(axis=0), *counts):
        assert_frequencies(each[expected], errors)


def priorities(own: Sharded) -> dict[int, float]:
    """Return the priority of each transition."""
    arrays = own.batches(5000)[0].arrays
    pairs = zip(arrays["actions"].reshape(-1).tolist(), arrays["priorities"].tolist(), strict=True)
    return {int(action): priority for action, priority in pairs}


@pytest.mark.parametrize("where", WHERE)
def test_new_transitions_have_the_largest_priority_of_all_rings(where: str, tmp_path: Path) -> None:
    """As in one buffer, where it may also fall."""
    own = sharded("vector", where, tmp_path, sampler=PrioritizedSampler(alpha=1.0, epsilon=0.0))
    clients = [own.client(name, first=first) for name, first in (("a", 0), ("b", 100))]
    for client in clients:
        client.send(20)
    assert {*priorities(own).values()} == {1.0}
    arrays = own.batches(5000)[0].arrays
    chosen = np.flatnonzero(arrays["actions"].reshape(-1) == 4)[:1]
    rings, number = arrays["rings"][chosen], arrays["numbers"][chosen]
    for number_of_b, error in ((120, 7.0), (121, 0.25)):
        own.update(rings, number, np.array([error]))
        clients[1].send(1)
        assert priorities(own)[number_of_b] == error


def test_updates_precede_the_draws_of_their_request() -> None:
    own = Sharded("vector", sampler=PrioritizedSampler(alpha=1.0, epsilon=0.0))
    own.client().send(20)
    arrays = own.batches(1000)[0].arrays
    errors = np.where(arrays["actions"].reshape(-1) == 3, 5.0, 0.0)
    updates = PriorityUpdates(arrays["rings"], arrays["numbers"], errors)
    [samples] = batches_of(own.shard.sample("learner", [64], updates), "vector", own.codecs)
    assert {*samples.arrays["actions"].reshape(-1).tolist()} == {3}
    assert own.shard.status().n_skipped_updates == 0


def test_updates_of_another_process_are_skipped() -> None:
    old, new = (Sharded("vector", sampler=PrioritizedSampler()) for _ in range(2))
    new.shard = Shard(new.spec, new.n_rows, None, "run", "create", 1)  # a restarted one has other random numbers
    for own in (old, new):
        own.client().send(20)
    arrays = old.batches(100)[0].arrays
    mass = new.shard.status().mass
    assert new.update(arrays["rings"], arrays["numbers"], np.ones(100)).mass == mass
    assert new.update(arrays["rings"] + 1, arrays["numbers"], np.ones(100)).n_skipped_updates == 200


# -- layouts -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:frames do not repeat")
@pytest.mark.parametrize("where", WHERE)
def test_rings_of_writers_with_other_layouts(where: str, tmp_path: Path) -> None:
    own = sharded("images", where, tmp_path)
    first, second = own.client("a"), own.client("b", first=3000)
    unknown = own.client("c", first=6000)
    unknown.send(2)  # whole items
    second.staging = spec_of("images", frame_stack=2).staging(128, 1, 1)
    second.send(20)
    own.numbers(100)
    first.send(20)

    later = own.client("d", first=9000)
    later.send(1, 30)
    for client in (first, second, unknown):
        client.send(30)
    if where == "folder":
        own.shard.close()
        own.shard = own.opened()
    assert {number // 1000 for number in own.numbers(300)} == {0, 3, 6, 9}


def test_another_version_is_refused() -> None:
    shard = Shard(spec_of("images"), 10, None, "run", "create", 0, version="0.0.1")
    with pytest.raises(RuntimeError, match=r"the learner has sb3-compressed 0\.0\.1, but this node has"):
        shard.status()
