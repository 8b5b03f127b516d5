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
PANELS = {"rss": "memory (RSS)", **{key: key for key in ("add", "sample(32)", "sample(256)")}}
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
            if not (memory := ratios(results, name, "rss")):
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


def scale(results: Results, path: Path) -> None:
    """Plot memory by the size of the buffer, and memory per transition and times relative to the smallest size."""
    smallest = next(iter(results))
    panels = {
        "rss": "memory per transition",
        "add": "add",
        "sample(32)": "sample(32)",
        "sample(256)": "sample(256)",
    }
    names = list(results[smallest])
    with mpl.rc_context(STYLE):
        figure, (memory, *axes) = plt.subplots(1, 1 + len(panels), figsize=(12, 2.8), layout="constrained")
        styles = itertools.cycle(["-", "--", ":", "-."])
        for name in names:
            library, *_ = split_name(name)
            look: dict[str, Any] = {"marker": MARKERS[library], "ms": 4, "color": COLORS[library]}
            look |= {"ls": next(styles) if library == "ours" else "-", "label": title(name).replace("`", "")}
            sizes = [int(size) for size, of_size in results.items() if "rss" in of_size.get(name, {})]
            memory.plot(sizes, [size * results[str(size)][name]["rss"] / 1e9 for size in sizes], **look)
            for panel, key in zip(axes, panels):
                base = results[smallest][name].get(key, 0)
                of_name = {int(size): of_size.get(name, {}).get(key) for size, of_size in results.items()}
                there = {size: value / base for size, value in of_name.items() if value is not None and base > 0}
                panel.plot(there.keys(), there.values(), **look)
        memory.set(title="memory (RSS)", ylabel="GB", yscale="log")
        _log(memory.yaxis, _number)
        for panel, heading in zip(axes, panels.values()):
            panel.set_title(heading)
            panel.axhline(1, color="#8a8a84", lw=0.8, zorder=0)
            panel.yaxis.set_major_formatter(FuncFormatter(_ratio))
            panel.set_ylim(0, max(1.1 * each.dataLim.y1 for each in axes))
        for panel in (memory, *axes):
            panel.set(xscale="log", xlabel="transitions")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.xaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel(f"at {int(smallest):,} = 1×")  # noqa: RUF001
        axes[0].legend(frameon=False, fontsize=7.5, loc="lower left")
        _save(figure, path)


def games(results: Results, path: Path) -> None:
    """Plot memory and times per buffer and game."""
    panels = PANELS
    labels = list(results)
    libraries = {split_name(name)[0]: name for name in reversed(buffer_names(results))}
    names = list(reversed(libraries.values()))  # the first of each library; more would be indistinguishable
    offsets = [(i - (len(names) - 1) / 2) * 0.12 for i in range(len(names))]
    with mpl.rc_context({**STYLE, "axes.grid.axis": "x"}):
        height = 1.3 + 0.36 * len(labels)
        figure, axes = plt.subplots(1, len(panels), figsize=(10, height), sharey=True, layout="constrained")
        for name, offset in zip(names, offsets):
            library, *_ = split_name(name)
            for panel, key in zip(axes, panels):
                for row, label in enumerate(labels):
                    if of_one := ratios({label: results[label]}, name, key):
                        value = of_one[0] * (100 if key == "rss" else 1)
                        panel.plot(
                            value,
                            row + offset,
                            MARKERS[library],
                            ms=4,
                            color=COLORS[library],
                            label=title(name).replace("`", ""),
                        )
        for panel, (key, heading) in zip(axes, panels.items()):
            panel.set(xscale="log", title=heading)
            _log(panel.xaxis, _percent if key == "rss" else _ratio)
            panel.tick_params(axis="x", labelsize=7)
            panel.axvline(100 if key == "rss" else 1, color="#8a8a84", lw=0.8, zorder=0)
        axes[0].set_yticks(range(len(labels)), labels)
        axes[0].invert_yaxis()
        handles = _handles(axes[0])
        figure.legend(handles.values(), handles.keys(), frameon=False, loc="outside lower center", ncols=4, fontsize=8)
        _save(figure, path)


def distribution(groups: dict[str, Results], path: Path) -> None:
    """Plot, for each group of sources, the share of sources whose ratio to SB3's buffer is at most some value."""
    styles = ["-", "--", ":", "-."]
    names = buffer_names({label: found for of_group in groups.values() for label, found in of_group.items()})
    colors = dict(zip(names, itertools.cycle(["#2a78d6", "#d95926", "#7a4fc4", "#1a9a6c"])))
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(PANELS), figsize=(10, 3.2), sharey=True, layout="constrained")
        for name, (style, (group, results)) in itertools.product(names, zip(itertools.cycle(styles), groups.items())):
            for panel, key in zip(axes, PANELS):
                values = sorted(value * (100 if key == "rss" else 1) for value in ratios(results, name, key))
                shares = [100 * i / len(values) for i in range(len(values) + 1)] if values else []
                values = values[:1] + values  # every curve begins at 0%
                label = f"{title(name)}: {group}".replace("`", "")
                panel.step(values, shares, style, where="post", color=colors[name], lw=1.2, label=label)
        for panel, (key, heading) in zip(axes, PANELS.items()):
            panel.set(xscale="log", title=heading)
            _log(panel.xaxis, _percent if key == "rss" else _ratio)
            panel.tick_params(axis="x", labelsize=7)
            panel.axvline(100 if key == "rss" else 1, color="#8a8a84", lw=0.8, zorder=0)
        axes[0].set_ylabel("% of the sources at most")
        handles = _handles(axes[0])
        figure.legend(handles.values(), handles.keys(), frameon=False, loc="outside lower center", ncols=2, fontsize=8)
        _save(figure, path)
