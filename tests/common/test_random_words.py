"""What NumPy's global generator will draw is known from how many words of it were consumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sb3_compressed.common import random_words
from sb3_compressed.common.random_words import MersenneTwister, State, global_state

random: Any = np.random  # whose stubs lack functions
pytestmark = pytest.mark.skipif(not random_words.STATE_IS_READABLE, reason="fallbacks are forced")


@pytest.fixture(autouse=True)
def global_generator() -> Iterator[None]:
    before = random.get_bit_generator()
    yield
    random.set_bit_generator(before)


def state_now() -> State:
    found = global_state()
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(5))
def test_draws_are_predicted(seed: int) -> None:
    rng, twister = np.random.default_rng(seed), MersenneTwister()
    np.random.seed(seed)  # noqa: NPY002  # what SB3 draws from
    for _ in range(100):
        before = state_now()
        n_numbers = int(rng.choice([0, 1, 3, 311, 312, 313, 2000]))
        np.random.rand(n_numbers)  # noqa: NPY002
        assert twister.words_between(before, state_now()) == 2 * n_numbers
        twister.continue_after(before, 2 * n_numbers)
        bound = int(rng.integers(1, 1 << 40))
        expected = np.random.randint(0, bound, size=33)  # noqa: NPY002
        assert twister.random.randint(0, bound, size=33).tolist() == expected.tolist()


def test_words_are_not_counted_after_a_seed_or_too_many() -> None:
    twister = MersenneTwister()
    np.random.seed(0)  # noqa: NPY002
    before = state_now()
    np.random.seed(1)  # noqa: NPY002
    seeded = state_now()
    assert twister.words_between(before, seeded) is None
    np.random.rand(10_000)  # noqa: NPY002
    assert twister.words_between(seeded, state_now()) is None


def test_other_generators_have_no_state() -> None:
    before = state_now()
    random.set_bit_generator(np.random.PCG64(0))
    assert global_state() is None
    random.set_bit_generator(np.random.MT19937(3))
    own = np.random.MT19937(3)
    assert state_now()[:-1].tolist() == own.state["state"]["key"].tolist() != before[:-1].tolist()
