"""Old names of modules and classes, so that models, pickles and code of earlier versions keep working.

Pickles contain the module and the name of each class. A finder at the end of ``sys.meta_path``, which costs nothing as
long as all modules exist, resolves modules by the names they had before.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["install", "with_current_names"]

#: New names of modules, without the name of the package.
MODULES = {
    "arrays.batch_memory": "arrays.batch_pool",
    "arrays.frames": "arrays.frame_layout",
    "arrays.sharing": "arrays.frame_dedup",
    "arrays.successor_store": "persistence.legacy_vector_arrays",
    "arrays.successors": "persistence.legacy_vector_arrays",
    "arrays.slots": "arrays.encoding",
    "arrays.teacher": "arrays.codec_training",
    "benchmarking.advice": "benchmarking.recommendation",
    "buffers.contrib": "buffers.contrib_rollout",
    "buffers.mixin": "buffers.base",
    "buffers.plan": "buffers.compression_plan",
    "buffers.repair": "persistence.buffer_repair",
    "buffers.statistics": "buffers.memory_statistics",
    "callbacks.checkpoint": "callbacks.checkpoint_callback",
    "callbacks.stats": "callbacks.stats_callback",
    "codecs.base": "codecs.codec",
    "datasets.episodes": "datasets.trajectory",
    "recording.parts": "recording.named_spaces",
    "recording.variants": "recording.record_buffer",
}

#: New names of classes and functions.
NAMES = {
    "ArrayPlan": "CompressionPlan",
    "BatchMemory": "BatchPool",
    "FrameSharing": "FrameDeduplicator",
    "KnownRow": "PreviousRow",
    "LayoutSearch": "FrameStackDetector",
    "NamedParts": "NamedSpaces",
    "SlotCoder": "FrameEncoder",
    "Teacher": "CodecTrainer",
}

#: New names of attributes in pickles of buffers and their reports, ``None`` for those that no longer exist.
ATTRIBUTES = {
    "_batch_memory": "_batch_pool",
    "_hollow_shape": "_placeholder_shape",
    "_passed": "_validated_kinds",
    "_successor_keys": None,
    "damages": "problems",
}


def with_current_names(pickled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a pickled buffer, or of its report, by their current names."""
    renamed = {ATTRIBUTES.get(name, name): value for name, value in pickled.items()}
    return {name: value for name, value in renamed.items() if name is not None}


class RenamedModuleFinder(MetaPathFinder, Loader):
    """Imports modules by their old names."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for a module that was renamed."""
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == __package__ and name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return ``None`` for an ordinary, empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Look up everything in the module of the new name."""
        renamed = import_module(f"{__package__}.{MODULES[module.__name__.partition('.')[2]]}")

        def get(name: str) -> Any:
            if name == "LearningCodec":  # whose subclasses have other methods
                return import_module(f"{__package__}.codecs.deprecated").LearningCodec
            return getattr(renamed, NAMES.get(name, name))

        vars(module)["__getattr__"] = get


def install() -> None:
    """Install the finder, once."""
    if not any(isinstance(finder, RenamedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModuleFinder())
