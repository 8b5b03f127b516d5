"""``BaseConstructor``: SB3's constructors allocate no arrays of compressed observations.

SB3's replay buffers allocate these arrays themselves, of a terabyte perhaps. Their constructors first call that of
``BaseBuffer``, before which the classes here have ``BaseConstructor``. From there on, the parts of ``obs_shape`` that
are compressed have no elements, until the last array of observations is assigned. In between, only SB3's own code runs,
so that code of users always finds the real shape.
"""

from __future__ import annotations

import inspect
from typing import Any

from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer

__all__ = ["BaseConstructor"]

#: What SB3 allocates instead of compressed observations.
NOTHING = (0,)


class BaseConstructor(BaseBuffer):
    """The constructor that those of SB3 call before they allocate; the last one in the bases of compressed buffers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        buffer: Any = self
        # super(ReplayBuffer, self).__init__ of a user's class skips the constructors of SB3's class and of ours.
        is_skipped = "_array_factory" not in vars(self)
        signature = inspect.signature(BaseBuffer.__init__)
        if is_skipped and (further := kwargs.keys() - signature.parameters.keys()):
            raise TypeError(
                f"{type(self).__name__} skips the constructor that takes {', '.join(sorted(further))}: call "
                "super().__init__() with all arguments of the compressed class"
            )
        super().__init__(*args, **kwargs)
        if is_skipped:
            given = signature.bind(self, *args, **kwargs).arguments
            buffer._set_default_options({name: value for name, value in given.items() if name != "self"})
        elif isinstance(self, ReplayBuffer):  # rollout buffers allocate in reset()
            buffer._real_obs_shape = shape = buffer.obs_shape
            compressed = buffer._array_factory.plans
            if isinstance(shape, dict):
                buffer.obs_shape = {key: NOTHING if key in compressed else part for key, part in shape.items()}
            elif None in compressed:
                buffer.obs_shape = NOTHING
        if buffer._is_on_device:
            buffer._array_factory.device = buffer.device
