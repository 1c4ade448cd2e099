"""The path reader and the offline tools find what stands in transactions, and pass over torn ones as a whole."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.envelope import EnvelopePart
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Kind
from mirrorlog.errors import LogCorrupt
from mirrorlog.queues.changes import Settled, encode_changes
from mirrorlog.spark.offline import LogDirectories
from mirrorlog.tools.main import app
from tests.spark.offline_logs import Row, StoryLog, range_of, read_all, rows_of
from tests.tools.logs import overwrite


class TransactingLog(StoryLog):
    """That stores transactions too."""

    def transact(self, *queues: int, records: int = 2) -> list[BatchHeader]:
        """A transaction with a batch for each queue, and a settlement behind; their headers, the envelope's first."""
        parts: list[EnvelopePart] = []
        for queue_id in queues:
            first = self._next[queue_id]
            self._next[queue_id] = first + records
            values = [b"%d-%d" % (queue_id, first + number) for number in range(records)]
            batch = encode_batch(
                [Record(value) for value in values], queue_id=queue_id, producer_id=9, producer_epoch=0, sequence=first
            )
            parts.append(EnvelopePart(batch, first))
            for offset, value in enumerate(values, first):
                self.rows[queue_id][offset] = Row(offset, value, None, (), None, self._time_us + 1)
        self._time_us += 1
        change = encode_changes([Settled(group="g", ranges=[0, 1], why="acked")], queue_id=queues[0])
        headers, _ = self.log.append_transaction([*parts, EnvelopePart(change, 0)], append_time_us=self._time_us)
        self.headers += headers
        return headers


def random_log(directory: Path, seed: int) -> TransactingLog:
    dice = random.Random(seed)
    log = TransactingLog(directory, queues=3)
    for _ in range(120):
        if dice.random() < 0.5:
            log.transact(*(dice.randint(1, 3) for _ in range(dice.randint(1, 4))), records=dice.randint(1, 9))
        else:
            log.data(dice.randint(1, 3), dice.randint(1, 20))
        if dice.random() < 0.05:
            log.checkpoint()
        if dice.random() < 0.1:
            log.confirm()
            log.seal()
    log.close()
    return log


def mqtool(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.exception
    return result.stdout


@pytest.mark.parametrize("seed", range(4))
def test_a_random_log_of_transactions_reads_as_it_was_written(tmp_path: Path, seed: int) -> None:
    """Goal: no reader of a directory has to know transactions. With tables and without, all of it and parts."""
    print("seed", seed)
    log = random_log(tmp_path, seed)
    dice = random.Random(seed)
    for table in tmp_path.glob("*.table"):
        if seed % 2 and dice.random() < 0.5:
            table.unlink()
    logs = LogDirectories.open(str(tmp_path))
    for facts in logs.facts():
        expected = log.visible(facts.queue_id)
        assert facts.next == log.next_of(facts.queue_id)
        assert rows_of(logs.batches(range_of(facts))) == expected
        first, following = sorted(dice.randint(0, facts.next) for _ in range(2))
        part = [row for row in expected if first <= row.offset < following]
        assert rows_of(logs.batches(range_of(facts, first, following))) == part


@pytest.mark.parametrize("seed", range(2))
def test_verify_finds_nothing_wrong_with_transactions(tmp_path: Path, seed: int) -> None:
    """Goal: no false alarm: queue order, sequences, tables. Verify a random log."""
    log = random_log(tmp_path, seed)
    report = json.loads(mqtool("verify", str(tmp_path), "--json"))
    assert report["batches"] == len(log.headers)
    envelopes = [header for header in log.headers if header.kind == Kind.TRANSACTION]
    assert report["records"] == sum(header.record_count for header in log.headers if header not in envelopes)


def test_dump_and_tail_show_transactions_and_what_is_inside(tmp_path: Path) -> None:
    """Goal: people see what counts together. Dump a log with one, as text, as fields and as records."""
    log = TransactingLog(tmp_path, queues=2)
    outer, first, *_ = log.transact(1, 2)
    log.close()
    lines = [line for line in mqtool("dump", str(tmp_path)).splitlines() if line.lstrip()[:1].isdigit()]
    shown = {int(line.split()[0]): line for line in lines}
    assert "transaction" in shown[outer.log_offset]
    assert shown[outer.log_offset].endswith("3 batches that count together")
    assert "inside: producer 9/0 sequence 0" in shown[first.log_offset]
    found = [json.loads(line) for line in mqtool("dump", str(tmp_path), "--json").splitlines()]
    flags = [each["flags"] for each in found if each.get("log_offset", -1) >= outer.log_offset]
    assert flags == [[], ["inner"], ["inner"], ["inner"]]
    values = mqtool("dump", str(tmp_path), "--queue", "q2", "--records")
    assert "2-0" in values
    assert "2-1" in values
    assert "inside" in mqtool("tail", "--dir", str(tmp_path))


def test_what_recover_saves_is_the_log_with_its_transactions(tmp_path: Path) -> None:
    """Goal: nothing is written twice. Save a log with transactions elsewhere and verify that."""
    log = TransactingLog(tmp_path / "log", queues=2)
    for _ in range(30):
        log.transact(1, 2)
        log.data(1)
    log.close()
    mqtool("recover", str(tmp_path / "log"), "--salvage", str(tmp_path / "saved"))
    for queue_id in (1, 2):
        assert read_all(tmp_path / "saved", f"q{queue_id}") == log.visible(queue_id)


def test_bad_bytes_in_a_transaction_are_told_with_what_they_took(tmp_path: Path) -> None:
    """Goal: a damaged batch inside is named, and others of its transaction are still read. Damage one record."""
    log = TransactingLog(tmp_path, queues=2)
    log.data(1)
    _, first, second, _ = log.transact(1, 2)
    log.close()
    overwrite(tmp_path, first.log_offset + HEADER_SIZE + 12, b"\xff")
    bad: list[object] = []
    assert [row.offset for row in read_all(tmp_path, "q1", bad.append)] == [0, 1, 2, 3, 4]
    assert len(bad) == 1
    assert [row.value for row in read_all(tmp_path, "q2", bad.append)] == [b"2-0", b"2-1"]
    assert second.queue_id == 2
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert isinstance(result.exception, LogCorrupt)
