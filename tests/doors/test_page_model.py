"""What the management page shows, made of statuses: rows with what is red first, and copies on one axis of offsets."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.diagnosis.advice import NOTED, STOPS, Diagnosis
from mirrorlog.doors.management.page.app import Templates, address_within, number_text
from mirrorlog.doors.management.page.dialogs import VALUE_BYTES_SHOWN, shown_bytes
from mirrorlog.doors.management.page.live import Feeds, event_of
from mirrorlog.doors.management.page.model import (
    AXIS,
    LOST,
    Bar,
    QueueLine,
    Reason,
    Reasons,
    log_axis,
    outage_line,
    queue_axis,
    queue_line,
    red_first,
)
from mirrorlog.doors.management.page.policy_form import FIELDS, definition_of, text_of
from mirrorlog.doors.management.page.views import COMMANDS, command_of
from mirrorlog.doors.management.shapes import ApiError
from mirrorlog.queues.policies import KEYS, wrong_keys
from mirrorlog.tools.main import TABLE
from mirrorlog.wire.messages.groups import GroupInfo
from mirrorlog.wire.messages.queues import QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import LossStatus
from tests.doors.http_statuses import hold, log, mirror, placed, queue


def info(name: str = "q1", **facts: object) -> QueueInfo:
    plain: dict[str, object] = {
        "queue_id": 1,
        "log_id": "id of main",
        "epoch": 7,
        "master": "n1",
        "mirrors": ["n2", "n3"],
        "begin": 0,
        "next": 100,
    }
    return QueueInfo(name=name, **{**plain, **facts})  # type: ignore[arg-type]


def kinds(bar: Bar) -> dict[str, tuple[float, float]]:
    """What is drawn, by its kind: where it begins, and how wide it is."""
    return {each.kind: (each.x, each.width) for each in bar.stretches}


def test_a_queue_says_which_mirrors_are_in_sync_and_what_its_master_counts() -> None:
    line = queue_line(info("west\x1forders", policy="ha"), placed(), queue(1))
    assert (line.vhost, line.name, line.node, line.policy) == ("west", "orders", "n1", "ha")
    assert (line.in_sync, line.behind) == (("n2",), ("n3",))
    assert (line.ready, line.unacknowledged, line.consumers) == (271, 272, 273)
    assert line.weight == ""


def test_numbers_that_nobody_tells_are_none_and_shown_as_a_dash() -> None:
    """Goal: a number that is made up is not shown. Method: a queue of whose master nothing is known."""
    line = queue_line(info(), None, None)
    assert (line.ready, line.consumers, line.publish_rate) == (None, None, None)
    assert number_text(line.ready) == "-"
    assert number_text(1_234_567) == "1\u202f234\u202f567"


def test_what_stops_comes_first_then_what_is_noted_then_mirrors_behind() -> None:
    fine = QueueLine(vhost="/", name="a", state="running", node="n1")
    behind = QueueLine(vhost="/", name="b", state="running", node="n1", behind=("n2",))
    noted = QueueLine(vhost="/", name="c", state="running", node="n1", reasons=(Reason(NOTED, "slow"),))
    stops = QueueLine(vhost="/", name="d", state="down", node="", reasons=(Reason(NOTED, "x"), Reason(STOPS, "y")))
    assert red_first([fine, behind, noted, stops]) == [stops, noted, behind, fine]


def test_a_queue_without_a_master_and_one_that_nobody_answers_for_are_red_with_the_reason() -> None:
    line = queue_line(info(master="", reason="n1 is down and alone has everything"), placed(master=""), None)
    assert (line.state, line.weight) == ("down", STOPS)
    assert line.reasons[0].text == "n1 is down and alone has everything"
    lost = outage_line(QueueOutage(name="q", log_id="x", node="n3", reason="all nodes are down"))
    assert (lost.weight, lost.reasons[0].text, lost.node) == (STOPS, "all nodes are down", "n3")


def test_findings_of_a_queue_and_of_its_log_stand_at_the_queue_and_losses_with_them() -> None:
    """Goal: nothing is judged a second time. Method: findings of the doctor's, of this queue, its log and others."""

    def finding(what: str, name: str) -> Diagnosis:
        return Diagnosis(what=what, name=name, reason="r", weight=NOTED, text=f"{what} {name}", advice="do")

    found = [finding("queue", "q1"), finding("log", "main"), finding("queue", "q2"), finding("node", "main")]
    reasons = Reasons(found, {"main": [LossStatus(epoch=8, start=100, end=200)]})
    texts = [each.text for each in reasons.of_queue("q1", "main")]
    assert texts[:2] == ["queue q1", "log main"]
    assert "100..200 or further" in texts[2]
    assert reasons.of_queue("q9", "other") == ()


