"""``sb3-compressed inspect``: what a stored buffer holds, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from sb3_compressed.cli.output import Json, show
from sb3_compressed.cli.sources import Place, Source, Unpickle, find, opened
from sb3_compressed.errors import CorruptPayload, CorruptStorage

__all__ = ["inspect"]


def inspect(source: Source, unpickle: Unpickle = False, as_json: Json = False) -> None:
    """Tell what a stored buffer holds: class, spaces, codec, sizes, episodes; the exit code is 1 if it is damaged.

    It is quick, however large the buffer is. A pickle is not opened unless --unpickle says so.
    """
    place = find(source)
    result: dict[str, Any] = {"path": place.path, "kind": "pickle" if place.is_pickle else "folder"}
    if place.checkpoint is not None:
        result["checkpoint"] = place.checkpoint
    if place.is_pickle and not unpickle:
        result |= _claims(place.path)
        advice = "A pickle can run any code when it is opened: --unpickle opens it, if you trust it."
        show(result, *_texts(_lines_of_claims(result)), advice, as_json=as_json)
        return
    damage = None
    try:
        result |= _content(place, unpickle=unpickle)
    except (CorruptStorage, CorruptPayload) as error:
        damage = str(error)
    result["disk_bytes"] = _disk_bytes(place.path)
    if not place.is_pickle:
        result["health"] = _health(place.path, damage)
    show(result, *_texts(_lines(result)), as_json=as_json)
    if damage:
        raise typer.Exit(1)


def _content(place: Place, *, unpickle: bool) -> dict[str, Any]:
    from sb3_compressed.buffers.description import describe
    from sb3_compressed.datasets import trajectories
    from sb3_compressed.datasets.episode_statistics import statistics

    with opened(place, unpickle=unpickle) as buffer:
        return {**describe(buffer), "episodes": statistics([*trajectories(buffer)])}


def _claims(path: Path) -> dict[str, Any]:
    from sb3_compressed.persistence.pickles import claims_of_pickle

    claims = claims_of_pickle(path)
    return {
        "class": claims.class_name,
        "protocol": claims.protocol,
        "numpy": claims.numpy_version,
        "claims": claims.numbers,
        "disk_bytes": _disk_bytes(path),
    }


def _disk_bytes(path: Path) -> int:
    """Return the bytes that a file, or those of a folder, take on the disk; a log that is written to has room in it."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    found = [file.stat() for file in files]
    return sum(min(each.st_size, getattr(each, "st_blocks", each.st_size) * 512) for each in found)


def _health(folder: Path, damage: str | None) -> dict[str, Any]:
    from sb3_compressed.storage.lock import FolderLock

    return {
        "opens": damage is None,
        "damage": damage,
        "is_written_to": FolderLock.is_locked(folder),
        "unfinished": sorted(file.name for file in folder.glob("*.unfinished")),
    }


# -- for people ----------------------------------------------------------------------------------------------------


def _texts(lines: Iterator[tuple[str, str]]) -> Iterator[Text]:
    for name, text in lines:
        yield Text.assemble((f"{name:<{NAME_WIDTH}}", "bold"), text)


#: Characters that what is told has for its name.
NAME_WIDTH = 14


def _lines_of_claims(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{result['path']}, a pickle (protocol {result['protocol']}), not opened"
    yield "says it is", result["class"] or "nothing that can be told"
    if result["claims"]:
        yield "with", ", ".join(f"{name}={value}" for name, value in result["claims"].items())
    if result["numpy"]:
        yield "written with", f"NumPy {result['numpy']}"
    yield "on the disk", _size(result["disk_bytes"])


def _lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield result["kind"], str(result["path"])
    if "class" in result:
        yield from _lines_of_content(result)
    yield "on the disk", _size(result["disk_bytes"])
    if "health" in result:
        yield "health", _health_text(result)


def _lines_of_content(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "class", result["class"]
    yield "observations", result["observation_space"]
    yield "actions", result["action_space"]
    filled, capacity = result["transitions"], result["capacity"]
    share = f" ({filled / capacity:.0%})" if capacity else ""
    n_envs = result["n_envs"]
    yield "transitions", f"{filled:,} of {capacity:,}{share}, {n_envs} environment{'s' if n_envs > 1 else ''}"
    yield "next row", f"{result['position']:,} of {result['rows']:,}{', went round' if result['full'] else ''}"
    for key, part in result["observations"].items():
        learned = f", has learned {_size(part['learned_bytes'])}" if part["learned_bytes"] else ""
        stack = f", {part['frames']} frames each" if part["frames"] > 1 else ""
        yield f"codec {key}".rstrip(), f"{part['codec'] or 'none, a plain array'}{learned}{stack}"
    raw, payload = result["raw_bytes_per_transition"], result["payload_bytes_per_transition"]
    if payload is not None:
        ratio = f", {result['ratio']:,.1f} times less" if result["ratio"] else ""
        yield "a transition", f"{payload:,.0f} bytes of observations instead of {raw:,.0f}{ratio}"
    yield from _lines_of_episodes(result["episodes"])


def _lines_of_episodes(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    parts = [f"{told['episodes']:,}", f"{told['whole']:,} whole"]
    parts += [f"{told['unfinished']:,} unfinished"] if told["unfinished"] else []
    parts += [f"{told['without_begin']:,} without their begin"] if told["without_begin"] else []
    yield "episodes", ", ".join(parts)
    for name in ("lengths", "returns"):
        if spread := told[name]:
            yield name, f"{spread['min']:g} to {spread['max']:g}, median {spread['median']:g}"
    if told["best"] is not None:
        yield "best", f"number {told['best']}"


def _health_text(result: Mapping[str, Any]) -> str:
    health = result["health"]
    if health["damage"]:
        return f"damaged: {health['damage']}"
    parts = ["opens"]
    if health["is_written_to"]:
        parts.append("is written to at present")
    elif health["unfinished"]:
        parts.append(f"{', '.join(health['unfinished'])} is left of a process that was ended, and of no concern")
    return f"{', '.join(parts)}; sb3-compressed verify {result['path']} looks at every byte"


def _size(nbytes: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:,.0f} {unit}" if unit == "bytes" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.1f} TB"
