"""A node's copy of a log and what is derived from it: both go on together, or the node is told that it must end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import CONTROL_QUEUE_ID, Kind
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.errors import BadBatch, DiskFailed, DiskFull, LogCorrupt, MirrorlogError
from mirrorlog.queues.checkpoint_states import CheckpointBegan, CheckpointEnded, encode_checkpoint, encode_state
from tests.commitlog.faulty import FaultyFiles, opens_on
from tests.ha.links import Pair
from tests.ha.replicas import KIB, append, content, flush, open_master, open_replica, settings_of


def declare(replica: Replica, name: str) -> None:
    batch = replica.queues.declare(name, {})
    assert batch is not None
    replica.append_change(batch, 1)


def queues_of(replica: Replica) -> dict[str, int]:
    return {queue.name: queue.queue_id for queue in replica.queues}


def room_of(replica: Replica) -> int:
    """What is left of the segment."""
    return 256 * KIB - (replica.log.end - replica.log.active_start)


def copy_all(pair: Pair) -> None:
    """The mirror takes over the master's epochs and every byte that it has not."""
    pair.mirror.log.adopt_epochs(pair.master.log.epochs.entries)
    run = content(pair.master)[pair.mirror.log.end :]
    pair.mirror.append_run(memoryview(run), log_offset=pair.mirror.log.end)


def test_a_change_of_a_newer_software_is_passed_over(pair: Pair, tmp_path: Path) -> None:
    """Goal: a log that a newer node has written is still followed and opened. Method: a control and a queue-state batch
    with a change under an unknown name between two declares; copy it to a mirror, then recover both copies."""
    declare(pair.master, "before")
    value = msgspec.msgpack.encode({"type": "QueueMoved", "name": "before", "to": [1, {"deep": b"x"}]})
    for queue_id, kind in ((CONTROL_QUEUE_ID, Kind.CONTROL), (1, Kind.QUEUE_STATE)):
        pair.master.append_change(encode_batch([Record(value)], queue_id=queue_id, kind=kind), 1)
    declare(pair.master, "after")
    copy_all(pair)
    assert queues_of(pair.master) == queues_of(pair.mirror) == {"before": 1, "after": 2}
    pair.close()
    for name, settings in (("n0", pair.settings), ("n1", pair.mirror_settings)):
        again = open_replica(tmp_path / name, settings)
        assert queues_of(again) == {"before": 1, "after": 2}
        again.close()


def fail(*_: object) -> None:
    raise ValueError("a fault that nobody thought of")


@pytest.mark.parametrize("role", ["master", "mirror"])
def test_a_batch_that_is_stored_and_cannot_be_followed_is_told(pair: Pair, role: str) -> None:
    """Goal: no copy goes on with an index or a registry that is not its log's. Method: let the registry fail at a
    declare, as the master appends it or as the mirror does: `on_broken` hears of the batch's range."""
    broken: list[MirrorlogError] = []
    replica: Replica = getattr(pair, role)
    replica.on_broken = broken.append
    append(pair.master)
    copy_all(pair)
    first = replica.log.end
    replica.queues.follow = fail  # type: ignore[method-assign]

    def declare_and_copy() -> None:
        declare(pair.master, "q")
        copy_all(pair)

    with pytest.raises(LogCorrupt, match="a fault that nobody thought of") as raised:
        declare_and_copy()
    assert broken == [raised.value]
    assert raised.value.details == {"first": first, "last": replica.log.end}


@pytest.mark.parametrize("role", ["master", "mirror"])
def test_a_disk_that_fails_in_an_append_is_told(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Goal: a node does not live on with a log that takes nothing more. Method: fail the making of the second segment
    of a log on disk, as its master appends or as its mirror does: `on_broken` hears of it, once."""
    files = FaultyFiles()
    nodes = ["n0", "n1"]
    settings = settings_of("n0" if role == "master" else "n1", nodes, flush="disk")
    monkeypatch.setattr(CommitLog, "open", opens_on(files))
    replica = (open_master if role == "master" else open_replica)(tmp_path / "faulty", settings)
    monkeypatch.undo()
    broken: list[MirrorlogError] = []
    replica.on_broken = broken.append
    both = Pair(pair.master, replica, settings, settings)
    if role == "mirror":
        copy_all(both)
    files.disk.fail("create")

    def append_more() -> None:
        for number in range(20):
            append(replica if role == "master" else pair.master, 30 * KIB, number)
            if role == "mirror":
                copy_all(both)

    with pytest.raises(DiskFailed) as raised:
        append_more()
    assert broken == [raised.value]
    assert 0 < replica.log.end < 20 * 30 * KIB


def test_a_run_received_at_the_logs_end_is_kept_whole_or_leaves_zeros(pair: Pair) -> None:
    """Goal: a mirror receives in place and keeps nothing that was not checked. Method: receive half a run, a damaged
    one and a whole one at the mirror's end: only the last counts, the others leave the end and zeros behind it."""
    append(pair.master)
    copy_all(pair)
    append(pair.master)
    mirror = pair.mirror
    run = content(pair.master)[mirror.log.end :]
    end = mirror.log.end

    place = mirror.log.place_for(len(run))
    assert place is not None
    place[: len(run) // 2] = run[: len(run) // 2]
    mirror.log.drop_placed(place)
    assert (mirror.log.end, bytes(place)) == (end, bytes(len(run)))

    place[:] = bytes(run[:-1]) + bytes((run[-1] ^ 1,))
    with pytest.raises(BadBatch):
        mirror.keep_placed(place, log_offset=end)
    assert (mirror.log.end, bytes(place)) == (end, bytes(len(run)))

    place[:] = run
    mirror.keep_placed(place, log_offset=end)
    assert content(mirror) == content(pair.master)
    assert mirror.index.next_appended(1) == pair.master.index.next_appended(1)
    assert mirror.log.place_for(256 * KIB) is None, "what does not fit the segment is received elsewhere"


def checkpoint(replica: Replica) -> None:
    """A complete, confirmed checkpoint of no queues at all."""
    began = replica.log.end
    replica.append_change(encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=0))]), 1)
    ended = CheckpointEnded(began_at=began, producer_epoch_floor=0)
    replica.append_change(encode_checkpoint([encode_state(ended)]), 1)