def test_what_is_lost_for_good_stands_before_nothing_else() -> None:
    """Goal: no command takes a loss away, so it must hide nothing. Method: beside mirrors behind, and noted."""
    lost = Reasons([], {"main": [LossStatus(epoch=8, start=100, end=200)]}).of_queue("a", "main")
    old = QueueLine(vhost="/", name="a", state="running", node="n1", reasons=lost)
    behind = QueueLine(vhost="/", name="b", state="running", node="n1", behind=("n2",))
    noted = QueueLine(vhost="/", name="c", state="running", node="n1", reasons=(*lost, Reason(NOTED, "slow")))
    assert [old.weight, noted.weight] == [LOST, NOTED]
    assert red_first([old, behind, noted]) == [noted, behind, old]


def test_all_copies_stand_on_one_axis_with_what_is_confirmed_flushed_and_lost() -> None:
    """Goal: who is behind whom is seen. Method: a log of 0 up to 1,000 bytes, a mirror that has half of it, a third
    node that does not answer, and a lost range."""
    master = log(begin=0, end=1000, confirmed=500, flushed=250, mirrors=[mirror("n2"), mirror("n3", acked=750)])
    half = log(begin=0, end=500, confirmed=500, flushed=500, role="mirror")
    losses = [LossStatus(epoch=6, start=100, end=300)]
    axis = log_axis(placed(losses=losses), {"n1": master, "n2": half})
    assert [bar.name for bar in axis.bars] == ["n1", "n2", "n3", "lost"]
    assert [bar.kind for bar in axis.bars] == ["master", "mirror", "away", "lost"]
    assert kinds(axis.bars[0])["held"] == (0, AXIS)
    assert kinds(axis.bars[0])["confirmed"] == (0, 500)
    assert kinds(axis.bars[0])["flushed"][0] == 248.5
    assert kinds(axis.bars[1])["held"] == (0, 500)
    assert kinds(axis.bars[2])["untold"] == (0, 750)
    assert kinds(axis.bars[3])["loss"] == (100, 200)
    assert axis.ticks[-1] == (AXIS, 1000)


def test_near_the_end_a_small_lag_of_a_long_log_is_seen() -> None:
    """Goal: a lag of kilobytes in a log of gigabytes is to be seen. Method: both ways of looking."""
    master = log(begin=0, end=10**10, confirmed=10**10, flushed=10**10, mirrors=[mirror("n2", acked=10**10 - 1000)])
    near = log(begin=0, end=10**10 - 1000, confirmed=10**10 - 1000, flushed=10**10 - 1000)
    whole, cut = (log_axis(placed(), {"n1": master, "n2": near}, near=each) for each in (False, True))
    assert kinds(whole.bars[1])["held"][1] > 999
    assert (whole.cut, cut.cut) == (False, True)
    assert kinds(cut.bars[1])["held"][1] < 200


def test_a_landing_stands_on_the_axis_of_its_log_by_what_it_keeps_of_it() -> None:
    master = log(begin=0, end=1000, confirmed=1000, flushed=1000, holds=[hold("q1", kept_bytes=400, lag=7)])
    bar = log_axis(placed(replicas=["n1"]), {"n1": master}).bars[-1]
    assert bar.name == "landing lake of q1"
    assert kinds(bar)["behind"] == (600, 400)
    assert bar.cells["lag"] == "7 records, 400 B"


def test_an_axis_of_nothing_and_marks_at_its_ends_stay_within_it() -> None:
    empty = log_axis(placed(replicas=["n1"]), {"n1": log(begin=0, end=0, confirmed=0, flushed=0)})
    axes = [empty, log_axis(placed(), {}), queue_axis(info(begin=0, next=0), [], [])]
    for axis in axes:
        for bar in axis.bars:
            assert all(each.x >= 0 and each.x + each.width <= AXIS for each in bar.stretches), bar


def test_a_queues_groups_gaps_and_landings_stand_on_one_axis_of_queue_offsets() -> None:
    groups = [
        GroupInfo(group="", kind="acking", floor=50, watermark=75, unsettled=30),
        GroupInfo(group="reader", kind="stream", floor=25),
    ]
    axis = queue_axis(info(gaps=[(10, 20)]), groups, [hold("q1", queue_offset=40, lag=60), hold("q2")])
    assert [bar.name for bar in axis.bars] == ["records", "group (own)", "group reader", "landing lake"]
    assert kinds(axis.bars[0])["loss"] == (100, 100)
    assert kinds(axis.bars[1])["out"] == (500, 250)
    assert [bar.cells["lag"] for bar in axis.bars[1:]] == ["30 records", "75 records", "60 records"]


def test_names_and_reasons_are_shown_as_text_whatever_they_hold() -> None:
    """Goal: no name is ever markup. Method: a queue that is called as a script would be."""
    evil = '"><script>alert(1)</script>'
    line = QueueLine(vhost=evil, name=evil, state="down", node=evil, reasons=(Reason(STOPS, evil, evil),))
    frame = {"path": "queues", "query": {"q": evil}, "note": ("failed", evil), "live": "", "user": evil}
    page = Templates().page(
        "queues.html", {**frame, "lines": [line], "count": 1, "pages": 1, "page": 1, "vhosts": [evil]}
    )
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "style=" not in page
    assert address_within("queue", vhost=evil, name=evil) in page.replace("&amp;", "&")


