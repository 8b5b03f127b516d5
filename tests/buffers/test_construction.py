"""Construction: SB3's arguments and ours, allocation, warnings and errors."""

from __future__ import annotations

import inspect
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch as th
from buffer_pairs import REPLAY_PAIRS, ROLLOUT_PAIRS
from conftest import Stream
from gymnasium import spaces
from memory import memory_of_process
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from support import filled

from sb3_compressed import (
    CompressedArray,
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    LossyDtypeWarning,
    get_codec,
)
from sb3_compressed.common import memory_warning
from sb3_compressed.common.memory import available_memory

SCREEN = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1, 1, (17,), np.float32)
BUTTONS = spaces.Discrete(6)
MIXED = spaces.Dict({"screen": SCREEN, "state": VECTOR, "lives": spaces.Discrete(5)})
OPTIONS = {
    "compression_method": "auto",
    "compression_kwargs": None,
    "dtypes": None,
    "frame_stack": "auto",
    "output_dtype": "raw",
    "normalize_images": False,
    "num_threads": None,
}


def replay(space: spaces.Space[Any] = SCREEN, size: int = 64, **kwargs: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(size, space, BUTTONS, device="cpu", **kwargs)


@pytest.mark.parametrize(("compressed", "parent"), [*REPLAY_PAIRS.values(), *ROLLOUT_PAIRS.values()])
def test_signature_has_parent_arguments_and_options(compressed: Any, parent: Any) -> None:
    parameters = inspect.signature(compressed).parameters
    assert {option: parameters[option].default for option in OPTIONS} == OPTIONS
    named = inspect.signature(parent).parameters.values()
    assert {each.name for each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)} <= {*parameters}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression_method": "zstt"}, "delta, gzip, igzip"),
        ({"compression_method": "zstd99"}, "got 99"),
        ({"compression_method": "zstd", "compression_kwargs": {"lvl": 3}}, "compresslevel"),
        ({"compression_method": "zstd3", "compression_kwargs": {"compresslevel": 3}}, "twice"),
        ({"compression_method": {"image": "zstd"}}, "image"),
        ({"frame_stack": 5}, "frame_stack=5"),
        ({"frame_stack": "four"}, "four"),
        ({"frame_stack": 0}, "got 0"),
        ({"output_dtype": "float16"}, "output_dtype .*float16"),
        ({"dtypes": {"elem_typ": np.uint8}}, "elem_typ"),
        ({"dtypes": "bytes8"}, "bytes8"),
        ({"compression_kwargs": {"compresslevel": 3}}, "'auto'"),
        ({"compression_kwargs": {"buget": 1}}, "buget"),
        ({"compression_method": "rle", "dtypes": {"runs_type": np.int8}}, "runs_type"),
        ({"num_threads": 0}, "num_threads"),
    ],
)
def test_invalid_options_raise_and_list_allowed_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(**options)


