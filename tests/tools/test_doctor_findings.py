"""The words of each reason for which something makes no progress, from the facts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mirrorlog.diagnosis.advice import NOTED, STOPS, Diagnosis, reasons
from mirrorlog.diagnosis.findings import Facts, findings
from mirrorlog.tools.doctor import text_of
from mirrorlog.wire.messages.groups import GroupInfo, GroupsFound, LeaseInfo
from mirrorlog.wire.messages.queues import FormerSpan, HoldInfo, MoveOfQueue, QueueInfo, QueueOutage, QueueSync
from mirrorlog.wire.messages.status import (
    ClusterStatus,
    DiskStatus,
    FormerStatus,
    LogStatus,
    MemoryStatus,
    MirrorStatus,
    NodeCounts,
    NodeStatus,
    PinStatus,
    PlacedLog,
    ProducerStatus,
    QueueCounts,
    QueueStatus,
    Status,
)
from tests.tools.statuses import DOWN, N3_DOWN, UP, cluster_status, log_status, node_status

NEAR = msgspec.structs.replace(UP, lag_bytes=0, lag_seconds=0.0)


def healthy(**changes: Any) -> LogStatus:
    return log_status(**{"mirrors": [NEAR], "end": 100, "confirmed": 100, **changes})


def with_log(*logs: LogStatus) -> Facts:
    return Facts(status=cluster_status(node_status("n1", *logs)))


def with_group(arguments: dict[str, Any] | None = None, **group: Any) -> Facts:
    """A queue's own group on a healthy log."""
    info = GroupInfo(**{"group": "", "kind": "acking", "floor": 0, **group})
    queue = QueueInfo(
        name="q", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=9, arguments=arguments or {}
    )
    facts = with_log(healthy())
    return msgspec.structs.replace(facts, queues=[queue], groups={"q": GroupsFound(queue="q", next=9, groups=[info])})


def counted(facts: Facts, counts: QueueCounts | None, **status: Any) -> Facts:
    """The same, with what the master has counted for `q`."""
    queue = QueueStatus(name="q", queue_id=1, begin=0, next=9, confirmed=9, counts=counts, **status)
    log = healthy(queues=[queue])
    return msgspec.structs.replace(facts, status=cluster_status(node_status("n1", log)))


def only(facts: Facts) -> Diagnosis:
    (found,) = findings(facts)
    return found


def test_nothing_is_found_where_nothing_stands_still() -> None:
    assert findings(with_log(healthy())) == []
    assert findings(with_group(ready=3, unsettled=3, subscribers=1)) == []
    assert findings(with_group()) == []
    assert text_of([]) == "nothing stands still"


GROUPS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("no-subscriber", STOPS, {"ready": 5, "unsettled": 5}, ["queue q", "5 records are ready", "nobody is subscribed"]),
    (
        "no-credit",
        STOPS,
        {"ready": 5, "unsettled": 7, "out": 2, "subscribers": 1, "without_credit": ["1.2.3.4:5 (2 in hand)"]},
        ["no subscriber takes more", "prefetch", "1.2.3.4:5 (2 in hand)"],
    ),
    (
        "no-credit",
        STOPS,
        {"ready": 5, "unsettled": 7, "subscribers": 1, "not_reading": ["1.2.3.4:5 (2 in hand)"]},
        ["1.2.3.4:5 (2 in hand) do not read"],
    ),
    (
        "waiting-for-time",
        NOTED,
        {"unsettled": 5, "leased": 2, "parked": 3, "due_ms": 12_500},
        ["2 records are leased", "3 wait for a delay", "12.5 s"],
    ),
    (
        "waiting-for-time",
        NOTED,
        {"unsettled": 2, "leased": 2, "leases": [LeaseInfo(lease=9, records=2, holder="worker-\x1b7")]},
        ["2 records are leased (by worker-\\x1b7)"],
    ),
    ("closing", NOTED, {"unsettled": 5, "out": 5}, ["subscribers that have ended"]),
    ("expired-unread", NOTED, {"gone": 12}, ["retention has freed 12 records"]),
]


