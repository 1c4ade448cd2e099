"""All that a cluster has declared, written into one document and read from one, by a client.

Queues, exchanges and bindings that are there already stay as they are; policies, users and permissions become as the
document says. What is refused does not hold up the rest. To read a document once more goes on
where an attempt before ended, for most of it is there then. Nodes tell no hashes, so users are written without.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mirrorlog import __version__
from mirrorlog.client.client import Client
from mirrorlog.client.definitions.plan import PRODUCT, Plan, named
from mirrorlog.client.definitions.rows import (
    API_VERSION,
    OPERATOR_POLICY,
    Row,
    binding_row,
    declared_row,
    exchange_row,
    invalid,
    permission_rows,
    user_row,
)
from mirrorlog.errors import BadRequest, ExchangeExists, LogUnavailable, MirrorlogError, NoSuchVirtualHost, QueueExists
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import DeclareQueue, Metadata
from mirrorlog.wire.messages.topology import (
    AddVirtualHost,
    Bind,
    DeclareExchange,
    SetPermissions,
    SetPolicy,
    SetUser,
    SetUserLimits,
)
from mirrorlog.wire.names import shown, split
from mirrorlog.wire.policies import Policy, PolicyRow
from mirrorlog.wire.routing import Binding

AT_ONCE_MAX: Final = 16
"""Objects that are declared at the same time."""


# --- Written --------------------------------------------------------------------------------------------------------


async def document_of(client: Client, vhost: str | None = None) -> Row:
    """Of one virtual host, without naming it in each row; or of all, with users and permissions. Without exclusive
    queues, and what is bound to them: these go with their connections. Raises NoSuchVirtualHost; LogUnavailable naming
    the queues of which nobody can tell now how they were declared."""
    there = sorted(each.name for each in await client.admin.topology.virtual_hosts())
    if vhost is not None and vhost not in there:
        raise NoSuchVirtualHost(f"there is no virtual host {vhost!r}")
    vhosts = there if vhost is None else [vhost]
    metadata = await client.metadata(None)
    _check_all_told(metadata, vhosts)
    declared = [declared_row(info) for info in metadata.queues if split(info.name)[0] in vhosts]
    queues = [row for row in declared if not row.pop("exclusive")]
    names = {(row["vhost"], row["name"]) for row in queues}
    exchanges, bindings = [], []
    for each in vhosts:
        routing = await client.admin.topology.routing(virtual_host=each)
        exchanges += [exchange_row(each, name, exchange) for name, exchange in sorted(routing.exchanges.items())]
        bindings += [
            binding_row(each, binding)
            for binding in routing.bindings
            if binding.to_exchange or (each, binding.destination) in names
        ]
    document: Row = {
        "rabbit_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": PRODUCT,
        "product_version": __version__,
        "parameters": [
            {"vhost": row.virtual_host, "component": OPERATOR_POLICY, "name": row.name, "value": row.policy.value}
            for row in await all_policies(client, operator=True)
            if row.virtual_host in vhosts
        ],
        "policies": [
            {"vhost": row.virtual_host, "name": row.name, **row.policy.value}
            for row in await all_policies(client, operator=False)
            if row.virtual_host in vhosts
        ],
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }
    if vhost is not None:
        for section in ("policies", "parameters", "queues", "exchanges", "bindings"):
            for row in document[section]:
                del row["vhost"]
        return document
    users = await client.admin.topology.users()
    return document | {
        "users": [user_row(user) for user in users],
        "vhosts": [{"name": name} for name in vhosts],
        "permissions": permission_rows(users),
        "topic_permissions": [],
        "global_parameters": [{"name": "cluster_name", "value": metadata.cluster_name}],
    }


def _check_all_told(metadata: Metadata, vhosts: Sequence[str]) -> None:
    """A document without them would look whole. Raises LogUnavailable."""
    there = {info.name for info in metadata.queues}
    lost = {each.name: each for each in metadata.outages if each.name not in there and split(each.name)[0] in vhosts}
    if lost:
        raise LogUnavailable(
            f"no definitions are written, for nobody can tell now how {len(lost)} queues were declared: "
            f"{', '.join(map(shown, sorted(lost))):.1000}; try again when their nodes are there: "
            f"{next(iter(lost.values())).reason}"
        )


async def all_policies(client: Client, *, operator: bool) -> list[PolicyRow]:
    """By virtual host and name."""
    found = [each for each in (await client.admin.topology.policies()).policies if each.operator == operator]
    return sorted(found, key=lambda row: (row.virtual_host, row.name))


# --- Read -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Imported:
    """`done`: objects that are there now; `ignored`, `noted`, `refused`: see Plan."""

    done: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


async def take_in(client: Client, found: Plan) -> Imported:
    """Do what a plan says; what nodes refuse is told, and holds up nothing else."""
    reading = _Reading(client, found)
    for stage in found.steps:
        await reading.stage(stage)
    return reading.told


class _Reading:
    """One document on its way in."""

    def __init__(self, client: Client, found: Plan) -> None:
        self._client, self._topology = client, client.admin.topology
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self.told = Imported(ignored=list(found.ignored), noted=list(found.noted), refused=list(found.refused))

    async def stage(self, steps: Sequence[Message]) -> None:
        """At the same time, but for limits, which need their users."""
        bindings = [step for step in steps if isinstance(step, Bind)]
        limits = [step for step in steps if isinstance(step, SetUserLimits)]
        left = [step for step in steps if not isinstance(step, Bind | SetUserLimits)]
        await asyncio.gather(*(self._one(step) for step in left))
        await asyncio.gather(*(self._one(step) for step in limits))
        await self._bind(bindings)

    async def _one(self, step: Message) -> None:
        async with self._turns:
            try:
                await self._do(step)
            except (QueueExists, ExchangeExists) as error:
                self.told.ignored.append(f"{named(step)}: it is there: {error.message}")
            except MirrorlogError as error:
                self.told.refused.append(f"{named(step)}: {error.message}")
            else:
                self.told.done.append(named(step))

    async def _bind(self, steps: Sequence[Bind]) -> None:
        """All of a virtual host at once; if that is refused, one by one."""
        by_vhost: dict[str, list[Binding]] = defaultdict(list)
        for step in steps:
            by_vhost[step.virtual_host] += step.bindings
        for vhost, bindings in by_vhost.items():
            alone = [Bind(bindings=[each], virtual_host=vhost) for each in bindings]
            try:
                await self._topology.bind_all(bindings, virtual_host=vhost)
            except MirrorlogError:
                await asyncio.gather(*(self._one(step) for step in alone))
            else:
                self.told.done += map(named, alone)

    async def _do(self, step: Message) -> None:
        """Raises MirrorlogError."""
        match step:
            case AddVirtualHost():
                await self._topology.add_virtual_host(step.name)
            case SetPolicy():
                await set_policy(self._client, step.virtual_host, step.name, step.policy, operator=step.operator)
            case DeclareExchange():
                await self._topology.declare_as(step.name, step.exchange, step.virtual_host)
            case DeclareQueue():
                await self._client.admin.declare(step.name, step.arguments)
            case Bind():
                await self._topology.bind_all(step.bindings, virtual_host=step.virtual_host)
            case SetUser():
                await self._set_user(step)
            case SetUserLimits():
                there = next((user for user in await self._topology.users() if user.name == step.user), None)
                before = there.limits.given if there is not None else {}
                await self._topology.set_user_limits(step.user, **{**before, **step.limits.given})
            case SetPermissions():
                await self._topology.set_permissions(
                    step.user,
                    configure=step.configure,
                    write=step.write,
                    read=step.read,
                    virtual_host=step.virtual_host,
                )

    async def _set_user(self, step: SetUser) -> None:
        stored = step.password_hash
        if stored is None:
            there = {user.name for user in await self._topology.users()}
            stored = None if step.name in there else ""
            becomes = "nobody logs in as this" if stored == "" else "the password stays as it is"
            self.told.ignored.append(f"user {step.name}: without a password_hash {becomes}")
        await self._topology.set_user(step.name, password_hash=stored, tags=step.tags)


async def set_policy(client: Client, vhost: str, name: str, policy: Policy, *, operator: bool) -> None:
    """Raises BadRequest naming all that is wrong with it, as RabbitMQ names the first; MirrorlogError."""
    try:
        await client.admin.topology.set_policy(
            name,
            policy.pattern,
            policy.definition,
            priority=policy.priority,
            apply_to=policy.apply_to,
            operator=operator,
            virtual_host=vhost,
        )
    except BadRequest as error:
        if not isinstance(wrong := error.details.get("errors"), list):
            raise
        raise invalid([str(each) for each in wrong]) from None
