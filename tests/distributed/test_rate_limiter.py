"""The rate limiter counts exactly, and never blocks both sides."""

from __future__ import annotations

from fractions import Fraction

import pytest

from sb3_compressed.distributed.rate_limiter import RateLimiter, WaitTime


@pytest.mark.parametrize("ratio", ["0.1", "0.3", "1/3", "1", "1.9", "8.0", "512.9004958537136"])
@pytest.mark.parametrize(("n_inserted_at_once", "n_sampled_at_once"), [(1, 1), (4, 32), (64, 32), (256, 1)])
def test_one_side_may_always_proceed_and_the_ratio_is_met(
    ratio: str, n_inserted_at_once: int, n_sampled_at_once: int
) -> None:
    """The learner samples when ``n_sampled_at_once / ratio`` more transitions have arrived, as in RemoteRollouts."""
    exact, min_size = Fraction(ratio), 100
    limiter = RateLimiter(exact, min_size + max(Fraction(n_inserted_at_once), n_sampled_at_once / exact))
    n_inserted = n_sampled = 0
    for _ in range(3000):
        if limiter.allows(n_inserted + n_inserted_at_once, n_sampled):
            n_inserted += n_inserted_at_once
        else:
            assert (n_inserted - min_size) * exact - n_sampled >= 0, "neither may proceed"
            n_sampled += n_sampled_at_once
    n_ahead = n_inserted - min_size - n_sampled / exact
    assert -n_sampled_at_once / exact <= n_ahead <= limiter.n_free - min_size


def test_without_a_limit_everything_is_allowed() -> None:
    assert RateLimiter(None, 0).allows(10**9, 0)


def test_waits_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    wait = WaitTime()
    wait.start()
    now = 3.0
    assert wait.seconds == 3
    wait.stop()
    wait.start()
    now = 4.0
    wait.start()  # it is the same wait
    now = 5.0
    wait.stop()
    wait.stop()
    now = 9.0
    assert wait.seconds == 5
