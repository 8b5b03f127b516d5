"""Measure the coders that ``auto`` chooses between, and fit the costs in ``sb3_compressed/codecs/coder_choice.py``.

    python benchmarks/coder_times.py
    python benchmarks/coder_times.py --sources Pong CarRacing-v3
    python benchmarks/coder_times.py --frames recorded/*.npy

It prints the times of each variant of the codec beside what the present costs estimate, and then the costs that fit
best: ``COSTS`` of ``coder_choice.py``, as Python code. ``--frames`` takes arrays of recorded frames ``(steps, envs,
height, width, channels)`` of uint8 instead of ``--sources``; other files are skipped.

The codec is trained on the first half of the frames. Each variant of it (deltas or none, with each other coder)
encodes frames of the second half, one step of all environments at a time, from memory in the order in which they are
added. Batches of 32 and 256 payloads in random order are decoded to reused memory. In between, rows of a large array
are copied as SB3's buffer does it, so little of the payloads is in the cache. Times are CPU times of the thread, of
each call the shortest of all rounds. The costs minimize the squares of the relative errors, and none is negative.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3.common.buffers as sb3
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from session import CONSOLE, parser, save
from sources import Source, record
from tables import markdown

from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.benchmarking.frame_recording import play
from sb3_compressed.benchmarking.metrics import one_thread
from sb3_compressed.codecs.adaptive import Adaptive
from sb3_compressed.codecs.coder_choice import (
    COSTS,
    COUNTS,
    OBJECTIVES,
    Variant,
    Work,
    best_variant,
    decoding_work,
    encoding_work,
    estimated_ns,
    frame_work,
)
from sb3_compressed.codecs.payloads import Payloads

SOURCES = ["MsPacman", "Pong", "Seaquest", "SpaceInvaders", "CarRacing-v3", "Crafter-v0", "ProcgenCoinrun-v0"]
SOURCES += [
    "ProcgenStarpilot-v0",
    "ProcgenBigfish-v0",
    "DoomHealth84-v0",
    "DoomHealth120x160-v0",
    "DoomDeathmatch84-v0",
]
SOURCES += [
    "DoomDeathmatch84Nearest-v0",
    "DoomDeathmatch120x160Nearest-v0",
    "MiniGridRooms-v0",
    "MiniGridWholeRooms-v0",
]
SOURCES += ["Video128-v0", "Noise84-v0"]
N_ENVS, N_STEPS = 4, 1_500
BATCH_SIZES = 32, 256
#: Frames that are measured, and the most bytes of them.
N_MEASURED, MAX_NBYTES = 2_048, 100_000_000
#: Frames of a training sample.
N_TRAINING = 96
#: The size of the array that stands for SB3's buffer.
LARGE_NBYTES = 400_000_000
PROCESSES = "sampling", "adding", "decoding", "encoding"
#: The work that each call takes besides that for its frames. Its cost is printed, but not one of a coder.
CALL = "call"


class AllVariants(Adaptive):
    """A codec that training leaves with everything that any variant needs."""

    def _with_best_coder(self, frames: NDArray[Any], previous: Adaptive) -> Adaptive:
        return self


class Untrained(Adaptive):
    """A codec that remains as it is."""

    def train(self, frames: NDArray[Any]) -> Adaptive:
        """Return this codec."""
        return self


class Times:
    """The shortest CPU times of calls in nanoseconds, by number."""

    def __init__(self) -> None:
        self._shortest: dict[int, int] = {}

    def call(self, number: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call a function; calls of the same number do the same work."""
        start = time.thread_time_ns()
        function(*args, **kwargs)
        elapsed = time.thread_time_ns() - start
        self._shortest[number] = min(elapsed, self._shortest.get(number, elapsed))

    @property
    def mean(self) -> float:
        """The mean of all calls."""
        return sum(self._shortest.values()) / len(self._shortest)


class Row(NamedTuple):
    """A measurement.

    :param process: a key of ``COSTS``
    :param variant: what processed the frames
    :param work: the work of a call
    :param n_frames: frames in a call
    :param ns: mean time of a call
    """

    process: str
    variant: str
    work: Work
    n_frames: int
    ns: float


