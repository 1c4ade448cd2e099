"""Which queues the records of a piece are for."""

from __future__ import annotations

import json

import pytest

from mirrorlog.commitlog.format.body import Record
from mirrorlog.queues.dead_letters import routes as letter_routes
from mirrorlog.queues.dead_letters.forwarding import EXPIRED, REDRIVEN, Forwarding
from mirrorlog.queues.dead_letters.message import Death, circle
from mirrorlog.queues.dead_letters.routes import Routes, routes
from mirrorlog.wire.routing import FANOUT, Binding, Exchange, RoutingTable

ALL = 1 << 30


def record(key: bytes = b"k", died_in: str = "") -> Record:
    table = {"queue": died_in, "reason": EXPIRED, "count": 1, "time": 1}
    return Record(b"v", key, [("x-death", json.dumps([table]).encode())] if died_in else ())


def fanout(*names: str) -> RoutingTable:
    return RoutingTable({"f": Exchange(FANOUT)}, [Binding("f", name) for name in names])


def routed(
    *records: Record, exchange: str = "f", key: str | None = None, reason: str = EXPIRED, table: RoutingTable,
    pairs_max: int = ALL, behind: str | None = None,
) -> Routes:  # fmt: skip
    departure = Forwarding(1, "", reason, 1, exchange, key)
    death = Death("q", reason, 1)
    return routes(list(enumerate(records)), departure, death, table, pairs_max=pairs_max, behind=behind)


def test_queues_come_by_name_with_what_is_for_each() -> None:
    found = routed(record(), record(died_in="b"), record(died_in="q"), table=fanout("c", "a", "b", "q"))
    assert found == Routes(3, [("a", [0, 1, 2]), ("b", [0, 2]), ("c", [0, 1, 2])], [])


def test_what_leads_nowhere_is_told_and_a_key_that_could_be_no_name_leads_nowhere() -> None:
    found = routed(record(b"a"), record(b"v\x1fa"), record(b""), record(b"q"), exchange="", table=fanout())
    assert found == Routes(4, [("a", [0])], [1, 2, 3])
    assert routed(record(), exchange="none", table=fanout()).nowhere == [0]


def test_a_redrive_leads_to_where_each_died_or_to_the_queue_that_is_named() -> None:
    records = record(died_in="a"), record(), record(died_in="b")
    assert routed(*records, reason=REDRIVEN, table=fanout()) == Routes(3, [("a", [0]), ("b", [2])], [1])
    assert routed(*records, reason=REDRIVEN, key="p", table=fanout()) == Routes(3, [("p", [0, 1, 2])], [])


def test_so_many_pairs_of_record_and_queue_are_one_piece_and_one_record_is_at_least() -> None:
    table = fanout("a", "b", "c")
    assert routed(record(), record(), record(), table=table, pairs_max=6).records == 2
    assert routed(record(), record(), table=table, pairs_max=1).records == 1


def test_a_piece_goes_on_behind_a_name_with_all_of_its_records() -> None:
    found = routed(record(), record(died_in="c"), table=fanout("a", "b", "c"), pairs_max=1, behind="a")
    assert found == Routes(2, [("b", [0, 1]), ("c", [0])], [])


def test_how_a_record_died_is_read_once_however_many_queues_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may have written 64 KiB of it, and bound a thousand queues."""
    read: list[Record] = []

    def counted(record: Record, death: Death) -> object:
        read.append(record)
        return circle(record, death)

    monkeypatch.setattr(letter_routes, "circle", counted)
    names = [f"t{number}" for number in range(1000)]
    assert len(routed(record(died_in="t7"), record(), table=fanout(*names)).by_name) == 1000
    assert len(read) == 2
