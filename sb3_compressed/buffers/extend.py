"""``extend``: adding many steps to a replay buffer in one call, some of them in each call of the codecs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.buffers.observations import encode_observations
from sb3_compressed.buffers.timing import replaced_by_timer
from sb3_compressed.buffers.validation import kinds_of_step, validated_timeouts
from sb3_compressed.common.interrupts import deferred_interrupts
from sb3_compressed.common.tree_map import leaves, tree_map

if TYPE_CHECKING:
    from sb3_compressed.buffers.replay import CompressedReplay

__all__ = ["CHUNK_STEPS", "Steps", "add_steps", "extend_buffer", "infos_of", "steps_of"]

#: The most bytes of observations, without the next ones, that are encoded in one call, and the most steps.
CHUNK_NBYTES, CHUNK_STEPS = 4_000_000, 32


class Steps(NamedTuple):
    """Steps of all environments that follow each other, each field with the axes ``(n_steps, n_envs, ...)``.

    :param timeouts: whether episodes ended by a time limit, ``None`` where the buffer does not store that
    """

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    timeouts: Any

    def at(self, index: int | slice) -> Steps:
        """Return some steps, or one without the axis of steps."""
        return Steps(*[None if field is None else tree_map(lambda part: part[index], field) for field in self])


def extend_buffer(
    buffer: CompressedReplay | ReplayBuffer,
    arguments: tuple[Any, ...],
    timeouts: Any,
    add_all: Callable[[Steps, Sequence[Any] | None], None],
) -> None:
    """Add many steps, each argument being what ``add`` takes for all of them.

    As in SB3, steps are passed to an ``add`` of the user one after the other, whatever arguments it takes.

    :param arguments: those of ``add``, ``None`` for those that were not passed
    :param timeouts: whether episodes ended by a time limit, instead of info dicts
    :param add_all: adds steps and their info dicts to the buffer if ``add`` is not the user's
    :raises ValueError: if they have different numbers of steps; steps before the last one of the shortest argument may
        have been added then
    :raises TypeError: if there are too many, or some are missing
    """
    if _has_own_add(buffer):
        _add_each_step(buffer, arguments, timeouts)
        return
    if all(argument is None for argument in (*arguments, timeouts)):
        return  # as in SB3
    names = Steps._fields[:-1]
    if missing := [name for name, argument in zip(names, arguments, strict=False) if argument is None]:
        raise TypeError(f"extend() needs the arguments of add, {', '.join(missing)} are missing")
    if len(arguments) > len(names) + 1:
        raise TypeError(f"extend() takes the {len(names) + 1} arguments of add, got {len(arguments)}")
    *given, infos = arguments
    columns = (*given, timeouts, infos)
    parts = _parts(columns) if any(map(_is_iterator, columns)) else [columns]
    for *part, infos_of_part in parts:
        add_all(Steps(*part), infos_of_part)


def _has_own_add(buffer: CompressedReplay | ReplayBuffer) -> bool:
    """Return whether ``add`` is a user's method, of the class or of this buffer."""
    package = __name__.partition(".")[0]
    methods = [type(buffer).add, replaced_by_timer(vars(buffer).get("add"))]
    return any(_module_of(each).partition(".")[0] != package for each in methods if each is not None)


def _module_of(method: Any) -> str:
    """Return the module of a method, also of a wrapper, to which ``functools.wraps`` gives that of the wrapped one."""
    name = getattr(method, "__globals__", {}).get("__name__") or getattr(method, "__module__", None)
    return str(name or "")


def _add_each_step(buffer: CompressedReplay | ReplayBuffer, arguments: tuple[Any, ...], timeouts: Any) -> None:
    """Pass the steps to ``add`` one after the other, as SB3's ``extend`` does."""
    if timeouts is not None:
        before, infos, after = arguments[:5], arguments[5], arguments[6:]
        _require_either(buffer, infos, timeouts)
        arguments = (*before, map(_info_dicts, timeouts), *after)
    while arguments and arguments[-1] is None:
        arguments = arguments[:-1]
    for step in zip(*map(_steps, arguments), strict=True):
        buffer.add(*step)


def _steps(argument: Any) -> Iterator[Any]:
    """Iterate over the steps of an argument, also if it is a dict of arrays."""
    if not isinstance(argument, Mapping):
        return iter(argument)
    return (dict(zip(argument, parts, strict=True)) for parts in zip(*map(_steps, argument.values()), strict=True))


