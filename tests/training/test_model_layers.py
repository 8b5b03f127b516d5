"""Layers override methods of a model, can be removed in any order, and leave nothing in copies or files."""

from __future__ import annotations

import copy
import pickle
from itertools import permutations
from pathlib import Path
from typing import Any

from stable_baselines3 import DQN

from sb3_compressed.training.model_layers import (
    ModelLayer,
    add_layer,
    layers_of,
    original_class,
    remove_layer,
)


class Recorded(ModelLayer):
    """Appends its name to a list before each training."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def extend(self, base: type[Any]) -> type[Any]:
        name, calls = self._name, self._calls

        class Extended(base):  # type: ignore[misc]
            def train(self, *args: Any, **kwargs: Any) -> None:
                calls.append(name)
                super().train(*args, **kwargs)

        return Extended


def dqn() -> DQN:
    return DQN("MlpPolicy", "CartPole-v1", learning_starts=4, train_freq=4, batch_size=8, buffer_size=100, device="cpu")


def test_the_last_layer_is_the_outermost() -> None:
    model, calls = dqn(), list[str]()
    for name in "ab":
        add_layer(model, Recorded(name, calls))
    model.learn(8)
    assert calls == ["b", "a"]
    assert (type(model).__name__, type(model).__module__) == (DQN.__name__, DQN.__module__)


def test_layers_can_be_removed_in_any_order() -> None:
    model = dqn()
    for order in permutations(range(3)):
        layers = [Recorded(name, []) for name in "abc"]
        for layer in layers:
            add_layer(model, layer)
        for number in order:
            assert layers[number] in layers_of(model)
            remove_layer(model, layers[number])
            remove_layer(model, layers[number])  # does nothing
            assert layers[number] not in layers_of(model)
        assert type(model) is DQN


def test_copies_pickles_and_files_have_no_layers(tmp_path: Path) -> None:
    model, calls = dqn(), list[str]()
    add_layer(model, Recorded("a", calls))
    model.save(tmp_path / "model")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), type(model).load(tmp_path / "model")):
        assert type(other) is DQN
        assert layers_of(other) == ()
    assert original_class(model) is DQN
    assert len(layers_of(model)) == 1
