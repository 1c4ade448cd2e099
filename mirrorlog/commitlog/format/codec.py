"""Bodies that are compressed as a whole: what a producer packs and a reader opens. A server opens them once, before it
stores them, and keeps them packed.

LZ4 is one raw block: no frame, no size, no checksum of its own. Its size when opened is the header's `body_length`,
and the header's CRC covers the compressed bytes. zstd is one frame with its content size, without checksum and without
dictionary; the size must say what `body_length` says. What stands in the batch behind the compressed bytes is padding.

A batch's attributes stand before the compressed bytes, as they are: the server reads them.

Nothing is inflated before its size is known and allowed, and never beyond it: the size comes from a stranger.

Source: the LZ4 block format; RFC 8878. Rejected: LZ4 frames (7 to 15 bytes and a second checksum, for what the header
says already), streaming (a body is at most one batch), a dictionary (it would have to be found again years later).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mirrorlog.commitlog.format.body import Body
from mirrorlog.commitlog.format.body_reader import check_columns, check_names, parse_body
from mirrorlog.commitlog.format.drafts import Draft
from mirrorlog.commitlog.format.header import BatchHeader, Buffer, Codec, aligned, read_header
from mirrorlog.errors import BadBatch

if TYPE_CHECKING:  # each library is imported by the first batch that is under its codec
    import zstandard

# The fastest of zstd's ordinary levels: on text it packs as small as level 3 and takes three quarters of its time.
_ZSTD_LEVEL: Final = 1
# A new one takes a third of the time of a batch of 256 KiB. One is used by one thread at a time: it is out meanwhile.
_IDLE: Final[list[zstandard.ZstdDecompressor]] = []


def compress(codec: Codec, body: Buffer) -> bytes:
    """The body under `codec`, in the form that this module's text gives. It may be larger than it was."""
    if codec == Codec.LZ4:
        import lz4.block

        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    if codec == Codec.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(body)
    return bytes(body)


def decompress(codec: int, data: Buffer, body_length: int, *, body_bytes_max: int) -> memoryview:
    """The body of exactly `body_length` bytes; `data`: without the batch's padding.

    Raises BadBatch for a size above `body_bytes_max` before anything is allocated, and for data that are not exactly
    one body of that size.
    """
    if body_length > body_bytes_max:
        raise BadBatch(f"a body of {body_length} bytes when opened is above the limit of {body_bytes_max}")
    if codec == Codec.LZ4:
        body: Buffer = _open_lz4(data, body_length)
    elif codec == Codec.ZSTD:
        body = _open_zstd(data, body_length)
    elif codec == Codec.NONE:
        body = data
    else:
        raise BadBatch(
            f"codec {codec} is not known here; there are {', '.join(name.lower() for name in Codec.__members__)}"
        )
    if len(body) != body_length:
        raise BadBatch(f"the body is {len(body)} bytes when opened, its header says {body_length}")
    return memoryview(body)


def compress_draft(draft: Draft, codec: Codec) -> Draft:
    """The same batch with its body under `codec`; `draft` itself when that makes the batch no smaller."""
    if codec == Codec.NONE:
        return draft
    # An uncompressed draft has no padding besides the columns' own: what is no body stands before it.
    begin = len(draft.data) - draft.body_length
    packed = compress(codec, memoryview(draft.data)[begin:])
    end = begin + len(packed)
    if aligned(end) >= len(draft.data):
        return draft
    padding = aligned(end) - end
    return Draft(
        bytearray().join((memoryview(draft.data)[:begin], packed, bytes(padding))),
        draft.record_count,
        draft.columns,
        draft.max_timestamp_us,
        codec=codec,
        padding=padding,
        body_length=draft.body_length,
    )


def open_body(batch: Buffer, *, header: BatchHeader | None = None, body_bytes_max: int) -> Body:
    """The columns of the batch, whatever its codec; views into `batch` when it is not compressed.

    `header`: of that batch, if it was read already. `body_bytes_max`: what a compressed body may have when opened;
    producers keep it within the node's max_batch_bytes. Raises BadBatch. The checksums are the caller's to check.
    """
    header = header or read_header(batch)
    body = memoryview(batch)[header.body_at : header.length]
    if header.codec != Codec.NONE:
        packed = body[: max(0, len(body) - header.padding)]
        body = decompress(header.codec, packed, header.body_length, body_bytes_max=body_bytes_max)
        opened = parse_body(body, record_count=header.record_count, columns=header.columns)
        check_names(opened)  # a server that stored it may have been too old to look
        return opened
    return parse_body(body, record_count=header.record_count, columns=header.columns)


def check_compressed(batch: Buffer, header: BatchHeader, *, body_bytes_max: int, max_record_bytes: int) -> None:
    """The broker's check of a producer's compressed body, as `check_uncompressed`: it can be opened, and nothing in it
    stops a reader. `header`: the batch's. Raises BadBatch, or RecordTooLarge. Without the GIL but for a moment."""
    opened = open_body(batch, header=header, body_bytes_max=body_bytes_max)
    check_columns(opened, max_record_bytes=max_record_bytes)


def _open_lz4(data: Buffer, body_length: int) -> bytes:
    import lz4.block

    try:
        body: bytes = lz4.block.decompress(data, uncompressed_size=body_length)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError):
        raise BadBatch(f"the body is no lz4 block of {body_length} bytes") from None
    return body


def _open_zstd(data: Buffer, body_length: int) -> bytes:
    import zstandard

    try:
        # The library believes the frame's own size, so it is compared before anything is allocated for it.
        if (size := zstandard.frame_content_size(data)) != body_length:
            raise BadBatch(f"the zstd frame says {size} bytes, the header {body_length}")
        try:
            decompressor = _IDLE.pop()
        except IndexError:
            decompressor = zstandard.ZstdDecompressor()
        try:
            return decompressor.decompress(data, max_output_size=body_length, allow_extra_data=False)
        finally:
            _IDLE.append(decompressor)
    except zstandard.ZstdError as error:
        raise BadBatch(f"the body is no zstd frame of {body_length} bytes: {error}") from None