def _is_iterator(argument: Any) -> bool:
    if isinstance(argument, Mapping):
        return any(map(_is_iterator, argument.values()))
    return argument is not None and not hasattr(argument, "__len__")


def _parts(columns: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Yield lists of some steps at a time of arguments that may be iterators, whose content may not fit in memory."""
    steps = [None if column is None else _steps(column) for column in columns]
    while True:
        part = [None if each is None else [*islice(each, CHUNK_STEPS)] for each in steps]
        if not any(part):
            return
        yield part


def add_steps(buffer: CompressedReplay, given: Steps, infos: Sequence[Any] | None) -> None:
    """Add many steps, see :meth:`.CompressedReplay.extend`, whose arguments these are."""
    steps, n_steps = steps_of(buffer, given, infos)
    if not n_steps:
        return
    is_valid = _is_valid_at_once(buffer, steps.at(0), n_steps)
    if not is_valid:
        for step in range(n_steps):
            obs, next_obs, action, reward, done, _ = steps.at(step)
            buffer._validated_arguments(obs, next_obs, action, reward, done)
    storage = buffer._storage
    if storage is not None:
        storage.require_writable("added")
    most = n_steps if storage is None else max(buffer.buffer_size - 1, 1)
    is_joint = storage is not None and storage.is_in_joint_commit
    for first in range(0, n_steps, most):
        part = slice(first, min(first + most, n_steps))
        with nullcontext() if is_joint else buffer.joint_commit(part.stop - part.start):
            if is_valid and (storage is None or storage.is_in_joint_commit):
                _add_at_once(buffer, steps.at(part))
            else:
                for step in range(part.start, part.stop):
                    buffer.add(*steps.at(step)[:-1], infos_of(buffer.n_envs, step, infos, steps.timeouts))


def steps_of(buffer: CompressedReplay, given: Steps, infos: Sequence[Any] | None) -> tuple[Steps, int]:
    """Return the arguments of :meth:`.CompressedReplay.extend` as arrays, and the number of steps; validate infos.

    :raises ValueError: if they have different numbers of steps, or infos do not fit
    :raises TypeError: if time limits are not numeric
    """
    steps = Steps._make([*map(_stacked, given[:-1]), given.timeouts])
    n_steps = _n_steps(steps, infos)
    if n_steps:
        steps = steps._replace(timeouts=_timeouts_of_steps(buffer, infos, given.timeouts, n_steps))
    return steps, n_steps


def _timeouts_of_steps(
    buffer: CompressedReplay, infos: Sequence[Any] | None, timeouts: Any, n_steps: int
) -> NDArray[np.bool_] | None:
    """Validate info dicts and time limits; return the latter, ``None`` if the buffer does not store them.

    :raises ValueError: if they do not fit
    :raises TypeError: if time limits are not numeric
    """
    _require_either(buffer, infos, timeouts)
    if buffer.copy_info_dict and infos is None:
        raise ValueError("infos are needed with copy_info_dict=True")
    limits: list[Any] = []
    if infos is not None and (buffer.handle_timeout_termination or buffer.copy_info_dict):
        limits = [validated_timeouts(each, buffer.n_envs) for each in infos]
    if not buffer.handle_timeout_termination:
        return None
    if infos is not None:
        return np.array(limits, np.bool_).reshape(n_steps, buffer.n_envs)
    if timeouts is None:
        raise ValueError(
            "pass infos, or timeouts: whether each episode ended by a time limit, (n_steps, n_envs); "
            "handle_timeout_termination=False needs neither"
        )
    ended = np.asarray(timeouts)
    if ended.dtype.kind not in "biuf":  # the buffer's own are float32
        raise TypeError(f"timeouts must be booleans, got an array of {ended.dtype}")
    if ended.shape != (n_steps, buffer.n_envs):
        raise ValueError(f"timeouts must have the shape ({n_steps}, {buffer.n_envs}), got {ended.shape}")
    return ended.astype(np.bool_)


def _require_either(buffer: CompressedReplay | ReplayBuffer, infos: Any, timeouts: Any) -> None:
    """Raise if time limits are passed twice, or to a buffer that does not store them.

    :raises ValueError: then
    """
    if infos is not None and timeouts is not None:
        raise ValueError("pass infos or timeouts, not both")
    if timeouts is not None and not buffer.handle_timeout_termination:
        raise ValueError(
            "a buffer with handle_timeout_termination=False stores no time limits: pass no timeouts, or construct it "
            "without that argument"
        )


def infos_of(n_envs: int, step: int, infos: Sequence[Any] | None, timeouts: NDArray[np.bool_] | None) -> Any:
    """Return the info dicts of a step."""
    if infos is not None:
        return infos[step]
    return _info_dicts(np.zeros(n_envs, np.bool_) if timeouts is None else timeouts[step])


def _info_dicts(timeouts: Any) -> list[dict[str, bool]]:
    """Return the info dicts of a step with these time limits, ``(n_envs,)``."""
    return [{"TimeLimit.truncated": bool(each)} for each in timeouts]


def _is_valid_at_once(buffer: CompressedReplay, step: Steps, n_steps: int) -> bool:
    """Return whether the first one of many steps is valid as it is, and so all, which have its types and shapes.

    :raises ValueError: if it is not valid
    :raises TypeError: if it is not numeric
    """
    obs, next_obs, action, reward, done, _ = step
    kinds = kinds_of_step(obs, next_obs, action, reward, done)
    factory = buffer._array_factory
    if kinds is None or kinds != factory.valid_kinds:
        buffer._validate_step(kinds, (obs, next_obs), (action, reward, done))
    if n_steps == 1 or kinds is None or kinds != factory.valid_kinds:
        return False
    if not buffer._extends_at_once or "add" in vars(buffer):  # a timer, which counts its calls
        return False
    # Nothing may be broadcast: with an axis of steps, other axes would meet.
    n_values = [math.prod(array.shape[1:]) for array in leaves(buffer.observations)]
    is_complete = (np.shape(reward), np.shape(done)) == (np.shape(buffer.rewards)[1:], np.shape(buffer.dones)[1:])
    return is_complete and all([part.size for part in leaves(each)] == n_values for each in (obs, next_obs))


def _add_at_once(buffer: CompressedReplay, steps: Steps) -> None:
    """Add valid steps, some of them in each call of the codecs."""
    n_steps = len(steps.reward)
    step_nbytes = max(sum(part.nbytes for part in leaves(steps.at(0).obs)), 1)
    most = min(max(CHUNK_NBYTES // step_nbytes, 1), CHUNK_STEPS)
    first = 0
    while first < n_steps:
        n = min(most, n_steps - first, buffer.buffer_size - buffer.pos)
        _add_chunk(buffer, steps.at(slice(first, first + n)), n)
        first += n


def _add_chunk(buffer: CompressedReplay, steps: Steps, n_steps: int) -> None:
    """Add steps that do not wrap around."""
    obs, next_obs, action, reward, done, timeouts = steps.at(0) if n_steps == 1 else steps
    encoded = encode_observations(buffer.__dict__["observations"], obs, next_obs, n_steps=n_steps)
    if buffer._storage is not None:
        buffer._storage.count_joint_rows(n_steps)
    with deferred_interrupts():  # many rows must not mix old and new values
        buffer._write_steps(n_steps, encoded, action, reward, done, timeouts, None)


def _stacked(values: Any) -> Any:
    """Return what ``add`` takes for several steps as arrays with an axis of steps, or a dict of arrays."""
    if isinstance(values, np.ndarray | CompressedArray):  # of the latter, parts are decoded
        return values
    if isinstance(values, Mapping):
        return {key: _stacked(part) for key, part in values.items()}
    steps = [*values]
    if steps and isinstance(steps[0], Mapping):
        return {key: np.stack([step[key] for step in steps]) for key in steps[0]}
    return np.asarray(steps)


def _n_steps(steps: Steps, infos: Sequence[Any] | None) -> int:
    """Return the number of steps.

    :raises ValueError: if the arguments have different ones
    """
    given = {**steps._asdict(), "infos": infos}
    lengths = {name: [*map(len, leaves(values))] for name, values in given.items() if values is not None}
    if any(each != len(steps.reward) for found in lengths.values() for each in found):
        listed = ", ".join(f"{' and '.join(map(str, found))} of {name}" for name, found in lengths.items())
        raise ValueError(f"all arguments must have the same number of steps, got {listed}")
    return len(steps.reward)
