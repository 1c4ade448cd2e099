"""Limits of users: what passes at a rate, who waits for what, and what is no limit."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.wire.fairness.quotas import (
    BURST_S,
    DEBT_S_MAX,
    MAX,
    PUBLISHED,
    READ,
    REQUESTS,
    Quota,
    TokenBucket,
    UserLimits,
)
from mirrorlog.wire.frames import FrameType

FETCH, PRODUCE, SETTLE = map(int, (FrameType.FETCH, FrameType.PRODUCE, FrameType.SETTLE))


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_the_rate_a_second_of_it_and_a_frame_ever_pass(seed: int) -> None:
    """Goal: the bound that is told holds over every stretch of time, and who floods gets nearly all of the rate.
    Method: frames of random sizes at random moments, each as soon as it may or later."""
    chance = Random(seed)
    rate = chance.choice([1_000, 50_000, 10_000_000])
    largest = int(rate * chance.uniform(0.01, 5))
    bucket, now = TokenBucket(rate, 0.0), 0.0
    taken = list[tuple[float, int]]()
    waited = 0.0
    for _ in range(300):
        late_s = chance.choice([0.0, 0.0, 0.0, chance.expovariate(2)])
        waited += late_s
        now += bucket.wait_s(now) + 1e-9 + late_s
        assert not bucket.wait_s(now), f"seed {seed}"
        size = chance.randint(1, largest)
        bucket.take(size, now)
        taken.append((now, size))
    for first in range(0, len(taken), 7):
        passed = 0
        for at, size in taken[first:]:
            passed += size
            assert passed <= rate * (at - taken[first][0] + BURST_S) + size + 1, f"seed {seed}"
    assert sum(size for _, size in taken) >= rate * (now - waited) * 0.99, f"seed {seed}"


def test_a_debt_is_of_ten_seconds_at_most() -> None:
    """By a frame of a hundred seconds' worth."""
    bucket = TokenBucket(10, 0.0)
    bucket.take(1_000, 5.0)
    assert bucket.wait_s(5.0) == DEBT_S_MAX
    assert bucket.wait_s(14.0) == pytest.approx(1.0)
    assert bucket.wait_s(15.0) == 0.0


def test_each_frame_waits_for_what_it_takes_and_a_ping_for_nothing() -> None:
    """Goal: who has read too much settles, and is not taken for dead. Method: each rate in debt, alone."""
    quota = Quota(UserLimits(publish_byte_rate=100, read_byte_rate=100, request_rate=10), 0.0)
    assert [quota.waits_for(each, 0.0) for each in (FETCH, PRODUCE, SETTLE)] == ["", "", ""]
    quota.read(200, 0.0)
    assert [quota.waits_for(each, 0.0) for each in (FETCH, PRODUCE, SETTLE)] == [READ, "", ""]
    quota.took(PRODUCE, 300, 0.0)
    assert [quota.waits_for(each, 0.0) for each in (FETCH, PRODUCE, SETTLE)] == [READ, PUBLISHED, ""]
    for _ in range(10):
        quota.took(SETTLE, 1, 0.0)
    assert [quota.waits_for(each, 0.0) for each in (FETCH, PRODUCE, SETTLE)] == [REQUESTS] * 3
    quota.took(int(FrameType.PING), 0, 0.0)
    assert quota.waits_for(int(FrameType.PING), 0.0) == ""
    assert (quota.wait_s(REQUESTS, 0.0), quota.wait_s(READ, 0.0), quota.wait_s(PUBLISHED, 0.0)) == (0.1, 1.0, 2.0)


def test_other_limits_hold_at_once_and_what_is_owed_stays() -> None:
    """By a rate that stays, one that is raised, and one that goes."""
    quota = Quota(UserLimits(publish_byte_rate=100, read_byte_rate=100, request_rate=1), 0.0)
    quota.took(PRODUCE, 300, 0.0)
    quota.read(300, 0.0)
    quota.took(SETTLE, 1, 0.0)
    quota.change(UserLimits(publish_byte_rate=100, read_byte_rate=200), 0.0)
    assert [quota.waits_for(each, 0.0) for each in (FETCH, PRODUCE, SETTLE)] == ["", PUBLISHED, ""]


@pytest.mark.parametrize("value", [0, -1, MAX + 1])
@pytest.mark.parametrize("name", UserLimits.__struct_fields__)
def test_a_limit_lets_something_pass(name: str, value: int) -> None:
    limits = msgspec.structs.replace(UserLimits(), **{name: value})
    with pytest.raises(BadRequest, match=name):
        limits.check()


def test_no_limits_are_none() -> None:
    assert not UserLimits()
    assert UserLimits(max_connections=1)
    assert UserLimits(request_rate=5).given == {"request_rate": 5}
