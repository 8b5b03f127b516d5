"""The connection to Ray: on this machine by default, or to a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions

__all__ = [
    "ACTOR_FAILURES",
    "NAMESPACE",
    "claim_name",
    "connect",
    "free_resources",
    "is_restarted",
    "new_actor",
    "summary",
    "why_no_node_fits",
]

#: What a call of an actor raises that died, is restarting, or whose node was lost.
ACTOR_FAILURES = (
    exceptions.RayActorError,  # which includes those of unavailable actors
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OwnerDiedError,
)

#: The namespace of all named actors.
NAMESPACE = "sb3_compressed"
#: Seconds between attempts to claim a name.
PAUSE = 0.2
#: Ray counts resources in ten-thousandths.
ROUNDING = 0.5e-4
#: The names of resources that options of actors request.
RESOURCE_OF_OPTION = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}

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
    """
    # With task events, Ray's control process keeps 3 kB for each call.
    defaults = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "enable_task_events": False}
    options_of_class: dict[str, Any] = {"concurrency_groups": getattr(cls, "CONCURRENCY_GROUPS", {})}
    remote: Any = ray.remote(**options_of_class)(cls)
    return remote.options(**{**defaults, **options}).remote(*args, **kwargs)


def claim_name(name: str, timeout: float) -> Any:
    """Claim a name on the cluster for this process, and return an actor of that name.

    Keep the actor, and release the name with ``ray.kill``. Ray ends the actor with this process, so that another one
    can claim the name.

    :param timeout: seconds to wait for a process that is ending
    :raises RuntimeError: if another process has claimed it
    """

    class Claim:  # local, so that its process imports nothing of this package
        pass

    options: Any = ray.remote(Claim).options(name=name, namespace=NAMESPACE, num_cpus=0)
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(ValueError):  # there is an actor of that name
            return options.remote()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the name {name!r} is used by another process, which is still running")
        time.sleep(PAUSE)


def why_no_node_fits(options: Mapping[str, Any], n_actors: int) -> str | None:
    """Return why the cluster could not run some actors even if nothing else ran; ``None`` if it could.

    :param options: of each actor, such as ``dict(num_cpus=1)``
    :param n_actors: number of actors
    """
    requested = {
        **{resource: options[option] for option, resource in RESOURCE_OF_OPTION.items() if options.get(option)},
        **(options.get("resources") or {}),
    }
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    amounts = {name: amount for name, amount in requested.items() if amount}
    fitting = (
        min((int((node.get(name, 0) + ROUNDING) // amount) for name, amount in amounts.items()), default=n_actors)
        for node in nodes
    )
    if sum(fitting) >= n_actors:
        return None
    names = {*RESOURCE_OF_OPTION.values(), *requested}
    existing = "; ".join(_described({name: node[name] for name in node if name in names}) for node in nodes)
    return f"{n_actors} actors with {_described(requested)} each were requested, but the nodes have {existing}"


def free_resources() -> str:
    """Return which resources of the cluster are free, for error messages."""
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    return _described({name: free.get(name, 0) for name in RESOURCE_OF_OPTION.values()})


def _described(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()))


def is_restarted() -> bool:
    """Return whether this is an actor that Ray has restarted."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


def summary(error: Exception) -> str:
    """Return the first line of an error, since those of Ray have many."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
