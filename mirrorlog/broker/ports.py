"""What parts of a node know of parts above them: protocols, so that no import points up.

Each stands for one class, which its docstring names; whoever is handed one need not know what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import Command, MoveBegun, SpanSeen
from mirrorlog.cluster.state.placements import LogPlaces, MovingQueue, Placement, Span
from mirrorlog.cluster.state.state import ClusterState, LogFacts, Outcome
from mirrorlog.cluster.state.topology import User, VirtualHost
from mirrorlog.cluster.state.topology_commands import PasswordRenewed
from mirrorlog.config import LogAssignment, Member
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.queues.delivery.group import Settlement
from mirrorlog.queues.policies import Effective
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Credit, Settle
from mirrorlog.wire.messages.groups import SetPrefetch
from mirrorlog.wire.messages.queues import QueueOutage
from mirrorlog.wire.messages.status import ClusterStatus
from mirrorlog.wire.routing import RoutingTable


class ClusterView(Protocol):
    """What a node knows of its cluster at the moment, and the way to what the cluster decides: a `NodeView`. All parts
    of a node share this one; who needs less asks for less."""

    def member(self, node: str) -> Member | None:
        """Where a node is reached."""

    def members(self) -> Iterable[Member]: ...

    def logs(self) -> Mapping[UUID, LogAssignment]:
        """All logs there are, this node's or not, in the order of their numbers."""

    def master(self, log_id: UUID) -> Member | None:
        """Who writes a log; None while nobody does, or nobody is known to."""

    async def decide_once(self, command: Command) -> Outcome:
        """See `ClusterService.decide_once`."""

    def contact_at(self, now: float) -> float:
        """When this node was in touch with a majority of its cluster last (s, the loop's clock)."""

    def version(self) -> int:
        """Of the newest decision that is known here."""

    def cluster_version(self) -> int:
        """What may be written; see `mirrorlog.versions`."""

    def routing_version(self, virtual_host: str) -> int:
        """Of what is known here; 0 when there is no such virtual host, or nothing is known."""

    def virtual_host(self, name: str) -> VirtualHost | None:
        """Its exchanges and bindings, as far as they are known here; another object after each change of them."""

    async def ask(self, node: str, question: bytes) -> bytes:
        """See `ClusterService.ask`."""

    async def up_to_date(self) -> None:
        """Until all is known here that was decided before this was asked. Raises MirrorlogError."""

    def users(self) -> Mapping[str, User]:
        """By name, with their permissions; another object after each change of them. Before the cluster was heard:
        those that the disk holds."""

    def renew_password(self, renewed: PasswordRenewed) -> None:
        """Have it decided, and do not wait. Raises NotLeader before the node is in a cluster."""

    def has_heard(self) -> bool:
        """Whether this run has heard its cluster: it knows what was decided before it was started."""

    def placed(self, queue: str) -> UUID | None:
        """The log that a queue is in, if it was ever declared."""

    def spans(self, queue: str) -> Sequence[Span]:
        """Of a queue that has moved all of them, the oldest first; none of another one. The last one is where it is."""

    def all_spans(self) -> Mapping[str, Sequence[Span]]:
        """Of all queues that have moved, by name; another object after each change."""

    def span_seen(self, queue: str, span: Span) -> SpanSeen:
        """For what is said of that span of a queue."""

    def moves(self) -> Mapping[str, MovingQueue]:
        """Queues that are on their way from one log to another, by name; another object after each change."""

    def places(self) -> LogPlaces:
        """All that is decided of where queues are and go; another object after each change."""

    def log_facts(self, log_id: str) -> LogFacts | None:
        """What the cluster has decided of a log."""

    def rule_of(self, log_id: UUID) -> Placement:
        """By which a log is on its nodes."""

    def rule_for(self, arguments: Mapping[str, Any]) -> Placement:
        """The one that a queue with these asks for. Raises BadRequest."""

    def unlike(self, queue: Queue, log_id: UUID) -> Mapping[str, Any]:
        """Where what holds for a queue asks for another place than that log's, and what the log has instead; see
        `placing.unlike`."""

    def policies_version(self) -> int:
        """Rises with each change of policies; 0 before the first."""

    def effective(self, queue: str, arguments: Mapping[str, Any]) -> Effective:
        """What holds for a queue with these arguments, by its name, by the policies that are known here."""

    def moving_paused(self) -> bool:
        """Whether nothing begins to move."""

    def move_refusal(self, moved: MoveBegun) -> str:
        """Why such a move would not begin now; empty when it would, as far as is known here."""

    def copies_of(self, rule: Placement) -> int:
        """How many there would be now, on nodes that are there."""

    def may_alter(self, log_id: UUID, rule: Placement) -> bool:
        """Whether the log itself may get this rule: it was made by one, with the same flush mode, and no
        queue that is elsewhere has records there, or moves there."""

    async def wanted_log(
        self, queue: str, arguments: Mapping[str, Any], log_id: UUID | None, *, make: bool
    ) -> UUID | None:
        """The log that a queue with these belongs in, that one if it will do, else where it would be if it was declared
        now; it is made if need be. None: without `make` it would be. Raises as `place`."""

    def is_group_moving(self, log_group: str) -> bool:
        """Whether the queues of the log group of this qualified name are on their way to another log."""

    def in_group(self, queue: str, log_group: str) -> bool:
        """Whether a queue is where its `x-log-group` is."""

    def outage(self, log_id: UUID, queue: str = "") -> LogUnavailable | None:
        """Why nobody can answer for a log, and a queue in it, now: all nodes that hold it are down. None while somebody
        may."""

    def why_unmastered(self, log_id: UUID) -> str:
        """See `cluster.coordination.unmastered`; empty while somebody masters the log, or may, and of one that goes
        with its node."""

    def why_elsewhere(self, log_number: int) -> MirrorlogError | None:
        """What is said of a log with this number that is none of this node's, or not yet: all nodes that hold it are
        down, or who masters it. None when the cluster has none."""

    def outages(self, queues: Iterable[str] | None) -> list[QueueOutage]:
        """Those of these queues, or of all there are, that nobody can answer for now."""

    @property
    def known(self) -> ClusterState | None:
        """All that is known here; None for a node that is in no cluster."""

    def life(self, node: str) -> Life:
        """Whether a node is up, as seen from here. Raises NotLeader for a node that is in no cluster."""

    def evening(self, queue: str, arguments: Mapping[str, Any], log_id: UUID) -> int:
        """How many queues of a log may go where this one of it would be now; see `placing.evening`."""

    async def place(self, queue: str, arguments: Mapping[str, Any]) -> UUID:
        """Have a log decided for a new queue; the one it is in, if another declaration was faster. Raises BadRequest
        when there is no log as its arguments want it, or what keeps it from being decided."""

    def queue_ids(self, log_id: UUID) -> int:
        """Up to this number a master of the log may give ids to queues; see `ClusterState.queue_ids`."""

    async def grant_queue_ids(self, log_id: UUID, *, given: int) -> None:
        """Have more of them decided, above those that are `given`. Raises what keeps it from being decided."""

    def names(self) -> Iterable[str]:
        """Of all queues that have a place, as the cluster has decided."""

    def placed_in(self, log_id: UUID) -> list[str]:
        """The queues that are in a log, as the cluster has decided."""

    def is_transient(self, log_id: UUID) -> bool:
        """Whether what is in a log goes with its node's run; what the cluster has not placed there is gone."""

    def lost_from(self, log_id: UUID) -> bool:
        """Whether a loss was ever declared of a log: declarations may have been lost, too."""

    async def unbind_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        """Nothing leads to the queues any more, on every node that is up; if their log is still in that epoch, for its
        next master knows nothing of this deletion. Raises MirrorlogError."""

    async def remove_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        """The queues' places are taken away, if their log is still in that epoch. Raises MirrorlogError: then they may
        be, or may yet be."""

    def links(self) -> tuple[int, int, int]:
        """To other members: opened in this run, standing now, and questions that failed on them."""

    def status(self, now: float) -> ClusterStatus | None:
        """`now`: the loop's clock in s. None for a node that is in no cluster."""


