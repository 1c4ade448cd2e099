"""Records as lines of JSON say all of a record, both ways."""

import msgspec
import pytest

from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import Codec, read_header
from mirrorlog.errors import BadBatch, BadInput
from mirrorlog.tools.common.records import (
    ParsedRecord,
    StoredRecord,
    parse_record,
    record_fields,
    record_line,
    stored_records,
)
from mirrorlog.tools.offline.batch_view import batch_fields, batch_lines


@pytest.mark.parametrize(
    "record",
    [
        ParsedRecord(b"v", None, [], None),
        ParsedRecord(None, b"", [("a", None), ("a", b"\xff"), ("", b"")], -5),
        ParsedRecord(b"\xff\x00", b"\xfe", [("h", b"x\n")], 1_357_000_000_000_000),
        ParsedRecord("ä\t\n".encode(), "ß".encode(), [], 0),
        ParsedRecord(b"v", None, [], None, Attributes(255, 0, 7)),
        ParsedRecord(b"v", None, [], None, Attributes(1)),
    ],
)
def test_a_record_comes_back_as_it_was(record: ParsedRecord) -> None:
    """Goal: what consume and dump print can be published again. Method: absent, empty and binary parts, out and in."""
    shown = StoredRecord("q", 7, record.value, record.key, record.headers, record.timestamp_us, 9, record.attributes)
    assert parse_record(msgspec.json.encode(record_fields(shown))) == record


@pytest.mark.parametrize(
    "line",
    [
        b"", b"x", b"[]", b"{}", b'{"key": "k"}', b'{"value": 7}', b'{"value_base64": "*"}', b'{"value_base64": 7}',
        b'{"value": "v", "headers": 7}', b'{"value": "v", "headers": [7]}',
        b'{"value": "v", "headers": [{"value": "x"}]}',
        b'{"value": "v", "timestamp_us": "now"}', b'{"value": "v", "timestamp_us": true}', b'{"value": "\xff"}',
        b'{"value": "v", "priority": 256}', b'{"value": "v", "ttl_ms": -1}', b'{"value": "v", "delay_ms": "x"}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    """Goal: a wrong file is refused, in one line. Method: what is no JSON, no object, or has fields of other types."""
    with pytest.raises(BadInput, match="is no record") as caught:
        parse_record(line)
    assert len(caught.value.message) < 400


def test_records_of_a_stored_batch_have_their_offsets() -> None:
    """Goal: numbers count from the batch's first. Method: two records, the second a tombstone."""
    batch = encode_batch([Record(b"v", b"k", [("h", b"x")], 5), Record(None)], queue_id=1)
    header = read_header(batch)._replace(base_queue_offset=40, append_time_us=9)
    assert list(stored_records(header, memoryview(batch), "q")) == [
        StoredRecord("q", 40, b"v", b"k", [("h", b"x")], 5, 9),
        StoredRecord("q", 41, None, None, [], None, 9),
    ]


def test_a_body_that_cannot_be_opened_is_named() -> None:
    """Goal: a batch with right checksums may still be no batch. Method: spoil the compressed bytes."""
    batch = compress_draft(draft_columns([b"v" * 1000]), Codec.LZ4).seal(queue_id=1)
    batch[100:108] = b"\xff" * 8
    with pytest.raises(BadBatch):
        list(stored_records(read_header(batch), memoryview(batch), "q"))


def test_attributes_of_a_batch_are_shown_with_it_and_its_records() -> None:
    """Goal: dump, tail and consume say what a producer asked for, for people and for programs, of a compressed batch
    too. Method: one with all three, and one without."""
    asked = Attributes(5, 60_000, 1_500)
    draft = compress_draft(draft_columns([b"v" * 100], attributes=asked), Codec.ZSTD)
    batch = memoryview(draft.seal(queue_id=1))
    header = read_header(batch)._replace(base_queue_offset=40, append_time_us=9)
    [record] = stored_records(header, batch, "q")
    assert record_line(record).endswith("\tpriority 5, ttl 60000 ms, delay 1500 ms")
    assert {name: record_fields(record)[name] for name in asked._fields} == asked._asdict()
    assert "priority 5, ttl 60000 ms, delay 1500 ms" in next(batch_lines(header, batch))
    fields = batch_fields(header, batch)
    assert (fields["columns"], fields["attributes"]) == (["attributes"], asked._asdict())
    plain = memoryview(encode_batch([Record(b"v")], queue_id=1))
    assert "attributes" not in batch_fields(read_header(plain), plain)
    [record] = stored_records(read_header(plain), plain, "q")
    assert (record_line(record), "priority" in record_fields(record)) == ("0\t-\t-\tv", False)


def test_attributes_that_cannot_be_read_do_not_hide_the_batch() -> None:
    """Goal: a tool shows what is there. Method: a byte that is not known."""
    batch = encode_batch([Record(b"v")], queue_id=1, attributes=Attributes(5))
    batch[111] = 1
    header = read_header(batch)
    assert next(batch_lines(header, memoryview(batch))).endswith("bad attributes")
    assert batch_fields(header, memoryview(batch))["attributes"] is None
