"""Warm memory for batches: used again, and never under somebody who may still read it."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from mirrorlog.client import Client
from mirrorlog.client.producer.join_pool import JoinPool
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES
from mirrorlog.commitlog.format.drafts import draft_columns

KIB = 1024
SIZE = 100 * KIB


def filled(pool: JoinPool, byte: int, size: int = SIZE) -> bytearray | memoryview:
    return pool.join_for(size)([bytes([byte]) * (size // 2), bytes([byte]) * (size - size // 2)])


def address(data: bytearray | memoryview) -> int:
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)


def test_memory_is_used_again_when_its_last_view_is_gone() -> None:
    """Not before; by a batch that was dropped, one that is kept, and one of which only a part is looked at."""
    pool = JoinPool()
    first = filled(pool, 1)
    place = address(first)
    part = memoryview(first)[10:20]
    del first
    second = filled(pool, 2)
    assert address(second) != place
    assert bytes(part) == b"\1" * 10
    del part
    third = filled(pool, 3)
    assert address(third) == place
    assert bytes(second) == b"\2" * SIZE
    assert bytes(third) == b"\3" * SIZE


def test_what_is_joined_may_be_written_to() -> None:
    """A header is put before the columns; by a batch that is sealed there, as one from new memory is."""
    values = [b"%d" % number * 100 for number in range(1000)]
    expected = draft_columns(values)
    data = JoinPool().join_for(len(expected.data))([expected.data])
    assert isinstance(data, memoryview)
    assert expected._replace(data=data).seal(queue_id=3, sequence=5) == expected.seal(queue_id=3, sequence=5)


@pytest.mark.parametrize("size", [0, 1, 64 * KIB - 1])
def test_small_batches_have_memory_of_their_own(size: int) -> None:
    """The allocator gives that warm already; by sizes below the least that is pooled."""
    assert isinstance(filled(JoinPool(), 1, size), bytearray)


def test_no_more_is_remembered_than_allowed() -> None:
    """What is needed beyond it has memory of its own; by a pool for two, and a larger batch once both are free."""
    pool = JoinPool(remembered_bytes_max=256 * KIB)
    kept = [filled(pool, number) for number in range(4)]
    assert [type(each) for each in kept] == [memoryview, memoryview, bytearray, bytearray]
    assert [bytes(each) for each in kept] == [bytes([number]) * SIZE for number in range(4)]
    kept.clear()
    assert isinstance(filled(pool, 9, 200 * KIB), memoryview)
    assert pool._remembered_bytes == 256 * KIB


def test_memory_is_taken_in_small_steps() -> None:
    """A batch of 256 KiB and a header must not take twice of that; by a pool for one step more, and one below it."""
    size = 256 * KIB + BATCH_OVERHEAD_BYTES
    assert isinstance(filled(JoinPool(remembered_bytes_max=320 * KIB), 1, size), memoryview)
    assert isinstance(filled(JoinPool(remembered_bytes_max=319 * KIB), 1, size), bytearray)


async def test_the_producers_of_a_client_share_its_memory() -> None:
    """Many producers must not keep the most that is allowed each; by two, before there is a connection."""
    client = Client("127.0.0.1:1")
    assert client.producer("a")._pool is client.producer("b")._pool


def test_batches_keep_their_bytes_in_whatever_order_they_end() -> None:
    """By random sizes that live for random times, each looked at again at its end; seed 7."""
    choose = random.Random(7)
    pool = JoinPool(remembered_bytes_max=4 * 1024 * KIB)
    living: deque[tuple[int, bytearray | memoryview]] = deque()
    for number in range(400):
        living.append((number % 251, filled(pool, number % 251, choose.randrange(1, 300 * KIB))))
        living.rotate(choose.randrange(3))
        if len(living) > 12:
            byte, data = living.popleft()
            assert bytes(data).strip(bytes([byte])) == b""
