"""Frames out of a stream of bytes, however it is cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.errors import BadRequest, FrameTooLarge, ProtocolError
from mirrorlog.wire.frame_reader import PLACED_BYTES_MIN, FrameReader, sealed
from mirrorlog.wire.frames import (
    ACK,
    CONFIRM_DUPLICATE,
    DELIVER,
    FRAME_HEADER_SIZE,
    SETTLE,
    SETTLE_AGAIN,
    TRANSFER,
    Frame,
    FrameType,
    Grant,
    How,
    Level,
    Settle,
    deliver_head,
    frame,
    frame_header,
    read_ack,
    read_batches,
    read_confirm,
    read_deliver,
    read_fetch,
    read_grants,
    read_produce,
    read_settle,
    read_settled,
    read_transfer,
    settle_frame,
    settled_frame,
)
from mirrorlog.wire.transaction_frames import (
    TRANSACT,
    TRANSACT_PARTS_MAX,
    TRANSACTED,
    BatchReceipt,
    Transact,
    Transacted,
    read_transact,
    read_transacted,
    settle_part,
    transact_payload,
    transacted_frame,
)

LIMIT = 4096
frames = st.lists(
    st.tuples(st.sampled_from(FrameType), st.binary(max_size=LIMIT), st.integers(0, 2**64 - 1)), max_size=8
)


def feed(reader: FrameReader, data: bytes, chunks: list[int]) -> list[tuple[int, bytes, int]]:
    """Receive `data` in chunks, the last one repeated; each payload is looked at while it is valid."""
    found = []
    turn = 0
    while data:
        room = reader.room()
        size = min(len(data), len(room), chunks[min(turn, len(chunks) - 1)])
        assert size > 0
        room[:size] = data[:size]
        data = data[size:]
        reader.received(size)
        turn += 1
        held: list[tuple[Frame, bytes]] = []
        while (each := reader.next_frame()) is not None:
            held.append((each, bytes(each.payload)))
        for each, payload in held:
            assert bytes(each.payload) == payload, "a view changed before room was asked for again"
            found.append((each.type, payload, each.correlation_id))
    return found


@pytest.mark.story("002:595-599")
@given(frames, st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(16, 5000))
def test_the_same_frames_come_out_however_the_bytes_are_cut(
    sent: list[tuple[FrameType, bytes, int]], chunks: list[int], initial_bytes: int
) -> None:
    """Cut a stream of random frames into random chunks: every frame comes out whole, once and in order."""
    data = b"".join(frame(kind, payload, number) for kind, payload, number in sent)
    reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=initial_bytes)
    assert feed(reader, data, chunks) == [(kind, payload, number) for kind, payload, number in sent]
    assert not reader.partial


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(1, 64), min_size=1, max_size=10))
def test_garbage_is_refused_or_waited_for_and_never_a_frame_too_large(data: bytes, chunks: list[int]) -> None:
    """Receive random bytes: frames of known types within the limit, an error, or the wait for more; nothing else."""
    reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=16)
    try:
        for kind, payload, _ in feed(reader, data, chunks):
            assert kind in set(FrameType)
            assert len(payload) <= LIMIT
    except ProtocolError:
        pass
    assert len(reader._buffer) <= LIMIT + FRAME_HEADER_SIZE


def test_mutated_streams_never_raise_anything_else() -> None:
    """Flip bytes in a valid stream, ten thousand times: frames or ProtocolError, and the buffer stays in its limit."""
    random_ = random.Random(5)
    stream = b"".join(frame(kind, bytes([kind]) * 40, kind) for kind in FrameType)
    for _ in range(10_000):
        broken = bytearray(stream)
        for _ in range(random_.randint(1, 3)):
            broken[random_.randrange(len(broken))] = random_.randrange(256)
        reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=64)
        try:
            feed(reader, bytes(broken), [random_.randint(1, 200)])
        except ProtocolError:
            continue
        assert len(reader._buffer) <= LIMIT + FRAME_HEADER_SIZE


def checked_reader() -> FrameReader:
    reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=64)
    reader.checked = True
    return reader


@given(
    st.tuples(st.sampled_from(FrameType), st.binary(max_size=LIMIT), st.integers(0, 2**32 - 1)),
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
)
def test_a_checked_frame_comes_out_as_it_went_in(sent: tuple[FrameType, bytes, int], chunks: list[int]) -> None:
    """Seal any frame whose batches come in parts of their own, cut it anywhere: the same comes out."""
    kind, payload, number = sent
    own = {FrameType.PRODUCE: 8, FrameType.BATCHES: 32, FrameType.TRANSFER: 32, FrameType.DELIVER: 24}.get(kind, LIMIT)
    whole = frame(kind, payload, number)
    parts = sealed([whole[: FRAME_HEADER_SIZE + own], whole[FRAME_HEADER_SIZE + own :]])
    assert feed(checked_reader(), b"".join(parts), chunks) == [(kind, payload, number)]


@pytest.mark.parametrize("kind", [FrameType.ACK, FrameType.RAFT, FrameType.TRANSFER, FrameType.BEAT])
def test_every_changed_bit_of_a_checked_frame_is_found(kind: FrameType) -> None:
    """Goal: nothing of a frame between nodes is believed that was changed on its way, least of all its length. Method:
    flip each bit of a frame, of one with batches up to them; the header's are found before more has come."""
    payload = random.Random(8).randbytes(0 if kind is FrameType.BEAT else TRANSFER.size)
    sent = b"".join(sealed([frame(kind, payload, 3), b"batches"]))[: FRAME_HEADER_SIZE + len(payload)]
    assert feed(checked_reader(), sent, [16]) == [(kind, payload, 3)]
    for bit in range(8 * len(sent)):
        broken = bytearray(sent)
        broken[bit // 8] ^= 1 << bit % 8
        seen = broken[:FRAME_HEADER_SIZE] if bit < 8 * (FRAME_HEADER_SIZE - 4) else broken
        with pytest.raises(ProtocolError, match="changed on its way"):
            feed(checked_reader(), bytes(seen), [1 << 20])


@pytest.mark.story("002:607")
def test_a_length_above_the_limit_is_refused_before_it_is_received() -> None:
    """Announce one byte more than the limit, and the largest length there is: refused at the header, no room made."""
    for length in (LIMIT + 1, 2**32 - 1):
        reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=64)
        with pytest.raises(FrameTooLarge, match=f"{length} bytes is above the limit of {LIMIT}"):
            feed(reader, frame_header(FrameType.TRANSFER, length), [7])
        assert len(reader._buffer) <= LIMIT + FRAME_HEADER_SIZE


