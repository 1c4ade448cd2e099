"""What the parts of the client that blocks need of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from mirrorlog.client import client as awaited_client
from mirrorlog.client.sync.loop_thread import LoopThread

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Caller(Protocol):
    """The `Client`; each method as there."""

    @property
    def awaited(self) -> awaited_client.Client: ...
    @property
    def thread(self) -> LoopThread: ...
    def call(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T: ...
    def change(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T: ...


def options_of(
    method: Callable[Concatenate[Any, _P], object],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[Any, _P], _T]]:
    """Says to type checkers that a method takes what `method` takes, so that options are listed once."""
    return lambda same: cast(Callable[Concatenate[Any, _P], _T], same)


async def made(make: Callable[[], _T]) -> _T:
    """What must be made on the loop."""
    return make()
