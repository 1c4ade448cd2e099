"""Buffers are used again, and never while anybody looks into them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mirrorlog.client.connection.buffers import BufferPool

SIZE = 64 * 1024


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_a_buffer_that_nobody_looks_into_is_used_again() -> None:
    """No fresh memory per fetch: taken and dropped again and again, it stays the same place."""
    pool = BufferPool()
    assert len({address(pool.take(SIZE)) for _ in range(100)}) == 1


def as_slice(view: memoryview) -> Any:
    return view[100:200]


def as_read_only(view: memoryview) -> Any:
    return view.toreadonly()[5:]


def as_numpy(view: memoryview) -> Any:
    return np.frombuffer(view, dtype=np.uint8)[7:].reshape(-1, 1)


def as_arrow(view: memoryview) -> Any:
    return pa.Array.from_buffers(pa.uint8(), len(view), [None, pa.py_buffer(view)]).slice(3)


def as_arrow_of_numpy(view: memoryview) -> Any:
    return pa.py_buffer(np.frombuffer(view, dtype=np.uint8)).slice(9, 20)


def as_whole(view: memoryview) -> Any:
    return view


KINDS = [as_whole, as_slice, as_read_only, as_numpy, as_arrow, as_arrow_of_numpy]


def content(held: Any) -> bytes:
    if isinstance(held, pa.Array):
        return bytes(held.to_numpy())
    return bytes(held)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_made_of_a_view_keeps_its_buffer(kind: Any) -> None:
    """The buffer is free again only when the last thing made of it is gone; by each kind of thing alone."""
    pool = BufferPool()
    view = pool.take(SIZE)
    place = address(view)
    held = kind(view)
    del view
    assert address(pool.take(SIZE)) != place
    del held
    taken = [pool.take(SIZE), pool.take(SIZE)]
    assert place in map(address, taken)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_never_changes(seed: int) -> None:
    """Any order of taking, keeping views, arrays and slices of them, and dropping; every held one keeps its bytes."""
    chance = random.Random(seed)
    pool = BufferPool(remembered_bytes_max=chance.choice([0, SIZE, 4 * SIZE, 100 * SIZE]))
    held: list[tuple[Any, bytes]] = []
    for _ in range(100):
        view = pool.take(chance.choice([SIZE, SIZE, SIZE + 1, 2 * SIZE, SIZE - 1, 300]))
        view[:] = chance.randbytes(16) * (len(view) // 16) + bytes(len(view) % 16)
        for kind in chance.sample(KINDS, chance.randrange(3)):
            thing = kind(view)
            held.append((thing, content(thing)))
        while held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held)))
        del view
        if held:
            thing, expected = chance.choice(held)
            assert content(thing) == expected, f"seed {seed}"
    assert all(content(thing) == expected for thing, expected in held), f"seed {seed}"


def test_a_value_that_is_kept_keeps_little_alive() -> None:
    """At most twice its answer; by the sizes of the objects behind the views."""
    pool = BufferPool()
    for size in (1, 300, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE, 16 * SIZE):
        assert size <= len(memoryview(pool.take(size).obj)) < 2 * size + 1


def test_no_more_is_remembered_than_allowed() -> None:
    """Memory is bounded when many views are held and then dropped; by what is given again of eight."""
    pool = BufferPool(remembered_bytes_max=3 * SIZE)
    views = [pool.take(SIZE) for _ in range(8)]
    last = [address(view) for view in views[-3:]]
    views.clear()
    again = [pool.take(SIZE) for _ in range(3)]
    assert sorted(map(address, again)) == sorted(last)
    assert len(pool._buffers) == 3


def test_one_that_keeps_everything_does_not_end_the_reuse() -> None:
    """Buffers that are held for good make way for those that come back; by holding more than is remembered."""
    pool = BufferPool()
    kept = [pool.take(SIZE) for _ in range(50)]
    assert len({address(view) for view in kept}) == 50
    assert len({address(pool.take(SIZE)) for _ in range(50)}) == 1
