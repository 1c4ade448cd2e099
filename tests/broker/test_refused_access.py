"""Failed logins and refused rights in sums: nobody floods what operators read."""

from __future__ import annotations

from mirrorlog.broker.session.refused_access import (
    LOGIN,
    LOGIN_REASONS,
    NAMED_MAX,
    PASSWORD,
    REST_S,
    REST_S_MAX,
    RIGHTS,
    RefusedAccess,
)


def test_the_first_is_told_at_once_and_those_that_follow_together() -> None:
    """Goal: an operator hears of it soon, and of a thousand in one event. Method: one, then many within the minute."""
    refused = RefusedAccess("n1")
    assert list(refused.due(100.0)) == []
    refused.login_failed(PASSWORD, "ann", "10.0.0.9")
    (first,) = refused.due(100.0)
    assert (first.kind, first.node) == ("logins_failed", "n1")
    assert first.details == {"count": 1, "users": {"ann": 1}, "addresses": {"10.0.0.9": 1}}
    for number in range(1_000):
        refused.login_failed(PASSWORD, "ann" if number % 4 else "", f"10.0.0.{number % 2}")
        assert list(refused.due(100.0 + number * REST_S / 1_001)) == []
    (second,) = refused.due(100.0 + REST_S)
    assert second.details == {"count": 1_000, "users": {"ann": 750}, "addresses": {"10.0.0.0": 500, "10.0.0.1": 500}}
    assert refused.logins[PASSWORD] == 1_001


def test_who_guesses_all_day_makes_few_events_and_is_told_at_once_after_a_rest() -> None:
    """Goal: guesses push nothing else out of the ring. Method: one a second for a day, then none for two hours."""
    refused = RefusedAccess("n1")
    told = 0
    for second in range(86_400):
        refused.login_failed(PASSWORD, "ann", "10.0.0.9")
        told += len(list(refused.due(float(second))))
    assert told <= 86_400 / REST_S_MAX + 8
    later = 86_400.0
    for _ in range(2):
        later += REST_S_MAX
        list(refused.due(later))
    refused.login_failed(PASSWORD, "ann", "10.0.0.9")
    assert [event.details["count"] for event in refused.due(later)] == [1]
    refused.login_failed(PASSWORD, "ann", "10.0.0.9")
    assert [event.details["count"] for event in refused.due(later + REST_S)] == [1]


def test_an_event_names_those_with_most_and_is_small_whoever_comes() -> None:
    """Goal: bounded whatever addresses are tried. Method: ten thousand addresses, of which one comes often."""
    refused = RefusedAccess("n1")
    for number in range(10_000):
        refused.login_failed(PASSWORD, "", "10.0.0.9")
        refused.login_failed(PASSWORD, "", f"10.1.{number // 256}.{number % 256}")
    (event,) = refused.due(0.0)
    assert event.details["count"] == 20_000
    assert len(event.details["addresses"]) == NAMED_MAX
    assert event.details["addresses"]["10.0.0.9"] == 10_000


def test_logins_and_rights_are_counted_apart_and_strangers_make_no_event() -> None:
    """Goal: every reason stands in the metrics from the first scrape, with 0; asking before a login is no event."""
    refused = RefusedAccess("n1")
    assert (set(refused.logins), set(refused.rights)) == (set(LOGIN_REASONS), set(RIGHTS))
    refused.right_refused(LOGIN, "", "10.0.0.9")
    assert list(refused.due(0.0)) == []
    refused.right_refused("read", "ann", "10.0.0.9")
    assert [(event.kind, event.details["users"]) for event in refused.due(0.0)] == [("rights_refused", {"ann": 1})]
    assert (refused.rights[LOGIN], refused.rights["read"]) == (1, 1)
