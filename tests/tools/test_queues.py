"""What a list of queues says of the node that it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.diagnosis.places import altered_text, nodes_note, sync_text
from mirrorlog.tools.common.output import outage_fields, outages_view, page
from mirrorlog.tools.queue import former_view, queue_fields, queues_view, within
from mirrorlog.wire.messages.queues import (
    AlteredQueue,
    FormerSpan,
    Metadata,
    QueueInfo,
    QueueOutage,
    QueueSync,
)
from mirrorlog.wire.names import qualified


@pytest.mark.parametrize(
    ("current", "begin", "noted"), [(True, 0, False), (True, 50, False), (False, 0, False), (False, 50, True)]
)
def test_a_mirrors_begin_is_told_as_its_own(current: bool, begin: int, noted: bool) -> None:
    """Goal: a mirror that began late does not pass for the queue. Method: a queue as its master, or a mirror, has it;
    only what may be less than there is gets the note."""
    queue = QueueInfo(
        name="q", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=["n2"], begin=begin, next=90, current=current
    )
    shown = page(queues_view([queue]))
    assert str(begin) in shown.split()
    assert ("as a mirror has it" in shown) == noted


def test_queues_that_cannot_be_asked_for_are_named_with_the_reason() -> None:
    """A line each below the table; nothing when there are none."""
    outages = [
        QueueOutage(name=name, log_id="x", node="n2", reason=f"queue {name!r} is on node n2 alone") for name in "ab"
    ]
    lines = [str(line).strip() for line in outages_view(outages)]
    assert lines == ["queue 'a' is on node n2 alone", "queue 'b' is on node n2 alone"]
    assert outages_view([]) == []


def test_of_a_virtual_host_only_its_own_are_told() -> None:
    """Goal: --vhost holds for what cannot be asked for, too. Method: one of each kind in two hosts."""
    keys = [qualified(vhost, name) for vhost in ("/", "shop") for name in "q"]
    queues = [
        QueueInfo(name=key, queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=9) for key in keys
    ]
    outages = [QueueOutage(name=key, log_id="x", node="n2", reason="down") for key in keys]
    metadata = Metadata(cluster_id="c", cluster_name="c", node_id="n1", nodes=[], queues=queues, outages=outages)
    found = within(metadata, "shop")
    assert [each.name for each in found.queues] == [each.name for each in found.outages] == [keys[1]]


def test_an_outage_is_told_to_programs_under_its_own_name() -> None:
    """Goal: nobody takes it for a queue that answers. Method: its fields."""
    outage = QueueOutage(name="q", log_id="x", node="n2", since_us=7, reason="queue 'q' is on node n2 alone")
    told = {"node": "n2", "since_us": 7, "reason": "queue 'q' is on node n2 alone"}
    assert outage_fields(outage) == {"name": "q", "log_id": "x", "outage": told}


SPANS = [
    FormerSpan(log="a", log_id="x", first=0, next=40, records=40, size=4096),
    FormerSpan(log="b", log_id="y", first=40, next=50, records=10, size=1024),
]
AWAY = FormerSpan(log="c", log_id="z", first=50, next=60, records=10, unknown="nobody masters log c")


@pytest.mark.parametrize(
    ("sync", "text"),
    [
        ({}, "all of it is in its own log; nothing is left to copy"),
        ({"spans": SPANS}, "50 records (5.0 KiB) are left in a, b; they are not copied"),
        ({"spans": SPANS, "wished": True}, "50 records (5.0 KiB) are left in a, b; nothing copied yet"),
        (
            {"spans": SPANS, "wished": True, "done_records": 7, "bytes_per_s": 2048.0, "seconds_left": 2.5},
            "50 records (5.0 KiB) are left in a, b; 7 copied, 2.0 KiB/s, 2 s left",
        ),
        (
            {"spans": [*SPANS, AWAY], "wished": True, "waits": "nobody masters log c"},
            "60 records (nobody says how many bytes) are left in a, b, c; waits: nobody masters log c",
        ),
    ],
)
def test_how_far_a_sync_is_is_said_in_words(sync: dict[str, Any], text: str) -> None:
    """By what is left, at what speed, and why it does not get on."""
    assert sync_text(QueueSync(**{"queue": "q", "wished": False, "log": "new", **sync})) == f"q: {text}"


def test_what_former_logs_keep_of_queues_is_listed() -> None:
    """Goal: no log keeps anything without a name for it. Method: a queue with records in three former logs, of which
    one does not say how many bytes; and one that has none, which has no word more for programs."""
    sync = QueueSync(queue="q", wished=False, log="new", spans=[*SPANS, AWAY])
    (_, table, note) = former_view([sync, QueueSync(queue="p", wished=False, log="new")])
    assert str(note) == "log c of queue q: nobody masters log c"
    rows = [line.split() for line in page(table).splitlines()[-3:]]
    assert rows == [
        ["q", "a", "new", "0", "40", "40", "4.0", "KiB"],
        ["q", "b", "new", "40", "50", "10", "1.0", "KiB"],
        ["q", "c", "new", "50", "60", "10", "?"],
    ]
    assert former_view([]) == []
    queue = QueueInfo(name="q", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=9)
    assert [each["log"] for each in queue_fields(queue, sync)["former"]] == ["a", "b", "c"]
    assert "former" not in queue_fields(queue, None)


def test_a_move_says_what_stays_behind() -> None:
    found = AlteredQueue(queues=["q"], rule="2-copies-memory", log="a", moves=True, left_records=3, done=True)
    assert "3 records stay there until they are freed, or copied" in altered_text(found)


@pytest.mark.parametrize(("done", "words"), [(False, "would be copied"), (True, "will be copied")])
def test_a_move_with_sync_says_that_what_stays_behind_is_copied(done: bool, words: str) -> None:
    found = AlteredQueue(queues=["q"], rule="2-copies-memory", log="a", moves=True, left_records=3, done=done)
    text = altered_text(found, sync=True)
    assert f"3 records in the former log {words} once it has moved" in text
    assert "freed" not in text


@pytest.mark.parametrize("how", [{"moves": True}, {"copies_change": True}])
def test_how_many_copies_there_are_and_will_be_is_said(how: dict[str, bool]) -> None:
    """Nodes of before say nothing of it, and then nothing is said."""
    found = AlteredQueue(queues=["q"], rule="on-n1-zz", log="a", copies_before=3, copies=1, **how)
    assert "; copies: 3 now, 1 then" in altered_text(found)
    assert "copies:" not in altered_text(AlteredQueue(queues=["q"], rule="on-n1-zz", log="a", **how))


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        (["n1", "n2"], ""),
        (["n1", "zz"], "no node 'zz' yet; copies are on: n1"),
        (["zz", "yy"], "no node 'zz', 'yy' yet; of those named none is there, so there is one copy"),
        (None, ""),
    ],
)
def test_nodes_that_are_not_there_are_named(nodes: list[str] | None, note: str) -> None:
    """Goal: a mistyped node takes no copy away without a word. Method: none, one, and all that are named are absent."""
    assert nodes_note({"nodes": nodes}, ["n1", "n2", "n3"]) == note
