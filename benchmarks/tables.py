"""Markdown tables of results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ratios import Results, buffer_names, is_wrong, mean, paired_ratios, ratios

from adapters.buffer_names import title


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(" --- ", "---")


def ratio_table(results: Results) -> str:
    """Return a row per buffer: memory, its maximum, and times, as geometric means over the labels."""
    numbers = [key for key, value in next(iter(results.values()))["SB3"].items() if isinstance(value, float)]
    times = [key for key in numbers if key != "rss"]
    header = ["buffer", "memory (RSS)", "worst", *(f"`{key}`" for key in times)]
    rows = []
    for name in buffer_names(results):
        memory = ratios(results, name, "rss")
        if not memory:
            rows.append([title(name), *["failed"] * (len(header) - 1)])
            continue
        cells = [
            f"{mean(memory):.2%}",
            f"{max(memory):.2%}",
            *(f"{mean(ratios(results, name, k)):.2f}x" for k in times),
        ]
        rows.append([title(name) + (" (**returns wrong data**)" if is_wrong(results, name) else ""), *cells])
    return markdown(header, rows)


def game_table(results: Results) -> str:
    """Return a row per label and buffer."""
    keys = [key for key, value in next(iter(results.values()))["SB3"].items() if isinstance(value, int | float)]
    rows = []
    for label, of_label in results.items():
        for name in buffer_names({label: of_label}):
            of_one = {key: ratios({label: of_label}, name, key) for key in keys}
            cells = [
                (f"{of_one[key][0]:.2%}" if key == "rss" else f"{of_one[key][0]:.2f}x") if of_one[key] else ""
                for key in keys
            ]
            rows.append([label, title(name), *cells])
    return markdown(["observations", "buffer", "memory (RSS)", *(f"`{key}`" for key in keys if key != "rss")], rows)


def summary_table(results: Results) -> str:
    """Return a row per buffer: geometric means over the labels, with the worst case in parentheses."""
    keys = _keys(results)
    rows = []
    for name in buffer_names(results):
        cells = []
        for key in keys:
            found = [statistics.median(each) for of_label in results.values() if (each := _paired(of_label, name, key))]
            cells.append(f"{_form(key, mean(found))} ({_form(key, max(found))})" if found else "failed")
        wrong = " (**returns wrong data**)" if is_wrong(results, name) else ""
        rows.append([title(name) + wrong, str(len(results)), *cells])
    return markdown(["buffer", "sources", *map(_heading, keys)], rows)


def ratio_range_table(results: Results) -> str:
    """Return a row per label and buffer: medians over the rounds, and their quartiles."""
    keys = _keys(results)

    def cells(of_label: dict[str, dict[str, Any]], name: str) -> Iterable[str]:
        for key in keys:
            found = _paired(of_label, name, key)
            text = _form(key, statistics.median(found)) if found else "failed"
            if len(found) > 2:
                first, _, third = statistics.quantiles(found, n=4, method="inclusive")
                text += f" ({_form(key, first)} to {_form(key, third)})"
            yield text

    return _table_of_buffers(results, [*map(_heading, keys)], cells)


def fault_table(results: Results) -> str:
    """Return a row per label and buffer: minor page faults of each call, and those of SB3's."""
    keys = [key for key in _keys(results) if key not in MEMORY]

    def cells(of_label: dict[str, dict[str, Any]], name: str) -> Iterable[str]:
        for key in keys:
            pair = [of_label.get(each, {}).get("faults", {}).get(key) for each in (name, "SB3")]
            yield "" if None in pair else f"{pair[0]:.3g} / {pair[1]:.3g}"

    return _table_of_buffers(results, [*map(_heading, keys)], cells)


def _table_of_buffers(
    results: Results, header: Sequence[str], cells: Callable[[dict[str, dict[str, Any]], str], Iterable[str]]
) -> str:
    """Return a row per label and buffer, without a column for the buffer if there is only one besides SB3's."""
    names = ["buffer"] if len(buffer_names(results)) > 1 else []
    rows = [
        [label, *([title(name)] if names else []), *cells(of_label, name)]
        for label, of_label in results.items()
        for name in buffer_names({label: of_label})
    ]
    return markdown(["observations", *names, *header], rows)


def fixed_cost_table(results: Results) -> str:
    """Return a row per buffer with the memory of empty ones in megabytes: the median over the labels, and the most."""
    rows = []
    for name in ["SB3", *buffer_names(results)]:
        found = [of_label[name]["fixed"] / 1e6 for of_label in results.values() if "fixed" in of_label.get(name, {})]
        cells = [f"{statistics.median(found):.1f} MB", f"{max(found):.1f} MB"] if found else ["failed", ""]
        rows.append([title(name), *cells])
    return markdown(["buffer", "fixed cost, median", "most"], rows)


#: Keys of bytes; all other numbers are times.
MEMORY = {"rss": "memory (RSS)", "growth": "growth"}


def _keys(results: Results) -> list[str]:
    """Return the keys of numbers, from any of SB3's results that succeeded."""
    found = [of_label["SB3"] for of_label in results.values() if "error" not in of_label.get("SB3", {"error": ""})]
    return [key for key, value in found[0].items() if isinstance(value, int | float)] if found else []


def _paired(of_label: dict[str, dict[str, Any]], name: str, key: str) -> list[float]:
    return [] if "error" in of_label.get(name, {"error": ""}) else paired_ratios(of_label, name, key)


def _heading(key: str) -> str:
    return MEMORY.get(key, f"`{key}`")


def _form(key: str, ratio: float) -> str:
    return f"{ratio:.2%}" if key in MEMORY else f"{ratio:.2f}x"
