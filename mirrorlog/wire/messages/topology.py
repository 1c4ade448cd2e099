"""Virtual hosts, exchanges, bindings, users and logins: see decision 0035.

Each is answered with Done, or what it asks for, once it is decided and every node that is up has applied it; or after
two seconds, while one of them is slow.

What takes something away may say `must_exist`: of what is not there it is told so, and nothing is decided. A node that
is older, or out of touch with the others, decides all the same, and says nothing of it.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mirrorlog.errors import PreconditionFailed
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.policies import Policy, PolicyRow
from mirrorlog.wire.routing import Binding, Exchange


class NoSuchBinding(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The exchange has no binding there with exactly that key and these arguments."""

    code: ClassVar[str] = "NO_SUCH_BINDING"


class NoSuchPermissions(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The user has none in that virtual host."""

    code: ClassVar[str] = "NO_SUCH_PERMISSIONS"


class DeclareExchange(Message, frozen=True):
    """Idempotent; ExchangeExists names the difference. `passive`: only ask whether it is there."""

    name: str
    exchange: Exchange
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    passive: bool = False


class DeleteExchange(Message, frozen=True):
    """`if_unused`: only while no binding leads from it (InUse)."""

    name: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    if_unused: bool = False
    must_exist: bool = False


class Bind(Message, frozen=True):
    """All of them or none, up to 1,000."""

    bindings: list[Binding]
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class Unbind(Message, frozen=True):
    binding: Binding
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    must_exist: bool = False


class GetRouting(Message, frozen=True):
    """Answered with Routing at once. `version`: what the asker has; 0: nothing. `to_publish`: asked by who routes by
    it: a node that is cut off refuses that (NotCurrent), and the answer may be what has changed since `version` only.
    `only_version`: nothing else is asked for."""

    virtual_host: str = DEFAULT_VIRTUAL_HOST
    version: int = 0
    to_publish: bool = False
    only_version: bool = False


class Routing(Message, frozen=True):
    """What the node that answers knows. `changed`: False when the asker has this version already; then the rest is
    empty. `exchanges`: without the predefined ones. `since`: 0 when this is all there is; else it is what has changed
    since that version, and `deleted` and `unbound` are the exchanges and bindings that are gone."""

    version: int
    changed: bool = True
    exchanges: dict[str, Exchange] = {}
    bindings: list[Binding] = []
    since: int = 0
    deleted: list[str] = []
    unbound: list[Binding] = []


class AddVirtualHost(Message, frozen=True):
    name: str


class DeleteVirtualHost(Message, frozen=True):
    """Refused (InUse) while it has queues."""

    name: str
    must_exist: bool = False


class ListVirtualHosts(Message, frozen=True):
    """Answered with VirtualHosts."""


class VirtualHostInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """`version`: of its routing; the rest are numbers of them. `exchanges`: declared ones."""

    name: str
    version: int
    exchanges: int
    bindings: int
    queues: int


class VirtualHosts(Message, frozen=True):
    virtual_hosts: list[VirtualHostInfo]


class SetPolicy(Message, frozen=True):
    """A new policy, or in the place of that of its name. `operator`: it caps what others say. Since
    `versions.POLICIES`."""

    name: str
    policy: Policy
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    operator: bool = False


class ClearPolicy(Message, frozen=True):
    name: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    operator: bool = False
    must_exist: bool = False


class ListPolicies(Message, frozen=True):
    """Answered with Policies, of all virtual hosts that whoever asks may see."""


class Policies(Message, frozen=True):
    """`version`: rises with each change of any of them."""

    policies: list[PolicyRow]
    version: int


class SetUser(Message, frozen=True):
    """`password_hash`: see `wire.passwords`: a password itself is never sent for this. None: as it was."""

    name: str
    password_hash: str | None = None
    tags: list[str] | None = None


class DeleteUser(Message, frozen=True):
    name: str
    must_exist: bool = False


class SetPermissions(Message, frozen=True):
    """Regular expressions; an empty one matches nothing."""

    user: str
    configure: str
    write: str
    read: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class ClearPermissions(Message, frozen=True):
    user: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    must_exist: bool = False


class SetUserLimits(Message, frozen=True):
    """What a user may take of each node, in the place of what he had; `limits` without any: nothing holds him."""

    user: str
    limits: UserLimits


class ListUsers(Message, frozen=True):
    """Answered with Users; hashes are not told."""


class PermissionInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    virtual_host: str
    configure: str
    write: str
    read: str


class UserInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    name: str
    tags: list[str]
    permissions: list[PermissionInfo]
    limits: UserLimits = UserLimits()


class Users(Message, frozen=True):
    users: list[UserInfo]


class Login(Message, frozen=True):
    """The first request of a connection, where the cluster has users. Only over TLS, or to this machine. Without a
    name: a door of the node, with the token that the node gave it."""

    user: str
    password: str

    def __repr__(self) -> str:
        """Without the password: messages are shown in errors and logs."""
        return f"Login(user={self.user!r})"
