"""Positions as JSON and back, and a log of another history told from the one that was read. No JVM."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Flag, read_header, stamp
from mirrorlog.errors import BadInput
from mirrorlog.spark.positions import QueuePosition, as_offsets, broken_history, parse_offsets

LOG = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
OTHER_LOG = "00000000-85b5-54b0-b99c-56b1e8d06aa8"
THIRD_LOG = "11111111-85b5-54b0-b99c-56b1e8d06aa8"
READ = QueuePosition(17, 4, LOG, "first")

positions = st.builds(
    QueuePosition,
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | st.uuids().map(str),
    st.none() | st.text(max_size=40),
)


def below(epoch: int, flags: int = 0) -> BatchHeader:
    batch = encode_batch([Record(b"x")], queue_id=1)
    stamp(batch, log_offset=0, base_queue_offset=16, append_time_us=0, epoch=epoch, flags=flags, seed=1)
    return read_header(batch)


@given(st.dictionaries(st.text(max_size=10), positions, max_size=4))
def test_positions_survive_a_checkpoint(given_positions: dict[str, QueuePosition]) -> None:
    """Goal: what a stream stored is what it goes on from, and equal positions are equal text, as Spark compares them.
    Method: through JSON and back, in another order of the queues."""
    text = json.dumps(as_offsets(given_positions))
    assert parse_offsets(json.loads(text)) == given_positions
    backwards = dict(reversed(given_positions.items()))
    assert json.dumps(as_offsets(backwards)) == text


def test_the_json_is_the_documented_one() -> None:
    """Goal: checkpoints of this version are read by later ones. Method: the words of the decision record."""
    expected = {"q": {"0": {"offset": 17, "epoch": 4, "log": LOG, "incarnation": "first"}}}
    assert as_offsets({"q": READ}) == expected
    assert parse_offsets({"q": {"0": 17}}) == {"q": QueuePosition(17)}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([], id="a list"),
        pytest.param({"q": 1}, id="no partition"),
        pytest.param({"q": {"1": 1}}, id="partition 1"),
        pytest.param({"q": {"0": 1, "1": 1}}, id="two partitions"),
        pytest.param({"q": {"0": -3}}, id="-3"),
        pytest.param({"q": {"0": 2**63}}, id="too large"),
        pytest.param({"q": {"0": True}}, id="a boolean"),
        pytest.param({"q": {"0": None}}, id="nothing"),
        pytest.param({"q": {"0": {}}}, id="no offset"),
        pytest.param({"q": {"0": {"offset": -1}}}, id="latest in a position"),
        pytest.param({"q": {"0": {"offset": 1.0}}}, id="a fraction"),
        pytest.param({"q": {"0": {"offset": 1, "epoch": "4"}}}, id="epoch as text"),
        pytest.param({"q": {"0": {"offset": 1, "epoch": 2**32}}}, id="epoch too large"),
        pytest.param({"q": {"0": {"offset": 1, "log": "x"}}}, id="no log id"),
        pytest.param({"q": {"0": {"offset": 1, "log": 5}}}, id="log as number"),
        pytest.param({"q": {"0": {"offset": 1, "incarnation": 5}}}, id="incarnation as number"),
        pytest.param({"q": {"0": {"offset": 1, "epok": 4}}}, id="unknown field"),
    ],
)
def test_what_is_no_position_is_refused(wrong: object) -> None:
    """Goal: nothing is guessed. Each wrong thing by itself, in one line."""
    with pytest.raises(BadInput) as refused:
        parse_offsets(wrong)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("position", "now", "reason"),
    [
        pytest.param(READ, {"below": below(4)}, None, id="the same record"),
        pytest.param(READ, {"below": below(5)}, "of epoch 4, now it is one of epoch 5", id="another one at its place"),
        pytest.param(READ, {"below": below(5, Flag.COPIED)}, None, id="a moved batch proves nothing"),
        pytest.param(READ, {}, None, id="a freed record proves nothing"),
        pytest.param(QueuePosition(17, None, LOG, "first"), {"below": below(5)}, None, id="nobody looked"),
        pytest.param(QueuePosition(17, 4), {"below": below(4)}, None, id="no ids given"),
        pytest.param(QueuePosition(17, 4), {"below": below(5)}, "epoch 4", id="no ids given, another record"),
        pytest.param(READ, {"log_id": OTHER_LOG}, f"stood in log {LOG}, now it is in {OTHER_LOG}", id="another log"),
        pytest.param(READ, {"log_id": OTHER_LOG, "former_logs": (LOG,)}, None, id="a former log"),
        pytest.param(READ, {"former_logs": (OTHER_LOG,), "below": below(5)}, "epoch 4", id="in the log that it was in"),
        pytest.param(
            READ,
            {"log_id": OTHER_LOG, "former_logs": (LOG,), "below": below(5)},
            None,
            id="of two logs nothing is proved",
        ),
        pytest.param(
            READ, {"log_id": OTHER_LOG, "former_logs": (THIRD_LOG,)}, "was never in that one", id="nor a former log"
        ),
        pytest.param(
            READ, {"former_logs": (LOG,), "incarnation": "second"}, "made anew since", id="another queue, in that log"
        ),
        pytest.param(READ, {"incarnation": "second"}, "made anew since", id="another queue of the name"),
    ],
)
def test_another_history_is_told_from_the_one_that_was_read(
    position: QueuePosition, now: dict[str, object], reason: str | None
) -> None:
    """Goal: a log that lost its tail and wrote another one is noticed. Method: what stands below the position now."""
    found = broken_history(position, **{"log_id": LOG, "incarnation": "first", **now})  # type: ignore[arg-type]
    assert (found is None) if reason is None else (found is not None and reason in found), found
