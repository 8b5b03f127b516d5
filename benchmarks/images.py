"""Memory of replay buffers of all kinds of scenes: games, drawn and rendered worlds, camera images, and other sensors.

    python benchmarks/images.py
    python benchmarks/images.py --sources BeamRider Crafter-v0 Doom84-v0:stack4 --size 20000

Observations of random actions are recorded first; see ``sources.py``, which lists the scenes that the code was tuned
on. They are reported last. Scenes whose package is not installed are skipped: ``environments.txt`` lists them.

Each buffer has its own process, and two run at a time, since no times are measured. Memory is what the process (RSS)
grows by with each further transition, relative to the arrays of SB3's buffer. A smaller buffer is compared with what
was added to it.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

import numpy as np
import plots
from batch_checks import check_replay
from frame_recording import play
from measure_replay import CHECKED_STEPS, fill
from measurement import Job, Measurement
from ratios import Results, extent
from session import parser, run, save, serve
from sources import Source, record
from tables import markdown

from adapters import make_replay

TITLE = "Kinds of images"
GAMES = ["BeamRider", "Enduro", "Asteroids", "Freeway", "BattleZone", "Centipede", "Frostbite", "Kangaroo", "Pitfall"]
GAMES += ["Zaxxon", "MsPacman", "Pong"]
ENVIRONMENTS = ["ProcgenJumper-v0", "ProcgenMaze-v0", "ProcgenCaveflyer-v0", "MiniGridRGB-v0", "MiniGridWholeRGB-v0"]
ENVIRONMENTS += ["Doom84-v0", "Doom120x160-v0", "Doom84Nearest-v0", "DoomCorridor84-v0", "DoomCenter84-v0:stack4"]
ENVIRONMENTS += ["Crafter-v0", "ProcgenCoinrun-v0", "ProcgenStarpilot-v0", "CarRacing-v3", "CarRacing-v3:stack4"]
ENVIRONMENTS += ["DoomHealth84-v0", "MiniGridRooms-v0"]
ENVIRONMENTS += ["Video128-v0", "Camera256-v0", "Noise84-v0"]
SENSORS = ["DoomDepth84-v0", "DoomLabels-v0", "Audio-v0"]
ENV_COUNTS = (4, 1)
SIZE, SMOKE_SIZE = 5_000, 400
#: Of SB3's buffer; larger images get fewer transitions.
MAX_NBYTES = 1_000_000_000
RECORDED = "recording"


def measure(name: str, source: str, size: int, n_envs: int) -> Measurement:
    """Return bytes of a transition.

    :param name: :data:`RECORDED` to record only, in a process of its own that measures nothing
    :param size: transitions; of large images, fewer are recorded
    :return: ``growth`` of the process with each further transition, and ``raw``, that of the arrays of SB3's buffer; of
        a recording, its ``size``
    """
    if name == RECORDED:
        return _record(Source(source), size, n_envs)
    from stable_baselines3.common.buffers import ReplayBuffer

    rows = size // n_envs
    recording = record(source, n_envs, rows)
    base = ReplayBuffer(size, recording.observation_space, recording.action_space, device="cpu", n_envs=n_envs)
    raw = sum(value.nbytes for value in vars(base).values() if isinstance(value, np.ndarray)) / size
    make = partial(make_replay, "auto", recording)
    filled = fill(make, recording, rows)
    checked_rows = min(CHECKED_STEPS, rows // 2)
    wrong = check_replay(make(checked_rows), play(recording), checked_rows)
    return {"growth": filled.growth, "raw": raw, "wrong": wrong}


def _record(source: Source, size: int, n_envs: int) -> Measurement:
    if source.missing_module:
        return {"error": f"{source.missing_module} is not installed: see benchmarks/environments.txt"}
    rows = min(size, int(MAX_NBYTES // (2 * np.prod(source.space().shape or ())))) // n_envs
    record(source.name, n_envs, rows)
    return {"size": rows * n_envs}


def share(measured: Measurement) -> float | None:
    """Return the memory of a transition relative to SB3's."""
    return measured["growth"] / measured["raw"] if "growth" in measured else None


