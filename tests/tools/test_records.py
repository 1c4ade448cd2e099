"""Records as lines of JSON say all of a record, both ways."""

import msgspec
import pytest

from mirrorlog.commitlog.body import Record, draft_columns, encode_batch
from mirrorlog.commitlog.codec import compress_draft
from mirrorlog.commitlog.format import Codec, read_header
from mirrorlog.errors import BadBatch, BadInput
from mirrorlog.tools.records import GivenRecord, StoredRecord, parse_record, record_fields, stored_records


@pytest.mark.parametrize(
    "record",
    [
        GivenRecord(b"v", None, [], None),
        GivenRecord(None, b"", [("a", None), ("a", b"\xff"), ("", b"")], -5),
        GivenRecord(b"\xff\x00", b"\xfe", [("h", b"x\n")], 1_357_000_000_000_000),
        GivenRecord("ä\t\n".encode(), "ß".encode(), [], 0),
    ],
)
def test_a_record_comes_back_as_it_was(record: GivenRecord) -> None:
    """Goal: what consume and dump print can be published again. Method: absent, empty and binary parts, out and in."""
    shown = StoredRecord("q", 7, record.value, record.key, record.headers, record.timestamp_us, 9)
    assert parse_record(msgspec.json.encode(record_fields(shown))) == record


@pytest.mark.parametrize(
    "line",
    [
        b"", b"x", b"[]", b"{}", b'{"key": "k"}', b'{"value": 7}', b'{"value_base64": "*"}', b'{"value_base64": 7}',
        b'{"value": "v", "headers": 7}', b'{"value": "v", "headers": [7]}',
        b'{"value": "v", "headers": [{"value": "x"}]}',
        b'{"value": "v", "timestamp_us": "now"}', b'{"value": "v", "timestamp_us": true}', b'{"value": "\xff"}',
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
