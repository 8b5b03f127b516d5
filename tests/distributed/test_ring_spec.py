"""The description of rings is small enough to be an argument of any actor."""

from __future__ import annotations

import pickle

import pytest

from distributed.emitted import SPACES
from distributed.segments import spec_of


@pytest.mark.parametrize("kind", SPACES)
def test_a_pickle_is_small_and_complete(kind: str) -> None:
    spec = spec_of(kind, compression_method="zstd-3")
    content = pickle.dumps(spec)
    assert len(content) < 4000  # Ray keeps arguments above 100 kB in its object store
    assert pickle.loads(content) == spec
