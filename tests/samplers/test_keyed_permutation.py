"""``keyed_permutation`` is a permutation for every number of bits and key, and looks random."""

from __future__ import annotations

import numpy as np
import pytest
from chi_square import assert_frequencies
from hypothesis import given
from hypothesis import strategies as st

from sb3_compressed.samplers.keyed_permutation import keyed_permutation


@pytest.mark.parametrize("n_bits", range(2, 17))
def test_each_number_is_an_image_once(n_bits: int) -> None:
    for key in (0, 1, 2**63 - 1, -5):
        images = keyed_permutation(np.arange(1 << n_bits, dtype=np.uint64), n_bits, key)
        np.testing.assert_array_equal(np.sort(images), np.arange(1 << n_bits))


@given(st.integers(2, 64), st.integers(0, 2**63 - 1), st.data())
def test_images_of_different_numbers_differ_and_have_as_many_bits(n_bits: int, key: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**n_bits - 1), unique=True, min_size=1, max_size=20))
    images = keyed_permutation(np.array(numbers, dtype=np.uint64), n_bits, key).tolist()
    assert len({*images}) == len(numbers)
    assert max(images) < 2**n_bits
    assert [int(keyed_permutation(np.array([number], np.uint64), n_bits, key)[0]) for number in numbers] == images


@pytest.mark.parametrize("n_bits", [2, 4])
def test_each_image_is_equally_likely_at_each_position(n_bits: int) -> None:
    n, n_keys = 1 << n_bits, 4000
    rng = np.random.default_rng(1)
    counts = np.zeros((n, n))
    for key in rng.integers(0, 2**63, n_keys):
        counts[np.arange(n), keyed_permutation(np.arange(n, dtype=np.uint64), n_bits, int(key)).astype(int)] += 1
    assert_frequencies(counts, n_free=(n - 1) ** 2)


@pytest.mark.parametrize("n_bits", [11, 16])
def test_neighbors_are_independent(n_bits: int) -> None:
    n = 1 << n_bits
    images = keyed_permutation(np.arange(n, dtype=np.uint64), n_bits, 99).astype(float)
    assert abs(np.corrcoef(images[1:], images[:-1])[0, 1]) < 4 / np.sqrt(n)
    pairs, _, _ = np.histogram2d(images[1:], images[:-1], bins=8)
    assert_frequencies(pairs)