class Reply(Protocol):
    """Where an answer goes; the connection may be gone by then."""

    def answer(self, frame_: bytes) -> None: ...

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None: ...

    def credited(self, credit: Credit) -> None:
        """Say so, if that is asked for."""

    @property
    def peer(self) -> str:
        """Of whom, for people."""


class Receiver(Protocol):
    """The connection that a subscription belongs to: a `ClientSession`."""

    @property
    def endpoint(self) -> Endpoint: ...

    def answer(self, frame_: bytes) -> None: ...

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None: ...


class ServesSubscriptions(Protocol):
    """What serves the subscriptions of a log, as their connections see it: its `Subscribing`; each method as there."""

    def writable(self, number: int) -> None: ...

    def held(self, number: int) -> None: ...

    def gone(self, number: int) -> None: ...

    def unsubscribe(self, number: int) -> None: ...

    def set_prefetch(self, message: SetPrefetch) -> None: ...

    def queue_of(self, number: int) -> int: ...

    def settle(self, settle: Settle, ranges: Sequence[int], receiver: Receiver, correlation_id: int) -> None: ...

    def settle_within(self, settle: Settle, ranges: Sequence[int], *, whole: bool = False) -> Within: ...

    def logged_within(self, within: Within) -> None: ...


class SettledGroup(Protocol):
    """An `ActiveGroup`, of which something is settled."""

    @property
    def key(self) -> tuple[int, str]:
        """The queue's id and the group's name."""


class Within(NamedTuple):
    """A settlement that is logged with other things."""

    deliverer: ServesSubscriptions
    work: SettledGroup
    settlement: Settlement


class DeadLetterTransport(Protocol):
    """How records that leave a queue come to others: the node's `DeadLetterLinks`; each method as there."""

    async def table(self, virtual_host: str) -> RoutingTable: ...

    async def find(self, name: str) -> tuple[str, int] | None: ...

    async def hand_over(self, log_id: str, batch: bytes, *, name: str = "") -> None: ...

    async def read_former(self, name: str, queue_id: int, queue_offset: int) -> bytes | None: ...


class Refusing(Protocol):
    """`refusal`: why data is refused for want of memory; empty while it is not."""

    @property
    def refusal(self) -> str: ...
