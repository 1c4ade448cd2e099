"""The mirror audit: equal copies are called equal, and of others the very batch is named."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from rich.console import Console

from mirrorlog.commitlog.format.header import HEADER_SIZE, log_seed, read_header, stamp, write_producer_part
from mirrorlog.errors import LogCorrupt
from mirrorlog.spark.audit import audit
from mirrorlog.spark.checks.copies import Audit, CopyFinding, CopyState, Findings, StoredBatch, differing
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import eventually, fast_cluster, log_of
from tests.process.test_repair import SMALL, copy_of, filled, flip, forget_tables, repaired

RECORDS = 12
"""Of 100,000 bytes, each a batch of its own: two segments."""


def stored(first: int, crc: int = 7) -> StoredBatch:
    return StoredBatch(first, first + 10, 100, crc)


def test_the_copy_that_is_alone_with_its_bytes_is_the_one_that_differs() -> None:
    """Goal: the right copy is not blamed. Three copies, of which one differs; then two copies that disagree, where the
    master is believed; then copies that agree."""
    three = {"n1": stored(10), "n2": stored(10), "n3": stored(10, 8)}
    (found,) = differing(10, three, "n3")
    assert (found.node, found.first, found.next, found.reason) == ("n3", 10, 20, "not the bytes of n1, n2")
    assert [each.node for each in differing(0, {"n1": stored(0, 1), "n2": stored(0, 2)}, "n2")] == ["n1"]
    assert differing(0, {"n1": stored(0), "n2": stored(0)}, "n1") == []
    assert differing(0, {}, "n1") == []


def test_findings_that_say_the_same_of_neighbours_are_one() -> None:
    """Goal: a damaged stretch is one line. Three pieces of it, and one of another node."""
    findings = Findings()
    for first in (1, 2, 3):
        findings.add(CopyFinding("n3", first, first + 1, CopyState.DAMAGED, "why"))
    other = CopyFinding("n2", 4, 5, CopyState.DAMAGED, "why")
    findings.add(other)
    assert findings.all() == (other, CopyFinding("n3", 1, 4, CopyState.DAMAGED, "why"))


def test_a_batch_that_a_copy_leaves_out_is_found_and_so_is_one_that_it_has_alone() -> None:
    """Goal: a copy that leaves batches out is not passed over. Nothing where two others have a batch; a batch where two
    others have none."""
    (found,) = differing(0, {"n1": stored(0), "n2": None, "n3": stored(0)}, "n1")
    assert (found.node, found.first, found.next) == ("n2", 0, 10)
    (found,) = differing(0, {"n1": None, "n2": stored(0), "n3": None}, "n1")
    assert (found.node, found.first, found.next) == ("n2", 0, 10)


def forge(node: Node, log_id: str, number: int) -> None:
    """Change a value's byte in the copy of a node that does not run, in the batch that is the queue's `number`th, and
    seal it again: every checksum fits."""
    for path in sorted(path for path in copy_of(node).iterdir() if path.name.isdigit()):
        content = bytearray(path.read_bytes())
        at = 0
        while at + HEADER_SIZE <= len(content) and (header := read_header(content, at)).length:
            end = at + header.length
            if header.queue_id and header.kind == 1 and header.base_queue_offset == number:
                batch = content[at:end]
                batch[-1000] ^= 1
                seal(batch, log_seed(UUID(log_id)))
                content[at:end] = batch
                path.write_bytes(content)
                return
            at = end
    raise AssertionError(f"no batch with queue offset {number}")


def seal(batch: bytearray, seed: int) -> None:
    header = read_header(batch)
    producer = {
        name: getattr(header, name)
        for name in (
            "kind", "queue_id", "record_count", "columns", "padding", "codec", "body_length", "producer_id",
            "producer_epoch", "sequence", "max_timestamp_us",
        )
    }  # fmt: skip
    write_producer_part(batch, **producer)
    broker = {
        name: getattr(header, name) for name in ("log_offset", "base_queue_offset", "append_time_us", "epoch", "flags")
    }
    stamp(batch, **broker, seed=seed)


def shown(found: Audit) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(found.view())
    return text.getvalue()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("audit")
    with fast_cluster(3, data_dir=directory, min_in_sync=1, settings=SMALL) as cluster:
        cluster.wait_in_sync()
        filled(cluster, RECORDS)
        yield cluster


@pytest.mark.process
def test_equal_copies_have_equal_checksums(three: Cluster) -> None:
    """Goal: three copies that agree are called equal, and the numbers are the log's."""
    found = audit(three.servers, "q")
    assert found.equal
    assert found.error() is None
    assert (found.first, found.next) == (0, RECORDS)
    assert [(each.node, each.records, each.batches) for each in found.copies] == [
        (node, RECORDS, RECORDS) for node in ("n1", "n2", "n3")
    ]
    assert len({each.crc for each in found.copies}) == 1
    assert min(each.size for each in found.copies) > RECORDS * 100_000
    part = audit(three.servers, "q", first=3, until=7)
    assert part.equal
    assert {each.records for each in part.copies} == {4}
    assert "equal" in shown(found)


