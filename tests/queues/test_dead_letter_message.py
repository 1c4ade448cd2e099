"""Letters: what a record says of how it died when it leaves its queue."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mirrorlog.commitlog.format.body import Record
from mirrorlog.queues.dead_letters.forwarding import EXPIRED, MAXLEN, REDRIVEN, REJECTED
from mirrorlog.queues.dead_letters.message import (
    DEATHS_MAX,
    Death,
    circle,
    dead_letter,
    deaths_of,
    died_in,
    routing_key_of,
    size_of,
)

RECORD = Record(b"v", b"the.key", [("a", b"1"), ("a", None)], 77)


def died(record: Record, *deaths: tuple[str, str]) -> Record:
    for at, (queue, reason) in enumerate(deaths):
        record = dead_letter(record, Death(queue, reason, 1_000_000 * (at + 1)))
    return record


def told(record: Record) -> list[dict[str, Any]]:
    (found,) = [value for name, value in record.headers if name == "x-death"]
    deaths: list[dict[str, Any]] = json.loads(found or b"")
    return deaths


def test_a_letter_tells_in_front_how_its_record_died_and_keeps_all_else() -> None:
    sent = dead_letter(RECORD, Death("q", REJECTED, 5_000_999))
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
    sent = dead_letter(died(RECORD, ("q", REJECTED), ("r", EXPIRED)), Death("dead", REDRIVEN, 0))
    assert sent == RECORD


def test_a_record_says_where_it_died_last() -> None:
    assert died_in(RECORD) is None
    assert died_in(died(RECORD, ("q", REJECTED), ("r", EXPIRED))) == "r"


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[" * 100_000, b"null", b"[1]", b'[{"queue": 1}]',
     b'[{"queue":"q","reason":"r","count":true,"time":1}]',
     b'[{"queue":"q","reason":"r","count":1e99,"time":1}]', b"\xff", b"x" * 100_000, None,
     b'[{"queue":"q","reason":"r","count":1,"time":1,"more":NaN}]',
     b'[{"queue":"q","reason":"r","count":1,"time":' + b"9" * 1000 + b"}]"],
)  # fmt: skip
def test_what_somebody_else_wrote_as_that_header_counts_for_nothing(header: bytes | None) -> None:
    record = RECORD._replace(headers=[("x-death", header)])
    assert deaths_of(record) == []
    assert [each["count"] for each in told(dead_letter(record, Death("q", REJECTED, 0)))] == [1]


def test_many_deaths_are_bounded_and_the_newest_stay() -> None:
    record = died(RECORD, *((f"q{at}", REJECTED) for at in range(DEATHS_MAX + 5)))
    there = told(record)
    assert (len(there), there[0]["queue"]) == (DEATHS_MAX, f"q{DEATHS_MAX + 4}")


def test_a_record_that_only_died_does_not_come_to_the_same_queue_again() -> None:
    """To the queue itself, over another one, and by a rejection on the way, which breaks the circle."""
    assert circle(RECORD, Death("q", EXPIRED, 0)).has("q")
    assert not circle(RECORD, Death("q", EXPIRED, 0)).has("r")
    assert not circle(RECORD, Death("q", REJECTED, 0)).has("q")
    assert circle(died(RECORD, ("r", EXPIRED)), Death("q", MAXLEN, 0)).has("r")
    assert not circle(died(RECORD, ("r", EXPIRED), ("s", REJECTED)), Death("q", MAXLEN, 0)).has("r")
    assert not circle(died(RECORD, ("r", EXPIRED)), Death("r", REDRIVEN, 0)).has("r")


def test_a_key_that_is_no_text_is_a_routing_key_all_the_same() -> None:
    assert routing_key_of(Record(b"v")) == ""
    assert routing_key_of(Record(b"v", b"\xff")) == "\ufffd"


def rounds(record: Record, *queues: str, reason: str = EXPIRED, tables_max: int = DEATHS_MAX) -> int:
    """How often a record dies that goes from queue to queue and round again, until it comes nowhere; 1,000 at most."""
    for at in range(1000):
        death, target = Death(queues[at % len(queues)], reason, at), queues[(at + 1) % len(queues)]
        if circle(record, death).has(target):
            return at + 1
        record = dead_letter(record, death, tables_max=tables_max)
    return 1000


@pytest.mark.parametrize("key", [b"\0" * 12_000, b"x" * 70_000, b"\xff" * 30_000, b'"' * 60_000], ids=len)
def test_a_key_of_any_length_and_bytes_lets_a_record_go_round_no_longer_than_another(key: bytes) -> None:
    assert rounds(Record(b"v", key), "a", "b") == rounds(Record(b"v", b"k"), "a", "b") == 2


def test_only_as_much_of_a_key_is_told_as_a_routing_key_may_have() -> None:
    assert told(dead_letter(Record(b"v", b"k" * 1000), Death("q", REJECTED, 0)))[0]["routing-keys"] == ["k" * 255]


def test_a_circle_of_more_queues_than_are_remembered_ends_all_the_same() -> None:
    """With short names, with names of which few fit, and in letters that have no room for more than one table."""
    assert rounds(RECORD, *(f"q{at}" for at in range(100))) == DEATHS_MAX + 1
    assert (
        rounds(RECORD._replace(key=b"\0" * 400), *("\U0001f980" * 250 + str(at) for at in range(100))) == DEATHS_MAX + 1
    )
    assert rounds(RECORD, "a", "b", "c", tables_max=1) == DEATHS_MAX + 1


def test_a_rejection_lets_a_record_go_on_from_any_circle() -> None:
    assert rounds(RECORD, *(f"q{at}" for at in range(100)), reason=REJECTED) == 1000
    tired = died(RECORD, *((f"q{at}", EXPIRED) for at in range(DEATHS_MAX + 5)))
    assert circle(tired, Death("q", EXPIRED, 0)).has("anywhere")
    assert not circle(tired, Death("q", REJECTED, 0)).has("anywhere")
    assert not circle(dead_letter(tired, Death("q", REJECTED, 0)), Death("r", EXPIRED, 0)).has("anywhere")


def test_what_was_forgotten_before_a_rejection_counts_no_more() -> None:
    """Sixty deaths, a rejection, and three more deaths in letters that have room for two tables."""
    record = died(RECORD, *((f"q{at}", EXPIRED) for at in range(60)), ("r", REJECTED))
    for queue in ("a", "b", "c"):
        record = dead_letter(record, Death(queue, EXPIRED, 0), tables_max=2)
    assert [each.get("forgotten", 0) for each in told(record)] == [0, 1]


def test_a_letter_with_fewer_tables_has_the_newest_and_says_how_many_are_forgotten() -> None:
    record, death = died(RECORD, ("q", EXPIRED), ("r", EXPIRED), ("s", MAXLEN)), Death("t", EXPIRED, 0)
    small = dead_letter(record, death, tables_max=2)
    assert [(each["queue"], each.get("forgotten")) for each in told(small)] == [("t", None), ("s", 2)]
    assert [(each["queue"], each.get("forgotten")) for each in told(dead_letter(record, death))][-1] == ("q", None)
    assert size_of(small) < size_of(dead_letter(record, death))


def test_a_letter_without_tables_says_nothing_of_having_died() -> None:
    assert dead_letter(died(RECORD, ("q", EXPIRED)), Death("r", EXPIRED, 0), tables_max=0) == RECORD


def test_whatever_a_record_says_its_letter_can_be_read_again() -> None:
    """Random headers, names and keys of all lengths: the newest death stands there, and no more than may be read."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    letters = 'a"\\\u20ac\U0001f980'

    def text(most: int) -> str:
        return dice.choice(letters) * dice.randrange(1, most)

    def foreign() -> bytes:
        tables = [
            {"queue": text(3000), "reason": dice.choice(["rejected", "expired", text(9)]), "more": text(500),
             "count": dice.choice([1, -1, (1 << 53) - 1]), "time": dice.choice([0, (1 << 53) - 1]),
             "forgotten": dice.choice([0, -1, True, "1", (1 << 53) - 1])}
            for _ in range(dice.randrange(80))
        ]  # fmt: skip
        return json.dumps(tables, ensure_ascii=dice.random() < 0.5).encode()

    for _ in range(200):
        record = Record(b"v", dice.randbytes(1) * dice.randrange(70_000), [("x-death", foreign())])
        for _ in range(dice.randrange(1, 4)):
            death = Death(text(255), dice.choice([REJECTED, EXPIRED, MAXLEN]), dice.randrange(1 << 62))
            record = dead_letter(record, death, tables_max=dice.choice([1, 5, DEATHS_MAX]))
            (header,) = [value or b"" for name, value in record.headers if name == "x-death"]
            assert len(header) <= 64 * 1024
            assert deaths_of(record) == json.loads(header)
            assert (died_in(record), deaths_of(record)[0]["reason"]) == (death.queue, death.reason)
