"""Write tables and plots of all results, and the benchmark section of the README.

    python benchmarks/report.py

Reads ``results/*.json``, writes a Markdown page for each and the plots to ``docs/results``, and writes the short table
between two marks in the README, and the tables of formats between the same marks in
``docs/formats.md``. Numbers are ratios to SB3's buffer in the same run, except on pages
that state otherwise.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import alternating_buffers
import device_batches
import distributed_buffer
import formats
import images
import persistence
import plots
import published
import samplers
import scale
import sequence_sampling
import training
from ratios import Results
from session import RESULTS, ROOT
from tables import game_table, ratio_table

BEGIN, END = "<!-- benchmarks: begin (make report writes what is between these marks) -->", "<!-- benchmarks: end -->"
PAGES = ROOT / "docs" / "results"
IN_README = [
    "auto",
    "auto@1",
    "zstd3",
    "lz4-frame/0",
    "none",
    "extra:zstd-3",
    "extra:lz4-frame/0",
    "torchrl:zlib-3",
    "cpprb",
]
#: Units of benchmarks that do not report ratios to SB3's buffer.
UNITS = {
    **dict.fromkeys(
        ("distributed_buffer", "formats", "persistence", "samplers", "sequence_sampling"),
        "Times of this machine.",
    ),
    "alternating_buffers": "Ratios to SB3's buffer in the same training.",
    "scale": "Ratios to the same buffer with the fewest transitions.",
}
#: Titles of pages.
TITLES = {
    "alternating_buffers": "Time of trainings",
    "cuda_alternating": "Time of trainings on a CUDA device",
    "cuda_batches": "Batches on a CUDA device",
    "cuda_training": "Trainings on a CUDA device",
    "codecs": "Codecs and other packages",
    "distributed": "Distributed buffers",
    "formats": "Formats of data sets",
    "images": "Kinds of images",
    "persistence": "Saving and loading",
    "published": "Published results of sb3-extra-buffers",
    "replay": "Replay buffers",
    "rollout": "Rollout buffers",
    "samplers": "Samplers",
    "scale": "Size of the buffer",
    "sensors": "Depth, masks, sound and one-hot grids",
    "sequence_sampling": "Sequences",
    "training": "Memory of trainings",
}


def page(name: str, written: dict[str, Any]) -> str:
    """Return the Markdown page of one results file."""
    host, arguments, results = written["machine"], written["arguments"], written["results"]
    versions = {key: value for found in host["versions"] for key, value in found.items()}
    software = ", ".join(f"{key} {value}" for key, value in {"Python": host["python"], **versions}.items())
    options = ", ".join(f"{key} {value}" for key, value in arguments.items() if key != "groups")
    unit = UNITS.get(written["benchmark"], "Ratios to SB3's buffer in the same run.")
    device = f"one {host['gpu']} and " if "gpu" in host else ""
    return "\n\n".join(
        [
            f"# {TITLES.get(name, name)}",
            f"`benchmarks/{written['benchmark']}.py`, {options}; version {written['version']}; {written['date']}, "
            f"{device}{host['cores']} cores of {host['cpu']}; {software}. {unit}",
            *_tables(name, written),
            *(f"**Wrong**: {line}" for line in _wrong(results)),
        ]
    )


def _tables(name: str, written: dict[str, Any]) -> list[str]:
    benchmark, results = written["benchmark"], written["results"]
    if benchmark == "images":
        sections = images.sections(written["arguments"]["groups"], results)
        return [f"![distribution of the results]({name}.svg)", *sections]
    if benchmark == "published":
        return [published.table(results)]
    if benchmark == "scale":
        return [scale.table(results)]
    if benchmark == "training":
        return training.sections(results)
    if benchmark == "alternating_buffers":
        return alternating_buffers.sections(results)
    if benchmark == "device_batches":
        return device_batches.sections(results)
    if benchmark == "persistence":
        return [persistence.table(results)]
    if benchmark == "formats":
        return [formats.tables(results)]
    if benchmark == "samplers":
        return [samplers.tables(results)]
    if benchmark == "sequence_sampling":
        return sequence_sampling.tables(results)
    if benchmark == "distributed_buffer":
        return distributed_buffer.sections(results, written["arguments"])
    if benchmark == "roundtrip":
        return []
    by_source = game_table(results)
    return ["Geometric means:", ratio_table(results), "By source:", by_source] if len(results) > 1 else [by_source]


def _wrong(results: Results) -> list[str]:
    return [
        f"{label}, {name}: {measured[key]}"
        for label, of_label in results.items()
        for name, measured in of_label.items()
        for key in ("wrong", "error")
        if isinstance(measured, dict) and isinstance(measured.get(key), str) and measured[key]
    ]


def trainings_part(written: dict[str, Any]) -> str:
    """Return the table of the README: memory and time of whole trainings.

    :param written: results of ``alternating_buffers.py``
    """
    before = (
        "Whole trainings, relative to SB3's buffer (lower is better), on two cores without a GPU. One model is trained "
        "with both buffers in turns, in a process that keeps the memory that it frees; memory is what the buffer "
        "reports at the end. SB3's own `optimize_memory_usage=True` takes about 50%. Scenes with `recorded:` are "
        "replayed from memory, as if the environment took no time, and with `tiny:` also trained with a tiny network, "
        "so that the buffer takes most of it:"
    )
    pages = PAGES.relative_to(ROOT).as_posix()
    link = f"[With intervals and the calls inside]({pages}/alternating_buffers.md)"
    after = f"{link}, `benchmarks/alternating_buffers.py`."
    table = alternating_buffers.readme_table(written["results"])
    return "\n\n".join([_filled(before), table, _filled(after)])


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def packages_part(written: dict[str, Any], plot: str) -> str:
    """Return the section on other packages: the plot, the setup and the short table."""
    results: Results = written["results"]
    chosen = {
        label: {name: of_label[name] for name in ["SB3", *IN_README] if name in of_label}
        for label, of_label in results.items()
    }
    arguments = written["arguments"]
    rounds = "one round" if arguments["rounds"] == 1 else f"medians of {arguments['rounds']} rounds"
    before = (
        f"Relative to SB3's uncompressed buffer, on real frames ({', '.join(results)}; random actions, 4 environments, "
        f"{arguments['size']:,} transitions, {rounds}){', geometric means' if len(results) > 1 else ''}; memory is the "
        "resident set size (RSS):"
    )
    image = f"![memory and sampling time of each buffer and codec]({plot})"
    return "\n\n".join([image, textwrap.fill(before, 120), ratio_table(chosen)])


def write_section(page: Path, part: str) -> None:
    """Replace the section between the marks.

    :raises ValueError: if the marks are missing
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} does not contain {BEGIN} followed by {END}")
    page.write_text(f"{before}{BEGIN}\n{part}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Write the report."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    flags.add_argument("--pages", type=Path, default=PAGES, help="folder for the pages (default: %(default)s)")
    flags.add_argument("--readme", type=Path, default=ROOT / "README.md", help="README (default: %(default)s)")
    performance = ROOT / "docs" / "performance.md"
    flags.add_argument("--performance", type=Path, default=performance, help="page with other packages")
    flags.add_argument("--formats", type=Path, default=ROOT / "docs" / "formats.md", help="page of formats")
    arguments = flags.parse_args()
    folder: Path = arguments.pages
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.stem: json.loads(path.read_text()) for path in sorted(arguments.results.glob("*.json"))}
    for name, written in found.items():
        (folder / f"{name}.md").write_text(page(name, written) + "\n", encoding="utf-8")
    if "scale" in found:
        plots.scale(found["scale"]["results"], folder / "scale.svg")
    if "replay" in found:
        plots.games(found["replay"]["results"], folder / "games.svg")
    for name, written in found.items():
        if written["benchmark"] == "images":
            shown_groups = images.plotted(written["arguments"]["groups"], written["results"])
            plots.distribution(shown_groups, folder / f"{name}.svg")
    if "alternating_buffers" in found:
        write_section(arguments.readme, trainings_part(found["alternating_buffers"]))
    if "replay" in found:
        codecs = found.get("codecs", found["replay"])
        plot = folder / "codecs.svg"
        plots.codecs(codecs["results"], plot)
        shown = plot.resolve().relative_to(arguments.performance.resolve().parent).as_posix()
        write_section(arguments.performance, packages_part(codecs, shown))
    if "formats" in found:
        write_section(arguments.formats, formats.tables(found["formats"]["results"]))
    print(f"{len(found)} results in {folder}")


if __name__ == "__main__":
    main()
