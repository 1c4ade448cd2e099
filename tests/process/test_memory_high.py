"""A node whose memory is high: data is refused, all else goes on, and it is seen."""

from __future__ import annotations

from pathlib import Path

from mirrorlog.diagnosis.advice import reasons
from mirrorlog.diagnosis.cluster_status import AllStatuses
from mirrorlog.diagnosis.findings import Facts, findings
from mirrorlog.errors import MirrorlogError, Overloaded
from mirrorlog.testing import Node
from mirrorlog.wire.messages.operators import Events, GetEvents
from mirrorlog.wire.messages.queues import CommitPosition, Done, Position
from mirrorlog.wire.messages.status import MemoryStatus
from tests.attacks.begun_frames import begun_frames
from tests.process.clusters import MIB, declare, eventually, fast_cluster, log_lines
from tests.process.raw import Raw, batch_of

# A node without clients holds some 45 MiB: it is high with 180 and ok again below 154.
SETTINGS = {"limits.memory_bytes": 256 * MIB}


def memory_of(node: Node) -> MemoryStatus:
    found = node.status().memory
    assert found is not None
    return found


def test_a_node_whose_memory_is_high_refuses_data_and_nothing_else(tmp_path: Path) -> None:
    """Goal: publishers are held before the machine swaps. Method: 24 clients that have sent most of 8 MiB each; then a
    publish is refused and stores nothing, while a read, a position and a declare go on; without them it is taken."""
    with fast_cluster(1, data_dir=tmp_path, settings=SETTINGS) as one:
        node, address = one.nodes["n1"], one.servers[0]
        queue = declare(address, "q")
        assert memory_of(node).state == "ok"

        def refused(number: int) -> MirrorlogError | None:
            batch = batch_of([b"%d" % number], queue, producer_id=1, sequence=number)
            with Raw(address) as raw:
                try:
                    raw.produce(batch)
                except MirrorlogError as error:
                    return error
            return None

        assert refused(0) is None
        with begun_frames(address, 24):
            eventually(lambda: memory_of(node).state == "high", "the node has seen it")
            error = refused(1)
            assert isinstance(error, Overloaded), repr(error)
            assert error.details["limit"] == "memory_high_percent"
            assert "nothing was stored" in error.message
            with Raw(address) as raw:
                assert raw.values(queue.queue_id) == [b"0"]
                position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=1)
                raw.request(CommitPosition(queue="q", group="g", position=position), Done)
            declare(address, "p")
            status = node.status()
            assert "memory is high" in status.logs[0].reason
            facts = Facts(status=AllStatuses(cluster_id="", cluster_name="c", nodes=[status], unreachable=[]))
            assert "memory-high" in reasons(findings(facts))
        eventually(lambda: memory_of(node).state == "ok", "they are gone")
        assert refused(1) is None
        with Raw(address) as raw:
            assert raw.values(queue.queue_id) == [b"0", b"1"]
            kinds = [event.kind for event in raw.request(GetEvents(after=0, wait_ms=0), Events).events]
        assert [kind for kind in kinds if kind.startswith("memory")] == ["memory_high", "memory_ok"]
        assert len(log_lines(node, "memory_state_changed")) == 2