@dataclass
class Measured:
    """The measurements of a source.

    :param frame_nbytes: bytes of a frame
    :param variants: names of the variants, in order
    :param ratios: the size of their payloads, relative to the frames
    :param chosen: the variant that training chooses for each objective
    :param rows: the measurements
    """

    frame_nbytes: int
    variants: list[str]
    ratios: list[float]
    chosen: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    def add(self, process: str, variant: str, work: Work, n_frames: int, times: Times) -> None:
        """Add a measurement.

        :param work: that of one frame
        """
        of_call = {key: counts * n_frames for key, counts in work.items()}
        if process in ("sampling", "decoding"):
            of_call |= frame_work(CALL, 1, 0)
        self.rows.append(Row(process, variant, of_call, n_frames, times.mean))

    def ns(self, process: str, variant: str, n_frames: int | None = None) -> float:
        """Return the time of a frame in calls of so many frames."""
        return next(
            row.ns / row.n_frames
            for row in self.rows
            if (row.process, row.variant) == (process, variant) and n_frames in (None, row.n_frames)
        )


def recorded_frames(name: str) -> NDArray[np.uint8]:
    """Return the newest frames of a source, ``(steps, envs, height, width, channels)``."""
    recording = record(name, N_ENVS, N_STEPS)
    n_channels = (recording.frame_space.shape or ())[-1]
    observations = (np.asarray(step.obs) for step in islice(play(recording), N_STEPS))
    return np.stack([obs.transpose(0, 2, 3, 1)[..., -n_channels:] for obs in observations])


