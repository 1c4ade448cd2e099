"""Authorization: what a connection may do. Asked before everything that a client wants.

A cluster without users takes everybody whom its node welcomes: those on its own machine, and others where it was told
so. With users a connection logs in first (`logins`), and each thing that it asks for is held against the user's
permissions, as this node knows them. A batch or a fetch costs a look into a set: what was allowed for a queue is kept
until users change. A connection whose user is gone (also if there is another one of that name), and one that never
logged in, is closed when the door looks round.

A node that was started and has not heard its cluster yet knows the users that its disk holds, and no more: it takes
their logins, answers from what it has, and lets nobody change anything (`_LOCAL` is what it answers): who may, it may
not know. In a cluster without users a login is taken and proves nothing, so that clients can be given theirs first.

The node's own doors log in by a token that they got when they were started, under no name. They may ask how the node
is, with users or without, and nothing else: whoever calls them brings a login of his own.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any, Final

from mirrorlog.broker.session.logins import Gatekeeper, Users
from mirrorlog.broker.session.refused_access import DOOR, FIRST_USER, IN_THE_OPEN, LOGIN, NO_USERS, PASSWORD, TAG
from mirrorlog.cluster.state.topology import ADMINISTRATOR, User
from mirrorlog.cluster.state.topology_rules import MAX_BINDINGS_AT_ONCE
from mirrorlog.errors import AccessRefused, LimitReached, LoginFailed, MirrorlogError, NotLeader, Overloaded
from mirrorlog.queues.access import (
    HOLDERS,
    LANDING,
    LOOKERS,
    POLICYMAKER,
    Right,
    check_allowed,
    check_expression,
    check_location,
    has_tag,
)
from mirrorlog.queues.arguments import dead_letters_of
from mirrorlog.queues.policies import check_policy
from mirrorlog.wire.auth.passwords import check_hash
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.connections import ListConnections
from mirrorlog.wire.messages.groups import (
    DeleteGroup,
    ExtendLease,
    Lease,
    ListGroups,
    PurgeGroup,
    Redrive,
    SetPrefetch,
    SettleLease,
    Subscribe,
    Unsubscribe,
)
from mirrorlog.wire.messages.operators import GetEvents
from mirrorlog.wire.messages.queues import (
    AlterQueue,
    CancelMove,
    CommitPosition,
    DeclareQueue,
    DeleteQueue,
    EndHold,
    FetchPosition,
    FindOffset,
    GetMetadata,
    ListHolds,
    ListMoves,
    SetHold,
    SyncQueue,
)
from mirrorlog.wire.messages.status import GetStatus
from mirrorlog.wire.messages.topology import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeleteExchange,
    GetRouting,
    ListPolicies,
    ListUsers,
    ListVirtualHosts,
    Login,
    SetPermissions,
    SetPolicy,
    SetUser,
    Unbind,
)
from mirrorlog.wire.names import NAME_CHARS_MAX, split
from mirrorlog.wire.routing import Binding

FAILURES_MAX: Final = 3
"""Logins that may fail on one connection; then it is closed."""

DEFAULT_EXCHANGE: Final = "amq.default"
"""What the default exchange, which has no name, is called where rights are asked for; as in RabbitMQ."""

_FOR_LOOKERS: Final = (GetStatus, GetEvents, ListVirtualHosts, ListPolicies)
_FOR_ALL: Final = (GetMetadata, ListMoves, ListConnections, SetPrefetch, Unsubscribe)
_FOR_DOORS: Final = (GetMetadata, GetStatus)
_LOCAL: Final = (
    *_FOR_LOOKERS, *_FOR_ALL, GetRouting, ListUsers, FindOffset, FetchPosition, CommitPosition, ListHolds, SetHold,
    EndHold, ListGroups, Subscribe, Lease, SettleLease, ExtendLease, PurgeGroup, Redrive, DeleteGroup,
    DeleteQueue,
)  # fmt: skip
"""What the cluster decides nothing for: it is read, or the master of a log sees to it, and nobody masters one who has
not heard the cluster."""

_FIRST: Final = (
    "make the first user on a node's own machine: mqtool user-set NAME --tag administrator, or mqnode --first-admin"
)
_NO_USERS: Final = f"this cluster has no users yet, and until then this node serves its own machine only; {_FIRST}"


class Gate:
    """Of one connection. `private`: nobody else reads it: TLS, or from this machine. `peer`: the address of its other
    end. `local`: who asks is on this machine; `welcome`: he is served while there are no users."""

    def __init__(
        self, keeper: Gatekeeper, *, private: bool, peer: str = "", local: bool = True, welcome: bool = True
    ) -> None:
        self.user = ""
        self._peer = peer
        self._born = 0
        self.unproven = False
        """Whether it logged in when that proved nothing."""
        self._is_door = False
        self.failures = 0
        """Of logins, on this connection."""
        self._trying: asyncio.Task[Any] | None = None
        self._keeper = keeper
        self._private = private
        self._local = local
        self._welcome = welcome
        self._users: Users | None = None
        self._open = False
        self._shut_at: float | None = None
        self._writes: set[int] = set()
        self._reads: set[int] = set()

    @property
    def limits(self) -> UserLimits | None:
        """Of its user."""
        user = self._own()
        return None if user is None else user.limits

    async def login(self, asked: Login) -> None:
        """Raises LoginFailed, Overloaded."""
        if not self._private:
            self._keeper.login_failed(IN_THE_OPEN, asked.user, self._peer)
            raise LoginFailed("a password is taken over TLS or from this machine only; set tls.client on the nodes")
        if not asked.user:
            self._let_door_in(asked.password)
            return
        if not self._keeper.users():
            if not self._welcome:
                self._keeper.login_failed(NO_USERS, "", self._peer)
                raise LoginFailed(_NO_USERS)
            self.unproven = True
            return
        if self._trying is not None:
            raise Overloaded("one login of a connection is looked at at a time", limit="max_logins")
        self._trying = asyncio.current_task()
        try:
            user = await self._keeper.found(asked.user, asked.password, self._peer, self.failures)
            if user is None:
                self.failures += 1
                self._keeper.login_failed(PASSWORD, asked.user, self._peer)
                await asyncio.sleep(self._keeper.failed(asked.user[:NAME_CHARS_MAX], self._peer))
                raise LoginFailed(f"no user {asked.user[:64]!r} with that password")
        finally:
            self._trying = None
        self.user, self._born, self.unproven = asked.user, user.born, False
        self._users = None

    def leave(self) -> None:
        """The connection is gone: nobody waits for its login."""
        if self._trying is not None:
            self._trying.cancel()

    def _let_door_in(self, token: str) -> None:
        """Raises LoginFailed."""
        if not hmac.compare_digest(token.encode(errors="surrogatepass"), self._keeper.door_token.encode()):
            self.failures += 1
            self._keeper.login_failed(DOOR, "", self._peer)
            raise LoginFailed("a login needs a user; only a door of this node has none, and its token instead")
        self._is_door = True

    @property
    def trusted(self) -> bool:
        """Whether it may send as much as anybody: it has logged in, or need not."""
        return self._takes_everybody or self._own() is not None

    @property
    def is_stranger(self) -> bool:
        """Whether one has to log in, and this has not, and is no door either."""
        return not (self._takes_everybody or self._is_door) and self._own() is None

    @property
    def _takes_everybody(self) -> bool:
        return self._welcome and not self._keeper.users()

    @property
    def must_log_in(self) -> bool:
        """Whether it logged in when that proved nothing, and there are users now: it can do so again at once."""
        return self.unproven and bool(self._keeper.users())

    def shut_s(self, now: float) -> float:
        """For how long there have been users of whom this is none, as far as it was asked; 0 when it may stay, and
        while its login is looked at: it has so long for each."""
        if self._takes_everybody or self._is_door or self._trying is not None or self._own() is not None:
            self._shut_at = None
            return 0.0
        self._shut_at = now if self._shut_at is None else self._shut_at
        return now - self._shut_at

    def read_refused(self, queue_id: int) -> MirrorlogError | None:
        """Why it may not read a queue, if it may not."""
        try:
            self.check_fetch(queue_id)
        except MirrorlogError as error:
            return error
        return None

    def check_publish(self, queue_id: int) -> None:
        """Raises AccessRefused, LoginFailed, or as the queue's log does."""
        if self._keeper.users() is not self._users:
            self._renew()
        if not self._open and queue_id not in self._writes:
            self._decide(Right.WRITE, queue_id)
            self._writes.add(queue_id)

    def check_fetch(self, queue_id: int) -> None:
        """The same for reading."""
        if self._keeper.users() is not self._users:
            self._renew()
        if not self._open and queue_id not in self._reads:
            self._decide(Right.READ, queue_id)
            self._reads.add(queue_id)

    def check(self, message: Message) -> None:
        """Whether it may be asked for; what it says of permissions and hashes must be such. Raises AccessRefused,
        LoginFailed, BadRequest, LimitReached; NotLeader while this node may not know who may."""
        if not isinstance(message, _LOCAL) and not self._keeper.has_heard():
            raise NotLeader("this node was started and has not heard its cluster yet; ask again, or ask another node")
        _check_texts(message)
        if isinstance(message, SetHold) and message.tiered:
            check_location(message.location, self._keeper.tier_locations, has_users=bool(self._keeper.users()))
        if not self._local and isinstance(message, SetUser) and not self._keeper.users():
            self._note(FIRST_USER, type(message).__name__)
            raise AccessRefused(f"who is first is not decided over the network: {_FIRST}")
        if self._takes_everybody or (self._is_door and isinstance(message, _FOR_DOORS)):
            return
        user = self._known()
        if isinstance(message, DeclareExchange) and message.passive and message.virtual_host in user.permissions:
            return
        if isinstance(message, _FOR_ALL) or (isinstance(message, _FOR_LOOKERS) and has_tag(user, LOOKERS)):
            return
        wanted = _rights_for(message)
        for right, virtual_host, name in wanted:
            self._check_right(user, right, virtual_host, name)
        if isinstance(message, GetRouting) and message.virtual_host in user.permissions:
            return
        self._check_tag(message, user)
        if not wanted and not isinstance(message, SetPolicy | ClearPolicy) and not has_tag(user, (ADMINISTRATOR,)):
            raise self._lacks_tag(message)

    def _check_tag(self, message: Message, user: User) -> None:
        """Those that are needed beside permissions. Raises AccessRefused."""
        if isinstance(message, SetPolicy | ClearPolicy) and not has_tag(user, (ADMINISTRATOR,)):
            self._check_policymaker(message, user)
        if isinstance(message, Redrive) and not message.to and not has_tag(user, (ADMINISTRATOR,)):
            # Where they go is in records' headers, which anybody may have written.
            self._note(TAG, f"Redrive {message.queue}")
            raise AccessRefused(f"a redrive to wherever records died needs the tag {ADMINISTRATOR}; name the queue")
        if isinstance(message, SetHold | EndHold) and not has_tag(user, HOLDERS):
            self._note(TAG, f"{type(message).__name__} {message.queue}")
            raise AccessRefused(f"holds need the tag {LANDING}, which {self.user!r} has not: mqtool user-set --tag")

    def _check_policymaker(self, message: SetPolicy | ClearPolicy, user: User) -> None:
        """Raises AccessRefused."""
        wrong = ""
        if message.operator:
            wrong = f"policies of operators need the tag {ADMINISTRATOR}, which {self.user!r} has not"
        elif not has_tag(user, (POLICYMAKER,)):
            wrong = f"policies need the tag {POLICYMAKER}, which {self.user!r} has not: mqtool user-set --tag"
        elif message.virtual_host not in user.permissions:
            wrong = f"{self.user!r} has no permissions in virtual host {message.virtual_host[:64]}"
        if wrong:
            self._note(TAG, type(message).__name__)
            raise AccessRefused(wrong)

    def _lacks_tag(self, message: Message) -> AccessRefused:
        what = type(message).__name__
        self._note(TAG, what)
        if isinstance(message, _FOR_LOOKERS):
            enough = ", ".join(sorted(LOOKERS))
            return AccessRefused(f"{what} needs one of the tags {enough}; {self.user!r} has none of them")
        return AccessRefused(f"{what} needs the tag {ADMINISTRATOR}, which {self.user!r} has not")

    def _known(self) -> User:
        user = self._own()
        if user is None:
            self._note(LOGIN, "")
        if user is None and not self._keeper.users():
            raise LoginFailed(_NO_USERS)
        if user is None:
            raise LoginFailed("this cluster has users: log in first (user and password of the client, or of mqtool)")
        return user

    def _check_right(self, user: User, right: Right, virtual_host: str, name: str) -> None:
        try:
            check_allowed(self.user, user, right, virtual_host, name)
        except AccessRefused:
            self._note(right.value, f"{virtual_host} {name}")
            raise

    def noted(self, error: MirrorlogError) -> MirrorlogError:
        """An answer: whoever sees to a request may find that a right to more than it names is lacking."""
        if isinstance(error, AccessRefused) and "right" in error.details:
            self._note(str(error.details["right"]), str(error.details.get("queue", "")))
        return error

    def _note(self, right: str, what: str) -> None:
        self._keeper.right_refused(right, self.user, what, self._peer)

    def _own(self) -> User | None:
        """The one that logged in, and no other one of his name."""
        user = self._keeper.users().get(self.user)
        return user if user is not None and user.born == self._born else None

    def _renew(self) -> None:
        """Users have changed since."""
        self._users = self._keeper.users()
        self._open = self._takes_everybody
        self._writes.clear()
        self._reads.clear()

    def _decide(self, right: Right, queue_id: int) -> None:
        user = self._known()
        self._check_right(user, right, *split(self._keeper.key_of(queue_id)))


