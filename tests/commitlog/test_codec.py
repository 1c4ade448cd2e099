"""Compressed bodies: the same columns come out, and nothing else does, whatever a stranger claims."""

from __future__ import annotations

import random
import tracemalloc

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress, compress_draft, decompress, open_body
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec, check_producer_part, read_header
from mirrorlog.errors import BadBatch

PACKED = [Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20


def packed_batch(values: list[bytes | None], codec: Codec) -> bytearray:
    return compress_draft(draft_columns(values), codec).seal(queue_id=7, producer_id=5, sequence=9)


@given(st.binary(max_size=3000))
@pytest.mark.parametrize("codec", Codec)
def test_a_body_comes_back(codec: Codec, body: bytes) -> None:
    """Goal: nothing changes on the way. Compress and open any bytes."""
    assert bytes(decompress(codec, compress(codec, body), len(body), body_bytes_max=len(body))) == body


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=20))
@pytest.mark.parametrize("codec", Codec)
def test_a_reader_sees_the_same_columns_whatever_the_codec(codec: Codec, values: list[bytes | None]) -> None:
    """Goal: readers need not know how a batch was sent. Compress, check as the node does, open in the middle of a
    buffer."""
    batch = packed_batch(values * 10, codec)
    header = check_producer_part(memoryview(batch), max_batch_bytes=LIMIT)
    assert header.record_count == 10 * len(values)
    body = open_body(memoryview(b"12345678" + batch)[8:], body_bytes_max=LIMIT)
    assert [record.value for record in body.records()] == values * 10


@pytest.mark.parametrize("codec", PACKED)
def test_what_gets_smaller_is_compressed(codec: Codec) -> None:
    """Goal: the header says what the body is. A thousand equal values."""
    batch = packed_batch([b"value" * 10] * 1000, codec)
    header = read_header(batch)
    assert (header.codec, header.length, header.length % 8) == (codec, len(batch), 0)
    assert header.body_length > 50_000 > 10 * header.length
    assert not any(batch[len(batch) - header.padding :])


@pytest.mark.parametrize("codec", PACKED)
def test_what_does_not_get_smaller_is_sent_as_it_is(codec: Codec) -> None:
    """Goal: compression never costs bytes. Random values, from a fixed seed, and a body of one small record."""
    noise = random.Random(1).randbytes(5000)
    for values in ([noise], [b"x"]):
        draft = draft_columns(values)
        assert compress_draft(draft, codec) is draft


@pytest.mark.parametrize("codec", PACKED)
def test_a_body_is_not_opened_beyond_the_limit(codec: Codec) -> None:
    """Goal: a small batch cannot fill the memory. A gigabyte is claimed; it is refused before it is allocated."""
    data = compress(codec, bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch, match="1073741824 bytes when opened is above the limit of 8388608"):
            decompress(codec, data, 1 << 30, body_bytes_max=8 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("claimed", [0, 1, 9_999, 10_001, 100_000])
def test_a_body_of_another_size_than_the_header_says_is_refused(codec: Codec, claimed: int) -> None:
    """Goal: never more than `body_length`, never less. Claim less and more than there is."""
    with pytest.raises(BadBatch):
        decompress(codec, compress(codec, b"0123456789" * 1000), claimed, body_bytes_max=LIMIT)


_ZSTD = zstandard.ZstdCompressor()
_LZ4_BLOCK = lz4.block.compress(b"body" * 100, store_size=False)


@pytest.mark.parametrize(
    ("codec", "data", "says"),
    [
        pytest.param(Codec.LZ4, b"", "no lz4 block", id="no lz4"),
        pytest.param(Codec.LZ4, _LZ4_BLOCK[:-1], "no lz4 block", id="lz4 cut"),
        pytest.param(Codec.LZ4, _LZ4_BLOCK + b"\0", "lz4 block|400", id="lz4 and more"),
        pytest.param(Codec.LZ4, lz4.block.compress(b"body" * 100), "lz4 block|400", id="lz4 with its own size"),
        pytest.param(Codec.ZSTD, b"", "no zstd frame", id="no zstd"),
        pytest.param(Codec.ZSTD, b"no frame at all", "no zstd frame", id="zstd garbage"),
        pytest.param(Codec.ZSTD, _ZSTD.compress(b"body" * 100)[:-1], "no zstd frame", id="zstd cut"),
        pytest.param(Codec.ZSTD, _ZSTD.compress(b"body" * 100) + b"\0", "no zstd frame", id="zstd and more"),
        pytest.param(Codec.ZSTD, _ZSTD.compress(b"body" * 50) * 2, "says 200 bytes", id="two zstd frames"),
        pytest.param(
            Codec.ZSTD,
            zstandard.ZstdCompressor(write_content_size=False).compress(b"body" * 100),
            "says -1 bytes, the header 400",
            id="zstd without its size",
        ),
        pytest.param(9, b"", "codec 9 is not known here; there are none, lz4, zstd", id="unknown"),
    ],
)
def test_what_is_not_exactly_one_body_is_refused(codec: int, data: bytes, says: str) -> None:
    """Goal: BadBatch and nothing else, naming what is wrong. Each wrong thing by itself; 400 bytes are due."""
    with pytest.raises(BadBatch, match=says):
        decompress(codec, data, 400, body_bytes_max=LIMIT)


@given(st.binary(max_size=60), st.integers(0, 5000))
@pytest.mark.parametrize("codec", PACKED)
def test_any_bytes_are_a_body_of_that_size_or_refused(codec: Codec, data: bytes, claimed: int) -> None:
    """Goal: garbage gives BadBatch or exactly what was claimed. Any bytes under any claim."""
    try:
        body = decompress(codec, data, claimed, body_bytes_max=LIMIT)
    except BadBatch:
        return
    assert len(body) == claimed


@given(st.integers(0, 10**6), st.integers(1, 255))
@pytest.mark.parametrize("codec", PACKED)
def test_a_flipped_bit_gives_columns_or_bad_batch(codec: Codec, where: int, bits: int) -> None:
    """Goal: readers meet BadBatch only, also when a writer sealed nonsense. Flip a byte behind the header."""
    batch = packed_batch([b"value" * 10] * 100, codec)
    batch[HEADER_SIZE + where % (len(batch) - HEADER_SIZE)] ^= bits
    try:
        body = open_body(batch, body_bytes_max=LIMIT)
    except BadBatch:
        return
    assert len(list(body.records())) == 100


def test_an_uncompressed_body_is_not_copied() -> None:
    """Goal: readers share the batch's memory. Change a byte of the batch and look at the column."""
    batch = encode_batch([Record(b"value")], queue_id=1)
    value = open_body(batch, body_bytes_max=0).values[0]
    batch[bytes(batch).index(b"value")] = ord("V")
    assert value == b"Value"
