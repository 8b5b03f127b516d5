"""Layers: methods that a model has for a while, several at once, without anything stored in the model.

A layer replaces the class of a model by a subclass of the same name. Layers can be removed in any order. Copies,
pickles and files of the model have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["ModelLayer", "add_layer", "layers_of", "original_class", "remove_layer"]


class ModelLayer(ABC):
    """Overrides methods of a model."""

    @abstractmethod
    def extend(self, base: type[Any]) -> type[Any]:
        """Return a subclass of the class of a model."""


def add_layer(model: Any, layer: ModelLayer) -> None:
    """Add a layer to a model, around those that it has."""
    _set_layers(model, (*layers_of(model), layer))


def remove_layer(model: Any, layer: ModelLayer) -> None:
    """Remove a layer from a model, unless it was removed before."""
    layers = layers_of(model)
    if layer in layers:
        _set_layers(model, tuple(other for other in layers if other is not layer))


def layers_of(model: Any) -> tuple[ModelLayer, ...]:
    """Return the layers of a model, the innermost first."""
    layers: tuple[ModelLayer, ...] = getattr(type(model), "_sb3_compressed_layers", ())
    return layers


def original_class(model: Any) -> type[Any]:
    """Return the class of a model without layers."""
    original: type[Any] = getattr(type(model), "_sb3_compressed_original", type(model))
    return original


def _set_layers(model: Any, layers: tuple[ModelLayer, ...]) -> None:
    original = extended = original_class(model)
    for layer in layers:
        extended = layer.extend(extended)
    model.__class__ = _with_identity_of(original, extended, layers) if layers else original


def _with_identity_of(original: type[Any], extended: type[Any], layers: tuple[ModelLayer, ...]) -> type[Any]:
    """Return a class that is copied, pickled, loaded and printed as the original one."""

    class Layered(extended):  # type: ignore[misc]
        _sb3_compressed_original = original
        _sb3_compressed_layers = layers

        @classmethod
        def load(cls, *args: Any, **kwargs: Any) -> Any:
            return original.load(*args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _, _, *state = super().__reduce_ex__(2)
            return _new_instance, (original,), *state

    Layered.__name__, Layered.__qualname__ = original.__name__, original.__qualname__
    Layered.__module__, Layered.__doc__ = original.__module__, original.__doc__
    return Layered


def _new_instance(model_class: type[Any]) -> Any:
    """Return a model without attributes, which copies and pickles of models with layers begin with."""
    return object.__new__(model_class)
