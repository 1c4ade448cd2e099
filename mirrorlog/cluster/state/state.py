"""What the cluster has decided: its nodes, logs and queues, as one value that commands turn into the next one. Pure.

What may change it, and how, stands in the files of rules beside it; `machine` applies them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from mirrorlog import versions
from mirrorlog.attempts import outcome_of
from mirrorlog.cluster.state.commands import Addresses, Holder, Seen, StartKind
from mirrorlog.cluster.state.placements import NO_PLACES, LogPlaces, Placement
from mirrorlog.cluster.state.topology import NONE, ClusterTopology
from mirrorlog.errors import MirrorlogError, Refused, from_code

EPOCH_MAX: Final = 2**32 - 1
"""What a batch's header can say."""


TRANSIENT_PREFIX: Final = "transient-"
"""With what the names of these logs begin; see TransientLogMade."""


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`member`: its id in Raft; `token`: see NodeJoined; `start_id`: empty before its first start; `stopped`: cleanly,
    and not started since."""

    member: int
    addresses: Addresses
    witness: bool = False
    token: str = ""
    start_id: str = ""
    kind: StartKind = StartKind.CLEAN
    stopped: bool = False
    draining: bool = False
    leaving: bool = False
    """Drained for good: it shall hold nothing. Since `versions.PLACEMENTS`."""

    @property
    def stays(self) -> bool:
        """Whether it may be given anything to hold."""
        return not (self.witness or self.draining or self.leaving)


class Loss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Confirmed records may be gone from log offset `start` on. `epoch`: the one that began there; `end`: up to where,
    as far as copies that returned have told; `leapt`: queue offsets are past it, and that is confirmed."""

    epoch: int
    start: int
    end: int | None = None
    leapt: bool = False


QUEUE_IDS_GRANTED: Final = 4096
"""Numbers of queues that a log has from the beginning, and that are granted at once when it needs more."""
QUEUE_IDS_MAX: Final = (1 << 24) - 1
"""Of one log, for all time: a queue's id has 24 bits for it."""


class LogFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`replicas`: nodes, the home first; `master`: None before the first promotion and when its run has ended.

    `wished`: who shall take over from the master, empty for nobody; see MasterWished.
    `raised_from`: what the epoch was when the cluster was recovered, until the next promotion; see `last_led`.

    `in_sync`: by node, the run in which it holds everything; `marked`: of these, who may have lost something of it.
    `copies_wanted`: with fewer nothing is confirmed, and the set does not shrink below it. It is `min_in_sync`, or by
    default 1 with one or two copies and the majority with more; more copies raise it only once so many are in sync, so
    that a copy that is added holds nobody up.
    """

    number: int
    name: str
    flush: str
    replicas: tuple[str, ...]
    copies: int = 3
    min_in_sync: int | None = None
    copies_wanted: int = 1
    master: Holder | None = None
    epoch: int = 0
    version: int = 0
    in_sync: Mapping[str, str] = {}
    marked: frozenset[str] = frozenset()
    losses: tuple[Loss, ...] = ()
    wished: str = ""
    raised_from: int = 0

    @property
    def last_led(self) -> int:
        """The last epoch that is known to have had a master: nobody writes in one that a recovery has raised."""
        return self.raised_from or self.epoch

    @property
    def seen(self) -> Seen:
        """For a command about it."""
        return Seen(self.epoch, self.version)

    @property
    def promotable(self) -> tuple[str, ...]:
        """In-sync members that lost nothing, in the order of the replicas."""
        return tuple([node for node in self.replicas if node in self.in_sync and node not in self.marked])

    @property
    def recovering(self) -> bool:
        """Whether everybody who held everything may have lost something of it."""
        return bool(self.in_sync) and not self.promotable

    @property
    def owes_jump(self) -> bool:
        """Whether something was lost and the queue offsets may not be past it: whoever is master lets them jump, and
        delivers nothing before that is confirmed."""
        return not all(loss.leapt for loss in self.losses)

    def may_leave(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Who of `nodes` may leave the in-sync set together: never the master, and `copies_wanted` stay.

        A marked member fills no place of a whole one: while the whole ones are too few, none of them leaves, dead or
        not. Marked ones leave as far as the others are enough to hold the confirmed offset still.
        """
        master = self.master.node if self.master is not None else None
        leaving = [node for node in self.replicas if node in self.in_sync and node in nodes and node != master]
        marked = [node for node in leaving if node in self.marked]
        spare = len(self.promotable) - self.copies_wanted
        if spare > 0:
            return tuple(marked + [node for node in leaving if node not in self.marked][:spare])
        return tuple(marked[: max(0, len(self.in_sync) - self.copies_wanted)])


class ClusterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`version`: index of the last entry that changed it; `incarnation`: raised when a lost majority is replaced;
    `homes`: every node shall be home to a log; `queues`: the log's id by the queue's name; `cluster_version`: what may
    be written (`mirrorlog.versions`). As long as that is 1 the state is what software of version 1 makes of the same
    entries, byte for byte: a field that came later is not stored before."""

    cluster_id: str
    name: str
    homes: bool = True
    version: int = 0
    incarnation: int = 1
    nodes: Mapping[str, NodeFacts] = {}
    logs: Mapping[str, LogFacts] = {}
    queues: Mapping[str, str] = {}
    cluster_version: int = versions.FIRST
    topology: ClusterTopology | None = None
    """Virtual hosts, exchanges, users; None before the first change of these."""
    removals: Mapping[str, int] = {}
    """How often queues were taken away, by the log's id; see QueuesRemoved. Not with the log's facts: with one field
    more they would be other bytes at version 1."""
    transient: Mapping[str, str] = {}
    """The id of the log for what lives no longer than the node's run, by the node; see TransientLogMade."""
    log_groups: Mapping[str, str] = {}
    """The log's id by the qualified name of an `x-log-group`. It stays when the last queue of the group is deleted: who
    declares them anew finds them together again."""
    granted_ids: Mapping[str, int] = {}
    """By the log's id what `queue_ids` gives, where that is more than each log has from the beginning."""

    places: LogPlaces | None = None
    """By which rules logs are on their nodes, and what moves; None before the first of it. Not with the facts of each
    log: with one field more they would be other bytes at version 1."""

    def queue_ids(self, log_id: str) -> int:
        """Up to this number masters of a log may give ids to queues, from 1; none above was ever given out. So one that
        has lost declarations, nobody knows how many, goes on above it (decision 0023)."""
        return self.granted_ids.get(log_id, self.placing.place(log_id).ids_from + QUEUE_IDS_GRANTED)

    def free_number(self, most: int) -> int | None:
        """For a log: the lowest that none has, up to `most`; one that was never used first."""
        taken = {log.number for log in self.logs.values()}
        free = (number for number in range(most + 1) if number not in taken)
        return min(free, key=lambda number: (self.placing.ids_given.get(str(number), 0), number), default=None)

    def rule(self, log_id: str) -> Placement:
        """By which a log is on its nodes. One that was founded, or is older, has that of its facts."""
        log = self.logs[log_id]
        made_for = self.placing.place(log_id).rule
        return made_for or Placement(copies=log.copies, flush=log.flush, min_in_sync=log.min_in_sync)

    @property
    def routing(self) -> ClusterTopology:
        """`topology`, which always is one."""
        return self.topology or NONE

    @property
    def placing(self) -> LogPlaces:
        """`places`, which always are some."""
        return self.places or NO_PLACES


class Outcome(msgspec.Struct, frozen=True):
    """`refusal`: why nothing changed; empty when it did, or was so already. `code`: of the error that it is, where the
    rule names one; `details`: of that error. `in_doubt`: an earlier attempt got no answer, and it may be that one which
    the rule forbids now."""

    index: int
    refusal: str = ""
    code: str = ""
    details: Mapping[str, Any] = {}
    in_doubt: bool = False

    @property
    def error(self) -> MirrorlogError:
        """What whoever asked for it is told of a refusal."""
        refusal = from_code(self.code, self.refusal, dict(self.details)) if self.code else Refused(self.refusal)
        return outcome_of(refusal, in_doubt=self.in_doubt)


class Forbidden(Exception):
    """A rule forbids what a command wants: it changes nothing."""


def behind(state: ClusterState, version: int) -> list[str]:
    """Nodes whose last registered run is of software before `version`; those that never ran are, as far as is known."""
    return [node for node, facts in state.nodes.items() if versions.version_of(facts.start_id) < version]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(ClusterState)


def encode_state(state: ClusterState) -> bytes:
    """For a snapshot. Equal states are the same bytes."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> ClusterState:
    """The other way. Raises msgspec.DecodeError, UnsupportedVersion for that of a cluster whose version this software
    does not work in."""
    state = _decoder.decode(data)
    versions.check_supported(state.cluster_version)
    return state


def holds_transient(state: ClusterState, log_id: str) -> bool:
    """Whether what is in a log goes with its node's run, or went with its node."""
    log = state.logs[log_id]
    return log_id in state.transient.values() or (not log.replicas and log.name.startswith(TRANSIENT_PREFIX))


def advice(state: ClusterState) -> list[str]:
    """What an operator should know of a cluster that works and could be safer; one line each."""
    if len(state.nodes) == 2:
        names = " and ".join(sorted(state.nodes))
        return [
            f"nodes {names} cannot fail over by themselves: with either gone the other is no majority and refuses "
            "publishes; add a third node, or start one with --witness, which holds no messages"
        ]
    return []