def measure(images: NDArray[np.uint8], rounds: int) -> Measured:
    """Measure all variants for frames ``(steps, envs, height, width, channels)``."""
    n_steps, n_envs, *_ = images.shape
    training = _flattened(images[: n_steps // 2])
    training = training[:: -(-len(training) // N_TRAINING)].copy(order="K")
    codec = AllVariants(objective="balanced", coder="lz4").train(training)
    assert isinstance(codec, Adaptive)
    nbytes, is_channel_last = training[0].nbytes, codec.channel_last_nbytes > 0
    n_measured = min(N_MEASURED, MAX_NBYTES // nbytes) // n_envs
    frames = _flattened(images[n_steps // 2 :: -(-(n_steps - n_steps // 2) // n_measured)].copy())
    found = codec.variants(frames)
    made = [variant for _, variant in found]
    names = [f"{'delta, ' if codec.references else ''}{codec.coder}" for codec, _ in found]
    chosen = {
        objective: names[best_variant(objective, made, nbytes, is_channel_last=is_channel_last)]
        for objective in (OBJECTIVES if COSTS else ())
    }
    ratios = [sum(map(len, variant.payloads)) / frames.nbytes for variant in made]
    measured = Measured(nbytes, names, ratios, chosen)
    _measure_adding(measured, frames, n_envs, found, rounds, is_channel_last=is_channel_last)
    _measure_sampling(measured, frames, found, rounds, is_channel_last=is_channel_last)
    return measured


def _measure_adding(
    measured: Measured,
    frames: NDArray[np.uint8],
    n_envs: int,
    variants: Sequence[tuple[Adaptive, Variant]],
    rounds: int,
    *,
    is_channel_last: bool,
) -> None:
    """Measure what is done when a step of all environments is added."""
    nbytes = measured.frame_nbytes
    space, actions = spaces.Box(0, 255, frames.shape[1:], np.uint8), spaces.Discrete(2)
    stored = _large_array(frames)
    uncompressed = Untrained(
        objective="balanced",
        coder="raw",
        channels=frames.shape[1] if is_channel_last else 1,
        channel_last_nbytes=nbytes if is_channel_last else 0,
    )
    size, rng = n_envs * 256, np.random.default_rng(0)
    ours: Any = CompressedReplayBuffer(
        size, space, actions, "cpu", n_envs, compression_method=uncompressed, frame_stack=None
    )
    theirs = sb3.ReplayBuffer(size, space, actions, "cpu", n_envs)
    others: Any = np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs), np.zeros(n_envs, dtype=np.bool_), [{}] * n_envs
    previous, current = frames[:n_envs].copy(order="K"), frames[:n_envs].copy(order="K")
    steps = [frames[start : start + n_envs] for start in range(0, len(frames) - n_envs + 1, n_envs)]
    copying, contiguous, adding, adding_to_ours = (Times() for _ in range(4))
    encoding = [Times() for _ in variants]

    def copy_as_sb3(obs: NDArray[np.uint8]) -> None:
        for _ in range(2):  # obs and next_obs
            at = rng.integers(len(stored) - n_envs)
            stored[at : at + n_envs] = np.array(obs)

    for _ in range(rounds):
        for number, step in enumerate(steps):
            current[...] = step  # which is in the cache, like frames that have just been compared with others
            copying.call(number, copy_as_sb3, current)
            contiguous.call(number, copy_as_sb3, np.ascontiguousarray(current))
            adding.call(number, theirs.add, previous, current, *others)
            adding_to_ours.call(number, ours.add, previous, current, *others)
            for index in _rotated(len(variants), number):
                encoding[index].call(number, variants[index][0].encode, current)
            previous[...] = current
    for name, (_, variant), times in zip(measured.variants, variants, encoding, strict=True):
        work = encoding_work(variant, nbytes, is_channel_last=is_channel_last)
        measured.add("encoding", name, _scaled(work, 1 / len(frames)), n_envs, times)
    order = "channel_last" if is_channel_last else "contiguous"
    measured.add("adding", "SB3", frame_work(order, 1, nbytes), n_envs, copying)
    measured.add("adding", "SB3, contiguous", frame_work("contiguous", 1, nbytes), n_envs, contiguous)
    # What both buffers do besides copying and encoding is left out.
    ns = (adding_to_ours.mean - encoding[measured.variants.index("raw")].mean) - (adding.mean - copying.mean)
    measured.rows.append(Row("adding", "storing", frame_work("storing", n_envs, nbytes), n_envs, ns))


def _measure_sampling(
    measured: Measured,
    frames: NDArray[np.uint8],
    variants: Sequence[tuple[Adaptive, Variant]],
    rounds: int,
    *,
    is_channel_last: bool,
) -> None:
    """Measure batches of random frames."""
    nbytes, rng = measured.frame_nbytes, np.random.default_rng(0)
    stored = _large_array(frames)
    payloads = [Payloads.of(variant.payloads) for _, variant in variants]
    order = rng.permutation(len(frames))
    for size in (size for size in BATCH_SIZES if size <= len(frames)):
        out = np.empty((size, *frames.shape[1:]), dtype=np.uint8)
        copying, decoding = Times(), [Times() for _ in variants]
        for _ in range(rounds):
            for start in range(0, len(order) - size + 1, size):
                indices = order[start : start + size]
                for index in _rotated(len(variants), start // size):
                    copying.call(start, _sample_as_sb3, stored, rng.integers(len(stored), size=size))
                    codec, every = variants[index][0], payloads[index]
                    batch = Payloads(every.places[indices], every)
                    decoding[index].call(start, type(codec).decode_batch, [codec], batch, out)
                    if not np.array_equal(out[-1], frames[indices[-1]]):
                        raise RuntimeError(f"{codec} does not return the frames")
        measured.add("sampling", "SB3", frame_work("sb3", 1, nbytes), size, copying)
        for name, (_, variant), times in zip(measured.variants, variants, decoding, strict=True):
            work = decoding_work(variant.payloads, nbytes, is_channel_last=is_channel_last)
            measured.add("decoding", name, _scaled(work, 1 / len(frames)), size, times)


def _rotated(n: int, first: int) -> list[int]:
    """Return ``n`` indices from another one on each time: the first call after others takes longer."""
    return [(first + k) % n for k in range(n)]


def _large_array(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an array of frames that is as little in the cache as SB3's buffer."""
    array = np.empty((LARGE_NBYTES // frames[0].nbytes, *frames.shape[1:]), dtype=np.uint8)
    array[:] = frames[0]
    return array


def _sample_as_sb3(stored: NDArray[np.uint8], indices: NDArray[np.int64]) -> th.Tensor:
    return th.tensor(stored[indices, :])


def _flattened(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return frames ``(n, channels, height, width)`` as a view of ``(steps, envs, height, width, channels)``."""
    return images.reshape(-1, *images.shape[2:]).transpose(0, 3, 1, 2)


def _scaled(work: Work, factor: float) -> Work:
    return {key: counts * factor for key, counts in work.items()}


def fitted(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the costs with the smallest squares of relative errors."""
    keys = sorted({key for row in rows for key in row.work})
    nothing = np.zeros(len(COUNTS))
    matrix = np.array([np.concatenate([row.work.get(key, nothing) for key in keys]) / row.ns for row in rows])
    costs = nonnegative_least_squares(matrix, np.ones(len(rows))).reshape(len(keys), len(COUNTS))
    return {
        key: {name: float(f"{ns:.3g}") for name, ns in zip(COUNTS, of_key, strict=True) if ns > 1e-6}
        for key, of_key in zip(keys, costs.tolist(), strict=True)
    }


def nonnegative_least_squares(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vector ``x >= 0`` that minimizes ``|matrix @ x - values|``, by coordinate descent."""
    scales = np.sqrt((matrix**2).sum(axis=0))
    scales[scales == 0] = 1.0
    gram, target = (matrix / scales).T @ (matrix / scales), (matrix / scales).T @ values
    result: NDArray[np.float64] = np.zeros(len(target))
    for _ in range(20_000):
        for k in np.flatnonzero(target):
            result[k] = max(result[k] + target[k] - gram[k] @ result, 0.0)
    return np.asarray(result / scales)


def table_rows(label: str, measured: Measured) -> list[list[str]]:
    """Return rows of a table: measured times in nanoseconds a frame, with estimates in parentheses."""

    def cell(process: str, variant: str, n_frames: int | None = None) -> str:
        row = next(row for row in measured.rows if (row.process, row.variant) == (process, variant))
        work = {key: counts for key, counts in row.work.items() if key != CALL}
        estimate = f" ({estimated_ns(process, work) / row.n_frames:,.0f})" if COSTS else ""
        return f"{measured.ns(process, variant, n_frames):,.0f}{estimate}"

    sizes = [row.n_frames for row in measured.rows if row.process == "sampling"]
    sb3_times = [cell("adding", "SB3"), *(cell("sampling", "SB3", size) for size in sizes)]
    rows = [[label, "SB3", "100%", *sb3_times, ""]]
    for name, ratio in zip(measured.variants, measured.ratios, strict=True):
        chosen = ", ".join(objective for objective, variant in measured.chosen.items() if variant == name)
        times = [cell("encoding", name), *(cell("decoding", name, size) for size in sizes)]
        rows.append(["", name, f"{ratio:.1%}", *times, chosen])
    return rows


def as_python(costs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the costs as the code of ``coder_choice.py``."""
    lines = ["COSTS: Mapping[str, Mapping[str, Mapping[str, float]]] = {"]
    for process, of_process in costs.items():
        lines.append(f'    "{process}": {{')
        for key, of_key in of_process.items():
            items = ", ".join(f'"{name}": {ns:g}' for name, ns in of_key.items())
            lines.append(f'        "{key}": {{{items}}},')
        lines.append("    },")
    return "\n".join([*lines, "}"])


def images_of(arguments: Any) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the frames that the flags select by name, ``(steps, envs, height, width, channels)``."""
    for path in arguments.frames or ():
        images = np.load(path, mmap_mode="r")
        if images.ndim == 5 and images.dtype == np.uint8:
            yield path.stem, np.array(images[:N_STEPS])
    for name in [] if arguments.frames else arguments.sources:
        source = Source(name)
        if source.missing_module:
            CONSOLE.print(f"skipping {name}: {source.missing_module} is not installed")
        else:
            yield name, recorded_frames(name)


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="e.g. Pong CarRacing-v3")
    flags.add_argument("--frames", nargs="+", type=Path, help="files of recorded frames instead of sources")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.rounds, arguments.sources = 1, arguments.sources[:1]
    one_thread()
    results: dict[str, Measured] = {}
    for name, images in images_of(arguments):
        CONSOLE.print(f"measuring {name}")
        results[name] = measure(images[:100] if arguments.smoke else images, arguments.rounds)
    rows = [row for measured in results.values() for row in measured.rows]
    costs = {process: fitted([row for row in rows if row.process == process]) for process in PROCESSES}
    times = {name: [[*row[:2], row.n_frames, row.ns] for row in measured.rows] for name, measured in results.items()}
    options = {"rounds": arguments.rounds, "sources": [*results]}
    save(arguments.out, "coder_times", options, {"costs": costs, "times": times}, arguments.peers)
    header = ["source", "variant", "size", "add (ns)", *(f"batch of {size} (ns)" for size in BATCH_SIZES), "chosen for"]
    print(markdown(header, [row for name, measured in results.items() for row in table_rows(name, measured)]))
    print(f"\nCosts of the calls in nanoseconds: {[of_process.pop(CALL, {}) for of_process in costs.values()]}\n")
    print(as_python(costs))


if __name__ == "__main__":
    main()