@pytest.mark.parametrize(("reason", "weight", "group", "words"), GROUPS)
def test_every_reason_of_a_group_has_its_words(
    reason: str, weight: str, group: dict[str, Any], words: list[str]
) -> None:
    found = only(with_group(**group))
    assert (found.what, found.name, found.reason, found.weight) == ("group", "q (own)", reason, weight)
    assert all(word in found.text for word in words), found.text
    assert found.advice


def test_a_named_group_is_named() -> None:
    found = only(with_group(group="g", ready=1, unsettled=1))
    assert (found.name, found.text.split(":")[0]) == ("q g", "group g of queue q")


def test_one_of_several_subscribers_with_credit_is_enough() -> None:
    assert findings(with_group(ready=5, unsettled=7, subscribers=2, without_credit=["a (2 in hand)"])) == []
    assert findings(with_group(ready=5, unsettled=7, subscribers=1, waiting=1, without_credit=["a (2 in hand)"])) == []


@pytest.mark.parametrize(
    ("counts", "weight"),
    [
        (None, STOPS),
        (QueueCounts(delivered=9, acked=9), STOPS),
        (QueueCounts(ack_rate=200.0), NOTED),
        (QueueCounts(deliver_rate=0.4), NOTED),
    ],
)
@pytest.mark.parametrize("alone", ["", "a (2 in hand)"])
def test_subscribers_at_their_prefetch_stand_still_only_if_nothing_is_given_or_settled(
    counts: QueueCounts | None, weight: str, alone: str
) -> None:
    """Goal: no cry of wolf. With work in hand a consumer that is busy has no credit at most moments."""
    facts = with_group(ready=5, unsettled=7, subscribers=1, without_credit=["a (2 in hand)"], alone=alone)
    found = only(counted(facts, counts))
    assert (found.reason, found.weight) == ("holder-idle" if alone else "no-credit", weight)
    assert ("records a second" in found.text) == (weight == NOTED)
    assert "a (2 in hand)" in found.text


def test_who_has_the_group_for_itself_and_takes_nothing_is_named() -> None:
    """An exclusive subscriber, or a single active one beside two that wait."""
    facts = with_group(ready=5, unsettled=7, subscribers=1, alone="a (2 in hand)", without_credit=["a (2 in hand)"])
    found = only(facts)
    assert (found.reason, found.weight) == ("holder-idle", STOPS)
    assert "a (2 in hand), which has the group for itself" in found.text
    facts = with_group(
        ready=5, unsettled=7, subscribers=3, idle_for_another=2, alone="a (2 in hand)", without_credit=["a (2 in hand)"]
    )
    assert reasons(findings(facts)) == {"holder-idle", "one-active"}
    assert findings(facts)[0].reason == "holder-idle"  # what stops comes first


def test_subscribers_that_wait_for_another_are_no_hold_up() -> None:
    found = only(with_group(ready=5, unsettled=5, subscribers=3, idle_for_another=2, alone="a (0 in hand)"))
    assert (found.reason, found.weight) == ("one-active", NOTED)
    assert "2 subscribers get nothing while a (0 in hand)" in found.text


def test_records_that_cannot_leave_are_told_with_the_reason() -> None:
    found = only(with_group(unsettled=5, departing=5, departing_waits="nobody masters the log l"))
    assert (found.reason, found.weight) == ("departures-wait", STOPS)
    assert "5 records are to leave for other queues, and do not: nobody masters the log l" in found.text


def test_a_stream_group_says_nothing() -> None:
    assert findings(with_group(kind="stream", group="g", unsettled=5, ready=5)) == []


def test_a_node_that_drains_is_told() -> None:
    node = NodeStatus(node_id="n2", member=2, client="", replication="", life="up", draining=True)
    view = ClusterStatus(
        coordinator="n1", term=1, registered=True, version=1, incarnation=1, elections=0, nodes=[node], logs=[]
    )
    found = only(Facts(status=cluster_status(msgspec.structs.replace(node_status("n1"), cluster=view))))
    assert (found.what, found.name, found.reason, found.weight) == ("node", "n2", "draining", NOTED)
    assert "mqtool drain n2 --undo" in found.advice


