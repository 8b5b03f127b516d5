"""Imports and exports need memory for a part of an episode only."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from memory import with_one_episode

from sb3_compressed.datasets import (
    export_dopamine,
    export_minari,
    import_dopamine,
)

N_STEPS = 4096  # 116 MB of observations


def imported(buffer: Any, folder: Path) -> None:
    import_dopamine(folder / "exported", progress_bar=False, device="cpu", storage=folder / "buffer").close()  # type: ignore[attr-defined]


CONVERSIONS: dict[str, Callable[[Any, Path], object]] = {
    "from Dopamine": imported,
    "Dopamine": lambda buffer, folder: export_dopamine(buffer, folder / "files", progress_bar=False),
    "Minari": lambda buffer, folder: export_minari(buffer, f"test/{folder.name}-v0", progress_bar=False),
}


def prepared(convert: Callable[[Any, Path], object], folder: Path, n_steps: int) -> Callable[[], object]:
    """Return a conversion of an episode, whose buffer and files are there."""
    folder.mkdir()
    buffer = with_one_episode(n_steps)
    if convert is imported:
        export_dopamine(buffer, folder / "exported", progress_bar=False)
    return partial(convert, buffer, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_need_memory_for_a_part_of_an_episode_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "Minari":
        pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
    convert = CONVERSIONS[name]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    prepared(convert, tmp_path / "small", 64)()  # loads modules and compiles kernels, which needs memory, too
    conversion = prepared(convert, tmp_path / "large", N_STEPS)
    tracemalloc.start()
    try:
        conversion()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 70e6
