"""Virtual hosts with their exchanges and bindings, and users with their permissions, as the cluster has decided. Pure.

A field of the cluster's state. What may change it, and how, is in `topology_rules`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import PREDEFINED, VERSION_FIRST, Binding, Exchange

ADMINISTRATOR: Final = "administrator"
"""The tag of users that may change users."""


encode: Final = msgspec.msgpack.Encoder().encode


class VirtualHost(msgspec.Struct, frozen=True, omit_defaults=True):
    """`version`: of its routing; `exchanges`: without those of `routing.PREDEFINED`; `bindings`: by source, by
    `binding_key`; `binding_bytes`: what these take, by `size_of`. `policies`, and those of operators, which cap what
    others say, by name."""

    version: int = VERSION_FIRST
    exchanges: Mapping[str, Exchange] = {}
    bindings: Mapping[str, Mapping[str, Binding]] = {}
    binding_bytes: int = 0
    policies: Mapping[str, Policy] = {}
    operator_policies: Mapping[str, Policy] = {}

    def exchange(self, name: str) -> Exchange | None:
        return self.exchanges.get(name) or PREDEFINED.get(name)

    def all_bindings(self) -> Iterable[Binding]:
        return (binding for by_key in self.bindings.values() for binding in by_key.values())

    def policies_of(self, *, operators: bool) -> Mapping[str, Policy]:
        """By name."""
        return self.operator_policies if operators else self.policies

    def with_policies(self, policies: Mapping[str, Policy], *, operators: bool) -> VirtualHost:
        """These are all of that kind."""
        if operators:
            return replace(self, operator_policies=policies)
        return replace(self, policies=policies)


class Permissions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Regular expressions; an empty one matches nothing."""

    configure: str = ""
    write: str = ""
    read: str = ""


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """`password_hash`: empty for one that cannot log in; `permissions`: by virtual host; `born`: the users' version
    that made it: a user of the same name who comes after it is another one; `limits`: None without any."""

    password_hash: str = ""
    tags: tuple[str, ...] = ()
    permissions: Mapping[str, Permissions] = {}
    born: int = 0
    limits: UserLimits | None = None


class ClusterTopology(msgspec.Struct, frozen=True, omit_defaults=True):
    """`virtual_hosts`: the default one is there also when it is not among them. `users_version`: rises with each change
    of users and permissions; `retired`: the highest routing version of those that were removed; `policies_version`:
    rises with each change of policies."""

    virtual_hosts: Mapping[str, VirtualHost] = {}
    users: Mapping[str, User] = {}
    users_version: int = 0
    retired: int = 0
    policies_version: int = 0

    def virtual_host(self, name: str) -> VirtualHost | None:
        """None when there is none of that name."""
        return self.virtual_hosts.get(name) or (VirtualHost() if name == DEFAULT_VIRTUAL_HOST else None)

    @property
    def names(self) -> list[str]:
        """Of all virtual hosts."""
        return sorted({DEFAULT_VIRTUAL_HOST, *self.virtual_hosts})


NONE: Final = ClusterTopology()
"""Before the first change."""


def binding_key(binding: Binding) -> str:
    """What makes it another one than its neighbours of the same source."""
    kind = "exchange" if binding.to_exchange else "queue"
    parts = [kind, binding.destination, binding.key]
    if binding.arguments:
        # As text, for a map in a snapshot has text as its keys. By MessagePack, which tells bytes, text, numbers and
        # flags apart, and not by `repr`, which another version of Python writes otherwise: nodes must agree on it.
        encoded = encode(sorted(binding.arguments.items(), key=_name_of))
        parts.append(b64encode(encoded).decode())
    return "\x1f".join(parts)


def _name_of(argument: tuple[str, Any]) -> str:
    return argument[0]


def size_of(binding: Binding) -> int:
    """The bytes of it in a snapshot, or a few more: most stands there twice."""
    names = len(binding.source.encode()) + 2 * len(binding.destination.encode()) + 2 * len(binding.key.encode())
    if not binding.arguments:
        return 64 + names
    arguments = len(encode(binding.arguments))
    return 64 + names + 16 + arguments + 4 * (arguments // 3 + 1)
