"""What the cluster may be told to change of its virtual hosts, exchanges, bindings and users; see `commands`."""

from __future__ import annotations

from mirrorlog.cluster.state.commands import Command
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import Binding, Exchange


class TopologyCommand(Command, frozen=True):
    """Base of those that `topology_rules` decides."""


class VirtualHostMade(TopologyCommand, frozen=True):
    """One that is there stays as it is."""

    name: str


class VirtualHostRemoved(TopologyCommand, frozen=True):
    """With its exchanges, bindings and permissions. Refused while it has queues, and for the default one."""

    name: str


class ExchangeDeclared(TopologyCommand, frozen=True):
    """One that is there stays as it is; refused when it has other properties."""

    virtual_host: str
    name: str
    exchange: Exchange


class ExchangeDeleted(TopologyCommand, frozen=True):
    """With the bindings from and to it. `if_unused`: only while none leads from it."""

    virtual_host: str
    name: str
    if_unused: bool = False


class Bound(TopologyCommand, frozen=True):
    """All of them or none. Those that are there stay."""

    virtual_host: str
    bindings: tuple[Binding, ...]


class Unbound(TopologyCommand, frozen=True):
    """An exchange that deletes itself goes with the last binding that leads from it."""

    virtual_host: str
    binding: Binding


class UserSet(TopologyCommand, frozen=True):
    """A new user, or other tags and another password of one. `password_hash`: see `wire.passwords`. None: as it was."""

    name: str
    password_hash: str | None = None
    tags: tuple[str, ...] | None = None


class FirstUserMade(TopologyCommand, frozen=True):
    """An administrator who may do everything in the default virtual host. Where there are users, nothing changes."""

    name: str
    password_hash: str


class PasswordRenewed(TopologyCommand, frozen=True):
    """The user has another hash of the same password, from the node that he has shown it to. `seen`: the one that it
    was compared with. When he has another one by now, or is gone, nothing changes: the password may be another."""

    user: str
    seen: str
    password_hash: str


class UserRemoved(TopologyCommand, frozen=True):
    """With all permissions."""

    name: str


class PermissionsSet(TopologyCommand, frozen=True):
    """Regular expressions of names that the user may configure, write and read; an empty one matches nothing."""

    user: str
    virtual_host: str
    configure: str
    write: str
    read: str


class PermissionsCleared(TopologyCommand, frozen=True):
    """The user has no way into the virtual host any more."""

    user: str
    virtual_host: str


class UserLimitsSet(TopologyCommand, frozen=True):
    """What the user may take of each node, in the place of what he had. Only since `versions.USER_LIMITS`."""

    user: str
    limits: UserLimits


class PolicySet(TopologyCommand, frozen=True):
    """A new one, or in the place of that of its name. `operator`: it caps what others say. Since
    `versions.POLICIES`."""

    virtual_host: str
    name: str
    policy: Policy
    operator: bool = False


class PolicyCleared(TopologyCommand, frozen=True):
    """One that is not there stays so."""

    virtual_host: str
    name: str
    operator: bool = False
