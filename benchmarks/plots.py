"""Plots of results as ratios to SB3's buffer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter
from ratios import Results, buffer_names, is_wrong, mean, ratios

from adapters.buffer_names import TITLES, split_name, title

COLORS = {"sb3": "#1a1a19", "ours": "#2a78d6", "extra": "#d95926", "torchrl": "#7a4fc4", "cpprb": "#1a9a6c"}
MARKERS = {"sb3": "D", "ours": "o", "extra": "s", "torchrl": "^", "cpprb": "P"}
SAMPLING = "sample(32)"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e0",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "sb3-compressed",  # for a reproducible file
}
mpl.use("agg")


def _ratio(value: float, _: Any = None) -> str:
    return f"{value:g}×"  # noqa: RUF001


def _number(value: float, _: Any = None) -> str:
    return f"{value:g}"


def _percent(value: float, _: Any = None) -> str:
    return f"{value:.3g}%"


def _log(axis: Any, form: Any) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(form))
    axis.set_minor_formatter(NullFormatter())


def _handles(axes: Axes) -> dict[str, Any]:
    """Return one handle per label."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles))


def _save(figure: Figure, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, bbox_inches="tight", facecolor="white", dpi=150, metadata=metadata)
    plt.close(figure)


def codecs(results: Results, path: Path, key: str = SAMPLING) -> None:
    """Plot memory against sampling time, one point per buffer and codec."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 4.8))
        axes.set(xscale="log", yscale="log", xlabel="memory (RSS), SB3 = 100%", ylabel=f"time of {key}, SB3 = 1×")  # noqa: RUF001
        labels = []
        for name in ["SB3", *buffer_names(results)]:
            if not (memory := ratios(results, name, "growth")):
                continue
            library, method, threads = split_name(name)
            x, y = mean(memory) * 100, mean(ratios(results, name, key))
            face = "none" if is_wrong(results, name) else COLORS[library]
            axes.plot(
                *(x, y), marker=MARKERS[library], ms=6, mfc=face, mec=COLORS[library], ls="", label=TITLES[library]
            )
            labels.append((x, y, method + (f", {threads} thread" if threads else ""), COLORS[library]))
        axes.axhline(1, color="#8a8a84", lw=0.8, zorder=0)
        axes.margins(0.08)
        _log(axes.xaxis, _percent)
        _log(axes.yaxis, _ratio)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
        axes.legend(
            handles.values(), handles.keys(), frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=5
        )
        _place(axes, labels)
        _save(figure, path)


def _place(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each label beside its point, on the side with the least overlap with points and other labels."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    points = [axes.transData.transform((x, y)) for x, y, *_ in labels]
    taken = [mpl.transforms.Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    for x, y, text, color in sorted((label for label in labels if label[2]), key=lambda label: label[0]):
        tried: list[tuple[float, int, Any, Any]] = []
        for (dx, ha), (dy, va) in itertools.product(
            [(6, "left"), (-6, "right"), (0, "center")], [(0, "center"), (7, "bottom"), (-7, "top"), (15, "bottom")]
        ):
            if dx == dy == 0:
                continue
            annotation = axes.annotate(
                text,
                (x, y),
                (dx, dy),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=7.5,
                color=color,
                weight="bold" if text == "auto" else "normal",
            )
            box = annotation.get_window_extent()
            covered = sum(
                max(0.0, min(box.x1, other.x1) - max(box.x0, other.x0))
                * max(0.0, min(box.y1, other.y1) - max(box.y0, other.y0))
                for other in taken
            )
            tried.append((covered, len(tried), annotation, box))
        best, *rest = sorted(tried, key=lambda one: one[:2])
        taken.append(best[3])
        for one in rest:
            one[2].remove()


def scale(results: dict[str, dict[int, Any]], path: Path) -> None:
    """Plot memory and the time of a batch over the size, one line per buffer."""
    with mpl.rc_context(STYLE):
        figure, (memory, times) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
        for name, of_name in results.items():
            library, *_ = split_name(name)
            look: dict[str, Any] = {"marker": MARKERS[library], "ms": 4, "color": COLORS[library]}
            look["label"] = title(name).replace("`", "")
            memory.plot(of_name.keys(), [each["rss"] / 1e9 for each in of_name.values()], **look)
            times.plot(of_name.keys(), [each["sample(32)"] for each in of_name.values()], **look)
        memory.set(title="memory (RSS)", ylabel="GB", yscale="log")
        _log(memory.yaxis, _number)
        times.set(title="sample(32)", ylabel="microseconds")
        times.set_ylim(0)
        for panel in (memory, times):
            panel.set(xscale="log", xlabel="transitions")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.xaxis.set_minor_formatter(NullFormatter())
        times.legend(frameon=False, fontsize=7.5, loc="lower left")
        _save(figure, path)


def scenes(groups: dict[str, dict[str, list[float | None]]], names: Sequence[str], path: Path) -> None:
    """Plot the memory of each scene relative to SB3's, one row per scene and one marker per name.

    :param groups: by group and scene, the values of all names
    """
    rows = [(group, scene, values) for group, of_group in groups.items() for scene, values in of_group.items()]
    with mpl.rc_context({**STYLE, "axes.grid.axis": "x"}):
        figure, axes = plt.subplots(figsize=(7.6, 1 + 0.19 * (len(rows) + len(groups))), layout="constrained")
        ticks: dict[float, str] = {}
        for number, (group, scene, values) in enumerate(rows):
            y = number + list(groups).index(group)  # with a row for the name of each group
            if scene == next(iter(groups[group])):
                axes.text(
                    -0.01, y - 1, group, transform=axes.get_yaxis_transform(), weight="bold", ha="right", va="center"
                )
            ticks[y] = scene
            for name, value, (marker, color) in zip(names, values, [("o", COLORS["ours"]), ("s", COLORS["extra"])]):
                if value is not None:
                    axes.plot(max(value, 1e-3) * 100, y, marker, ms=4, color=color, label=name)
        axes.set(xscale="log", xlabel="memory of a transition, SB3 = 100%")
        axes.set_yticks(list(ticks), ticks.values())
        axes.set_ylim(len(rows) + len(groups) - 1.5, -1.5)
        _log(axes.xaxis, _percent)
        axes.axvline(100, color="#8a8a84", lw=0.8, zorder=0)
        handles = _handles(axes)
        figure.legend(handles.values(), handles.keys(), frameon=False, loc="outside upper center", ncols=2, fontsize=8)
        _save(figure, path)