def test_a_begin_within_a_mirrors_segment_is_where_its_readers_begin(tmp_path: Path) -> None:
    """Goal: `earliest` can be read on every copy. A mirror with longer files seals them, the begin moves to the end of
    the master's first: each queue of the mirror begins with the first batch behind it, also after a restart."""
    own, other = (settings_of(name, ["n0", "n1"]) for name in ("n0", "n1"))
    longer = other.log.model_copy(update={"segment_bytes": 384 * KIB, "kept_mapped_bytes": 0})
    other = other.model_copy(update={"log": longer})
    master, mirror = open_master(tmp_path / "n0", own), open_replica(tmp_path / "n1", other)
    mirror.align(0, master.log.epochs.entries)
    mirror.aligned()
    for number in range(60):
        append(master, 30 * KIB, number)
    checkpoint(master)
    mirror.append_run(memoryview(content(master)), log_offset=0)
    for replica in (master, mirror):
        replica.set_confirmed(replica.log.end)
    flush(mirror)
    flush(mirror)
    while (segment := mirror.log.next_to_seal()) is not None:
        start, end = segment
        rows = mirror.index.rows(start, end)
        mirror.log.tables.store(start, end, bytes(build_table(rows, start=start, end=end, seed=mirror.log.seed)))
        mirror.past_upkeep.add(start, mirror.log)
        mirror.log.seal(end)
        mirror.index.evict(end)
    begin = master.log.segments()[0].end
    assert begin not in {each.end for each in mirror.log.segments()}
    mirror.start_moved(begin, mirror.past_upkeep.starts_behind(begin, mirror.log))
    mirror.past_upkeep.drop(begin, mirror.log)
    first = mirror.index.begin(1)

    def check(replica: Replica) -> None:
        assert (replica.log.begin, replica.index.begin(1)) == (begin, first)
        assert replica.past is not None
        until = replica.index.past_until(1, first)
        assert until is not None
        (run, *_) = replica.past.entries(1, first, 1, until=until)
        assert run.base_queue_offset == first
        assert run.log_offset >= begin
        assert replica.log.read_cold(run.log_offset, 1, until=replica.log.end).run()

    check(mirror)
    flush(mirror)
    mirror.close()
    check(open_replica(tmp_path / "n1", other))


def test_a_mirror_takes_no_data_into_the_space_that_is_kept_free(pair: Pair) -> None:
    """Goal: epochs, tables and what frees space find room on a mirror's disk too. With no new file allowed a mirror
    takes data to the end of its segment and refuses the data that needs another one, keeping nothing of the run; what
    is no data gets its file, and so does data once there is space."""
    master, mirror = pair.master, pair.mirror
    mirror.log.allow_bytes(0)
    while (room := room_of(master)) > 40 * KIB:
        append(master, 30 * KIB)
    append(master, room - 112)
    copy_all(pair)
    assert mirror.log.end == master.log.end
    append(master, 100)
    for _ in range(2):
        with pytest.raises(DiskFull, match=r"log\.disk_full_percent"):
            copy_all(pair)
        assert mirror.log.end == mirror.log.active_start + 256 * KIB - 8
    mirror.log.allow_bytes(256 * KIB)
    copy_all(pair)
    mirror.log.allow_bytes(0)
    while (room := room_of(master)) > 40 * KIB:
        append(master, 30 * KIB)
    append(master, room - 112)
    declare(master, "q")
    copy_all(pair)
    assert mirror.log.active_start == mirror.log.end - (master.log.end - master.log.active_start) > 256 * KIB
    assert content(mirror) == content(master)


def test_other_nodes_hear_of_bytes_before_what_follows_from_them_is_worked_out(pair: Pair) -> None:
    """Goal: a mirror or a master never waits for this node's index. Method: look at log and index when bytes are
    stored and when they are followed, on both ends: the end has moved by then, the index only the second time."""
    seen: list[tuple[str, int, int]] = []

    def look(what: str, replica: Replica) -> None:
        seen.append((what, replica.log.end, replica.index.next_appended(1)))

    for replica in (pair.master, pair.mirror):
        replica.on_stored.append(partial(look, "stored", replica))
        replica.on_appended.append(partial(look, "followed", replica))
    begin = pair.master.log.end
    append(pair.master)
    copy_all(pair)
    end = pair.master.log.end
    assert end > begin
    once = [("stored", end, 0), ("followed", end, 1)]
    assert seen == once * 2


def test_an_error_in_telling_others_does_not_part_log_and_index(pair: Pair) -> None:
    """Goal: no queue offset is given twice. Method: let the first telling of stored bytes fail: the error comes out,
    the index has the batch, and the next one has the next number."""
    failures = iter([OSError("a bug")])

    def tell() -> None:
        for error in failures:
            raise error

    pair.master.on_stored.append(tell)
    with pytest.raises(OSError, match="a bug"):
        append(pair.master)
    assert append(pair.master).base_queue_offset == 1
