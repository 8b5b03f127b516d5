"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ratios import Results, buffer_names, is_wrong, mean, ratios

from adapters.buffer_names import title

__all__ = ["markdown", "mean_table", "source_table"]

#: Keys of bytes and how tables name them; all other numbers are times.
MEMORY = {"rss": "memory (RSS)", "growth": "memory"}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(" --- ", "---")


def mean_table(results: Results) -> str:
    """Return a row per buffer: memory and times as geometric means over the labels."""
    keys = _keys(results)
    rows = []
    for name in buffer_names(results):
        found = [ratios(results, name, key) for key in keys]
        wrong = " (**returns wrong data**)" if is_wrong(results, name) else ""
        rows.append(
            [title(name) + wrong, *(_form(key, mean(each)) if each else "failed" for key, each in zip(keys, found))]
        )
    return markdown(["buffer", *map(_heading, keys)], rows)


def source_table(results: Results) -> str:
    """Return a row per label and buffer."""
    keys = _keys(results)
    rows = []
    for label, of_label in results.items():
        for name in buffer_names({label: of_label}):
            found = [ratios({label: of_label}, name, key) for key in keys]
            rows.append(
                [label, title(name), *(_form(key, each[0]) if each else "failed" for key, each in zip(keys, found))]
            )
    return markdown(["observations", "buffer", *map(_heading, keys)], rows)


def _keys(results: Results) -> list[str]:
    """Return the keys of numbers, from any of SB3's results that succeeded."""
    found: list[dict[str, Any]] = [
        each for of_label in results.values() if "error" not in (each := of_label.get("SB3", {"error": ""}))
    ]
    return [key for key, value in found[0].items() if isinstance(value, int | float)] if found else []


def _heading(key: str) -> str:
    return MEMORY.get(key, f"`{key}`")


def _form(key: str, ratio: float) -> str:
    return f"{ratio:.2%}" if key in MEMORY else f"{ratio:.2f}x"
