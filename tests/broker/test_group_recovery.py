"""What a start derives of acking groups, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.queues.changes import Change, GroupReset, Settled, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from mirrorlog.queues.groups.table import GroupTable
from tests.ha.replicas import flush, open_master, open_replica, settings_of


def change(replica: Replica, each: Change) -> None:
    replica.append_change(encode_change(each, queue_id=replica.queues.find("q").queue_id), 1)


def test_a_start_keeps_nothing_to_take_back_what_was_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a segment full of settlements costs no memory at a start. Confirm a thousand and leave ten that are not;
    stop and start, and count after each of the table's confirms how much it could take back: ten changes, never more.
    They can be: cut them."""
    settings = settings_of("n0", ["n0"])
    replica = open_master(tmp_path / "n0", settings)
    replica.append_change(replica.queues.declare("q", {}) or bytearray(), 1)
    change(replica, GroupReset(group="", queue_offset=0))
    for at in range(0, 2000, 2):
        change(replica, Settled(group="", ranges=[at, at + 1]))
    replica.set_confirmed(replica.log.end)
    confirmed = replica.log.end
    for at in range(2000, 2010):
        change(replica, Settled(group="", ranges=[at, at + 1]))
    flush(replica)
    replica.close()

    kept: list[int] = []
    confirm = GroupTable.confirm

    def counted(table: GroupTable, log_offset: int) -> None:
        kept.append(len(table._undo))
        confirm(table, log_offset)

    monkeypatch.setattr(GroupTable, "confirm", counted)
    again = open_replica(tmp_path / "n0", settings)
    ledger = again.groups.find(again.queues.find("q").queue_id, "")
    assert (again.log.confirmed, kept) == (confirmed, [0, 10])
    assert ledger.unsettled_total(2010) == 1000
    again.align(confirmed, again.log.epochs.held(confirmed))
    again.aligned()
    assert ledger.unsettled_total(2010) == 1010
    again.close()


def test_a_copy_from_the_logs_first_byte_on_forgets_attributes_at_a_late_confirm(tmp_path: Path) -> None:
    """Goal: a group that is made late gets the same from whoever becomes master. A record of some priority is settled;
    behind that come a checkpoint and, while it is written, a group in front of it; the confirm is heard last."""
    replica = open_master(tmp_path / "n0", settings_of("n0", ["n0"]))
    replica.append_change(replica.queues.declare("q", {}) or bytearray(), 1)
    queue_id = replica.queues.find("q").queue_id
    urgent = memoryview(encode_batch([Record(b"v")], queue_id=queue_id, attributes=Attributes(5)))
    replica.append(urgent, read_header(urgent), 1)
    change(replica, GroupReset(group="", queue_offset=0))
    change(replica, Settled(group="", ranges=[0, 1]))
    writer = CheckpointWriter(
        replica.queues, replica.producers, replica.index.next_appended, groups=replica.groups, runs=replica.runs
    )
    replica.append_change(writer.next_batch(replica.log.end) or bytearray(), 1)
    change(replica, GroupReset(group="late", queue_offset=0))
    while (batch := writer.next_batch(replica.log.end)) is not None:
        replica.append_change(batch, 1)
    assert replica.runs.of(queue_id) is not None
    replica.set_confirmed(replica.log.end)
    assert replica.runs.of(queue_id) is None
    replica.close()
