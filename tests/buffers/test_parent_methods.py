"""Methods of SB3's classes that projects replace at run time: what buffers do not call, a warning names."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from programs import environment_with, run_python
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from support import filled, new_buffer, recorded

from sb3_compressed import CompressedNStepReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer


def construct(cls: Any, **options: Any) -> Any:
    """Return an empty compressed buffer of a class."""
    if issubclass(cls, ReplayBuffer):
        name = (
            "goal-bits"
            if issubclass(cls, HerReplayBuffer)
            else "console"
            if issubclass(cls, DictReplayBuffer)
            else "cart"
        )
        return new_buffer(cls, name, 20, **options)
    space, actions, n_envs, _ = recorded("console" if issubclass(cls, DictRolloutBuffer) else "cart")
    is_recurrent = issubclass(cls, RecurrentRolloutBuffer | RecurrentDictRolloutBuffer)
    shape = {"hidden_state_shape": (10, 1, n_envs, 4)} if is_recurrent else {}
    return cls(10, space, actions, device="cpu", n_envs=n_envs, **shape)


def replaced(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Replace a method by one that calls it, and return a list to which that appends."""
    original, calls = getattr(owner, name), []

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, own)
    return calls


def warnings_of(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in found]


#: The method that is replaced, and the kinds of buffers that SB3 would call it of.
REPLACED: list[tuple[Any, str, set[str]]] = [
    (ReplayBuffer, "add", {"replay", "n-step"}),
    (ReplayBuffer, "_get_samples", {"replay"}),
    (NStepReplayBuffer, "_get_samples", {"n-step"}),
    (DictReplayBuffer, "add", {"dict", "her"}),
    (HerReplayBuffer, "add", {"her"}),
    (HerReplayBuffer, "_get_real_samples", {"her"}),
    (HerReplayBuffer, "_get_virtual_samples", {"her"}),
    (RolloutBuffer, "add", {"plain", "maskable", "recurrent"}),
    (RolloutBuffer, "get", {"plain"}),
    (RolloutBuffer, "_get_samples", {"plain"}),
    (DictRolloutBuffer, "add", {"dict", "maskable-dict", "recurrent-dict"}),
    (MaskableRolloutBuffer, "add", {"maskable"}),
    (MaskableRolloutBuffer, "_get_samples", {"maskable"}),
    (RecurrentRolloutBuffer, "add", {"recurrent"}),
]


@pytest.mark.parametrize(("owner", "name", "kinds"), REPLACED)
def test_a_replaced_method_is_named_once(
    owner: Any, name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = replaced(monkeypatch, owner, name)
    pairs = ROLLOUT_PAIRS if issubclass(owner, RolloutBuffer) else REPLAY_PAIRS
    for kind, (compressed, _) in pairs.items():
        found = warnings_of(lambda: construct(compressed))  # noqa: B023  # it is called at once
        assert len(found) == (kind in kinds), (kind, found)
        if found:
            assert f"{owner.__name__}.{name} " in found[0]
            assert f"{compressed.__name__}.{name} " in found[0]
        assert not warnings_of(lambda: construct(compressed))  # noqa: B023
    assert not calls
    replaced(monkeypatch, owner, name)  # by another one
    assert warnings_of(lambda: construct(pairs[min(kinds)][0]))


def test_wrappers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(ReplayBuffer.add)
    def counted_add(*args: Any) -> None:
        """Never called."""

    monkeypatch.setattr(ReplayBuffer, "add", counted_add)
    [found] = warnings_of(lambda: construct(CompressedReplayBuffer))
    assert "counted_add" in found
    assert found.count(" ReplayBuffer.add") == 0, "what was replaced is not named as what has replaced it"


def test_resets_that_are_no_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch.object(RolloutBuffer, "reset") as reset:
        construct(CompressedRolloutBuffer)
    assert reset.called


def test_extend_and_methods_that_a_class_did_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, BaseBuffer, "extend")
    assert "BaseBuffer.extend" in warnings_of(lambda: construct(CompressedReplayBuffer))[0]
    monkeypatch.undo()
    monkeypatch.setattr(NStepReplayBuffer, "add", lambda *args: None, raising=False)
    assert "NStepReplayBuffer.add" in warnings_of(lambda: construct(CompressedNStepReplayBuffer))[0]
    assert not warnings_of(lambda: construct(CompressedReplayBuffer))


def test_a_class_that_is_replaced_as_well_needs_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, ReplayBuffer, "add")
    calls = replaced(monkeypatch, CompressedReplayBuffer, "add")
    assert not warnings_of(lambda: filled("cart", 5, 20))
    assert len(calls) == 5


def test_subclasses_that_would_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is defined after the method was replaced."""
    replaced(monkeypatch, ReplayBuffer, "add")

    class Calling(CompressedReplayBuffer):
        def add(self, *args: Any) -> None:
            super().add(*args)

    class NotCalling(CompressedReplayBuffer):
        def add(self, *args: Any) -> None:
            pass

    [found] = warnings_of(lambda: construct(Calling))
    assert "CompressedReplayBuffer.add" in found
    assert not warnings_of(lambda: construct(NotCalling))


@pytest.mark.parametrize("name", ["sample", "size", "reset", "to_torch", "_normalize_reward", "_normalize_obs"])
def test_methods_that_are_called_need_no_warning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = next(each for each in (ReplayBuffer, BaseBuffer) if name in vars(each))
    calls: list[Any] = []
    original, raw = getattr(owner, name), vars(owner)[name]

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, staticmethod(own) if isinstance(raw, staticmethod) else own)

    def use() -> None:
        buffer = filled("cart", 5, 20)
        buffer.sample(3)
        buffer.reset()

    assert not warnings_of(use)
    assert calls or name == "size"


def test_a_sampler_replaces_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, BaseBuffer, "sample")
    assert not warnings_of(lambda: construct(CompressedReplayBuffer))
    assert "BaseBuffer.sample" in warnings_of(lambda: construct(CompressedReplayBuffer, sampler="prioritized"))[0]


def test_methods_of_rollout_buffers_that_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = replaced(monkeypatch, RolloutBuffer, "compute_returns_and_advantage")

    def use() -> None:
        buffer = construct(CompressedRolloutBuffer)
        buffer.compute_returns_and_advantage(th.zeros(buffer.n_envs), np.zeros(buffer.n_envs))

    assert not warnings_of(use)
    assert calls


BEFORE = """
import functools, sys
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer

def own_add(self, *args, **kwargs):
    pass

def same(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

ReplayBuffer.add = own_add
RolloutBuffer.add = same(RolloutBuffer.add)  # such as a decorator that checks types

import numpy as np
from gymnasium import spaces
from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer

space, actions = spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(2)
CompressedReplayBuffer(10, space, actions, "cpu")
CompressedRolloutBuffer(10, space, actions, "cpu")
CompressedDictReplayBuffer(10, spaces.Dict(a=space), actions, "cpu")
"""


def test_methods_that_were_replaced_before_the_import() -> None:
    result = run_python(["-c", BEFORE], environment_with(), fresh=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Warning:") == 1, result.stderr
    assert "ReplayBuffer.add was replaced by own_add" in result.stderr