def emptied(*logs: PlacedLog, n2: str = "up", **changes: Any) -> Diagnosis:
    """Of n1, which leaves, in a cluster of two."""
    nodes = [
        NodeStatus(node_id="n1", member=1, client="", replication="", life="up", draining=True, leaving=True),
        NodeStatus(node_id="n2", member=2, client="", replication="", life=n2),
    ]
    view = ClusterStatus(
        coordinator="n1", term=1, registered=True, version=1, incarnation=1, elections=0, nodes=nodes, logs=list(logs),
        **changes,
    )  # fmt: skip
    return only(Facts(status=cluster_status(msgspec.structs.replace(node_status("n1"), cluster=view))))


def test_a_node_that_is_emptied_is_told_with_what_is_on_it() -> None:
    """And why that goes nowhere, which stops it; a node that holds nothing may be forgotten."""
    log = PlacedLog(
        log_id="l", name="main", flush="memory", replicas=["n1"], master="n1", epoch=1, version=1, in_sync=["n1"],
        marked=[], copies=1, copies_wanted=1,
    )  # fmt: skip
    found = emptied(log)
    assert (found.what, found.name, found.reason, found.weight) == ("node", "n1", "emptying", NOTED)
    assert "node n1 is being emptied; 1 log is on it yet: main" in found.text
    assert "mqtool drain n1 --undo" in found.advice
    assert "mqtool forget-node n1" in emptied(msgspec.structs.replace(log, replicas=["n2"])).text
    for stuck, words in (
        (emptied(log, n2="down"), "log main has nowhere to go, no other node may take it: n2 is down"),
        (emptied(msgspec.structs.replace(log, target=["n2"]), n2="down"), "log main is to be on n2: n2 is down"),
        (emptied(log, moving_paused=True), "moving is paused"),
    ):
        assert (stuck.reason, stuck.weight) == ("emptying-waits", STOPS)
        assert words in stuck.text


def test_a_queue_above_its_length_and_one_that_keeps_for_a_group_are_told() -> None:
    found = only(with_group({"x-max-length": 3}, ready=5, unsettled=5, subscribers=1))
    assert (found.reason, found.weight) == ("above-length", NOTED)
    assert "5 records are unsettled and x-max-length is 3" in found.text
    facts = counted(with_group(unsettled=5), None, works=True)
    assert reasons(findings(facts)) == {"retention-held"}
    facts = counted(with_group(ready=5, unsettled=5), None, works=True)
    assert reasons(findings(facts)) == {"no-subscriber"}, "said once"


def test_records_that_all_have_acknowledged_and_that_stay_are_told() -> None:
    """Of a queue of a cluster of before, which nobody reads as a stream; not of one that says what it keeps."""
    facts = counted(with_group(floor=10_000), None)
    found = only(facts)
    assert (found.what, found.name, found.reason, found.weight) == ("queue", "q", "acked-kept", NOTED)
    assert "keeps 10000 records that all its groups have acknowledged" in found.text
    assert 'set-policy work ^q$ \'{"retention": "work"}\'' in found.advice
    assert not findings(counted(with_group({"retention": "limits"}, floor=10_000), None))
    assert not findings(counted(with_group(floor=9_999), None))


