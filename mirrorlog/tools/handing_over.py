"""Handing records over as fast as there is room, and hearing of each in its order: to a queue or to an exchange."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Protocol, TypeVar

from mirrorlog.errors import MirrorlogError
from mirrorlog.tools.records import GivenRecord

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class Handed(Protocol[_T_co]):
    """A record on its way: a producer's Delivery, a publisher's Publication."""

    def done(self) -> bool: ...
    def result(self) -> _T_co: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...


async def hand_all_over(
    records: AsyncIterator[GivenRecord],
    hand_over: Callable[[GivenRecord], Awaitable[Handed[_T]]],
    ended: Callable[[_T], None],
) -> None:
    """`hand_over` waits for room, not for the confirm; `ended` is told of each that was confirmed, in their order.
    Raises the first error, once all others have ended too."""
    waiting: deque[Handed[_T]] = deque()
    try:
        async for record in records:
            waiting.append(await hand_over(record))
            while waiting and waiting[0].done():
                ended(waiting.popleft().result())
    finally:
        await _hear(waiting, ended)


async def _hear(waiting: deque[Handed[_T]], ended: Callable[[_T], None]) -> None:
    failure: MirrorlogError | None = None
    while waiting:
        try:
            ended(await waiting.popleft())
        except MirrorlogError as error:
            failure = failure or error
    if failure is not None:
        raise failure
