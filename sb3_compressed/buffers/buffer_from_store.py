"""``buffer_from_store``: construct the replay buffer that a folder contains."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sb3_compressed.buffers.mixed_checkpoint import is_mixed, part_folder
from sb3_compressed.buffers.validation import validate_integer
from sb3_compressed.common.paths import user_path
from sb3_compressed.errors import CorruptStorage, StorageError
from sb3_compressed.persistence.buffer_repair import repair_store
from sb3_compressed.persistence.buffer_storage import STORAGE_ARGUMENTS
from sb3_compressed.persistence.restoring import load_into, require_buffer
from sb3_compressed.persistence.sampler_state import stored_config
from sb3_compressed.samplers.config import sampler_from_config
from sb3_compressed.storage.array_store import ArrayStore
from sb3_compressed.storage.log_files import has_log, require_log
from sb3_compressed.storage.metadata_schema import check_buffer
from sb3_compressed.storage.spaces import argument_from_data, space_from_data

if TYPE_CHECKING:
    from sb3_compressed.buffers.replay import CompressedReplay

__all__ = ["buffer_from_store", "loadable_class", "open_to_load", "require_buffer_folder"]

Buffer = TypeVar("Buffer", bound="CompressedReplay")

#: The classes whose folders can be loaded without naming them.
LOADABLE_CLASSES = {
    "CompressedDictReplayBuffer": "sb3_compressed.buffers.replay",
    "CompressedHerReplayBuffer": "sb3_compressed.buffers.her",
    "CompressedNStepReplayBuffer": "sb3_compressed.buffers.n_step",
    "CompressedReplayBuffer": "sb3_compressed.buffers.replay",
}


#: Arguments that a folder must not contain: those of an untrusted one could make the buffer write to other folders.
NOT_FROM_FOLDERS = STORAGE_ARGUMENTS | {"device", "env", "num_threads"}


def loadable_class(name: str) -> Any:
    """Return the class of this name whose folders can be loaded without naming it, ``None`` if there is none."""
    module = LOADABLE_CLASSES.get(name)
    return None if module is None else pkgutil.resolve_name(f"{module}:{name}")


def open_to_load(
    folder: str | PathLike[str], given: dict[str, Any], *, repair: bool = False, follow: bool = False
) -> ArrayStore:
    """Open a folder to load or follow its content.

    :param given: arguments of the constructor that override the stored ones; ``buffer_size=None``, which does not, is
        removed
    :raises TypeError: if ``buffer_size`` is not an integer
    :raises ValueError: if it is not positive
    :raises StorageError: if the folder contains no buffer, or a damaged one is to be followed
    """
    if given.get("buffer_size") is None:
        given.pop("buffer_size", None)
    rows = validate_integer("buffer_size", given["buffer_size"], 1) if "buffer_size" in given else 0
    if repair and follow:
        raise StorageError("a folder cannot be followed and repaired at once; repair it with storage_mode='repair'")
    path = user_path(folder)
    require_buffer_folder(path)
    return ArrayStore.open(path, rows=rows, repair=repair)


def require_buffer_folder(path: Path) -> None:
    """Raise if a path is something else for which the folder of a buffer is easily mistaken.

    :raises StorageError: with the path to pass instead
    """
    if path.is_file() and has_log(path.parent):
        raise StorageError(f"{path} is one file of a buffer: pass its folder, {path.parent}")
    if path.is_file() and has_log(path.parent / "buffer"):
        raise StorageError(f"{path} is a file of a checkpoint: pass the folder {path.parent / 'buffer'}")
    if path.is_file():
        raise StorageError(f"{path} is a file: load a pickle of save_replay_buffer with model.load_replay_buffer")
    if is_mixed(path):
        raise StorageError(
            f"{path} contains a mixed buffer: load it with load_checkpoint, or pass a part, such as "
            f"{part_folder(path, 0)}"
        )
    if not has_log(path) and any(path.glob("step_*/buffer")):
        raise StorageError(f"{path} contains checkpoints: pass latest_checkpoint({str(path)!r}) / 'buffer'")
    if not has_log(path) and (rings := sorted([*path.glob("ring-*"), *path.glob("*/ring-*")])):
        raise StorageError(f"{path} contains a distributed buffer: pass the folder of a ring, such as {rings[0]}")
    require_log(path)


def buffer_from_store(
    cls: type[Buffer], store: ArrayStore, given: Mapping[str, Any], *, follow: bool = False, of_user: bool = True
) -> Buffer:
    """Return the buffer that an open store contains.

    :param store: belongs to the buffer afterwards, and is closed if that cannot be constructed
    :param given: arguments of the constructor that override the stored ones
    :param follow: whether the buffer reads the folder in place
    :param of_user: whether ``given`` may be wrong, and not only what is stored, if the constructor raises an error
    :raises StorageError: if the store contains no buffer, or one of another kind, or there is not enough memory
    :raises CorruptStorage: if its content is invalid
    """
    report = None
    try:
        if store.problems is not None:
            report = repair_store(store)
        if given.get("storage") in ("memory", "device") and not follow:
            about_storage = sorted(STORAGE_ARGUMENTS & set(given) - {"storage"})
        else:
            about_storage = sorted(STORAGE_ARGUMENTS & set(given))
        if about_storage:
            raise StorageError(
                f"the content of a folder is loaded into memory: pass {', '.join(about_storage)} to the constructor, "
                "with storage_mode='resume' to continue the buffer in that folder"
            )
        stored = _stored_arguments(cls, store, given)
        arguments = {**stored, **given, **({"storage": store} if follow else {})}
        missing = [
            name
            for name, parameter in inspect.signature(cls).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and name not in arguments
        ]
        if missing:
            raise StorageError(f"a {cls.__name__} cannot be loaded without {', '.join(missing)}, pass that, too")
        may_be_wrong = of_user and bool(given.keys() - {"device", "env", "buffer_size"})  # the size is validated
        buffer = _construct(cls, store.log.folder, arguments, given_may_be_wrong=may_be_wrong)
        if follow:
            return buffer
        checkpoint = load_into(buffer, store)
        buffer._record_formats()  # some may be those of arrays that a user assigned
        buffer.repair_report = report
        if report is None:
            buffer._checkpoints.begin_with(checkpoint)
    except BaseException:
        store.close()
        raise
    return buffer


def _stored_arguments(cls: type[CompressedReplay], store: ArrayStore, given: Collection[str]) -> dict[str, Any]:
    """Return the arguments for the constructor of a class that a store contains.

    :param given: names of arguments that are overridden
    :raises StorageError: if the class does not take them
    """
    folder = store.log.folder
    require_buffer(store)
    check_buffer(store.metadata, {name: spec.shape for name, spec in store.specs.items()}, folder, given)
    metadata = store.metadata
    sampler = stored_config(store)
    if sampler is not None and "class" in sampler and "sampler" not in given:
        raise StorageError(
            f"{folder} was saved with the sampler {sampler['class']}, which is not from this package; pass "
            f"sampler={sampler['class']}(...), or sampler='uniform' to ignore its state"
        )
    try:
        stored = {
            name: space_from_data(metadata[name]) for name in ("observation_space", "action_space") if name not in given
        }
        stored |= {
            name: argument_from_data(value, sampler_from_config)
            for name, value in metadata["arguments"].items()
            if name != "sampler" or name not in given  # a user's own class cannot be constructed
        }
    except CorruptStorage as error:
        raise CorruptStorage(f"{folder}: its metadata is invalid: {error}") from error
    taken: set[str] = set()
    defaults: dict[str, Any] = {}
    passes_on = True
    for base in (base for base in cls.__mro__[:-1] if "__init__" in vars(base)):
        parameters = inspect.signature(vars(base)["__init__"]).parameters
        if passes_on:  # a constructor that passes **kwargs on takes the arguments of its parent, too
            taken |= parameters.keys()
        passes_on &= any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        defaults = {**{name: parameter.default for name, parameter in parameters.items()}, **defaults}
    not_taken = {name for name in stored.keys() - taken if not _is_default(stored[name], defaults, name)}
    if wrong := sorted(not_taken | (NOT_FROM_FOLDERS & set(stored))):
        raise StorageError(
            f"{folder} was saved by {store.metadata.get('class')} with the arguments {', '.join(sorted(stored))}; "
            f"{cls.__name__} does not take {', '.join(wrong)}"
        )
    return {name: value for name, value in stored.items() if name in taken}


def _is_default(value: Any, defaults: Mapping[str, Any], name: str) -> bool:
    return name in defaults and type(value) is type(defaults[name]) and bool(value == defaults[name])


#: What constructors raise if arguments are wrong.
ARGUMENT_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, AssertionError)


def _construct(cls: type[Buffer], folder: Path, arguments: Mapping[str, Any], *, given_may_be_wrong: bool) -> Buffer:
    """Return a buffer with arguments from a folder.

    :param given_may_be_wrong: whether some are of a user instead; then the constructor's error is raised as it is
    :raises CorruptStorage: if stored arguments are invalid
    :raises StorageError: if there is not enough memory
    """
    try:
        return cls(**arguments)
    except (StorageError, OSError):
        raise
    except MemoryError as error:
        raise StorageError(f"{folder}: there is not enough memory for its {cls.__name__}: {error}") from error
    except ARGUMENT_ERRORS as error:
        if given_may_be_wrong:
            raise
        raise CorruptStorage(f"{folder}: no {cls.__name__} can be constructed from it: {error}") from error