def test_the_queue_that_pins_what_nobody_needs_is_named_with_its_bytes() -> None:
    """Not before it is much, and a good part of the log."""
    gib = 2**30
    pin = PinStatus(queue="q", live_bytes=gib, dead_bytes=gib)
    log = healthy(begin=0, end=2 * gib, flushed=2 * gib, confirmed=2 * gib)
    found = only(with_log(msgspec.structs.replace(log, pin=pin)))
    assert (found.what, found.name, found.reason) == ("queue", "q", "space-pinned")
    assert f"{gib} bytes of log main that nobody needs stay because {gib} bytes of queue q" in found.text
    less = msgspec.structs.replace(pin, dead_bytes=gib // 4)
    assert not findings(with_log(msgspec.structs.replace(log, pin=less)))


REJECTS = {"x-max-length": 5, "x-overflow": "reject-publish"}


@pytest.mark.parametrize(
    ("arguments", "ready", "refused", "rate", "expected"),
    [
        (REJECTS, 4, 0.0, 0.0, set()),
        (REJECTS, 5, 0.0, 0.0, {("full", STOPS)}),
        (REJECTS, 5, 3.0, 9.0, {("full", NOTED)}),
        ({"x-max-length-bytes": 100, "x-overflow": "reject-publish"}, 5, 2.5, 0.0, {("full", STOPS)}),
        ({"x-max-length-bytes": 100, "x-overflow": "reject-publish"}, 5, 0.0, 0.0, set()),
        ({"x-max-length": 5}, 5, 0.0, 0.0, set()),
    ],
)
def test_a_queue_that_refuses_publishes_because_it_is_full_is_told(
    arguments: dict[str, Any], ready: int, refused: float, rate: float, expected: set[tuple[str, str]]
) -> None:
    """It stands at its limit and never above; by bytes only the refusals show it. While it is emptied it goes on."""
    facts = with_group(arguments, ready=ready, unsettled=ready, subscribers=1)
    found = findings(counted(facts, QueueCounts(ack_rate=rate), refuse_rate=refused))
    assert {(each.reason, each.weight) for each in found} == expected


@pytest.mark.parametrize(("copies_up", "expected"), [(-1, set()), (1, {"below-min-in-sync"}), (2, set())])
def test_a_mirror_that_is_linked_and_no_member_yet_is_no_copy_for_a_publish(copies_up: int, expected: set[str]) -> None:
    """As the master counts them; one of software that does not tell is believed by its links."""
    proven = msgspec.structs.replace(NEAR, in_sync=False, proven=True)
    assert reasons(findings(with_log(healthy(mirrors=[proven], copies_up=copies_up)))) == expected


def test_a_log_that_goes_with_its_nodes_run_waits_for_nobody() -> None:
    """Its node is down, or was forgotten: its queues are gone, and it needs no master."""
    placed = PlacedLog(
        log_id="l", name="transient-n3-2", flush="memory", replicas=[], master="", epoch=3, version=1, in_sync=[],
        marked=[], copies=1, copies_wanted=1, transient=True,
    )  # fmt: skip
    view = ClusterStatus(
        version=1, incarnation=0, coordinator="n1", term=1, elections=0, registered=True, nodes=[], logs=[placed]
    )
    status = cluster_status(msgspec.structs.replace(node_status("n1"), cluster=view))
    assert findings(Facts(status=status)) == []


LOGS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    (
        "recovering",
        STOPS,
        {"state": "recovering", "reason": "n3 holds more"},
        ["log main is recovering on n1", "n3 holds more"],
    ),
    (
        "below-min-in-sync",
        STOPS,
        {"mirrors": [DOWN]},
        ["1 copies in sync and min_in_sync is 2", "publishes are refused", "n3"],
    ),
    ("mirror-away", NOTED, {"mirrors": [NEAR, DOWN]}, ["mirror n3 of log main is not connected"]),
    (
        "mirror-behind",
        NOTED,
        {
            "mirrors": [msgspec.structs.replace(UP, lag_bytes=20_000_000, lag_seconds=4.0)],
            "end": 20_000_100,
            "confirmed": 100,
        },
        ["mirror n2 of log main is 20000000 bytes and 4.0 s behind", "20000000 bytes are not confirmed"],
    ),
]


@pytest.mark.parametrize(("reason", "weight", "log", "words"), LOGS)
def test_every_reason_of_a_log_has_its_words(reason: str, weight: str, log: dict[str, Any], words: list[str]) -> None:
    found = next(each for each in findings(with_log(healthy(**log))) if each.reason == reason)
    assert (found.what, found.name, found.weight) == ("log", "main", weight)
    assert all(word in found.text for word in words), found.text


