"""Scripts pickle, copy and update the ``__dict__`` of buffers, as they do with SB3's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import add, hold_equal, new
from support import Stream

from sb3_compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)

WAYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pickle": lambda attributes: pickle.loads(pickle.dumps(attributes)),
    "deepcopy": copy.deepcopy,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "prioritized": {"sampler": "prioritized"},
    "zstd-dict": {"compression_method": "zstd-dict"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_a_new_buffer_continues_with_the_attributes_of_another(
    way: str, options: str, stream: Stream, tmp_path: Path
) -> None:
    buffer = new(stream, **OPTIONS[options])
    add(stream[-1][:60], buffer)
    buffer.sample(8)
    save_checkpoint(buffer, tmp_path / "before")
    copied = new(stream, **OPTIONS[options])
    copied.__dict__.update(WAYS[way](buffer.__dict__))
    hold_equal(copied, buffer)
    add(stream[-1][60:100], copied)
    assert buffer.pos == 60
    add(stream[-1][60:100], buffer)
    hold_equal(copied, buffer)
    save_checkpoint(copied, tmp_path / "after")
    hold_equal(load_checkpoint(tmp_path / "after", device="cpu"), buffer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("stream", "buffer_class"),
    [("console", CompressedDictReplayBuffer), ("bits", CompressedHerReplayBuffer)],
    indirect=["stream"],
)
def test_dicts_and_hindsight_replay(way: str, buffer_class: Any, stream: Stream) -> None:
    buffer, copied = (new(stream, buffer_class=buffer_class) for _ in range(2))
    add(stream[-1][:60], buffer)
    copied.__dict__.update(WAYS[way]({name: value for name, value in vars(buffer).items() if name != "env"}))
    hold_equal(copied, buffer)
    add(stream[-1][60:100], copied, buffer)
    hold_equal(copied, buffer)


@pytest.mark.parametrize("way", WAYS)
def test_those_of_a_buffer_in_a_folder_raise_and_say_what_to_do(way: str, stream: Stream, tmp_path: Path) -> None:
    buffer = new(stream, storage=tmp_path)
    add(stream[-1][:10], buffer)
    with pytest.raises(TypeError, match="pickle"):
        WAYS[way](buffer.__dict__)
    hold_equal(pickle.loads(pickle.dumps(buffer)), buffer)


@pytest.mark.parametrize("way", WAYS)
def test_those_of_a_buffer_that_is_timed_raise_and_say_what_to_do(way: str, stream: Stream) -> None:
    buffer = new(stream)
    timers = buffer.start_timers()
    with pytest.raises(TypeError, match="BufferStatsCallback"):
        WAYS[way](buffer.__dict__)
    for timer in timers:
        timer.remove()
    WAYS[way](buffer.__dict__)
