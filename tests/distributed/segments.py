"""A writer without Ray: it stages rows, and calls a shard's methods directly."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed.emitted import NUMBERS, SPACES, observation, transition
from sb3_compressed.arrays.decoding import decode
from sb3_compressed.codecs import Codec
from sb3_compressed.distributed import shard
from sb3_compressed.distributed.block import Block, PackedBlock
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.encoded_rows import block_of
from sb3_compressed.distributed.ring_spec import RingSpec
from sb3_compressed.distributed.shard import InsertReply, SampleReply, Shard

ARGUMENTS = {"handle_timeout_termination": True}


def spec_of(kind: str, *, sampler: Any = "uniform", n_steps: int = 1, gamma: float = 0.9, **options: Any) -> RingSpec:
    """Return how the rings for a kind of observations are constructed."""
    return RingSpec(SPACES[kind], NUMBERS, {**ARGUMENTS, **options}, sampler, n_steps, gamma)


class Segment(NamedTuple):
    """A segment as it is sent.

    :param codecs: all its codecs
    """

    first: int
    n_rows: int
    block: PackedBlock
    codecs: dict[bytes, Codec]


class Client:
    """Sends the transitions of one vectorized environment to a shard; their numbers begin at ``first``.

    :param target: the shard
    :param spec: of its rings
    :param kind: of observations
    """

    def __init__(
        self, target: Shard | None, spec: RingSpec, kind: str, name: str = "w", n_envs: int = 1, first: int = 0
    ) -> None:
        self.shard, self.kind, self.name, self.n_envs = target, kind, name, n_envs
        self.session = uuid.uuid4().hex
        self.staging: Any = spec.staging(128, n_envs, 1)
        self.n_inserted = 0
        self.next = first

    def open(self) -> None:
        """Open the ring, as a new writer."""
        assert self.shard is not None
        self.session, self.n_inserted = uuid.uuid4().hex, 0
        self.position = self.shard.open_ring(self.name, self.session, self.n_envs).position

    def segment(self, n_rows: int) -> Segment:
        """Return the next rows."""
        for number in range(self.next, self.next + n_rows):
            transition(self.kind, number, self.n_envs, action=number * self.n_envs).add_to(self.staging)
        self.next += n_rows
        block = block_of(self.staging, np.arange(n_rows))
        self.staging.reset()
        segment = Segment(self.n_inserted, n_rows, block.pack(), block.codecs)
        self.n_inserted += n_rows
        return segment

    def insert(self, segment: Segment, *, after_gap: bool = False) -> InsertReply:
        """Send a segment."""
        assert self.shard is not None
        sent = shard.Segment(self.position._replace(n_inserted=segment.first), segment.block, after_gap)
        reply = self.shard.insert(self.name, self.session, self.n_envs, sent, segment.codecs)
        self.position = reply.position
        return reply

    def send(self, *lengths: int) -> None:
        """Send segments of these lengths, which are acknowledged."""
        for n_rows in lengths:
            self.insert(self.segment(n_rows))


class Samples(NamedTuple):
    """Decoded samples.

    :param observations: those of each part of a Dict space, ``""`` where there is no Dict
    """

    arrays: dict[str, NDArray[Any]]
    observations: dict[str, NDArray[Any]]
    next_observations: dict[str, NDArray[Any]]


def _decoded(batch: Any, layout: Any, kind: str, name: str) -> NDArray[Any]:
    space: Any = SPACES[kind]
    if kind == "dict":
        space = space.spaces[name.partition("/")[2]]
    out = np.empty((batch.n_items, *space.shape), space.dtype)
    decode(batch, layout, out)
    return out


def samples_of(block: Block, kind: str) -> Samples:
    """Decode what :meth:`.Ring.sample` returned."""
    return _batch(block, slice(0, len(block.arrays["numbers"])), kind)


def _batch(block: Block, part: slice, kind: str) -> Samples:
    """Decode the transitions of one batch in a block."""
    values = {name: array[part] for name, array in block.arrays.items()}
    for name, batch in block.batches.items():
        items = batch.part(2 * part.start, 2 * part.stop)
        both = _decoded(items, block.values["layouts"][name], kind, name)
        values |= {name: both[: len(both) // 2], f"next_{name}": both[len(both) // 2 :]}
    return _split(values)


def _split(values: dict[str, Any]) -> Samples:
    found = Samples({}, {}, {})
    for name, array in values.items():
        stream, _, key = name.partition("/")
        if "observations" in stream:
            getattr(found, stream)[key] = array
        else:
            found.arrays[name] = array
    return found


def batches_of(reply: SampleReply, kind: str, codecs: CodecCache) -> list[Samples]:
    """Decode the batches that :meth:`.Shard.sample` returned."""
    codecs.receive(reply.codecs)
    assert reply.block is not None
    block = Block.unpack(reply.block, codecs)
    found: list[Samples] = []
    first = 0
    for count in block.values["counts"]:
        found.append(_batch(block, slice(first, first + count), kind))
        first += count
    return found


def rewards_of(samples: Samples) -> dict[float, float]:
    """Return the reward of each transition by its action."""
    arrays = samples.arrays
    return dict(zip(arrays["actions"].reshape(-1), arrays["rewards"].reshape(-1), strict=True))


def assert_emitted(samples: Samples, kind: str, n_envs: int = 1) -> NDArray[np.int64]:
    """Assert that each sample is the transition that its action names; return their numbers."""
    actions = samples.arrays["actions"].reshape(-1).astype(np.int64)
    assert samples.arrays["rewards"].reshape(-1).tolist() == actions.tolist()
    for row, action in enumerate(actions.tolist()):
        number, env = divmod(action, n_envs)
        for found, each in ((samples.observations, number), (samples.next_observations, number + 1)):
            expected = observation(kind, each, env)
            for key, value in (expected if isinstance(expected, dict) else {"": expected}).items():
                assert np.array_equal(found[key][row].reshape(value.shape), value.astype(found[key].dtype)), (
                    action,
                    key,
                )
    return actions
