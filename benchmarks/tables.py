"""Tables of results, in Markdown: every number is a ratio to SB3's own buffer in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from contenders.names import title

Results = dict[str, dict[str, dict[str, Any]]]
"""``{label: {contender: {key: number}}}``"""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(" --- ", "---")


def contenders(results: Results, *, baseline: str = "SB3") -> list[str]:
    """Return who was measured besides the baseline, in order."""
    return list(dict.fromkeys(name for of_label in results.values() for name in of_label if name != baseline))


def ratios(results: Results, contender: str, key: str, *, baseline: str = "SB3") -> list[float]:
    """Return one number's ratio to the baseline's for every label where there are both."""
    both = [(of_label.get(contender, {}), of_label.get(baseline, {})) for of_label in results.values()]
    return [theirs[key] / base[key] for theirs, base in both if key in theirs and base.get(key, 0) > 0]


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean; what noise has made negative or zero counts as very little."""
    return statistics.geometric_mean([max(value, 1e-6) for value in values])


def ratio_table(results: Results) -> str:
    """Return a row for each contender: memory, the worst of it, and times, as geometric means over the labels."""
    numbers = [key for key, value in next(iter(results.values()))["SB3"].items() if isinstance(value, float)]
    times = [key for key in numbers if key != "rss"]
    header = ["buffer", "memory (RSS)", "worst", *(f"`{key}`" for key in times)]
    rows = []
    for name in contenders(results):
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
    """Return a row for each label and contender."""
    keys = [key for key, value in next(iter(results.values()))["SB3"].items() if isinstance(value, int | float)]
    rows = []
    for label, of_label in results.items():
        for name in contenders({label: of_label}):
            of_one = {key: ratios({label: of_label}, name, key) for key in keys}
            cells = [
                (f"{of_one[key][0]:.2%}" if key == "rss" else f"{of_one[key][0]:.2f}x") if of_one[key] else ""
                for key in keys
            ]
            rows.append([label, title(name), *cells])
    return markdown(["observations", "buffer", "memory (RSS)", *(f"`{key}`" for key in keys if key != "rss")], rows)


def merged(several: Iterable[Results]) -> Results:
    """Return several results as one."""
    return {label: of_label for results in several for label, of_label in results.items()}


def is_wrong(results: Results, contender: str) -> bool:
    """Whether a contender returned something else than what was added, with any label."""
    return any(of_label.get(contender, {}).get("wrong") for of_label in results.values())
