"""Measure ``sample_sequences``: stacked images against single transitions, and vectors in buffers of up to 30 million.

    python benchmarks/sequence_sampling.py --sources MsPacman Pong --sizes 100000 1000000 10000000

Batches are of 32 sequences of 80 transitions. On images, with the default method:

- ``80 x sample(32)``: as many single transitions;
- ``copies``: sequences with observations and next observations as copies; for SB3's buffer, which has no sequences,
  the time to copy the observations with NumPy, ``observations[rows, envs]`` of 81 rows; and
- ``copies, observations only``: with ``next_observations=False``.

On vectors, buffers are filled with random numbers and episodes of 20 to 1000 transitions. TorchRL's ``SliceSampler``
finds the ends of all episodes for each batch; its ``cache_values``, which are valid until a transition is added, are
off. Times are medians, with quartiles and minor page faults in the results.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Job, Measurement
from metrics import CallTimer, one_thread
from ratios import Results
from session import available, parser, run_interleaved, save, serve
from sources import record
from tables import markdown

from adapters.buffer_names import split_name, title

BATCH_SIZE, LENGTH = 32, 80
N_ENVS = 4
BUFFERS = ["auto", "auto@1", "torchrl"]
SOURCES, IMAGES_SIZE = ["MsPacman", "Pong", "Breakout"], 20_000
SIZES = [100_000, 1_000_000, 10_000_000, 30_000_000]
SINGLE = f"{LENGTH} x sample({BATCH_SIZE})"
COPIES, ONLY = "copies", "copies, observations only"
VECTORS = "vectors"
WARM_CALLS, TIMED_CALLS = 3, 40


def measure(name: str, source: str, size: int, length: int = LENGTH) -> Measurement:
    """Return microseconds per batch, by what is sampled.

    :param name: a buffer
    :param source: a source of images, or ``vectors``
    :param size: transitions in the buffer
    :param length: transitions of a sequence
    """
    one_thread()
    if source != VECTORS:
        return _measure_images(name, source, size, length)
    return _measure_torchrl(size, length) if split_name(name)[0] == "torchrl" else _measure_vectors(size, length)


def _measure_images(name: str, source: str, size: int, length: int) -> Measurement:
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_compressed import CompressedReplayBuffer

    library, method, num_threads = split_name(name)
    recording = record(source, N_ENVS, size // N_ENVS)
    spaces = recording.observation_space, recording.action_space
    options: dict[str, Any] = {"device": "cpu", "n_envs": N_ENVS}
    if library == "sb3":
        buffer: Any = ReplayBuffer(size, *spaces, **options)
    else:
        buffer = CompressedReplayBuffer(size, *spaces, **options, compression_method=method, num_threads=num_threads)
    for step in islice(play(recording), size // N_ENVS):
        step.add_to(buffer)
    result: Measurement = {}

    def single() -> None:
        for _ in range(length):
            buffer.sample(BATCH_SIZE)

    _time(result, SINGLE, single)
    if library == "sb3":
        last = buffer.size() - length - 1
        steps = np.arange(length + 1)
        rng = np.random.default_rng(0)

        def copies() -> Any:
            rows, envs = rng.integers(0, last, (BATCH_SIZE, 1)), rng.integers(0, N_ENVS, (BATCH_SIZE, 1))
            return buffer.observations[rows + steps, envs]

        _time(result, COPIES, copies)
        return {**result, "wrong": ""}
    _time(result, COPIES, lambda: buffer.sample_sequences(BATCH_SIZE, length))
    _time(result, ONLY, lambda: buffer.sample_sequences(BATCH_SIZE, length, next_observations=False))
    return {**result, "wrong": _differences(buffer, length)}


def _differences(buffer: Any, length: int) -> str:
    """Return which sequences are not what the buffer's arrays contain."""
    samples = buffer.sample_sequences(BATCH_SIZE, length)
    for number, index in enumerate(samples.indices.tolist()):
        row, env = divmod(index, buffer.n_envs)
        rows = (row + np.arange(length)) % buffer.buffer_size
        for field in ("observations", "next_observations"):
            if not np.array_equal(getattr(samples, field)[number], getattr(buffer, field)[rows, env]):
                return f"{field} of a sequence"
    return ""


