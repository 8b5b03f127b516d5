"""``import_target``: the buffer that a data set is imported into."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["import_target"]


@contextmanager
def import_target(
    buffer: ReplayBuffer | None,
    new_class: type[Any],
    buffer_size: int,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    **options: Any,
) -> Iterator[ReplayBuffer]:
    """Yield the buffer to import into; if the block raises, nothing is left of a new one.

    A buffer that existed before, because it is passed or its folder is resumed, keeps what was added.

    :param buffer: the buffer, ``None`` for a new one
    :param new_class: the class of a new one, whose other arguments are the options
    :param buffer_size: its size, unless that is an option
    :param observation_space: space of the observations of the data set
    :param action_space: space of its actions
    :raises ValueError: if the buffer has other spaces, or several environments
    """
    if buffer is not None:
        given = buffer.n_envs, buffer.observation_space, buffer.action_space
        if given != (1, observation_space, action_space):
            raise ValueError(
                f"the buffer must have n_envs=1, observations of {observation_space} and actions of {action_space}, "
                f"got n_envs={given[0]}, {given[1]} and {given[2]}"
            )
        yield buffer
        return
    options = {"buffer_size": buffer_size, **options}
    created = new_class(observation_space=observation_space, action_space=action_space, **options)
    try:
        yield created
    except BaseException:
        storage = created._storage
        if options.get("storage_mode", "create") in ("create", "overwrite") and storage is not None:
            with suppress(OSError):
                storage.store.close()  # without a flush, which may be what has failed
            shutil.rmtree(storage.folder, ignore_errors=True)
        raise
