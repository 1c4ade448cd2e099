"""A request of a Publish stream reads the same whether protobuf reads it or the door itself."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.doors.grpc.incoming import Batch, _read_ready, read_request
from mirrorlog.pb.v1 import producer_pb2 as pb

TAGS = (0, 1, 127, 128, 2**63 - 1)


def bytes_of(**batch: object) -> bytes:
    return pb.PublishRequest(batch=pb.PublishBatch(**batch)).SerializeToString()  # type: ignore[arg-type]


def by_protobuf(request: bytes) -> Batch | None:
    """What protobuf makes of a request, when that is a batch."""
    message = pb.PublishRequest.FromString(request)
    if message.WhichOneof("request") != "batch":
        return None
    batch = message.batch
    content = {None: None, "ready": memoryview(batch.ready), "records": batch.records}[batch.WhichOneof("content")]
    return Batch(batch.tag, len(request), content, batch.sequence if batch.HasField("sequence") else None)


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 2_097_152])
def test_a_ready_batch_is_read_in_place(tag: int, size: int) -> None:
    """Goal: no copy, no byte moved. Method: lengths and tags of every number of bytes, as protobuf writes them."""
    request = bytes_of(tag=tag, ready=b"r" * size)
    found = _read_ready(request)
    assert found == Batch(tag, len(request), memoryview(b"r" * size))
    assert isinstance(found.content, memoryview)
    assert found.content.obj is request
    assert read_request(request) == found


@pytest.mark.parametrize(
    "request_",
    [
        bytes_of(),
        bytes_of(tag=-1, ready=b"x"),
        bytes_of(tag=5, sequence=3, ready=b"x"),
        bytes_of(tag=5, sequence=3, records=pb.Records(records=[pb.Record(value=b"v")])),
        bytes_of(records=pb.Records()),
        bytes_of(tag=5, ready=b"first") + bytes_of(ready=b"second"),
        b"\x12\x07\x5a\x01x\x5a\x02yz",
        b"\x12\x05\x5a\x01x\x08\x07",
        b"\x12\x05\x08\x07\x5a\x01x\xa0\x06\x01",
    ],
    ids=["nothing", "negative tag", "sequence", "records", "no records", "merged", "twice", "tag behind", "unknown"],
)
def test_a_request_of_another_form_is_protobuf_s(request_: bytes) -> None:
    """Goal: the same meaning for every encoder. Method: forms that a ready batch alone never has."""
    assert _read_ready(request_) is None
    assert read_request(request_) == by_protobuf(request_)


@pytest.mark.parametrize("message", [pb.PublishRequest(), pb.PublishRequest(open=pb.OpenPublish(queue="q"))])
def test_a_request_without_a_batch_stays_a_message(message: pb.PublishRequest) -> None:
    """Goal: whoever opens the stream sees it. Method: an opening, and nothing at all."""
    assert read_request(message.SerializeToString()) == message


@given(st.binary(max_size=40) | st.builds(lambda cut, tail: bytes_of(tag=7, ready=b"r" * 200)[:cut] + tail,
       st.integers(0, 210), st.binary(max_size=9)))  # fmt: skip
def test_any_bytes_mean_what_protobuf_says(request_: bytes) -> None:
    """Goal: no second meaning. Method: arbitrary bytes, and a good request that is cut and goes on with any."""
    try:
        expected = by_protobuf(request_)
    except DecodeError:
        with pytest.raises(DecodeError):
            read_request(request_)
        return
    found = read_request(request_)
    assert (found if isinstance(found, Batch) else None) == expected
