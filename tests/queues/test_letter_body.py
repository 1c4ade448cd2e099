"""Letters: what a record says of how it died when it leaves its queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirrorlog.commitlog.body import Record
from mirrorlog.queues.departures import EXPIRED, MAXLEN, REDRIVEN, REJECTED
from mirrorlog.queues.letter_body import DEATHS_MAX, Death, deaths_of, died_in, is_cycle, letter, routing_key_of

RECORD = Record(b"v", b"the.key", [("a", b"1"), ("a", None)], 77)


def died(record: Record, *deaths: tuple[str, str]) -> Record:
    for at, (queue, reason) in enumerate(deaths):
        record = letter(record, Death(queue, reason, 1_000_000 * (at + 1)))
    return record


def told(record: Record) -> list[dict[str, Any]]:
    (found,) = [value for name, value in record.headers if name == "x-death"]
    deaths: list[dict[str, Any]] = json.loads(found or b"")
    return deaths


def test_a_letter_tells_in_front_how_its_record_died_and_keeps_all_else() -> None:
    sent = letter(RECORD, Death("q", REJECTED, 5_000_999))
    assert (sent.value, sent.key, sent.timestamp_us) == (b"v", b"the.key", 77)
    assert [name for name, _ in sent.headers] == [
        "x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange", "a", "a",
    ]  # fmt: skip
    assert list(sent.headers)[1:] == [
        ("x-first-death-queue", b"q"), ("x-first-death-reason", b"rejected"), ("x-first-death-exchange", b""),
        ("a", b"1"), ("a", None),
    ]  # fmt: skip
    assert told(sent) == [
        {"queue": "q", "reason": "rejected", "count": 1, "time": 5_000, "exchange": "", "routing-keys": ["the.key"]}
    ]


def test_deaths_of_one_kind_are_counted_and_the_newest_stands_in_front() -> None:
    """It dies in q, in r, and in q again for the same reason, then for another one."""
    sent = died(RECORD, ("q", REJECTED), ("r", EXPIRED), ("q", REJECTED), ("q", MAXLEN))
    assert [(each["queue"], each["reason"], each["count"], each["time"]) for each in told(sent)] == [
        ("q", "maxlen", 1, 4000), ("q", "rejected", 2, 1000), ("r", "expired", 1, 2000),
    ]  # fmt: skip
    assert dict(sent.headers)["x-first-death-queue"] == b"q"
    assert dict(sent.headers)["x-first-death-reason"] == b"rejected"


def test_the_same_record_and_death_make_the_same_bytes() -> None:
    assert died(RECORD, ("q", REJECTED), ("r", EXPIRED)) == died(RECORD, ("q", REJECTED), ("r", EXPIRED))


def test_what_is_sent_back_goes_without_these_headers() -> None:
    sent = letter(died(RECORD, ("q", REJECTED), ("r", EXPIRED)), Death("dead", REDRIVEN, 0))
    assert sent == RECORD


def test_a_record_says_where_it_died_last() -> None:
    assert died_in(RECORD) is None
    assert died_in(died(RECORD, ("q", REJECTED), ("r", EXPIRED))) == "r"


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[" * 100_000, b"null", b"[1]", b'[{"queue": 1}]',
     b'[{"queue":"q","reason":"r","count":true,"time":1}]',
     b'[{"queue":"q","reason":"r","count":1e99,"time":1}]', b"\xff", b"x" * 100_000, None],
)  # fmt: skip
def test_what_somebody_else_wrote_as_that_header_counts_for_nothing(header: bytes | None) -> None:
    record = RECORD._replace(headers=[("x-death", header)])
    assert deaths_of(record) == []
    assert [each["count"] for each in told(letter(record, Death("q", REJECTED, 0)))] == [1]


def test_many_deaths_are_bounded_and_the_newest_stay() -> None:
    record = died(RECORD, *((f"q{at}", REJECTED) for at in range(DEATHS_MAX + 5)))
    there = told(record)
    assert (len(there), there[0]["queue"]) == (DEATHS_MAX, f"q{DEATHS_MAX + 4}")


def test_a_record_that_only_died_does_not_come_to_the_same_queue_again() -> None:
    """To the queue itself, over another one, and by a rejection on the way, which breaks the circle."""
    assert is_cycle(RECORD, Death("q", EXPIRED, 0), "q")
    assert not is_cycle(RECORD, Death("q", EXPIRED, 0), "r")
    assert not is_cycle(RECORD, Death("q", REJECTED, 0), "q")
    assert is_cycle(died(RECORD, ("r", EXPIRED)), Death("q", MAXLEN, 0), "r")
    assert not is_cycle(died(RECORD, ("r", EXPIRED), ("s", REJECTED)), Death("q", MAXLEN, 0), "r")
    assert not is_cycle(died(RECORD, ("r", EXPIRED)), Death("r", REDRIVEN, 0), "r")


def test_a_key_that_is_no_text_is_a_routing_key_all_the_same() -> None:
    assert routing_key_of(Record(b"v")) == ""
    assert routing_key_of(Record(b"v", b"\xff")) == "\ufffd"
