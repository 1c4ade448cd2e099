"""What a request ends with that may have been sent more than once: the one rule. Pure.

A refusal speaks for its own attempt. If an earlier attempt got no answer that says what became of it, that one may
have counted, or may yet arrive, and "nothing was stored" would be untrue of the request: its outcome is unknown.
Rejected: to pass on the error that was met last; then the outcome depends on which of two nodes was slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mirrorlog.errors import (
    ConnectionLost,
    FrameTooLarge,
    MirrorlogError,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    StalledFrame,
)

_SILENT: Final = (OutcomeUnknown, ConnectionLost)
_UNREADABLE: Final = (MirrorlogError, ProtocolError, FrameTooLarge, StalledFrame)
"""These alone, not what derives from them: an internal error in the midst of the work, an error that a newer peer has a
name for, an answer that is none."""


def leaves_doubt(error: MirrorlogError) -> bool:
    """Whether an attempt that was sent and ended so may have counted all the same."""
    return isinstance(error, _SILENT) or type(error) in _UNREADABLE


def outcome_of(error: MirrorlogError, *, in_doubt: bool, message: str = "") -> MirrorlogError:
    """What a request ends with whose last attempt ended with `error`. `in_doubt`: some attempt may have counted;
    `message`: what to say then in front of the last error, by default only where that does not say it itself."""
    told = isinstance(error, OutcomeUnknown) and not isinstance(error, RequestTimeout)
    if not in_doubt or (told and not message):
        return error
    return OutcomeUnknown(f"{message or 'it may have been done or not'}; last: {error}", **error.details)


class Attempts:
    """Of one request that changes something; several may be under way at once. `in_doubt`: one of them may have
    counted, and nobody knows."""

    __slots__ = ("in_doubt",)

    def __init__(self) -> None:
        self.in_doubt = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around an attempt, from when it may leave until its answer: what is not reached yet is in no doubt."""
        try:
            yield
        except MirrorlogError as error:
            self.in_doubt = self.in_doubt or leaves_doubt(error)
            raise
        except BaseException:  # whoever waits was cancelled: what left goes on
            self.in_doubt = True
            raise

    @contextmanager
    def request(self, *, telling: tuple[type[MirrorlogError], ...] = ()) -> Iterator[None]:
        """Around all of them: what they end with becomes what the request ends with. `telling`: errors that say how
        things stand whatever became of the earlier attempts, so that they are passed on."""
        try:
            yield
        except MirrorlogError as error:
            outcome = outcome_of(error, in_doubt=self.in_doubt)
            if outcome is error or isinstance(error, telling):
                raise
            raise outcome from None
