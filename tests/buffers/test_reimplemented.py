"""The methods of SB3 and sb3-contrib that compressed buffers implement themselves are known.

If a test fails with a new version, compare its method with the one in this package, change that if the behaviour
differs, and add the digest.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import sb3_compressed
from sb3_compressed import CompressedNStepReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_compressed.buffers.contrib_rollout import COMPRESSED
from sb3_compressed.buffers.her import CompressedHerReplayBuffer

CLASSES: list[Any] = [
    *(getattr(sb3_compressed, f"Compressed{name}ReplayBuffer") for name in ("", "Dict", "NStep", "Her")),
    *COMPRESSED.values(),
]
METHODS = {method.__qualname__: method for cls in CLASSES for method in cls.REIMPLEMENTED}

#: The digests of their code in the supported versions of SB3 and sb3-contrib, without comments and annotations.
DIGESTS: dict[str, set[str]] = {
    "BaseBuffer.extend": {"486b2ce0e1baaad9", "3fd5758a44e1825f"},  # from 2.8 on, and before
    "ReplayBuffer.add": {"4b1f5e01c7b311f9"},
    "ReplayBuffer._get_samples": {"6e11083800f11df3"},
    "DictReplayBuffer.add": {"dd275449c599232e"},
    "DictReplayBuffer._get_samples": {"f4031a8fb3a9e13b"},
    "NStepReplayBuffer._get_samples": {"89f2156e22cc5a6a"},
    "HerReplayBuffer.add": {"95a6b67d0c74cc34"},
    "HerReplayBuffer._get_real_samples": {"12994f0699b0a35b"},
    "HerReplayBuffer._get_virtual_samples": {"28c6e76a24e06626"},
    "RolloutBuffer.get": {"74efd76677bbba33"},
    "DictRolloutBuffer.get": {"8adfa0380efd8196"},
    "MaskableRolloutBuffer.get": {"49318ea4afbf3b84"},
    "MaskableDictRolloutBuffer.get": {"7ed5d674f1b53fe9"},
    "RolloutBuffer.add": {"2a2b4ca7b4cb1aa7"},
    "DictRolloutBuffer.add": {"be47e92e3a2a73cf"},
    "RolloutBuffer._get_samples": {"df6b5e25ad5dd20a"},
    "DictRolloutBuffer._get_samples": {"0655402bffc5a6c0"},
    "MaskableRolloutBuffer.add": {"3cb34df22ef52449"},
    "MaskableRolloutBuffer._get_samples": {"a900eb52d79bc8f9"},
    "MaskableDictRolloutBuffer.add": {"3cb34df22ef52449"},
    "MaskableDictRolloutBuffer._get_samples": {"355f10d4cab33fab"},
    "RecurrentRolloutBuffer.add": {"cd242ae3ac34c796"},
    "RecurrentDictRolloutBuffer.add": {"cd242ae3ac34c796"},
    "RolloutBuffer.reset": {"a47d127e3ac7e9f3"},
    "DictRolloutBuffer.reset": {"f2b824e490b4fbd6"},
    "MaskableRolloutBuffer.reset": {"04092bc9974d7605"},
    "MaskableDictRolloutBuffer.reset": {"04092bc9974d7605"},
    "RecurrentRolloutBuffer.reset": {"de0ba30e959a029d"},
    "RecurrentDictRolloutBuffer.reset": {"de0ba30e959a029d"},
}


def digest_of(method: Callable[..., Any]) -> str:
    """Return a digest of a method's code that does not depend on comments, docstrings and annotations."""
    [function] = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for argument in (*function.args.args, *function.args.kwonlyargs, function.args.vararg, function.args.kwarg):
        if argument is not None:
            argument.annotation = None
    if ast.get_docstring(function) is not None:
        del function.body[0]
    code = re.sub(r"for \(([^()]*)\) in ", r"for \1 in ", ast.unparse(function))  # as from Python 3.11 on
    return hashlib.sha256(code.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", METHODS)
def test_the_method_is_one_that_was_reimplemented(name: str) -> None:
    assert digest_of(METHODS[name]) in DIGESTS[name], (
        f"this version of {METHODS[name].__module__} has another {name}: compare it with the compressed buffers'"
    )


def test_all_digests_are_of_reimplemented_methods() -> None:
    assert DIGESTS.keys() == METHODS.keys()


@pytest.mark.parametrize("cls", CLASSES)
def test_no_other_implementation_is_left_out(cls: Any) -> None:
    """Of each method, each parent's implementation is listed."""
    names = {method.__name__ for method in cls.REIMPLEMENTED}
    parents = [
        base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("stable_baselines3", "sb3_contrib")
    ]
    for parent in parents[:-1]:  # the last one is abstract
        assert {vars(parent)[name] for name in names & vars(parent).keys()} <= {*cls.REIMPLEMENTED}


SPACE, ACTIONS = spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(3)


@pytest.mark.parametrize(
    ("ours", "parent"),
    [
        (CompressedReplayBuffer, ReplayBuffer),
        (CompressedNStepReplayBuffer, NStepReplayBuffer),
        (CompressedHerReplayBuffer, HerReplayBuffer),
        (CompressedRolloutBuffer, RolloutBuffer),
    ],
)
@pytest.mark.parametrize("name", ["add", "_get_samples"])
def test_a_class_whose_method_would_never_be_called_is_refused(ours: Any, parent: Any, name: str) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(own, self), name)(*args, **kwargs)

    method.__name__ = name
    own: Any = type("Own", (parent,), {name: method})
    with pytest.raises(TypeError, match=rf"Own\.{name}"):
        type("Both", (ours, own), {})
    type("Both", (own, ours), {})  # there it is called


