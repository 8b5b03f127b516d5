"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratios import Results, buffer_names, is_wrong, mean, ratios

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


def merged(several: Iterable[Results]) -> Results:
    """Merge results."""
    return {label: of_label for results in several for label, of_label in results.items()}
