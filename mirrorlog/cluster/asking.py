"""Who asked for what the cluster is about to decide: known where a request comes in, written into the command.

It goes with the task that serves the request, and with those that this one starts, as a deadline does. Rejected: an
argument through everything between the door and the proposal, which none of it has a use for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from msgspec.structs import replace

from mirrorlog.cluster.state.commands import AnyCommand

_USER: Final[ContextVar[str]] = ContextVar("asked_by", default="")

_C = TypeVar("_C", bound=AnyCommand)


@contextmanager
def asked_by(user: str) -> Iterator[None]:
    """What is proposed within, and in tasks that are made within, says so. `user`: empty for nobody in particular."""
    token = _USER.set(user)
    try:
        yield
    finally:
        _USER.reset(token)


def asker() -> str:
    """Whose request is served; empty for nobody in particular."""
    return _USER.get()


def signed(command: _C) -> _C:
    """With the name of who asked for it, if there is one and it says nobody else's."""
    user = _USER.get()
    return command if not user or command.by else replace(command, by=user)
