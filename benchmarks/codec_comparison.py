"""Codecs of this package, and buffers of other packages: memory, ``add`` and ``sample`` on real observations.

    python benchmarks/codec_comparison.py
    python benchmarks/codec_comparison.py --sources Pong CarRacing-v3 --buffers auto auto@1 extra:zstd-3 cpprb

Every buffer has its own process. Memory is what the process (RSS) grows by with each further transition. ``add`` is
timed on the second lap over the ring, with observations in the memory layout of real training. A shorter run verifies
that each buffer returns what was added.

The table that sb3-extra-buffers publishes is repeated for some of its codecs; see ``measure_published.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from measure_published import LOAD, SAVE, measure_published
from measure_replay import TIMED_STEPS, measure_replay
from measurement import Job, Measurement
from ratios import Results, extent, ratios
from session import available, parser, run, save, serve
from sources import record
from tables import markdown, mean_table, source_table

from adapters import make_replay
from adapters.buffer_names import title

TITLE = "Codecs and other packages"
SOURCES = ["MsPacman", "Crafter-v0", "Doom84-v0"]
BUFFERS = ["auto", "auto@1", "packed", "zstd-dict", "zstd3", "zstd-5", "lz4-frame/0", "igzip1"]
BUFFERS += ["rle-jit", "none", "extra:zstd-3", "extra:lz4-frame/0", "extra:igzip1", "extra:rle-jit"]
BUFFERS += ["torchrl:zlib-3", "torchrl:memmap", "cpprb"]
#: Of the published table; it has no ``auto``.
PUBLISHED, PUBLISHED_SOURCE = ["auto", "zstd-5", "zstd3", "lz4-frame/1", "igzip1", "rle-jit"], "MsPacman"
N_ENVS = 4
SIZE, SMOKE_SIZE = 10_000, 800


def measure(name: str, source: str, size: int, test: str | None = None) -> Measurement:
    """Measure one buffer.

    :param test: of the published table; ``None`` for memory and times of a replay buffer
    """
    if test:
        return measure_published(name, source, size, test)
    rows = size // N_ENVS
    recording = record(source, N_ENVS, rows + TIMED_STEPS)
    return measure_replay(partial(make_replay, name, recording), recording, rows)


def _parts(results: Results) -> tuple[Results, Results]:
    """Return the results of scenes and those of the published table."""
    scenes = {label: found for label, found in results.items() if label not in (SAVE, LOAD)}
    return scenes, {label: found for label, found in results.items() if label not in scenes}


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    scenes, _ = _parts(results)
    cells = [extent(ratios(scenes, "auto", key), form) for key, form in _FORMS.items()]
    text = (
        "The default codec takes {} of the memory of SB3's buffer, {} times as long to add and {} times as long for a "
        "batch of 32."
    )
    others = [
        name
        for name in next(iter(scenes.values()))
        if name not in ("SB3", "auto", "auto@1")
        and len(ratios(scenes, name, "growth")) == len(scenes)
        and all(a < b for a, b in zip(ratios(scenes, name, "growth"), ratios(scenes, "auto", "growth")))
    ]
    less = ", ".join(map(title, others)) or "none"
    return (
        f"{text.format(*cells)} Codecs and packages that take less memory on each scene ({', '.join(scenes)}): {less}."
    )


_FORMS = {"growth": "{:.1%}", "add": "{:.2f}", "sample(32)": "{:.2f}"}


def sections(results: Results) -> list[str]:
    """Return the tables."""
    scenes, published = _parts(results)
    parts = [
        "Relative to SB3's buffer: memory is the growth of the process (RSS) with each further transition, times are "
        "medians of calls one after the other, with warm caches, geometric means over the scenes:",
        mean_table(scenes),
        "## Each scene",
        source_table(scenes),
    ]
    if published:
        parts += [
            "## The table of sb3-extra-buffers",
            f"Relative to SB3's buffer with `optimize_memory_usage`, on {PUBLISHED_SOURCE}. *Counted* memory is "
            "what its script computes, the sizes of the Python objects in the slots:",
            _published_table(published),
        ]
    return parts


def _published_table(results: Results) -> str:
    header = ["codec"]
    for test in (SAVE, LOAD):
        header += [
            f"{test}: {what}, {whose}"
            for what in ("memory, counted", "memory (RSS)", "latency")
            for whose in ("ours", "theirs")
        ]
    rows = []
    for name in PUBLISHED:
        cells = []
        for test in (SAVE, LOAD):
            of_test = results.get(test, {})
            for key, form in (("counted", "{:.2%}"), ("rss", "{:.2%}"), ("latency", "{:.2f}x")):
                for buffer in (name, f"extra:{name}"):
                    found = ratios({test: of_test}, buffer, key)
                    cells.append(form.format(found[0]) if found else "")
        if any(cells):
            rows.append([f"`{name}`", *cells])
    return markdown(header, rows)


def plot(results: Results, path: Path) -> None:
    """Plot memory against the time of a batch, one point per buffer and codec."""
    import plots  # of matplotlib, which the environment of other libraries lacks

    plots.codecs(_parts(results)[0], path)


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__, buffers=BUFFERS)
    flags.add_argument("--sources", nargs="+", default=SOURCES, help="e.g. Pong CarRacing-v3")
    flags.add_argument("--size", type=int, default=SIZE, help="transitions in each buffer (default: %(default)s)")
    arguments = flags.parse_args()
    published = PUBLISHED
    if arguments.smoke:
        arguments.sources, arguments.size, published = arguments.sources[:1], SMOKE_SIZE, PUBLISHED[:2]
    names = available(["SB3", *arguments.buffers], arguments.peers)
    size, n_steps = arguments.size, arguments.size // N_ENVS + TIMED_STEPS
    for source in arguments.sources:
        record(source, N_ENVS, n_steps)
    jobs = [Job(source, name, {"source": source, "size": size}) for source in arguments.sources for name in names]
    theirs = [f"extra:{name}" for name in published if name != "auto"]
    given: dict[str, Any] = {"source": PUBLISHED_SOURCE, "size": size}
    record(PUBLISHED_SOURCE, N_ENVS, n_steps)
    jobs += [
        Job(test, name, {**given, "test": test})
        for test in (SAVE, LOAD)
        for name in available(["SB3", *published, *theirs], arguments.peers)
    ]
    results = run(measure, jobs, arguments, rounds=arguments.rounds)
    save(arguments, "codec_comparison", {"size": size, "rounds": arguments.rounds}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()
