"""Who may delete a queue, and what a node still knows of one that is gone."""

from __future__ import annotations

import pytest

from mirrorlog.cluster.state.topology import Permissions, User
from mirrorlog.commitlog.format.header import read_header, stamp
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.errors import AccessRefused, LoginFailed
from mirrorlog.wire.messages.queues import DeleteQueue
from mirrorlog.wire.names import qualified
from tests.broker.test_gate import Node, gate_of
from tests.queues.statelog import data


def test_a_queue_is_deleted_by_who_may_configure_it() -> None:
    """The right to configure its name in its virtual host, and no other right; nobody without a login."""
    node = Node(ann=User("hash", (), {"/": Permissions(configure="^mine", write=".*", read=".*")}))
    ann = gate_of(node, "ann")
    ann.check(DeleteQueue(name="mine.1"))
    for name in ("other", qualified("v", "mine.1")):
        with pytest.raises(AccessRefused):
            ann.check(DeleteQueue(name=name, force=True))
    with pytest.raises(LoginFailed):
        gate_of(node).check(DeleteQueue(name="mine.1"))


def index_of(*queue_ids: int) -> QueueIndex:
    """One record of each, confirmed."""
    index, end = QueueIndex(), 0
    for queue_id in queue_ids:
        batch = data(queue_id)
        stamp(batch, log_offset=end, base_queue_offset=0, append_time_us=1, epoch=1, flags=0, seed=0)
        header = read_header(batch)
        index.add(header)
        end = header.next_log_offset
    index.confirm(end)
    return index


def test_the_index_forgets_a_queue_and_keeps_the_others() -> None:
    """Its offsets, and its gap; also between a leap and the confirm of it, and while gaps are gone through."""
    index = index_of(1, 2, 3)
    index.jump(10_000, [1, 2, 3], 50)
    gaps = index.gaps()
    next(gaps)
    index.forget_queues({1, 2})
    assert [queue_id for queue_id, _ in gaps] in ([], [3])
    assert index.queue_ids() == [3]
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (0, 0, 0)
    index.confirm(20_000)
    assert dict(index.gaps()) == {3: ((1, 50),)}
    index.forget_queues({3, 4})
    assert list(index.gaps()) == []
