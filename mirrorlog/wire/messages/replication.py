"""What a mirror and its master say besides the log's bytes."""

from __future__ import annotations

import msgspec

from mirrorlog.wire.messages.base import Message


class EpochEntry(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """`start`: first log offset of the epoch; `node_id`, `start_id`: who wrote it."""

    epoch: int
    start: int
    node_id: str = ""
    start_id: str = ""


class FollowRequest(Message, frozen=True, tag="Follow"):
    """Mirror to master: what it holds. `confirmed`: the confirmed offset it knows, below which it never truncates.

    `start`: where a copy that has to begin anew wants to begin: at the log's start offset, or at its last segment.
    """

    log_id: str
    epochs: list[EpochEntry]
    begin: int
    end: int
    confirmed: int
    start: str = "begin"


class History(Message, frozen=True):
    """Master to mirror: what the log is. The mirror finds the common point, truncates, and answers with Pull.

    `start_at`: None, or where the mirror begins anew, because its copy ends below the log's start offset or is empty.
    """

    epoch: int
    epochs: list[EpochEntry]
    begin: int
    end: int
    confirmed: int
    start_at: int | None = None


class Pull(Message, frozen=True):
    """Mirror to master: send from here. `end` is the same number when nothing was cut since Follow."""

    log_offset: int
