"""The report converts results to pages, plots and the section of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import images
import pytest
import report
from session import RESULTS
from tables import ratio_table

KEYS = ("rss", "add", "sample(32)", "sample(256)", "sample(1024)")


def replay_results(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(KEYS, 100.0)
    half: dict[str, Any] = dict.fromkeys(KEYS, 50.0)
    equal = {**base, "wrong": ""}
    return {
        game: {"SB3": {**equal}, "auto": {**half, "wrong": ""}, "extra:zstd-3": {**equal}, **more}
        for game in ("Pong", "Qbert")
    }


def image_results() -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Return groups of sources, and results of them."""

    def of(ratio: float) -> dict[str, Any]:
        keys = ("rss", "growth", "add", "sample(32)", "sample(256)")
        return {"SB3": dict.fromkeys(keys, 100.0), "auto": dict.fromkeys(keys, 100 * ratio)}

    fixed = {"(4, 84, 84), 4 environments": {"SB3": {"fixed": 5e5}, "auto": {"fixed": 8e7}}}
    counts = {"Pong, 1 environment": of(3.0), "Pong, 16 environments": of(4.0)}
    groups = {
        images.UNTUNED_GAMES: ["Enduro"], images.TUNED_GAMES: ["Pong"], images.UNTUNED_ENVS: ["Doom84-v0"],
        images.COUNTS: list(counts), images.FIXED: list(fixed),
    }  # fmt: skip
    return groups, {"Pong": of(0.5), "Enduro": of(2.0), "Doom84-v0": of(0.25), **counts, **fixed}


def written(benchmark: str, results: dict[str, Any], **arguments: Any) -> str:
    machine = {"cpu": "a processor", "cores": 2, "system": "", "python": "3.11", "versions": [{"torch": "2"}]}
    arguments = {"size": 100_000, "rounds": 1, **arguments}
    metadata = {"benchmark": benchmark, "date": "", "version": "0.3.0 at 1a2b3c4", "machine": machine}
    return json.dumps({**metadata, "arguments": arguments, "results": results})


def write_report(monkeypatch: pytest.MonkeyPatch, **options: Path) -> None:
    """Run the script with these options."""
    flags = [part for name, path in options.items() for part in (f"--{name}", str(path))]
    monkeypatch.setattr("sys.argv", ["report.py", *flags])
    report.main()


def test_pages_plots_and_readme_are_written_and_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pages = tmp_path / "results", tmp_path / "docs"
    readme, performance = tmp_path / "README.md", tmp_path / "performance.md"
    folder.mkdir()
    for page in (readme, performance):
        page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    groups, results = image_results()
    (folder / "images.json").write_text(written("images", results, size=4000, groups=groups))
    (folder / "replay.json").write_text(written("replay", replay_results()))
    sizes = {"400": replay_results()["Pong"], "800": replay_results()["Pong"]}
    (folder / "scale.json").write_text(written("scale", sizes))
    growth = {"SB3": 50_000.0, "auto": 2_000.0}
    runs = {name: {"runs": [{"weights": "a", "growth": growth[name], "rss": 8.0}] * 2} for name in growth}
    uncompressed = {"none": runs["SB3"], "auto": {"runs": [], "error": "ended with -9"}}
    trained = {
        "DQN, MsPacman, 1 environment, torch on 1 thread": runs,
        "PrioritizedDQN, Pong, 1 environment": uncompressed,
    }
    (folder / "training.json").write_text(written("training", trained))
    timed = {"memory": 0.04, "time": 1.05, "low": 0.97, "high": 1.2, "pairs": 3, "cpu": 1.0}
    times = {"DQN, MsPacman, torch on 1 thread": {"auto": timed, "zstd3": {"error": "ended with -9"}}}
    (folder / "alternating_buffers.json").write_text(written("alternating_buffers", times))
    options = {"results": folder, "pages": pages, "readme": readme, "performance": performance}
    write_report(monkeypatch, **options)
    texts = [page.read_text() for page in (readme, performance)]
    for text in texts:
        assert text.startswith("before")
        assert text.endswith("after\n")
        assert "old" not in text
    assert "| sb3-compressed `auto` | 50.00% | 50.00% | 0.50x |" in texts[1]
    assert "![memory and sampling time of each buffer and codec](docs/codecs.svg)" in texts[1]
    one_line = texts[0].replace("\n", " ")
    assert "One model is trained with both buffers in turns" in one_line
    assert "| DQN, MsPacman | 4.0% | 1.05x |" in one_line
    assert "a processor" in (pages / "replay.md").read_text()
    training_page = (pages / "training.md").read_text()
    assert "version 0.3.0 at 1a2b3c4; " in training_page
    assert "| sb3-compressed `auto` | 4.0% | 100.0% | yes |" in training_page
    times_page = (pages / "alternating_buffers.md").read_text()
    assert "sb3-compressed `auto` | 1.050x | 0.970x to 1.200x | 3 |" in times_page
    assert "sb3-compressed `zstd3` | failed |" in times_page
    assert "**Wrong**: PrioritizedDQN, Pong, 1 environment, auto: ended with -9" in training_page
    first = {path.name: path.read_bytes() for path in pages.glob("*.svg")}
    assert first.keys() == {"codecs.svg", "images.svg", "scale.svg", "games.svg"}
    write_report(monkeypatch, **options)
    assert {path.name: path.read_bytes() for path in pages.glob("*.svg")} == first


def test_failed_and_wrong_buffers_are_marked() -> None:
    wrong = {**dict.fromkeys(KEYS, 1.0), "wrong": "1 observations of 256 wrong"}
    printed = ratio_table(replay_results(cpprb={"error": "ended with -11: "}, zstd3=wrong))
    assert "| cpprb | failed |" in printed
    assert "`zstd3` (**returns wrong data**) |" in printed


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_pages_name_the_version_and_the_commit(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert re.match(r"\d+\.\d+\.\d+\S*( at|, results added in) [0-9a-f]{7,}", content["version"])
    page = (report.PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    assert f"version {content['version']}; {content['date']}" in page