def _check_texts(message: Message) -> None:
    """Expressions and hashes must be such. Raises BadRequest."""
    if isinstance(message, SetPermissions):
        for expression in (message.configure, message.write, message.read):
            check_expression(expression)
    elif isinstance(message, SetPolicy):
        check_policy(message.policy, operator=message.operator)
    elif isinstance(message, SetUser) and message.password_hash is not None:
        check_hash(message.password_hash)


_Wanted = tuple[Right, str, str]
"""(right, virtual host, name)."""


def _rights_for(message: Message) -> list[_Wanted]:
    """All of them are needed; none: it is no matter of permissions. Raises LimitReached."""
    if isinstance(message, DeclareQueue | DeleteQueue | AlterQueue | CancelMove):
        return _to_declare_queue(message)
    if isinstance(message, DeclareExchange):
        return _to_declare(message)
    if isinstance(message, DeleteExchange):
        return [(Right.CONFIGURE, message.virtual_host, message.name)]
    if isinstance(message, Bind):
        if len(message.bindings) > MAX_BINDINGS_AT_ONCE:
            raise LimitReached(
                f"{len(message.bindings)} bindings at once are above the limit of {MAX_BINDINGS_AT_ONCE}",
                limit="max_bindings_at_once",
            )
        return [right for binding in message.bindings for right in _to_bind(message.virtual_host, binding)]
    if isinstance(message, Unbind):
        return _to_bind(message.virtual_host, message.binding)
    queue = getattr(message, "queue", None)
    return [(Right.READ, *split(queue)), *_beside_reading(message)] if isinstance(queue, str) else []


