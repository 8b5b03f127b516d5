"""The connection to Ray: on this machine by default, or to a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions

from sb3_compressed.errors import ShardUnavailable

__all__ = [
    "ACTOR_FAILURES",
    "connect",
    "free_resources",
    "is_restarted",
    "new_actor",
    "require_restart",
]

#: What a call of an actor raises that died, is restarting, or whose node was lost.
ACTOR_FAILURES = (
    exceptions.RayActorError,  # which includes those of unavailable actors
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OwnerDiedError,
)

#: Warns each time that Ray's processes on this machine accept calls only with a token, which is no reason to worry.
TOKEN_LOGGER = logging.getLogger("ray._private.authentication.authentication_token_setup")


def connect(address: str | None = None) -> None:
    """Connect this process to Ray, unless it is connected.

    :param address: of a cluster, such as ``"auto"``; ``None`` for that in the environment variable ``RAY_ADDRESS``, or
        without it, starts Ray on this machine, until this process ends
    :raises ConnectionError: if there is no cluster
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use over the network
    # Without an address, Ray would connect to any other one on this machine, such as that of another training.
    address = address or os.environ.get("RAY_ADDRESS", "local")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    previous = TOKEN_LOGGER.level
    TOKEN_LOGGER.setLevel(logging.ERROR)
    try:
        ray.init(address, logging_level=logging.WARNING, log_to_driver=False, **options)
    finally:
        TOKEN_LOGGER.setLevel(previous)


def new_actor(cls: type[Any], options: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Return an actor that Ray restarts if its process dies.

    Ray does not repeat calls; callers repeat the ones that are safe to repeat.

    :param cls: the class of the actor; its attribute ``CONCURRENCY_GROUPS``, if there is one, maps groups of methods
        that run beside others to their numbers of threads
    :param options: of Ray's actors, which override the defaults
    :raises ValueError: if the arguments have more than 95 MiB
    """

    # Ray keeps arguments of more than 100 kB in the object store, only until the actor has begun: it could not be
    # restarted. The definition of its class is kept by Ray's control process as long as this process lives.
    class Actor(cls):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(*args, **kwargs)

    Actor.__name__ = Actor.__qualname__ = cls.__name__
    # With task events, Ray's control process keeps 3 kB for each call.
    defaults = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "enable_task_events": False}
    options_of_class: dict[str, Any] = {"concurrency_groups": getattr(cls, "CONCURRENCY_GROUPS", {})}
    remote: Any = ray.remote(**options_of_class)(Actor)
    return remote.options(**{**defaults, **options}).remote()


def require_restart(error: Exception, name: str) -> None:
    """Raise unless an actor whose call has failed is restarted, or may be.

    :param error: what the call has raised
    :param name: names the actor
    :raises ShardUnavailable: if Ray has given it up
    """
    # Calls of an actor on a node that a cluster gives up raise the same error, but it is restarted elsewhere.
    if isinstance(error, exceptions.ActorDiedError) and not error.preempted:
        raise ShardUnavailable(
            f"{name} has ended, and Ray does not restart it; construct the buffer again, and load_checkpoint() or "
            f"storage_mode='resume' continue with what was saved: {error}"
        ) from error


def free_resources() -> str:
    """Return which resources of the cluster are free, for error messages."""
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    memory = f"{free.get('memory', 0) / 1e9:.1f} GB of memory"
    return ", ".join([*(f"{free.get(name, 0):g} {name}" for name in ("CPU", "GPU")), memory])


def is_restarted() -> bool:
    """Return whether this is an actor that Ray has restarted."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)
