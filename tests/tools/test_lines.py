"""Lines come whole, in order, and without holding up the loop."""

import asyncio
import os
from pathlib import Path

import pytest

from mirrorlog.errors import BadInput
from mirrorlog.tools import publish as lines
from mirrorlog.tools.publish import read_lines


async def all_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [line async for line in read_lines(file.fileno())]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\r\n", [b"a", b"", b"b\r"]),
        (b"x" * 200_000 + b"\ny\xff", [b"x" * 200_000, b"y\xff"]),
    ],
)
async def test_a_line_feed_ends_a_line_and_nothing_else_changes(
    tmp_path: Path, content: bytes, expected: list[bytes]
) -> None:
    """Goal: records are the bytes of the file. Method: empty, unended, blank, and longer than one read."""
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert await all_lines(path) == expected


async def test_many_lines_keep_their_order(tmp_path: Path) -> None:
    """Goal: borders of reads are invisible. Method: a file of many reads."""
    expected = [b"line %d" % number for number in range(50_000)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(expected))
    assert await all_lines(path) == expected


async def test_the_loop_goes_on_while_no_line_comes() -> None:
    """Goal: a slow pipe blocks nothing. Method: the line is written by the loop itself, after the read has begun."""
    reading, writing = os.pipe()
    found = read_lines(reading)
    reader = asyncio.create_task(anext(found))
    await asyncio.sleep(0)  # the reader begins
    assert not reader.done()
    os.write(writing, b"now\n")
    async with asyncio.timeout(10):
        assert await reader == b"now"
    os.close(writing)
    # To its end: a thread that still reads would take the bytes of the next file with this number.
    assert [line async for line in found] == []
    os.close(reading)


async def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a wrong file cannot fill the memory. Method: a limit of 10 bytes."""
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 11)
    with pytest.raises(BadInput, match="longer than 10 bytes"):
        await all_lines(path)


async def test_input_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Goal: an error, not silence. Method: a directory."""
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        _ = [line async for line in read_lines(fd)]
    os.close(fd)
