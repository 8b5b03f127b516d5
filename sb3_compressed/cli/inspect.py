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
from sb3_compressed.storage.log_files import unfinished_segments

__all__ = ["inspect"]


def inspect(path: SourcePath, as_json: Json = False) -> None:
    """Describe a stored buffer: class, spaces, codec, size, episodes; exit with 1 if it is damaged.

    Takes about the same time for a buffer of any size.

    Memory is that of the loaded buffer: payloads, slots, references, trained
    state, actions, rewards and flags. Each process takes about 150 MB besides.
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
    print_result(result, *(f"{name:<14}{text}" for name, text in _lines(result)), as_json=as_json)
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


def _lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line."""
    yield "folder", str(result["path"])
    if "class" in result:
        yield from _buffer_lines(result)
    yield "on disk", format_nbytes(result["disk_bytes"])
    yield "health", _format_health(result)


def _buffer_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "class", result["class"]
    yield "observations", result["observation_space"]
    yield "actions", result["action_space"]
    filled, capacity = result["transitions"], result["capacity"]
    share = f" ({filled / capacity:.0%})" if capacity else ""
    n_envs = result["n_envs"]
    yield "transitions", f"{filled:,} of {capacity:,}{share}, {n_envs} environment{'s' if n_envs > 1 else ''}"
    yield "position", f"row {result['position']:,} of {result['rows']:,}{', full' if result['full'] else ''}"
    for key, part in result["observations"].items():
        trained = f", {format_nbytes(part['learned_bytes'])} of trained state" if part["learned_bytes"] else ""
        stack = f", stacks of {part['frames']} frames" if part["frames"] > 1 else ""
        yield f"codec {key}".rstrip(), f"{part['codec'] or 'none (a plain array)'}{trained}{stack}"
    if sampler := result["sampler"]:
        arguments = ", ".join(f"{name}={value!r}" for name, value in sampler.get("arguments", {}).items())
        yield "sampler", sampler["class"] if "class" in sampler else f"{sampler['name']} ({arguments})"
    raw, payload = result["raw_bytes_per_transition"], result["payload_bytes_per_transition"]
    if payload is not None:
        yield "compression", f"{payload:,.0f} bytes of payloads per transition instead of {raw:,.0f}"
        ratio, sb3 = result["memory_ratio"], format_nbytes(result["sb3_memory_bytes"])
        difference = f" ({ratio:,.1f}x less)" if ratio and round(ratio, 1) > 1 else ""
        yield "memory", f"{format_nbytes(result['memory_bytes'])} when loaded, {sb3} in SB3's buffer{difference}"
    yield from _episode_lines(result["episodes"])
    if priorities := result.get("priorities"):
        yield (
            "priorities",
            f"at most {priorities['max']:.3g}, effective sample size {priorities['effective_sample_size']:.0%} of the "
            f"transitions, {priorities['never_sampled']:.0%} never sampled",
        )


def _episode_lines(episodes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    parts = [f"{episodes['episodes']:,}", f"{episodes['whole']:,} complete"]
    parts += [f"{episodes['unfinished']:,} unfinished"] if episodes["unfinished"] else []
    parts += [f"{episodes['without_begin']:,} without their start"] if episodes["without_begin"] else []
    yield "episodes", ", ".join(parts)
    for name in ("lengths", "returns"):
        if spread := episodes[name]:
            yield name, f"{spread['min']:g} to {spread['max']:g}, median {spread['median']:g}"


def _format_health(result: Mapping[str, Any]) -> str:
    health = result["health"]
    if health["damage"]:
        return f"damaged: {health['damage']}"
    parts = ["opens"]
    if health["is_written_to"]:
        parts.append("in use by a writer")
    elif health["unfinished"]:
        parts.append(f"{', '.join(health['unfinished'])} left by an interrupted process (harmless)")
    return f"{', '.join(parts)}; verify every byte: sb3-compressed verify {result['path']}"