def groups(results: Results) -> dict[str, list[str]]:
    """Return the measured scenes by group, those first that tuning cannot have improved."""
    found: dict[str, list[str]] = {}
    for kind, is_of_kind in (
        ("Games", lambda source: source.is_game),
        ("Other environments", lambda source: not source.is_game and source.name not in SENSORS),
        ("Other sensors", lambda source: source.name in SENSORS),
    ):
        for is_tuned, suffix in ((False, ""), (True, ", used for tuning")):
            names = [name for name in results if is_of_kind(Source(name)) and Source(name).is_tuned == is_tuned]
            if names:
                found[kind + suffix] = names
    return dict(sorted(found.items(), key=lambda each: "tuning" in each[0]))


def summary(results: Results) -> str:
    """Return what the results mean for users."""
    texts = []
    for group, names in groups(results).items():
        shares = [found for name in names if (found := share(results[name].get(_name(4), {}))) is not None]
        if shares and "tuning" not in group:
            texts.append(f"{group[0].lower()}{group[1:]} {statistics.median(shares):.1%} ({extent(shares, '{:.1%}')})")
    return (
        "With the default codec and four environments, a transition takes this share of the memory of SB3's (median, "
        f"least to most), on scenes that the code was not tuned on: {'; '.join(texts)}. SB3's own "
        "`optimize_memory_usage=True` takes half, whatever the scene."
    )


def sections(results: Results) -> list[str]:
    """Return the tables."""
    parts = [
        "Memory of a transition: growth of the process (RSS) with each further one, with the default codec, "
        "relative to the arrays of SB3's buffer; with random actions, and as many environments as the column says."
    ]
    for group, names in groups(results).items():
        rows = []
        for name in names:
            first = next((each for each in results[name].values() if "raw" in each), None)
            cells = [_cell(results[name].get(_name(n_envs), {})) for n_envs in ENV_COUNTS]
            rows.append([name, *cells, f"{first['raw']:,.0f} B" if first else ""])
        parts += [f"## {group}", markdown(["scene", *map(_name, ENV_COUNTS), "SB3's buffer"], rows)]
    return parts


def _cell(measured: Measurement) -> str:
    found = share(measured)
    return "failed" if found is None else f"{found:.1%} ({measured['growth']:,.0f} B)"


def _name(n_envs: int) -> str:
    return f"{n_envs} environment{'s' if n_envs > 1 else ''}"


def plot(results: Results, path: Path) -> None:
    """Plot the memory of each scene."""
    shares = {
        group: {name: [share(results[name].get(_name(n_envs), {})) for n_envs in ENV_COUNTS] for name in names}
        for group, names in groups(results).items()
    }
    plots.scenes(shares, [_name(n_envs) for n_envs in ENV_COUNTS], path)


def main() -> None:
    """Run from the command line."""
    flags = parser(__doc__)
    flags.add_argument("--sources", nargs="+", help="e.g. BeamRider Crafter-v0 Doom84-v0:stack4 (default: all)")
    flags.add_argument("--size", type=int, default=SIZE, help="transitions in each buffer (default: %(default)s)")
    arguments = flags.parse_args()
    sources = arguments.sources or [*GAMES, *ENVIRONMENTS, *SENSORS]
    if arguments.smoke:
        sources, arguments.size = arguments.sources or ["Noise84-v0"], SMOKE_SIZE
    cases = [
        {"source": source, "size": arguments.size, "n_envs": n_envs} for source in sources for n_envs in ENV_COUNTS
    ]

    def measured(name: str) -> Results:
        jobs = [Job(case["source"], _name(case["n_envs"]), {**case, "name": name}) for case in cases]
        return run(measure, jobs, arguments, parallel=2)

    recorded = measured(RECORDED)
    sizes = [recorded[case["source"]][_name(case["n_envs"])].get("size") for case in cases]
    cases = [{**case, "size": size} for case, size in zip(cases, sizes) if size]
    results = measured("auto")
    save(arguments, "images", {"size": arguments.size}, results)
    print("\n\n".join([summary(results), *sections(results)]))


if __name__ == "__main__":
    serve(measure)
    main()
