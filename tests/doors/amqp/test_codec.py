"""The door's own codec says and reads what pamqp does; and cuts what comes however it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header
from pamqp.frame import marshal, unmarshal

from mirrorlog.doors.amqp import codec
from mirrorlog.doors.amqp.codec import AmqpFrame, Content, FrameError, Frames
from tests.fuzz.amqp_targets import PROPERTIES, publish

CHANNELS = st.integers(1, 65_535)
TAGS = st.integers(0, 2**63 - 1)
SHORT = st.text(max_size=60)
NAMES = st.from_regex(r"[a-zA-Z0-9._-]{0,127}", fullmatch=True)
BODIES = st.binary(max_size=20_000)


def frames_of(data: bytes, frame_max: int = 131_072) -> list[AmqpFrame]:
    return list(Frames(frame_max).feed(data))


def opened(data: bytes) -> list[object]:
    """By pamqp, all of them."""
    found = []
    while data:
        size, _, frame = unmarshal(data)
        found.append(frame)
        data = data[size:]
    return found


@given(CHANNELS, NAMES, NAMES, st.booleans())
def test_a_publish_is_read_as_pamqp_writes_it(channel: int, exchange: str, key: str, mandatory: bool) -> None:
    """Goal: any client's publish. Method: pamqp writes it."""
    (frame,) = frames_of(marshal(commands.Basic.Publish(0, exchange, key, mandatory), channel))
    assert codec.method_of(frame) == codec.PUBLISH
    assert frame.channel == channel
    assert codec.read_publish(frame) == (exchange, key, mandatory, False)


@given(CHANNELS, TAGS, st.booleans(), st.booleans())
def test_settlements_are_read_as_pamqp_writes_them(channel: int, tag: int, multiple: bool, requeue: bool) -> None:
    """Goal: acks, nacks and rejects. Method: pamqp writes them."""
    for method, expected in (
        (commands.Basic.Ack(tag, multiple), (tag, multiple, False)),
        (commands.Basic.Nack(tag, multiple, requeue), (tag, multiple, requeue)),
        (commands.Basic.Reject(tag, requeue), (tag, False, requeue)),
    ):
        (frame,) = frames_of(marshal(method, channel))
        assert codec.read_settlement(frame, codec.method_of(frame)) == expected


@given(CHANNELS, TAGS, st.booleans())
def test_confirms_are_written_as_pamqp_writes_them(channel: int, tag: int, multiple: bool) -> None:
    """Goal: what a publisher hears. Method: the same bytes."""
    assert codec.ack(channel, tag, multiple=multiple) == marshal(commands.Basic.Ack(tag, multiple), channel)
    nack = marshal(commands.Basic.Nack(tag, multiple, False), channel)
    assert codec.nack(channel, tag, multiple=multiple) == nack


@given(st.tuples(SHORT, SHORT, SHORT), TAGS, st.booleans(), BODIES, st.sampled_from([4096, 131_072]))
def test_a_delivery_is_what_pamqp_reads(
    names: tuple[str, str, str], number: int, again: bool, body: bytes, frame_max: int
) -> None:
    """Goal: any client reads it, in frames of the size that it takes. Method: pamqp opens what is written."""
    tag, exchange, key = names
    route = codec.short(exchange.encode()) + codec.short(key.encode())
    data = codec.deliver(
        7, codec.short(tag.encode()), number, again,
        route=route, properties=PROPERTIES, body=body, frame_max=frame_max,
    )  # fmt: skip
    assert all(frame.end - frame.start <= frame_max - 8 for frame in frames_of(data))
    method, content, *bodies = opened(data)
    assert isinstance(method, commands.Basic.Deliver)
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == (tag, number, again)
    assert (method.exchange, method.routing_key) == (exchange, key)
    assert isinstance(content, header.ContentHeader)
    assert content.properties.content_type == "text/plain"
    assert content.body_size == len(body)
    assert b"".join(each.value for each in bodies) == body  # type: ignore[attr-defined]


@given(CHANNELS, TAGS, SHORT, st.integers(0, 2**32 - 1), BODIES)
def test_what_get_finds_and_what_comes_back_is_what_pamqp_reads(
    channel: int, number: int, key: str, left: int, body: bytes
) -> None:
    """Goal: `get-ok` and `return`. Method: pamqp opens what is written."""
    route = codec.short(b"e") + codec.short(key.encode())
    common = {"route": route, "properties": PROPERTIES, "body": body, "frame_max": 4096}
    got, *_ = opened(codec.get_ok(channel, number, True, left=left, **common))  # type: ignore[arg-type]
    assert isinstance(got, commands.Basic.GetOk)
    assert (got.delivery_tag, got.routing_key, got.message_count) == (number, key, left)
    back, *_ = opened(codec.returned(channel, 312, b"NO_ROUTE", **common))  # type: ignore[arg-type]
    assert isinstance(back, commands.Basic.Return)
    assert (back.reply_code, back.reply_text, back.exchange, back.routing_key) == (312, "NO_ROUTE", "e", key)


@given(CHANNELS, NAMES, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_answers_with_names_are_what_pamqp_writes(channel: int, name: str, messages: int, consumers: int) -> None:
    """Goal: the three answers whose names pamqp would not let through. Method: with names that it does."""
    declared = marshal(commands.Queue.DeclareOk(name, messages, consumers), channel)
    assert codec.declare_ok(channel, name.encode(), messages, consumers) == declared
    assert codec.consume_ok(channel, name.encode()) == marshal(commands.Basic.ConsumeOk(name), channel)
    assert codec.cancel_ok(channel, name.encode()) == marshal(commands.Basic.CancelOk(name), channel)
    assert codec.cancel(channel, name.encode()) == marshal(commands.Basic.Cancel(name, True), channel)


@given(BODIES, st.lists(st.integers(1, 5_000), max_size=40))
def test_frames_are_the_same_however_they_come(body: bytes, cuts: list[int]) -> None:
    """Goal: TCP cuts where it likes. Method: the same bytes in pieces of any size; the body is put together."""
    data = publish(3, "e", "k", PROPERTIES, body) + codec.ack(3, 1, multiple=False)
    frames, found, at = Frames(4096), [], 0
    for size in [*cuts, len(data)]:
        found += list(frames.feed(data[at : at + size]))
        at += size
    kinds = [frame.kind for frame in found]
    assert kinds == [codec.METHOD, codec.HEADER, *[codec.BODY] * -(-len(body) // 4088), codec.METHOD]
    content = Content(codec.read_header(found[1]))
    for frame in found[2:-1]:
        content.add(frame)
    assert (content.missing, content.body(), content.properties) == (0, body, PROPERTIES)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"\x01\0\1\0\0\x20\0", 501, "frame_max"),
        (codec.ack(1, 1, multiple=False)[:-1] + b"\0", 501, "ends with"),
    ],
)
def test_what_is_no_frame_is_named(data: bytes, code: int, words: str) -> None:
    """Goal: a client is told what is wrong. Method: too large a frame, and one with another end."""
    with pytest.raises(FrameError, match=words) as failure:
        list(Frames(4096).feed(data + b"\0" * 8))
    assert failure.value.code == code