@pytest.mark.long
@pytest.mark.process
def test_a_copy_with_other_bytes_is_found_though_its_checksums_fit(three: Cluster) -> None:
    """Goal: what no single node can notice. A batch of a mirror is changed and sealed again; the audit names the node
    and the batch. Then bits of another copy rot under its running node: that is told as damage, beside the other."""
    mirror = three.mirrors[0]
    log_id = log_of(mirror).log_id
    mirror.stop()
    forget_tables(mirror)
    forge(mirror, log_id, 7)
    mirror.start()
    three.wait_in_sync()
    found = audit(three.servers, "q")
    assert [(each.node, each.first, each.next, each.state) for each in found.findings] == [
        (mirror.id, 7, 8, CopyState.DIFFERS)
    ]
    error = found.error()
    assert error is not None
    assert (error.exit_code, mirror.id in error.message) == (15, True)
    assert "other bytes" in shown(found)
    other = three.mirrors[1]
    flip(other, log_of(other).end - 150_000)
    found = audit(three.servers, "q")
    seen = [(each.node, each.first, each.next, each.state) for each in found.findings]
    assert (mirror.id, 7, 8, CopyState.DIFFERS) in seen
    assert (other.id, 10, 11, CopyState.DAMAGED) in seen, found.findings
    assert {each["state"] for each in found.fields()["copies"]} == {"EQUAL", "DIFFERS", "DAMAGED"}
    given = ["--servers", ",".join(three.servers), "--queue", "q", "--json"]
    command = [sys.executable, "-m", "mirrorlog.spark.audit", *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 15, ended.stderr
    assert json.loads(ended.stdout)[0]["equal"] is False


@pytest.mark.long
@pytest.mark.process
def test_a_copy_that_is_not_shown_is_named_and_never_called_equal(tmp_path: Path) -> None:
    """Goal: what was not seen is never called equal. Bits rot in the sealed past of a running mirror: it ends rather
    than serve them, and the audit says that it could not be read. Started again it is repaired, and equal. At last a
    copy that is found damaged at its start, with nobody to repair it from, refuses: the audit says why."""
    with fast_cluster(2, data_dir=tmp_path, min_in_sync=1, settings=SMALL) as two:
        two.wait_in_sync()
        filled(two, RECORDS)
        mirror, master = two.mirrors[0], two.master
        eventually(lambda: list(copy_of(mirror).glob("*.table")), "its past is sealed")
        flip(mirror, 250_000)
        found = audit(two.servers, "q")
        # What was read beside that from elsewhere in the copy may have been shown before the node ended, or not.
        assert found.findings[0].first == 0
        assert {(each.node, each.state) for each in found.findings} == {(mirror.id, CopyState.UNREAD)}
        error = found.error()
        assert error is not None
        assert (error.exit_code, error.retriable) == (9, True)
        eventually(lambda: not mirror.running, "the mirror ended")
        mirror.start()
        repaired(two, mirror)
        assert audit(two.servers, "q").equal
        for node in (mirror, master):
            node.stop()
            forget_tables(node)
            flip(node, 150_000)
        master.start()
        with pytest.raises(LogCorrupt, match="is damaged"):
            audit(two.servers, "q")