def test_an_unknown_type_and_a_set_flag_are_refused() -> None:
    """Receive a type that nobody knows, and flags that nobody has set."""
    for head in (b"\0\0\0\0\xff\0\0\0" + bytes(8), b"\0\0\0\0\x01\0\x01\0" + bytes(8)):
        with pytest.raises(ProtocolError, match="is no frame of the native protocol"):
            feed(FrameReader(frame_bytes_max=LIMIT), head, [16])


@pytest.mark.story("002:657-659")
def test_the_buffer_grows_to_the_frame_that_comes_and_no_further() -> None:
    """Receive a frame far larger than the first buffer, in pieces: it comes out whole, and room is always there."""
    reader = FrameReader(frame_bytes_max=1 << 20, initial_bytes=64)
    payload = random.Random(6).randbytes(300_000)
    assert feed(reader, frame(FrameType.TRANSFER, payload, 3), [1000]) == [(FrameType.TRANSFER, payload, 3)]
    assert len(reader._buffer) == FRAME_HEADER_SIZE + len(payload)


@pytest.mark.story("002:799-809")
def test_the_buffer_is_used_again_and_again() -> None:
    """Receive a megabyte in small frames through a buffer that holds few of them: it does not grow."""
    reader = FrameReader(frame_bytes_max=LIMIT, initial_bytes=1024)
    data = frame(FrameType.ACK, bytes(24)) * 25_000
    assert len(feed(reader, data, [333])) == 25_000
    assert len(reader._buffer) == 1024


def test_half_a_frame_is_owed() -> None:
    """Receive all but the last byte, then the last: the reader says that bytes are missing, then that none are."""
    reader = FrameReader(frame_bytes_max=LIMIT)
    data = frame(FrameType.ACK, bytes(24))
    assert feed(reader, data[:-1], [1 << 20]) == []
    assert reader.partial
    assert reader.unread() == data[:-1]
    assert len(feed(reader, data[-1:], [1])) == 1
    assert not reader.partial