def test_a_class_in_front_of_ours_is_called_and_gets_plain_observations() -> None:
    seen: list[Any] = []

    class Watching(ReplayBuffer):
        def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
            seen.append(obs)
            super().add(obs, *args, **kwargs)

        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            samples = super()._get_samples(batch_inds, env)
            seen.append(samples.observations)
            return samples

        def to_torch(self, array: Any, copy: bool = True) -> Any:
            seen.append(array)
            return super().to_torch(array, copy)

    class Both(Watching, CompressedReplayBuffer):
        pass

    buffer = Both(10, SPACE, ACTIONS, "cpu")
    obs = np.random.default_rng(0).integers(0, 256, (1, 4, 36, 36), np.uint8)
    buffer.add(obs, obs, np.array([1]), np.array([0.5]), np.array([False]), [{}])
    batch = buffer.sample(3)
    assert len(seen) == 1 + 5 + 1  # observations added, arrays of the batch, observations sampled
    np.testing.assert_array_equal(seen[0], obs)
    np.testing.assert_array_equal(seen[1], np.repeat(obs, 3, axis=0))
    assert batch.observations is seen[-1]


@pytest.mark.parametrize("n_steps", [1, 3])
def test_any_to_torch_of_a_user_gets_normalized_arrays(n_steps: int) -> None:
    env: Any = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    env.obs_rms.mean[:] = 5
    env.ret_rms.var = np.array(9.0)
    batches = []
    for parent in (NStepReplayBuffer, CompressedNStepReplayBuffer):

        class Own(parent):  # type: ignore[misc, valid-type]
            def _convert(self, scale: int, array: Any, copy: bool = True) -> Any:
                return th.tensor(scale * array)

            to_torch = partialmethod(_convert, 2)  # another object at each access

        buffer = Own(10, env.observation_space, env.action_space, "cpu", n_steps=n_steps)
        rng = np.random.default_rng(0)
        for _ in range(8):
            obs, next_obs = rng.normal(size=(2, 1, 4)).astype(np.float32)
            buffer.add(obs, next_obs, np.array([0]), np.array([1.0]), np.array([False]), [{}])
        np.random.seed(0)  # noqa: NPY002  # SB3 draws from it
        batches.append(buffer.sample(4, env=env))
    for expected, found in zip(*batches, strict=True):
        assert th.equal(expected, found)
    env.close()
