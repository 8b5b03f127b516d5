"""Write a page for each benchmark to ``docs/results``, and the table in the README.

    python benchmarks/report.py

Reads ``results/*.json``. A page whose results are missing, or of another minor version of this package, says so.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import codec_comparison
import dataset_formats
import device
import distributed_buffer
import images
import rollouts
import samplers
import saving
import scale
import training
from ratios import Results
from session import RESULTS, ROOT
from tables import markdown

import sb3_compressed

BEGIN, END = "<!-- benchmarks: begin (make report writes what is between these marks) -->", "<!-- benchmarks: end -->"
PAGES = ROOT / "docs" / "results"
#: Each has ``TITLE``, ``summary(results)``, ``sections(results)`` and, if its page has one, ``plot(results, path)``.
SCRIPTS: list[ModuleType] = [
    *(training, images, codec_comparison, scale, rollouts, device, saving, samplers, dataset_formats),
    distributed_buffer,
]


def minor(version: str) -> str:
    """Return the first two numbers of a version.

    >>> minor("0.3.1.dev0 at 1a2b3c4")
    '0.3'
    """
    return ".".join(version.split(".")[:2])


def results_of(folder: Path, name: str) -> dict[str, Any] | None:
    """Return what a script has written, if it was measured with this minor version."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return written if minor(written["version"]) == minor(sb3_compressed.__version__) else None


def page(script: ModuleType, written: dict[str, Any] | None, folder: Path) -> str:
    """Return the Markdown page of a script, and write its plot to a folder."""
    name = script.__name__
    if written is None:
        where = " on a GPU" if script is device else ""
        return f"# {script.TITLE}\n\nNot yet measured{where} with this version: `python benchmarks/{name}.py`."
    results: Results = written["results"]
    parts = [f"# {script.TITLE}", _filled(script.summary(results)), _filled(_how(name, written))]
    if hasattr(script, "plot"):
        script.plot(results, folder / f"{name}.svg")
        parts.append(f"![plot of the tables below]({name}.svg)")
    return "\n\n".join([*parts, *script.sections(results), *_wrong(results)])


def _how(name: str, written: dict[str, Any]) -> str:
    """Return how a page was measured."""
    host = written["machine"]
    versions = {key: value for found in host["versions"] for key, value in found.items()}
    software = ", ".join(f"{key} {value}" for key, value in {"Python": host["python"], **versions}.items())
    settings = "; ".join(f"{key}: {value}" for key, value in written["settings"].items())
    script = f"`benchmarks/{name}.py`" + (f" ({settings})" if settings else "")
    gpu = f"one {host['gpu']} and " if "gpu" in host else ""
    return (
        f"Measured by {script} with version {written['version']} on {written['date']}, on "
        f"{gpu}{host['cores']} cores of {host['cpu']}; {software}."
    )


def _wrong(results: Results) -> list[str]:
    return [
        f"**{title}**: {label}, {name}: {measured[key]}"
        for label, of_label in results.items()
        for name, measured in of_label.items()
        for key, title in (("wrong", "Wrong"), ("error", "Failed"))
        if measured.get(key)
    ]


def readme_part(found: dict[str, dict[str, Any] | None]) -> str:
    """Return the table of the README: memory and time of whole trainings."""
    timed, on_gpu = found["training"], found["device"]
    before = "Relative to SB3's buffer (lower is better), with `auto`, the default codec, on two cores without a GPU:"
    results: Results = timed["results"] if timed else {}
    columns = [
        "*memory*: by how much a process grows with each transition, early in a training; with more of them, less",
        "*time*: of whole trainings, in turns in one process; empty where not measured. "
        + training.freed_sentence(results),
        "*recorded*: frames are replayed from memory, as if the environment took no time; with a *tiny network*, the "
        "buffer takes most of what is left",
    ]
    after = (
        "The code was tuned on all but Doom. Also: [other scenes](docs/results/images.md), "
        "[intervals](docs/results/training.md)."
    )
    rows = training.readme_rows(results)
    rows += device.readme_rows(on_gpu["results"] if on_gpu else {})
    listed = "\n".join(_filled(f"- {column.strip()}", "  ") for column in columns)
    return "\n\n".join([_filled(before), markdown(training.README_COLUMNS, rows), listed, _filled(after)])


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write_section(path: Path, part: str) -> None:
    """Replace the section between the marks.

    :raises ValueError: if the marks are missing
    """
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} does not contain {BEGIN} followed by {END}")
    path.write_text(f"{before}{BEGIN}\n{part}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Write the report."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    flags.add_argument("--pages", type=Path, default=PAGES, help="folder for the pages (default: %(default)s)")
    flags.add_argument("--readme", type=Path, default=ROOT / "README.md", help="README (default: %(default)s)")
    arguments = flags.parse_args()
    folder: Path = arguments.pages
    folder.mkdir(parents=True, exist_ok=True)
    found = {script.__name__: results_of(arguments.results, script.__name__) for script in SCRIPTS}
    for script in SCRIPTS:
        text = page(script, found[script.__name__], folder)
        (folder / f"{script.__name__}.md").write_text(text + "\n", encoding="utf-8")
    write_section(arguments.readme, readme_part(found))
    print(f"{sum(written is not None for written in found.values())} of {len(SCRIPTS)} pages have results: {folder}")


if __name__ == "__main__":
    main()