def _time(result: Measurement, key: str, function: Any) -> None:
    timer = CallTimer()
    kept: list[Any] = []  # the previous batch still has a name when the next one is sampled, as in training

    def call() -> None:
        kept[:] = [function()]

    for _ in range(WARM_CALLS):
        call()
    for _ in range(TIMED_CALLS):
        timer.call(call)
    timer.add_to(result, key)


def _episode_ends(size: int) -> Any:
    """Return whether an episode ends with each transition, ``(size,)``."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(20, 1001, size // 20 + 1)) - 1
    is_end = np.zeros(size, dtype=np.bool_)
    is_end[ends[ends < size]] = True
    return is_end


def _measure_vectors(size: int, length: int) -> Measurement:
    from gymnasium import spaces

    from sb3_compressed import CompressedReplayBuffer

    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    buffer = CompressedReplayBuffer(size, box, spaces.Discrete(4), device="cpu")
    # As if they had been added, which would take minutes.
    buffer.observations[:, 0] = np.random.default_rng(0).random((size, 4), np.float32)
    buffer.next_observations[:-1] = buffer.observations[1:]
    buffer.dones[:, 0] = _episode_ends(size)
    buffer.full, buffer.pos = True, size // 3
    result: Measurement = {}
    _time(result, COPIES, lambda: buffer.sample_sequences(BATCH_SIZE, length))
    return {**result, "wrong": _differences(buffer, length)}


def _measure_torchrl(size: int, length: int) -> Measurement:
    import torch as th
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import SliceSampler

    sampler = SliceSampler(slice_len=length, end_key=("next", "done"), traj_key=None, strict_length=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=BATCH_SIZE * length)
    observations = th.rand(size + 1, 4)
    done = th.from_numpy(_episode_ends(size))[:, None]
    following = TensorDict(
        {"observation": observations[1:], "reward": th.zeros(size, 1), "done": done, "truncated": th.zeros_like(done)},
        batch_size=[size],
    )
    transitions = {"observation": observations[:-1], "action": th.zeros(size, 1), "next": following}
    buffer.extend(TensorDict(transitions, batch_size=[size]))
    result: Measurement = {}
    _time(result, COPIES, buffer.sample)
    return {**result, "wrong": ""}


def tables(results: Results) -> list[str]:
    """Return a table of images, in milliseconds and relative to single transitions, and one of vectors."""
    images, vectors = [], []
    for label, of_label in results.items():
        for name, measured in of_label.items():
            if COPIES not in measured:
                continue
            if label.startswith(VECTORS):
                vectors.append([label.partition(", ")[2], title(name), f"{measured[COPIES] / 1e3:.2f}"])
                continue
            cells = [f"{measured[SINGLE] / 1e3:.2f}"]
            for key in (COPIES, ONLY):
                time = measured.get(key)
                cells.append(f"{time / 1e3:.2f} ({measured[SINGLE] / time:.1f}x as fast)" if time else "")
            cells.append(f"{measured['faults'][COPIES]:.0f}")
            images.append([label, title(name), *cells])
    header = ["source", "buffer", *(f"{key}, ms" for key in (SINGLE, COPIES, ONLY)), "page faults"]
    found = [markdown(header, images)] if images else []
    return found + (
        [markdown(["transitions of vectors", "buffer", "32 sequences of 80, ms"], vectors)] if vectors else []
    )


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="sources of images (default: %(default)s)")
    flags.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of vectors (default: %(default)s)")
    arguments = flags.parse_args()
    images_size, length = IMAGES_SIZE, LENGTH
    if arguments.smoke:
        arguments.sources, arguments.sizes, arguments.rounds = arguments.sources[:1], [400, 2000], 1
        images_size, length = 400, 5
    names = available(["SB3", *arguments.buffers], arguments.peers)
    for source in arguments.sources:
        record(source, N_ENVS, images_size // N_ENVS)
    jobs = [
        Job(source, name, {"source": source, "size": images_size, "length": length})
        for source in arguments.sources
        for name in names
        if split_name(name)[0] != "torchrl"
    ]
    jobs += [
        Job(f"{VECTORS}, {size:,}", name, {"source": VECTORS, "size": size, "length": length})
        for size in sorted(arguments.sizes)
        for name in names
        if name in ("auto", "torchrl")
    ]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    options = {"sources": arguments.sources, "size": images_size, "rounds": arguments.rounds}
    save(arguments.out, "sequence_sampling", options, results, arguments.peers)
    print("\n\n".join(tables(results)))


if __name__ == "__main__":
    serve(measure)
    main()