# --- Dialogs ---


def test_values_are_shown_as_text_or_hex_and_cut() -> None:
    assert (shown_bytes(None).kind, shown_bytes(b"").text) == ("none", "")
    assert shown_bytes("zwölf\n".encode()).text == "zwölf\n"
    assert shown_bytes(b"\xff\x00").text == "ff00"
    assert shown_bytes(b"a\0b").kind == "hex"
    long = shown_bytes(b"x" * 5000)
    assert (long.kind, len(long.text), long.cut) == ("text", VALUE_BYTES_SHOWN, 5000 - VALUE_BYTES_SHOWN)
    cut_within = shown_bytes("ö".encode() * 3000, 2047)
    assert (cut_within.kind, set(cut_within.text)) == ("text", {"ö"})
    binary = shown_bytes(bytes(range(256)) * 20)
    assert (binary.kind, binary.cut) == ("hex", 5120 - VALUE_BYTES_SHOWN // 2)
    assert shown_bytes("\u202etxt".encode()).text == "\\u202etxt"


def test_the_form_of_a_policy_has_every_key_with_the_type_of_its_values() -> None:
    """Goal: no key is missing, and what a field offers is taken. Method: compare with what the nodes check."""
    assert {each.key for each in FIELDS} == set(KEYS)
    form = {f"key:{each.key}": each.choices[0] for each in FIELDS if each.choices}
    form |= {"key:ha-mode": "exactly", "key:ha-params": "2", "key:max-length": " 10 ", "key:message-ttl": "60000"}
    definition = definition_of(lambda name: form.get(name, ""))
    assert (definition["ha-params"], definition["max-length"]) == (2, 10)
    assert wrong_keys(definition, operator=False) == []
    for words, level in (("2", 2), (" majority ", "majority")):
        said = definition_of(lambda name, words=words: words if name == "key:confirm" else "")
        assert said == {"confirm": level}
        assert wrong_keys(said, operator=True) == []
    form |= {"key:ha-mode": "nodes", "key:ha-params": "n1, n2"}
    nodes = definition_of(lambda name: form.get(name, ""))
    assert nodes["ha-params"] == ["n1", "n2"]
    assert wrong_keys(nodes, operator=False) == []
    assert text_of(nodes["ha-params"]) == "n1, n2"
    with pytest.raises(ApiError, match="max-length 'many' is no number"):
        definition_of(lambda name: "many" if name == "key:max-length" else "")


def test_each_line_that_a_page_tells_is_a_command_of_mqtool() -> None:
    known = set(TABLE)
    for what, command in COMMANDS.items():
        assert command.split()[0] in known, what
    assert command_of("purge", "by hand", "a b") == "mqtool purge 'a b' --vhost 'by hand'"


# --- Live ---


class Pace:
    """Lets a feed go on, one rendering at a time."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)

    async def __call__(self) -> None:
        await self.turns.acquire()


async def test_those_who_look_at_one_page_share_one_rendering_and_nothing_runs_when_they_are_gone() -> None:
    """Goal: a page costs the same, however many look, and nothing when nobody does. Method: two who listen to one page,
    another one to another page; renderings are counted."""
    rendered: list[str] = []
    pace = Pace()

    async def render(key: str) -> str:
        rendered.append(key)
        return f"<p>{key} {len(rendered)}</p>"

    feeds = Feeds(render, wait=pace, listeners_max=3)
    async with feeds.listening("a") as one, feeds.listening("a") as two:
        assert await anext(one) == await anext(two) == event_of("page", "<p>a 1</p>")
        pace.turns.release()
        assert await anext(one) == await anext(two) == event_of("page", "<p>a 2</p>")
        async with feeds.listening("b") as other:
            await anext(other)
            assert feeds.running == 2
            with pytest.raises(ApiError, match="3 pages are open"):
                feeds.check_room()
            with pytest.raises(ApiError, match="2 pages are open"):
                feeds.check_room(lambda key: key == "a", 2)
            feeds.check_room(lambda key: key == "b", 2)
        assert feeds.running == 1
        feeds.check_room()
    assert feeds.running == 0
    assert rendered == ["a", "a", "b"]


async def test_what_goes_wrong_is_told_and_goes_on_when_it_is_over() -> None:
    pace, failing = Pace(), True

    async def render(key: str) -> str:
        if failing:
            raise ApiError(503, "service_unavailable", "no node answers")
        return "one\ntwo"

    feeds = Feeds(render, wait=pace)
    async with feeds.listening("a") as events:
        assert await anext(events) == b"event: trouble\ndata: no node answers\n\n"
        failing = False
        pace.turns.release()
        assert await anext(events) == b"event: page\ndata: one\ndata: two\n\n"
