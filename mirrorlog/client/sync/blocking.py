"""What blocks in the place of what is awaited: coroutines of one client, run on its thread while their caller waits.

A method is written once, where it is awaited. `waits`, `changes` and `at_once` make one of it that blocks, with its
parameters and docstring, for type checkers and for `help`; `options_of` gives a method that has more to do the same
parameters.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from mirrorlog.attempts import outcome_of
from mirrorlog.client import client as awaited
from mirrorlog.client.connection.unclosed import warn_unclosed
from mirrorlog.client.sync.loop_thread import LoopThread
from mirrorlog.errors import Closed, MirrorlogError

MARGIN_S: Final = 5.0
"""Behind the deadlines of the calls themselves: they say more about what is wrong."""

_T = TypeVar("_T")
_P = ParamSpec("_P")
_A = TypeVar("_A")


def options_of(
    method: Callable[Concatenate[Any, _P], object],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[Any, _P], _T]]:
    """Says to type checkers that a method takes what `method` takes, so that options are listed once."""
    return lambda same: cast(Callable[Concatenate[Any, _P], _T], same)


class Calls:
    """Runs coroutines of one client on a thread of their own; their callers wait. The thread begins with the first."""

    def __init__(self, client: awaited.Client) -> None:
        self.awaited = client
        """The client behind it, to be used on `thread` only."""
        client.kept = True
        # A call may ask one node after the other, and find more nodes than were named.
        tries = 2 + 2 * len(client.servers)
        self._patience_s = tries * (client.connect_timeout_ms + client.request_timeout_ms) / 1000 + MARGIN_S
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False

    def __del__(self) -> None:
        """Nobody has it any more, nor anything that its client made: that is closed, as of `close`, without waiting."""
        thread: LoopThread | None = self.__dict__.get("_thread")  # unless options were refused
        if thread is None or self._closed or thread.elsewhere:
            return
        thread.end_behind(self.awaited.close)
        warn_unclosed(self, f"a client of {', '.join(self.awaited.servers)}")

    def end(self) -> LoopThread | None:
        """Nothing is called any more. Its thread, to be closed by who asks first; None where there is none to close."""
        with self._lock:
            closed, self._closed = self._closed, True
            thread = self._thread
        return None if closed or thread is None or thread.elsewhere else thread

    @property
    def thread(self) -> LoopThread:
        """Begun when first asked for. Raises Closed after `close` and in a forked child."""
        thread = self._thread
        if thread is None:
            with self._lock:
                if self._closed:
                    raise Closed("the client is closed")
                thread = self._thread = self._thread or LoopThread("mirrorlog-client")
        return thread

    def call(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T:
        """Run a coroutine that asks nodes on the thread; its result or error. `more_s`: how long a node may keep its
        answer."""
        return self.thread.run(make, timeout_s=self._patience_s + more_s, what=what)

    def change(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T:
        """As `call`, of what changes something: when the thread is waited for in vain, or closed meanwhile, it may
        count or not."""
        under_way = False

        async def noted() -> _T:
            nonlocal under_way
            under_way = True
            try:
                return await make()
            except MirrorlogError:
                under_way = False
                raise

        try:
            return self.call(noted, what=what, more_s=more_s)
        except MirrorlogError as error:
            outcome = outcome_of(error, in_doubt=under_way)
            if outcome is error:
                raise
            raise outcome from None

    def made(self, make: Callable[[], _T], *, what: str) -> _T:
        """What must be made on the loop."""

        async def make_it() -> _T:
            return make()

        return self.call(make_it, what=what)


class Face(Generic[_A]):
    """What blocks in the place of one awaited object. `longer_s`: what its calls may take beyond what any call may."""

    def __init__(self, client: Calls, of: _A, *, longer_s: float = 0.0) -> None:
        self._client = client
        self._of = of
        self._longer_s = longer_s

    def __repr__(self) -> str:
        return f"sync.{self._of!r}"

    @property
    def _awaited(self) -> _A:
        return self._of


def waits(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    """The method of a Face that runs this one of what is behind it. Where it takes `wait_ms`, the node may keep its
    answer for so long."""

    @wraps(method)
    def waiting(self: Face[Any], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        make = partial(method, self._awaited, *args, **kwargs)
        return self._client.call(make, what=method.__name__, more_s=_more_s(self, kwargs))

    return cast(Callable[Concatenate[Any, _P], _T], waiting)


def changes(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    """As `waits`, of one that changes something; see `Calls.change`."""

    @wraps(method)
    def changing(self: Face[Any], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        make = partial(method, self._awaited, *args, **kwargs)
        return self._client.change(make, what=method.__name__, more_s=_more_s(self, kwargs))

    return cast(Callable[Concatenate[Any, _P], _T], changing)


def at_once(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """The method of a Face that is this one of what is behind it: it only notes something, and waits for nothing."""

    @wraps(method)
    def acting(self: Face[Any], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return method(self._awaited, *args, **kwargs)

    return cast(Callable[Concatenate[Any, _P], _T], acting)


def _more_s(face: Face[Any], options: dict[str, Any]) -> float:
    return face._longer_s + seconds(options, "wait_ms", 0)


def seconds(options: Mapping[str, Any], name: str, default_ms: int) -> float:
    """How long a call may take by such an option; what is no number is refused where it is checked."""
    given = options.get(name, default_ms)
    return given / 1000 if isinstance(given, int | float) else default_ms / 1000


class Closeable(Protocol):
    """What is awaited and has to be closed."""

    kept: bool

    @property
    def unclosed(self) -> bool: ...

    def abandon(self) -> object: ...


_C = TypeVar("_C", bound=Closeable)


class ClosedFace(Face[_C], ABC):
    """One that is started by entering its `with` block, and closed by leaving it. One that is let go without `close` is
    closed without waiting, with a ResourceWarning."""

    # Or given up: then its loop may not have heard of it yet.
    _closed = False

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def abandon(self) -> None:
        """Close without waiting: what was sent ends as OutcomeUnknown, what was not as Refused. Idempotent."""
        self._closed = True
        self._client.thread.call_soon(self._of.abandon)

    @abstractmethod
    def _unfinished(self) -> tuple[str, Callable[[], Coroutine[Any, Any, None]], str]:
        """By its finalizer: what it is, how it is closed, and what of it has not ended, if anything."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, Exception):
            self.abandon()  # interrupted: whoever did that is not to wait for confirms
            return
        try:
            self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    def __del__(self) -> None:
        """Nobody has it, nor anything that it gave out, any more: it is closed, as of `close`, without waiting."""
        of: _C | None = self.__dict__.get("_of")  # unless options were refused
        if of is None or self._closed or not of.unclosed or self._client.thread.elsewhere:
            return
        what, close, unended = self._unfinished()
        self._client.thread.call_soon(partial(self._client.awaited.background.run, what, close))
        warn_unclosed(self, what, unended)
