"""``sb3-compressed inspect``: describe a stored buffer without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import typer

from sb3_compressed.cli.output import Json, format_nbytes, print_result
from sb3_compressed.cli.sources import SourcePath, find_source
from sb3_compressed.errors import CorruptPayload, CorruptStorage
from sb3_compressed.storage.files import nbytes_on_disk
from sb3_compressed.storage.lock import FolderLock
from sb3_compressed.storage.log import unfinished_segments

__all__ = ["inspect"]

NAME_WIDTH = 34


def inspect(path: SourcePath, as_json: Json = False) -> None:
    """Describe a stored buffer: class, spaces, codec, size, episodes; exit with 1 if it is damaged.

    Takes about the same time for a buffer of any size.

    Memory is that of the loaded buffer: payloads, slots, references, trained
    state, actions, rewards and flags. Each process takes about 100 MB besides.
    """
    path = find_source(path)
    result: dict[str, Any] = {"path": path}
    damage = None
    try:
        result |= _description(path)
    except (CorruptStorage, CorruptPayload) as error:
        damage = str(error)
    result["disk_bytes"] = nbytes_on_disk(path)
    result["health"] = {
        "opens": damage is None,
        "damage": damage,
        "is_written_to": FolderLock.is_locked(path),
        "unfinished": unfinished_segments(path),
    }
    print_result(result, *(f"{name:<{NAME_WIDTH}}{text}" for name, text in _lines(result)), as_json=as_json)
    if damage:
        raise typer.Exit(1)


def _description(path: Path) -> dict[str, Any]:
    from sb3_compressed.buffers.description import describe
    from sb3_compressed.buffers.loading import open_to_read
    from sb3_compressed.datasets.trajectory import trajectories

    with closing(open_to_read(path)) as buffer:
        episodes = [*trajectories(buffer)]
        whole = [episode for episode in episodes if episode.has_begin and episode.has_end]
        described = {
            "episodes": len(episodes),
            "whole": len(whole),
            "without_begin": sum(not episode.has_begin for episode in episodes),
            "unfinished": sum(not episode.has_end for episode in episodes),
            "lengths": _summary([len(episode) for episode in whole]),
            "returns": _summary([episode.total_reward for episode in whole]),
        }
        return {**describe(buffer), "episodes": described}


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)} if values else None


def _lines(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of all values that are not ``None``."""
    for key, value in result.items():
        name = f"{prefix} {key.replace('_', ' ')}".strip()
        if isinstance(value, Mapping):
            yield from _lines(value, name)
        elif value is not None:
            yield name, _text(key, value)


def _text(key: str, value: Any) -> str:
    """Return a value as people read it."""
    if "bytes" in key:
        return format_nbytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
