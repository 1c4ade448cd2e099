"""Ids of queues after a loss: whoever still holds one meets no other queue under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirrorlog.cluster.membership import run_history
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.testing import Node
from mirrorlog.wire.messages.queues import DeclareQueue, Metadata, QueueInfo
from tests.process.clusters import eventually, fast_cluster
from tests.process.raw import Raw, batch_of

pytestmark = pytest.mark.process

NEVER_FLUSHED = {"log.flushIntervalCommitLog": 60_000}


def declared(raw: Raw, name: str, arguments: dict[str, Any]) -> QueueInfo:
    (info,) = raw.request(DeclareQueue(name=name, arguments=arguments), Metadata).queues
    return info


def end_of(node: Node, log_id: str) -> int:
    return next(log.end for log in node.status().logs if log.log_id == log_id)


def lose_power(node: Node, log_id: str, *, from_offset: int) -> None:
    """Of a node that was killed, its machine too: what this log had not flushed is gone from there on."""
    (segment,) = (path for path in (node.data_dir / "logs" / log_id).iterdir() if path.name.isdigit())
    with segment.open("r+b") as file:
        file.seek(from_offset)
        file.write(bytes(segment.stat().st_size - from_offset))
    path = node.data_dir / run_history.FILE_NAME
    record = msgspec.structs.replace(run_history.RECORD_FILE.read(OS_FILES, path), boot_id="another boot")
    path.write_bytes(run_history.RECORD_FILE.encode(record))


@pytest.mark.long_after(1)
@pytest.mark.parametrize("arguments", [{}, {"durable": False}], ids=["durable", "of one run"])
def test_ids_of_lost_queues_are_given_to_no_other(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Goal: nothing goes into, or comes out of, another queue by an old id. Method: two queues in a log of one copy in
    memory; its machine goes down before their declarations are on its disk; another queue is declared, and the first
    again. A batch for the old id, and a read of it, are refused."""
    with fast_cluster(1, min_in_sync=1, data_dir=tmp_path, settings=NEVER_FLUSHED) as cluster:
        cluster.wait_in_sync()
        (node,) = cluster.nodes.values()
        with Raw(node.client) as raw:
            kept = declared(raw, "kept", arguments)
            lost_from = end_of(node, kept.log_id)
            lost = [declared(raw, name, arguments) for name in ("orders", "more")]
            raw.produce(batch_of([b"order 1"], lost[0]))
        node.kill()
        lose_power(node, kept.log_id, from_offset=lost_from)
        node.launch()
        node.wait_serving()

        def declare_again() -> list[QueueInfo] | None:
            try:
                with Raw(node.client) as raw:
                    return [declared(raw, name, arguments) for name in ("payments", "orders")]
            except MirrorlogError:
                return None  # the log is being mastered

        found = eventually(declare_again, "queues are declared")
        assert {each.log_id for each in found} == {kept.log_id}
        assert min(each.queue_id for each in found) > max(each.queue_id for each in lost)
        with Raw(node.client) as raw:
            raw.produce(batch_of([b"payment 1"], found[0]))
            with pytest.raises(NoSuchQueue):
                raw.fetch(lost[0].queue_id, 0)
            with pytest.raises(NoSuchQueue):
                raw.produce(batch_of([b"a late order"], lost[0]))
            assert raw.values(found[0].queue_id) == [b"payment 1"]