def test_a_copy_that_is_not_served_is_told_where_no_master_is() -> None:
    found = only(with_log(log_status(role="mirror", state="corrupt", reason="bad bytes at 5", mirrors=[])))
    assert (found.reason, found.weight) == ("corrupt", STOPS)
    assert "bad bytes at 5" in found.text


def test_a_producer_that_is_held_is_named_with_its_limit() -> None:
    held = ProducerStatus(
        queue="q", producer_id=7, peer="1.2.3.4:5", unconfirmed_bytes=64, unconfirmed_batches=2,
        blocked_by="credit_bytes", blocked_ms=2500,
    )  # fmt: skip
    free = msgspec.structs.replace(held, producer_id=8, blocked_by="", blocked_ms=0)
    found = findings(with_log(healthy(producers=[held, free], producers_blocked=4)))
    assert [each.reason for each in found] == ["producer-blocked"] * 2
    assert "producer 7 (1.2.3.4:5) of queue q is held by credit_bytes since 2.5 s" in found[0].text
    assert "3 more producers" in found[1].text


def test_a_landing_that_keeps_records_is_named() -> None:
    hold = HoldInfo(
        queue="q", name="lake", holder="job-1", epoch=1, queue_offset=0, lease_ms=1, lag=40, kept_bytes=4096
    )
    found = only(with_log(healthy(holds=[hold, msgspec.structs.replace(hold, ended="expired")])))
    assert found.reason == "retention-held"
    assert "landing lake (held by job-1) keeps 40 records of queue q, 4096 bytes" in found.text


def test_consumers_that_timed_out_are_counted() -> None:
    queue = QueueStatus(name="q", queue_id=1, begin=0, next=1, confirmed=1, counts=QueueCounts(timed_out=2))
    found = only(with_log(healthy(queues=[queue])))
    assert found.reason == "consumer-timeout"
    assert "2 subscriptions of queue q ended" in found.text


def test_nodes_disks_and_logs_without_a_master_are_told() -> None:
    placed = PlacedLog(
        log_id="l", name="main", flush="memory", replicas=["n1", "n2"], master="", epoch=3, version=1, in_sync=["n2"],
        marked=[], copies=2, copies_wanted=1, waits_for=["n2"],
    )  # fmt: skip
    view = ClusterStatus(
        version=1, incarnation=0, coordinator="", term=1, elections=0, registered=True, nodes=[], logs=[placed]
    )
    full = DiskStatus(state="full", reason="1 GiB is free of 100", free_bytes=1, size_bytes=100)
    low = DiskStatus(state="low", reason="9 GiB are free of 100", free_bytes=9, size_bytes=100)
    one: Status = msgspec.structs.replace(node_status("n1"), disk=full, cluster=view)
    high = MemoryStatus(state="high", reason="80 of 70", used_bytes=80, high_bytes=70, size_bytes=100)
    counts = NodeCounts(
        accepted={}, open={}, refused={}, links_opened=0, links_open=0, questions_failed=0, logs=[],
        capped={"max_connections": 416},
    )  # fmt: skip
    two: Status = msgspec.structs.replace(node_status("n2"), disk=low, memory=high, counts=counts)
    found = findings(Facts(status=cluster_status(one, two, unreachable=(N3_DOWN,))))
    assert [(each.reason, each.weight) for each in found] == [
        ("disk-full", STOPS),
        ("no-coordinator", STOPS),
        ("memory-high", STOPS),
        ("no-master", STOPS),
        ("node-unreachable", NOTED),
        ("disk-low", NOTED),
        ("connections-capped", NOTED),
    ]
    assert "limits.max_connections is 416" in found[6].text
    assert "the memory of node n2 is high" in found[2].text
    assert "log main has no master and waits for n2" in found[3].text
    assert "node n3" in found[4].text