@pytest.mark.parametrize(
    ("read", "size"),
    [
        *((read_produce, 8), (read_confirm, 24), (read_fetch, 24), (read_batches, 32), (read_transfer, 32)),
        *((read_ack, 24), (read_deliver, 24)),
    ],
)
def test_a_payload_shorter_than_its_struct_is_refused(read: object, size: int) -> None:
    """Read each fixed struct from every length below its own: refused; from its own and above: read."""
    assert callable(read)
    for length in range(size):
        with pytest.raises(ProtocolError, match=f"{length} bytes is shorter than its {size}"):
            read(memoryview(bytes(length)))
    assert set(read(memoryview(bytes(size + 8)))) == {0}


def test_fixed_structs_come_back_as_they_were() -> None:
    """Pack and read the two structs of replication, with the largest values there are."""
    largest = 2**64 - 1
    assert read_ack(memoryview(ACK.pack(largest, 1, 2**32 - 1, 0))) == (largest, 1, 2**32 - 1, 0)
    assert read_transfer(memoryview(TRANSFER.pack(1, 2, largest, 4, 5))) == (1, 2, largest, 4, 5)


def test_a_settlement_comes_back_as_it_was() -> None:
    """With ranges and without; and its answer."""
    for ranges in ((), (0, 1), (5, 2**64 - 1), tuple(range(2000))):
        sent = settle_frame(
            ranges, subscription=7, epoch=3, how=How.RETURN, level=255, delay_ms=9, flags=SETTLE_AGAIN, correlation_id=5
        )
        ((kind, payload, number),) = feed(FrameReader(frame_bytes_max=1 << 20), sent, [333])
        assert (kind, number) == (FrameType.SETTLE, 5)
        assert read_settle(memoryview(payload)) == (Settle(7, 3, 2, 255, 1, 9, len(ranges) // 2, 0), ranges)
    for elsewhere in ([], [(1, 2), (5, 2**64 - 1)]):
        sent = settled_frame(2**64 - 1, 6, 3, elsewhere)
        ((kind, payload, number),) = feed(FrameReader(frame_bytes_max=LIMIT), sent, [8])
        assert (kind, number) == (FrameType.SETTLED, 6)
        assert read_settled(memoryview(payload)) == ((2**64 - 1, 3), elsewhere)
    with pytest.raises(ProtocolError, match="8 bytes of ranges"):
        read_settled(memoryview(settled_frame(1, 6)[FRAME_HEADER_SIZE:] + bytes(8)))


def test_a_transaction_comes_back_as_it_was() -> None:
    """With settlements and batches, with either alone; and its answer."""
    part = settle_part((0, 1, 5, 9), subscription=7, epoch=3, how=How.ACK, again=True)
    for settlements, batches in (([part, part], [b"one", b"two"]), ([part], []), ([], [b"one"])):
        payload = transact_payload(settlements, batches, level=1, durability=1, deadline_ms=9, routing=4)
        facts, read, content = read_transact(memoryview(payload))
        assert facts == Transact(1, 1, 4, 9, len(settlements), len(batches))
        assert read == [(Settle(7, 3, How.ACK, Level.ALL, SETTLE_AGAIN, 0, 2, 0), (0, 1, 5, 9))] * len(settlements)
        assert bytes(content) == b"".join(batches)
    facts = Transacted(2**63, 3, 2, 1, CONFIRM_DUPLICATE, 2, 0)
    receipts = [BatchReceipt(1, 2**63), BatchReceipt(3, 4)]
    ((kind, payload, number),) = feed(FrameReader(frame_bytes_max=LIMIT), transacted_frame(facts, receipts, 6), [8])
    assert (kind, number, read_transacted(memoryview(payload))) == (FrameType.TRANSACTED, 6, (facts, receipts))


def test_a_transaction_that_says_more_than_it_holds_is_refused() -> None:
    """Cut anywhere in its settlement; more parts than are looked at; an answer with half a receipt."""
    part = settle_part((0, 1), subscription=7, epoch=3, how=How.ACK, again=False)
    whole = transact_payload([part], [], level=1, durability=0, deadline_ms=0)
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            read_transact(memoryview(whole)[:size])
    assert TRANSACT_PARTS_MAX == 256, "one frame is one step of the node's loop: a few milliseconds"
    for counts in ((TRANSACT_PARTS_MAX + 1, 0), (0, TRANSACT_PARTS_MAX + 1), (2**32 - 1, 2**32 - 1)):
        with pytest.raises(BadRequest, match=str(TRANSACT_PARTS_MAX)):
            read_transact(memoryview(TRANSACT.pack(1, 0, 0, 0, *counts)))
    with pytest.raises(ProtocolError):
        read_transacted(memoryview(TRANSACTED.pack(1, 1, 1, 0, 0, 1, 0) + bytes(8)))


def test_a_settlement_with_another_number_of_ranges_than_it_says_is_refused() -> None:
    """One less, one more, half of one, four thousand million; and no whole struct."""
    whole = SETTLE.pack(1, 1, 1, 255, 0, 0, 2, 0) + bytes(32)
    for payload in (
        whole[:-16], whole + bytes(16), whole[:-8], SETTLE.pack(1, 1, 1, 0, 0, 0, 2**32 - 1, 0), whole[:20],
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            read_settle(memoryview(payload))


def test_grants_come_back_as_they_were_with_the_batches_behind_them() -> None:
    """None, one, many; and fewer bytes than grants were announced."""
    grants = [Grant(each, each + 3, each % 2, each % 256) for each in range(300)]
    for some in ([], grants[:1], grants):
        head = deliver_head(
            subscription=4, epoch=9, next_confirmed=2**63, grants=some, batch_count=1, batches_bytes=16
        )  # fmt: skip
        ((kind, payload, _),) = feed(FrameReader(frame_bytes_max=1 << 20), head + b"x" * 16, [100])
        assert kind == FrameType.DELIVER
        facts = read_deliver(memoryview(payload))
        assert facts == (4, 9, 2**63, len(some), 1)
        found, batches = read_grants(memoryview(payload)[DELIVER.size :], facts.grant_count)
        assert (found, bytes(batches)) == (some, b"x" * 16)
    with pytest.raises(ProtocolError, match="do not fit"):
        read_grants(memoryview(bytes(24 * 3 - 1)), 3)
    assert [each.redelivered for each in grants[:2]] == [False, True]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3 * PLACED_BYTES_MIN), st.booleans()), min_size=1, max_size=6),
    st.lists(st.integers(1, 40_000), min_size=1, max_size=30),
)
def test_large_frames_of_batches_are_received_where_they_belong(
    bodies: list[tuple[int, bool]], chunks: list[int]
) -> None:
    """Goal: no byte is lost or doubled between the buffer and the place. Frames of any size, half of them placed, cut
    anywhere: every body comes whole, placed or behind its struct, and is asked for once."""
    asked: list[int] = []

    def place(kind: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        assert (kind, read_transfer(facts).log_offset) == (FrameType.TRANSFER, correlation_id)
        asked.append(correlation_id)
        length, wanted = bodies[correlation_id]
        assert size == length
        return memoryview(bytearray(size)) if wanted else None

    def body_of(number: int) -> bytes:
        return random.Random(number).randbytes(bodies[number][0])

    data = b""
    for number in range(len(bodies)):
        facts = TRANSFER.pack(number, 0, 0, 0, 0)
        data += frame(FrameType.TRANSFER, facts + body_of(number), number)
    reader = FrameReader(frame_bytes_max=10 * PLACED_BYTES_MIN, initial_bytes=256, place=place)
    found = []
    turn = 0
    while data:
        room = reader.room()
        size = min(len(data), len(room), chunks[turn % len(chunks)])
        room[:size] = data[:size]
        data, turn = data[size:], turn + 1
        reader.received(size)
        while (each := reader.next_frame()) is not None:
            if each.body is not None:
                assert (len(each.payload), bodies[each.correlation_id][1]) == (TRANSFER.size, True)
            found.append(bytes(each.body) if each.body is not None else bytes(each.payload[TRANSFER.size :]))
    assert found == [body_of(number) for number in range(len(bodies))]
    assert len(asked) == len(set(asked))
    assert not reader.partial
