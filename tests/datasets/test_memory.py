"""Imports and exports need memory for a part of an episode only."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dopamine_ring import Ring
from memory import with_one_episode

from sb3_compressed.datasets import export_minari, import_dopamine

N_STEPS = 4096  # 116 MB of observations


def imported(buffer: Any, folder: Path) -> None:
    import_dopamine(folder / "files", progress_bar=False, device="cpu", storage=folder / "buffer").close()  # type: ignore[attr-defined]


CONVERSIONS: dict[str, Callable[[Any, Path], object]] = {
    "from Dopamine": imported,
    "Minari": lambda buffer, folder: export_minari(buffer, f"test/{folder.name}-v0", progress_bar=False),
}


def prepared(convert: Callable[[Any, Path], object], folder: Path, n_steps: int) -> Callable[[], object]:
    """Return a conversion of an episode, whose buffer and files are there."""
    folder.mkdir()
    if convert is imported:
        ring = Ring(n_steps + 3, shape=(84, 84))
        ring.play(n_steps, np.random.default_rng(0), end=0)
        ring.save(folder / "files", 0)
        return partial(convert, None, folder)
    return partial(convert, with_one_episode(n_steps), folder)


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