def _beside_reading(message: Message) -> list[_Wanted]:
    """Of a request about a queue."""
    if isinstance(message, Redrive) and message.to:
        return [(Right.WRITE, split(message.queue)[0], message.to)]
    if isinstance(message, SyncQueue) and message.wish:
        return [(Right.CONFIGURE, *split(message.queue))]
    if isinstance(message, EndHold) or (isinstance(message, SetHold) and message.tiered):
        # Records go from the log, or what went is not found any more: who may do so may delete the queue.
        return [(Right.CONFIGURE, *split(message.queue))]
    return []


def _to_declare_queue(message: DeclareQueue | DeleteQueue | AlterQueue | CancelMove) -> list[_Wanted]:
    """The node takes records out of it for where its dead letters go, and whoever asks for that could do so."""
    virtual_host, name = split(message.name)
    wanted = [(Right.CONFIGURE, virtual_host, name)]
    way = dead_letters_of(message.arguments) if isinstance(message, DeclareQueue) else None
    if way is not None:
        wanted += [(Right.READ, virtual_host, name), (Right.WRITE, virtual_host, way.exchange or DEFAULT_EXCHANGE)]
    return wanted


def _to_declare(message: DeclareExchange) -> list[_Wanted]:
    """An alternate exchange gets what this one was given."""
    host, alternate = message.virtual_host, message.exchange.alternate
    wanted = [(Right.CONFIGURE, host, message.name)]
    if alternate:
        wanted += [(Right.READ, host, message.name), (Right.WRITE, host, alternate)]
    return wanted


def _to_bind(virtual_host: str, binding: Binding) -> list[_Wanted]:
    return [(Right.READ, virtual_host, binding.source), (Right.WRITE, virtual_host, binding.destination)]