@pytest.mark.parametrize(
    ("lives", "marked", "stops"),
    [
        ({"n1": "up", "n2": "down"}, [], True),
        ({"n1": "up", "n2": "up"}, [], False),
        ({"n1": "up", "n2": "unknown"}, [], False),
        ({"n1": "down", "n2": "down"}, [], False),
        ({"n1": "up", "n2": "down", "n3": "up"}, [], False),
        ({"n1": "up", "n2": "down", "n3": "up"}, ["n3"], True),
    ],
)
def test_a_log_whose_master_is_down_stands_still_when_no_copy_that_is_up_may_follow(
    lives: dict[str, str], marked: list[str], stops: bool
) -> None:
    """Goal: nobody believes that a failover is coming. Method: n1 has a copy and is not in sync; with n3 up, which is,
    there is one. When all are down the queues are told of instead."""
    placed = PlacedLog(
        log_id="l", name="main", flush="memory", replicas=list(lives), master="n2", epoch=3, version=1,
        in_sync=[node for node in lives if node != "n1"], marked=marked, copies=2, copies_wanted=1,
    )  # fmt: skip
    nodes = [NodeStatus(node_id=node, member=1, client="", replication="", life=life) for node, life in lives.items()]
    view = ClusterStatus(
        version=1, incarnation=0, coordinator="n1", term=1, elections=0, registered=True, nodes=nodes, logs=[placed]
    )
    status = cluster_status(msgspec.structs.replace(node_status("n1"), cluster=view))
    found = findings(Facts(status=status))
    assert reasons(found) == ({"no-master"} if stops else set())
    if stops:
        assert found[0].weight == STOPS
        assert "master n2 of log main is down" in found[0].text
        assert "start n2" in found[0].advice


def test_queues_that_nobody_can_answer_for_are_told() -> None:
    facts = msgspec.structs.replace(
        with_log(healthy()),
        outages=[QueueOutage(name="lonely", log_id="l", node="n2", reason="node n2, which holds it, is down")],
        unasked={"slow": "no answer within 4 s"},
    )
    found = findings(facts)
    assert [each.reason for each in found] == ["nodes-down", "not-answered"]
    assert "node n2, which holds it, is down" in found[0].text
    assert found[0].advice == "start node n2"
    assert "no answer within 4 s" in found[1].text


def test_records_that_nobody_has_ever_read_are_told() -> None:
    facts = with_group()
    assert findings(facts) == []
    unread = msgspec.structs.replace(facts, groups={"q": GroupsFound(queue="q", next=9, groups=[])})
    found = only(unread)
    assert (found.reason, found.weight) == ("never-read", NOTED)
    assert "queue q has 9 records and no group" in found.text


def test_a_mirror_that_is_just_behind_is_as_it_should_be() -> None:
    near = msgspec.structs.replace(UP, lag_bytes=262_144, lag_seconds=0.01)
    assert findings(with_log(healthy(mirrors=[near]))) == []


def test_text_says_the_reason_and_what_to_do() -> None:
    text = text_of(findings(with_group(ready=5, unsettled=5)))
    assert text.splitlines()[0].startswith("STOPS  no-subscriber: queue q: 5 records are ready")
    assert text.splitlines()[1].startswith("       -> start a consumer")


def test_mirror_status_is_used_as_it_is() -> None:
    """A mirror that is connected and not proven is neither away nor behind yet."""
    joining: MirrorStatus = msgspec.structs.replace(NEAR, proven=False, in_sync=False)
    assert "mirror-away" not in reasons(findings(with_log(healthy(mirrors=[joining, NEAR]))))


@pytest.mark.parametrize(
    ("left_days", "reason", "weight"),
    [(-1.0, "certificate-expired", STOPS), (0.0, "certificate-expired", STOPS), (13.9, "certificate-expires", NOTED)],
)
def test_a_certificate_that_ends_soon_is_told_and_one_that_has_ended_stops(
    left_days: float, reason: str, weight: str
) -> None:
    now_s = 1_900_000_000
    ends_s = now_s + int(left_days * 86_400)
    node: Status = msgspec.structs.replace(node_status("n1"), now_us=now_s * 10**6, certificate_expires_s=ends_s)
    (found,) = findings(Facts(status=cluster_status(node)))
    assert (found.what, found.name, found.reason, found.weight) == ("node", "n1", reason, weight)
    assert "SIGHUP" in found.advice


