"""The tables of `mqtool offsets`, from fixed statuses, as they stand on a page of 100 columns."""

import msgspec
import pytest

from mirrorlog.diagnosis.cluster_status import Unreachable
from mirrorlog.tools.cluster import nodes_of, nodes_view
from mirrorlog.tools.common.output import PAGE_COLUMNS, page
from mirrorlog.tools.common.views import View
from mirrorlog.tools.offsets import offsets_view
from mirrorlog.tools.queue import queues_view
from mirrorlog.wire.messages.queues import QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import LeftQueueStatus
from tests.tools.goldens import golden
from tests.tools.statuses import LOG_ID, MASTER_DOWN, OUTAGE, PLACED, cluster_status, log_status, node_status

QUEUES = [
    QueueInfo(
        name="flights",
        queue_id=1,
        log_id=LOG_ID,
        epoch=3,
        master="n1",
        mirrors=["n2", "n3"],
        begin=0,
        next=336_776,
        arguments={"x-max-age": "7D", "x-priority": 3},
    ),
    QueueInfo(name="[bold]x", queue_id=2, log_id=LOG_ID, epoch=1, master="n1", mirrors=[], begin=0, next=0),
]


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("offsets_outage.txt", offsets_view(OUTAGE)),
        ("offsets_master_down.txt", offsets_view(MASTER_DOWN)),
        ("offsets_nobody.txt", offsets_view(cluster_status())),
        ("offsets_placed.txt", offsets_view(PLACED)),
        ("nodes.txt", nodes_view(nodes_of(PLACED.nodes[1], PLACED))),
        ("queues.txt", queues_view(QUEUES)),
    ],
)
def test_a_view_is_printed_as_recorded(name: str, view: View) -> None:
    """Goal: the layout changes on purpose only. Method: compare with the golden text."""
    text = page(view)
    assert text == golden(name, text)


def test_what_a_queue_has_left_in_a_log_is_told_with_where_it_went() -> None:
    """By the name of that log, where it is known; by its id else."""
    left = [
        LeftQueueStatus(queue="/orders", queue_id=7, begin=3, next=20, moved_to="2nd"),
        LeftQueueStatus(queue="/far", queue_id=8, begin=0, next=5, moved_to="elsewhere"),
    ]
    status = cluster_status(node_status("n1", log_status(left=left)))
    text = page(offsets_view(status, {"2nd": "second"}))
    rows = [line.split() for line in text.partition("RECORDS in former logs")[2].splitlines()[1:4]]
    assert [row[1:] for row in rows[1:]] == [["main", "3", "20", "second"], ["main", "0", "5", "elsewhere"]]


def test_no_number_is_cut_or_wrapped_at_100_columns() -> None:
    """Goal: offsets of terabyte logs stay whole. Method: every offset of the status stands in the text."""
    text = page(offsets_view(OUTAGE))
    assert max(map(len, text.splitlines())) <= PAGE_COLUMNS
    for offset in ("12345678912", "12345416768", "12340000000", "9000000120", "~96450616", "86400.500"):
        assert offset in text.split()


def test_the_furthest_mirror_speaks_when_the_master_is_silent() -> None:
    """Goal: the best answer there is, named as such. Method: n3 knows more confirmed bytes than n2."""
    text = page(offsets_view(MASTER_DOWN))
    assert "n1 does not answer: no answer from 127.0.0.1:7401 within 3000 ms" in text
    assert "main: its master does not answer; mirrors' lags are not known, the rest is as n3 has it" in text
    assert "MIRRORS" not in text


def test_what_nobody_tells_is_told_below_the_logs() -> None:
    """Goal: a node that refuses is not called dead, and queues whose nodes are all down are not left out in silence.
    Method: one of each."""
    refusing = Unreachable(node_id="n2", client="h:1", error="ACCESS_REFUSED", message="needs one of the tags")
    outage = QueueOutage(name="q", log_id="x", node="n3", reason="queue 'q' is on node n3 alone")
    lines = page(offsets_view(msgspec.structs.replace(OUTAGE, unreachable=[refusing], outages=[outage]))).splitlines()
    assert "n2 refuses: needs one of the tags" in lines
    assert "queue 'q' is on node n3 alone" in lines


def test_a_page_of_80_columns_still_holds_every_number() -> None:
    """Goal: a usual terminal is enough for the display in place. Method: the same offsets, whole, on 80 columns."""
    text = page(offsets_view(OUTAGE), 80)
    for offset in ("12345678912", "12345416768", "12340000000", "9000000120", "~96450616", "86400.500"):
        assert offset in text.split()
