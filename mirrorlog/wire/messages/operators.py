"""What operators ask of a cluster, and what has happened in it."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from mirrorlog.errors import BadRequest
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.status import FormerStatus


class NoSuchNode(BadRequest, grpc="NOT_FOUND", exit_code=5):
    """The cluster has no node of that name."""

    code: ClassVar[str] = "NO_SUCH_NODE"


class DrainNode(Message, frozen=True):
    """A node shall master nothing any more, or may again. Answered with Drained once that is decided; the logs follow,
    one after the other. `node`: empty for the one that is asked. `empty`: it shall hold nothing any more either, for
    good; since `versions.PLACEMENTS`."""

    node: str = ""
    draining: bool = True
    empty: bool = False


class Drained(Message, frozen=True):
    """`node`: which one it is about. `leaving`: whether its copies go elsewhere."""

    node: str
    draining: bool
    leaving: bool = False


class ForgetNode(Message, frozen=True):
    """A node will not come back. Answered with Done once that is decided. `force`: also one that is up."""

    node: str
    force: bool = False


class Rebalance(Message, frozen=True):
    """Every log whose home can take it over shall be mastered there. Answered with Rebalanced."""

    dry_run: bool = False


class MasterMove(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A log that is not mastered by its home, the first of its replicas. `reason`: why it stays; empty when it is, or
    would be, handed over."""

    log_id: str
    name: str
    source: str
    target: str
    reason: str = ""


class Rebalanced(Message, frozen=True):
    """What is handed over from here on is decided: it happens whoever coordinates. `done`: not for a dry run."""

    moves: list[MasterMove]
    done: bool


class GetCopyMoves(Message, frozen=True):
    """To who coordinates: which logs go to other nodes, now and then. Answered with CopyMoves."""


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A log goes from the nodes `source` to those of `target`, the home first. `why`: for people. `size_bytes`: of the
    log, -1 when it is not known; `under_way`: it has begun, the others follow one after the other."""

    log_id: str
    name: str
    source: list[str]
    target: list[str]
    why: str
    size_bytes: int = -1
    under_way: bool = False


class CopyMoves(Message, frozen=True):
    """`moves`: those that would follow if nothing else happened, some 100 at most; `paused`: none is begun, nor goes
    on."""

    moves: list[PlannedMove]
    paused: bool = False


class PauseMoving(Message, frozen=True):
    """Nothing shall move any more, or may again. Answered with Done once that is decided."""

    paused: bool


class PromoteCopy(Message, frozen=True):
    """Master a log from a copy that may lack what was confirmed. Answered with CopyPromoted. `log`: name or id; `to`: a
    node, empty for the copy that has most; without `accept_loss` nothing is done, and what would be is told."""

    log: str
    to: str = ""
    accept_loss: bool = False


class CopyReport(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a fenced copy holds; `error`: why it said nothing. Log offsets; -1 for not known."""

    node_id: str
    last_epoch: int = -1
    end: int = -1
    confirmed: int = -1
    error: str = ""


class CopyPromoted(Message, frozen=True):
    """`missing`: nodes that have everything, or may, and are not there; `able`: who could be it. `node`, `epoch`,
    `lost_from` and `copies` only when it is `done`: confirmed records may be lost from that log offset on; up to
    `lost_to` they were, as far as copies that are there know of more."""

    log_id: str
    name: str
    missing: list[str]
    able: list[str]
    done: bool = False
    node: str = ""
    epoch: int = 0
    lost_from: int | None = None
    lost_to: int | None = None
    copies: list[CopyReport] = []


class GetEvents(Message, frozen=True):
    """What happened in the cluster, as this node came to know it. Answered with Events: at once when there are some
    behind number `after`, else when there are or after `wait_ms`."""

    after: int = 0
    wait_ms: int = 0
    limit: int = 1000


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """`number`: of the node's run, from 1; `time_us`: µs UTC by the node's clock, 0 for what was decided before its
    run; `index`: of the entry that decided it, 0 for what this node saw by itself; `kind`: docs/operate/watch.md."""

    number: int
    time_us: int
    kind: str
    text: str
    index: int = 0
    node: str = ""
    log: str = ""
    details: dict[str, Any] = {}


class Events(Message, frozen=True):
    """`start_id`: numbers are of this run; `first`: the oldest that is still held; `last`: the newest, 0 for none."""

    node_id: str
    start_id: str
    now_us: int
    first: int
    last: int
    events: list[ClusterEvent]


class FreeFormer(Message, frozen=True):
    """Free the former copies of the node that is asked, or that of one log (name or id). Answered with FormerFreed."""

    log: str = ""


class FormerKept(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A copy that is not freed. `named`: the cluster names the node for it, so it is no former one."""

    log_id: str
    name: str
    reason: str
    named: bool = False


class FormerFreed(Message, frozen=True):
    """Of one node."""

    node: str
    freed: list[FormerStatus] = []
    kept: list[FormerKept] = []


class ReadState(Message, frozen=True):
    """All that the cluster has decided, for a backup, with hashes of passwords. Answered with StateRead."""


class StateRead(Message, frozen=True):
    """`state`: as the node would write it into a snapshot; `version`: of that state."""

    state: bytes
    version: int


class LogEpoch(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """An entry of a log's epoch list."""

    epoch: int
    start: int
    node_id: str = ""
    start_id: str = ""


class ReadLog(Message, frozen=True):
    """The bytes of a log as they stand in the copy of the node that is asked, whole batches from log offset `first` on,
    confirmed ones below `until` alone; with `max_bytes` 0, or where there are none, only where it begins and ends.
    Answered with LogRead; with LogUnavailable by a node that has no such copy."""

    log_id: str
    first: int = 0
    until: int = 0
    max_bytes: int = 0


class LogRead(Message, frozen=True):
    """Log offsets, as the copy knows them. `masters`: it is the master's, and knows all that ever was confirmed.
    `epochs`: up to the confirmed offset; told without `data` only."""

    begin: int
    confirmed: int
    masters: bool
    epochs: list[LogEpoch] = []
    data: bytes = b""
