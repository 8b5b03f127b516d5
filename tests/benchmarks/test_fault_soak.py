"""``benchmarks/fault_soak.py``: which processes are killed; ``tests/distributed/test_faults.py`` kills some."""

from __future__ import annotations

from fault_soak import KINDS, N_KILLS, plan


def test_every_kind_of_process_is_killed() -> None:
    rounds = list(plan(8 * N_KILLS + 3, seed=0))
    assert [len(each) for each in rounds] == [N_KILLS] * 8 + [3]
    for parity, kinds in enumerate(KINDS):
        assert {kind for each in rounds[parity:8:2] for kind in each} == set(kinds)
    assert rounds == list(plan(8 * N_KILLS + 3, seed=0))