@pytest.mark.parametrize("options", [{"frame_stack": "four"}, {"frame_stack": -1}, {"dtypes": "bytes8"}])
def test_options_are_validated_for_plain_arrays_too(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        replay(VECTOR, **options)


def test_explicit_frame_stack_compresses_floats_and_leaves_small_keys_plain() -> None:
    assert isinstance(replay(spaces.Box(-1, 1, (4, 128), np.float32), frame_stack=4).observations, CompressedArray)
    buffer = CompressedDictReplayBuffer(64, MIXED, BUTTONS, "cpu", frame_stack=4)
    assert buffer.observations["screen"].n_frames == 4
    assert type(buffer.observations["state"]) is np.ndarray


def test_subclasses_keep_their_own_constructors() -> None:
    class Prioritized(CompressedReplayBuffer):
        """A user's class with its own argument."""

        def __init__(self, *args: Any, alpha: float = 0.6, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.alpha = alpha

    class Tagged:
        """A mixin in front, which consumes an argument."""

        def __init__(self, *args: Any, tag: str, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tag = tag

    class TaggedBuffer(Tagged, CompressedReplayBuffer):
        """Both."""

    assert "alpha" in inspect.signature(Prioritized).parameters
    assert Prioritized(64, SCREEN, BUTTONS, "cpu", alpha=0.5, compression_method="none").alpha == 0.5
    assert TaggedBuffer(64, SCREEN, BUTTONS, "cpu", tag="mine").tag == "mine"


def test_auto_compresses_images_and_leaves_small_or_random_parts_plain() -> None:
    buffer = CompressedDictReplayBuffer(64, MIXED, BUTTONS, "cpu")
    assert isinstance(buffer.observations["screen"], CompressedArray)
    assert type(buffer.observations["lives"]) is np.ndarray
    assert type(buffer.next_observations["state"]) is np.ndarray
    for plain in (VECTOR, spaces.Box(-1, 1, (4000,), np.float32), spaces.Box(-1, 1, (3,), np.float32), BUTTONS):
        assert type(replay(plain).observations) is type(replay(plain).next_observations) is np.ndarray
        assert type(CompressedRolloutBuffer(8, plain, BUTTONS, "cpu").observations) is np.ndarray


def test_vectors_with_optimize_memory_usage_and_timeouts_keep_next_observations() -> None:
    # SB3 rejects this; compressed observations share payloads, vectors take the memory of both arrays.
    assert type(replay(VECTOR, optimize_memory_usage=True).next_observations) is np.ndarray
    alone = replay(VECTOR, optimize_memory_usage=True, handle_timeout_termination=False)
    assert getattr(alone, "next_observations", None) is None


def test_named_codec_applies_to_every_key_and_mapping_to_its_keys() -> None:
    every = CompressedDictRolloutBuffer(8, MIXED, BUTTONS, "cpu", compression_method="igzip1")
    assert {key: array.codec for key, array in every.observations.items()} == dict.fromkeys(MIXED, get_codec("igzip1"))
    some = CompressedDictRolloutBuffer(
        8, MIXED, BUTTONS, "cpu", compression_method={"state": "none"}, frame_stack={"screen": 4}
    )
    assert some.observations["state"].codec == get_codec("none")
    assert some.observations["screen"].n_frames == 4
    assert type(some.observations["lives"]) is np.ndarray


def test_codec_arguments_reach_the_codec() -> None:
    assert replay(compression_method="gzip", compression_kwargs={"compresslevel": 1}).observations.codec == get_codec(
        "gzip1"
    )
    assert replay(compression_method=get_codec("zstd-7")).observations.codec == get_codec("zstd-7")
    runs = replay(compression_method="rle", dtypes={"elem_type": np.uint8, "runs_type": np.uint32})
    assert runs.observations.codec == get_codec("rle", runs_type=np.uint32)


def test_decompression_kwargs_are_merged_with_a_deprecation_warning() -> None:
    with pytest.warns(DeprecationWarning, match="compression_kwargs") as caught:
        buffer = replay(compression_method="gzip", decompression_kwargs={"compresslevel": 1})
    assert caught[0].filename == __file__
    assert buffer.observations.codec == get_codec("gzip1")
    assert buffer.given_arguments["compression_kwargs"] == {"compresslevel": 1}
    both: Any = {"compression_kwargs": {"compresslevel": 1}, "decompression_kwargs": {"compresslevel": 1}}
    with (
        pytest.warns(DeprecationWarning, match="compression_kwargs"),
        pytest.raises(ValueError, match="compresslevel"),
    ):
        replay(compression_method="zstd", **both)
    assert replay(decompression_kwargs=None).given_arguments["compression_kwargs"] is None


def test_dicts_of_the_caller_do_not_change() -> None:
    kwargs, dtypes = {"compresslevel": 1}, {"elem_type": np.uint8, "runs_type": np.uint16}
    replay(compression_method="gzip", compression_kwargs=kwargs, dtypes=dtypes)
    assert kwargs == {"compresslevel": 1}
    assert dtypes == {"elem_type": np.uint8, "runs_type": np.uint16}


def test_spaces_shapes_and_sizes_are_those_of_sb3() -> None:
    ours, theirs = replay(n_envs=4, size=63), ReplayBuffer(63, SCREEN, BUTTONS, "cpu", n_envs=4)
    for name in ("buffer_size", "n_envs", "obs_shape", "action_dim", "observation_space", "device", "pos", "full"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        our_array, their_array = getattr(ours, name), getattr(theirs, name)
        assert (our_array.shape, our_array.dtype) == (their_array.shape, their_array.dtype)


def test_huge_buffer_allocates_almost_nothing_and_does_not_warn() -> None:
    replay()  # imports what it needs
    # As many transitions as the estimate allows; raw, each of them takes 56 kB.
    transitions = int(available_memory() / 1_000)
    before = memory_of_process("VmRSS")
    buffer = replay(size=transitions)
    assert memory_of_process("VmRSS") - before < 5e7
    assert buffer.buffer_size == transitions


def test_buffer_larger_than_memory_warns_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_warning, "available_memory", lambda: 9_000_000_000)
    # SB3 asks NumPy for 1.9 TiB here.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replay(size=36_000_000)
    [warning] = caught
    assert "enough memory" in str(warning.message)
    estimate = float(str(warning.message).split("about ")[1].split("GB")[0])
    assert 9 < estimate < 18  # GB: 250 to 500 bytes a transition
    assert warning.filename == __file__


def test_narrower_elem_type_warns_once_and_clips() -> None:
    space = spaces.Box(-1e6, 1e6, (40, 40), np.float32)
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.warns(LossyDtypeWarning, match="narrower") as caught:
        buffer = CompressedReplayBuffer(8, space, BUTTONS, dtypes=np.uint8, compression_method="zstd")
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]
    obs = np.full((1, 40, 40), 300.7, np.float32)
    buffer.add(obs, -obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert buffer.observations[0].dtype == np.float32
    assert np.unique(buffer.observations[0]).tolist() == [255]
    assert np.unique(buffer.next_observations[0]).tolist() == [0]


@pytest.mark.parametrize("name", ["replay", "rollout"])
def test_output_dtype_and_normalize_images_change_only_the_format_of_batches(name: str, stream: Stream) -> None:
    space, action_space, n_envs, transitions = stream

    def batch(**options: Any) -> Any:
        if name == "replay":
            buffer = filled(stream, 64, 64, **options)
        else:
            buffer = CompressedRolloutBuffer(64, space, action_space, "cpu", n_envs=n_envs, **options)
            for transition in transitions[:64]:
                transition.add_to_rollout(buffer, np.zeros(n_envs), np.random.default_rng(0))
        np.random.seed(0)  # noqa: NPY002  # what SB3 draws from
        return buffer.sample(16) if name == "replay" else next(buffer.get(16))

    sb3s = ReplayBuffer if name == "replay" else RolloutBuffer
    dtype = th.as_tensor(sb3s(1, space, action_space, "cpu").observations).dtype  # in SB3 2.7.0 rollouts are float32
    raw = batch()
    as_float = batch(output_dtype="float")
    normalized = batch(normalize_images=True)
    for field in {"observations", "next_observations"} & set(raw._fields):
        tensor = getattr(raw, field)
        assert tensor.dtype == dtype
        assert getattr(as_float, field).dtype == th.float32
        assert th.equal(getattr(as_float, field), tensor.float())
        assert th.equal(getattr(normalized, field), tensor.float() / 255.0)
    assert th.equal(raw.actions, normalized.actions)


def test_normalize_images_does_not_change_other_keys() -> None:
    buffer = CompressedDictReplayBuffer(8, MIXED, BUTTONS, "cpu", normalize_images=True)
    obs = {"screen": np.full((1, 4, 84, 84), 255, np.uint8), "state": np.ones((1, 17)), "lives": np.array([3])}
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    batch = buffer.sample(1)
    assert batch.observations["screen"].unique().tolist() == [1.0]
    assert batch.observations["state"].dtype == th.float32
    assert batch.observations["lives"].dtype == th.int64


def test_noise_takes_half_of_sb3s_memory_in_replay_and_all_of_it_in_rollout_buffers() -> None:
    rng = np.random.default_rng(0)
    space = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    images = rng.integers(0, 256, (65, 1, 1, 84, 84), np.uint8)
    kept, rollout = replay(space), CompressedRolloutBuffer(64, space, BUTTONS, "cpu")
    zeros = np.zeros(1)
    for obs, next_obs in pairwise(images):
        kept.add(obs, next_obs, zeros, zeros, zeros, [{}])
        rollout.add(obs, zeros, zeros, zeros, th.zeros(1), th.zeros(1))
    for buffer, share in ((kept, 0.5), (rollout, 1.0)):
        # The trained state of a codec is a constant.
        learned = getattr(buffer.observations.codec, "nbytes", 0) * 2
        assert buffer.observations_nbytes < (share + 0.02) * buffer.raw_observations_nbytes + learned


@pytest.mark.parametrize("name", ["auto/small", "auto/fast"])
def test_variants_of_auto_are_unknown(name: str) -> None:
    with pytest.raises(ValueError, match=f"invalid codec shorthand '{name}': .* and 'auto'"):
        replay(compression_method=name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((mode, f"storage_mode='{mode}'") for mode in ("resume", "overwrite", "repair")),
        ("compression_metod", "compression_method"),
        ("prefetch", ""),
        ("budget", ""),
    ],
)
@pytest.mark.parametrize("cls", [CompressedReplayBuffer, CompressedRolloutBuffer])
def test_unknown_arguments_raise_and_name_what_may_be_meant(cls: Any, name: str, meant: str) -> None:
    hint = rf"; did you mean {meant}\?" if meant else ""
    with pytest.raises(TypeError, match=f"{cls.__name__}: .*'{name}'{hint}$"):
        cls(64, SCREEN, BUTTONS, device="cpu", **{name: True})