@pytest.mark.parametrize("ends_s", [0, 1_900_000_000 + 15 * 86_400])
def test_no_certificate_and_one_that_lasts_are_nothing_to_tell(ends_s: int) -> None:
    node: Status = msgspec.structs.replace(
        node_status("n1"), now_us=1_900_000_000 * 10**6, certificate_expires_s=ends_s
    )
    assert findings(Facts(status=cluster_status(node))) == []


def test_former_copies_are_told_with_what_they_take() -> None:
    former = [
        FormerStatus(log_id=f"id {name}", name=name, size_bytes=512 * 1024, since_us=1) for name in ("one", "two")
    ]
    node: Status = msgspec.structs.replace(node_status("n1"), former=former)
    (found,) = findings(Facts(status=cluster_status(node)))
    assert (found.what, found.name, found.reason, found.weight) == ("node", "n1", "former-copies", NOTED)
    assert "1.0 MiB of 2 logs" in found.text
    assert "one, two" in found.text
    assert "mqtool free-former" in found.advice


@pytest.mark.parametrize(
    ("sync", "reason", "words"),
    [
        ({}, "records-left", ["log old keeps 4.0 KiB of queue q, which has moved to new"]),
        ({"wished": True, "waits": "moving is paused"}, "sync-waits", ["keeps 4.0 KiB", "waits: moving is paused"]),
    ],
)
def test_what_a_former_log_keeps_of_a_queue_is_named(sync: dict[str, Any], reason: str, words: list[str]) -> None:
    span = FormerSpan(log="old", log_id="x", first=0, next=9, records=9, size=4096)
    told = QueueSync(**{"queue": "q", "wished": False, "log": "new", "spans": [span], **sync})
    found = only(msgspec.structs.replace(with_log(healthy()), syncs={"q": told}))
    assert (found.what, found.name, found.reason, found.weight) == ("queue", "q", reason, NOTED)
    assert all(word in found.text for word in words), found.text
    assert "mqtool sync-queue q" in found.advice


def test_what_is_being_copied_needs_nobody() -> None:
    span = FormerSpan(log="old", log_id="x", first=0, next=9, records=9)
    told = QueueSync(queue="q", wished=True, log="new", spans=[span])
    assert findings(msgspec.structs.replace(with_log(healthy()), syncs={"q": told})) == []


def test_a_queue_whose_nodes_are_not_all_there_is_named() -> None:
    """Goal: a mistyped node is found later, too. Method: one of two nodes is unknown; then all are there."""
    facts = msgspec.structs.replace(with_group({"nodes": ["n1", "zz"]}), members=["n1", "n2"])
    found = only(facts)
    assert (found.what, found.name, found.reason, found.weight) == ("queue", "q", "nodes-missing", NOTED)
    assert "asks for copies on zz, which the cluster does not have; its copies are on n1" in found.text
    assert "mqtool alter-queue q --arg nodes" in found.advice
    assert findings(msgspec.structs.replace(facts, members=["n1", "zz"])) == []


def test_a_move_that_does_not_get_on_is_told_with_its_reason() -> None:
    """Of one that gets on, and of a node that does not say what shall move, nothing is said."""
    stuck = MoveOfQueue(queue="q", source="main", target="other", reason="nobody masters that log", told=True)
    going = MoveOfQueue(queue="p", source="main", target="other", stage="left", told=True)
    silent = MoveOfQueue(queue="", source="", target="", stage="unknown", reason="node n1: down")
    found = only(msgspec.structs.replace(with_log(healthy()), moves=[stuck, going, silent]))
    assert (found.what, found.name, found.reason, found.weight) == ("queue", "q", "move-waits", NOTED)
    assert "from log main to other, and does not: nobody masters that log" in found.text
    assert "mqtool alter-queue q --cancel" in found.advice
