"""Definitions of the management API: all that is declared, written into one document and read from one; and parameters,
of which there are none.

A document of RabbitMQ's is taken as far as it means something here, and what does not is told: each object or argument
that is passed over stands in the answer (`ignored`) and in the door's log. What is there already stays as it is. What
is refused does not hold up the rest: the answer is 400 and names it when all else is done. To read a document once more
goes on where an attempt before ended, for most of it is there then.

Users come last, administrators first: with the first one whoever has not logged in may do nothing any more. Their
hashes are taken as RabbitMQ wrote them; nodes tell none, so users are written without.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from mirrorlog import __version__
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Routes
from mirrorlog.doors.management.overview import API_VERSION
from mirrorlog.doors.management.policies import COMPONENT, all_policies, policy_of, set_policy
from mirrorlog.doors.management.queues import declared_row, queue_arguments
from mirrorlog.doors.management.shapes import ApiError, Row, bad_request, not_found, require, table, text
from mirrorlog.doors.management.topology import ALTERNATE, binding_row, exchange_of, exchange_row
from mirrorlog.doors.management.users import ADMINISTRATOR, permission_rows, stored_hash, tags_of, user_row
from mirrorlog.errors import ExchangeExists, MirrorlogError, QueueExists
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import KINDS, PREDEFINED, Binding

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 16
"""Objects that are declared at the same time."""
TOLD_MAX: Final = 200
"""What is ignored, or refused, and stands in one answer or line of the log."""

_NODES: Final = "ha-params"
_KNOWN: Final = ("vhosts", "users", "permissions", "policies", "parameters", "exchanges", "queues", "bindings")
_IGNORED: Final = ("topic_permissions", "global_parameters", "vhost_limits")


# --- Written --------------------------------------------------------------------------------------------------------


async def _export(call: Call) -> ApiAnswer:
    """Of the virtual host that the path names, without naming it in each row; or of all."""
    vhosts, metadata = await call.vhosts(), await call.queues()
    queues = [declared_row(info) for info in metadata.queues]
    document: Row = {
        "rabbit_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": "mirrorlog",
        "product_version": __version__,
        "parameters": [],
        "policies": [],
        "queues": [row for row in queues if not row.pop("exclusive")],
        "exchanges": [],
        "bindings": [],
    }
    for vhost in vhosts:
        routing = await call.client.admin.topology.routing(virtual_host=vhost)
        for name, exchange in sorted(routing.exchanges.items()):
            document["exchanges"].append(exchange_row(vhost, name, exchange))
        for binding in routing.bindings:
            row = binding_row(vhost, binding)
            del row["properties_key"]
            document["bindings"].append(row)
    document["policies"] = [
        {"vhost": row.virtual_host, "name": row.name, **row.policy.value}
        for row in await all_policies(call.client, operator=False)
        if row.virtual_host in vhosts
    ]
    document["parameters"] = [
        {"vhost": row.virtual_host, "component": COMPONENT, "name": row.name, "value": row.policy.value}
        for row in await all_policies(call.client, operator=True)
        if row.virtual_host in vhosts
    ]
    if "vhost" in call.names:
        for section in ("policies", "parameters", "queues", "exchanges", "bindings"):
            for row in document[section]:
                del row["vhost"]
    else:
        users = await call.client.admin.topology.users()
        document |= {
            "users": [user_row(user) for user in users],
            "vhosts": [{"name": name} for name in vhosts],
            "permissions": permission_rows(users),
            "topic_permissions": [],
            "global_parameters": [{"name": "cluster_name", "value": metadata.cluster_name}],
        }
    return ApiAnswer(body=document)


# --- Read -----------------------------------------------------------------------------------------------------------


class _Import:
    """One document on its way in."""

    def __init__(self, call: Call, document: Mapping[str, Any]) -> None:
        self._client = call.client
        self._topology, self._admin = call.client.admin.topology, call.client.admin
        self._document = document
        self._vhost = call.names.get("vhost")
        self._nodes = renamed_nodes(call.query.get("map-node", ""))
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self.ignored: list[str] = []
        self.failed: list[str] = []

    async def run(self) -> None:
        """Raises ApiError before anything is done, for a document that is none."""
        sections = {name: self._rows(name) for name in (*_KNOWN, *_IGNORED)}
        for name in _IGNORED:
            self.ignored += [f"{name}: {each.get('name') or each.get('user', '')}" for each in sections[name]]
        if self._vhost is None:
            await self._each("vhost", sections["vhosts"], self._add_vhost)
        # Before queues: these are declared where their policies want them.
        await self._each("policy", sections["policies"], self._add_policy)
        await self._each("parameter", sections["parameters"], self._add_parameter)
        await self._each("exchange", sections["exchanges"], self._add_exchange)
        await self._each("queue", sections["queues"], self._add_queue)
        await self._add_bindings(sections["bindings"])
        if self._vhost is None:
            users = sorted(sections["users"], key=lambda row: ADMINISTRATOR not in str(row.get("tags")))
            for row in users:
                await self._each("user", [row], self._add_user)
            await self._each("permission", sections["permissions"], self._add_permission)

    def _rows(self, section: str) -> list[Row]:
        rows = self._document.get(section) or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise bad_request(f"{section} should be a list of objects")
        return rows

    async def _each(self, what: str, rows: list[Row], add: Callable[[Row], Awaitable[None]]) -> None:
        async def one(row: Row) -> None:
            name = f"{what} {row.get('name') or row.get('user') or row.get('source', '')!s:.80}"
            async with self._turns:
                try:
                    await add(row)
                except (QueueExists, ExchangeExists) as error:
                    self.ignored.append(f"{name}: it is there: {error}")
                except (ApiError, MirrorlogError) as error:
                    self.failed.append(f"{name}: {error}")

        await asyncio.gather(*(one(row) for row in rows))

    def _where(self, row: Row) -> str:
        """Raises ApiError."""
        if self._vhost is not None:
            return self._vhost
        require(row, "vhost")
        return text(row, "vhost")

    async def _add_vhost(self, row: Row) -> None:
        require(row, "name")
        await self._topology.add_virtual_host(text(row, "name"))

    async def _add_policy(self, row: Row) -> None:
        require(row, "name")
        policy = policy_of(row)
        nodes = policy.definition.get(_NODES)
        if isinstance(nodes, list):
            named = [self._nodes.get(node, node) if isinstance(node, str) else node for node in nodes]
            policy = replace(policy, definition={**policy.definition, _NODES: named})
        await set_policy(self._client, self._where(row), text(row, "name"), policy, operator=False)

    async def _add_parameter(self, row: Row) -> None:
        require(row, "component", "name", "value")
        name, component = text(row, "name"), text(row, "component")
        if component != COMPONENT:
            self.ignored.append(f"parameter {name}: component {component} is not there")
            return
        await set_policy(self._client, self._where(row), name, policy_of(table(row, "value")), operator=True)

    async def _add_exchange(self, row: Row) -> None:
        require(row, "name", "type")
        name, vhost, kind = text(row, "name"), self._where(row), text(row, "type")
        if not name or name in PREDEFINED:
            return
        if kind not in KINDS:
            self.ignored.append(f"exchange {name} in virtual host {vhost}: type {kind!r} is not there")
            return
        arguments = table(row, "arguments")
        for unknown in sorted(arguments.keys() - {ALTERNATE}):
            self.ignored.append(f"exchange {name} in virtual host {vhost}: argument {unknown}")
        kept = {key: value for key, value in arguments.items() if key == ALTERNATE}
        exchange = exchange_of({**row, "arguments": kept})
        await self._topology.declare_exchange(
            name,
            exchange.kind,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            alternate=exchange.alternate,
            virtual_host=vhost,
        )

    async def _add_queue(self, row: Row) -> None:
        require(row, "name")
        name, vhost = text(row, "name"), self._where(row)
        arguments, ignored = queue_arguments(row)
        self.ignored += [f"queue {name} in virtual host {vhost}: argument {each}" for each in ignored]
        await self._admin.declare(qualified(vhost, name), arguments)

    async def _add_bindings(self, rows: list[Row]) -> None:
        """All of a virtual host at once; if that is refused, one by one."""
        by_vhost: dict[str, list[tuple[Row, Binding]]] = defaultdict(list)

        async def read(row: Row) -> None:
            require(row, "source", "destination")
            if text(row, "source"):
                by_vhost[self._where(row)].append((row, _binding_of(row)))

        await self._each("binding", rows, read)
        for vhost, found in by_vhost.items():
            try:
                await self._topology.bind_all([binding for _, binding in found], virtual_host=vhost)
            except MirrorlogError:

                async def bind(row: Row, where: str = vhost) -> None:
                    await self._topology.bind_all([_binding_of(row)], virtual_host=where)

                await self._each("binding", [row for row, _ in found], bind)

    async def _add_user(self, row: Row) -> None:
        require(row, "name")
        name, stored = text(row, "name"), stored_hash(row)
        if stored is None:
            there = {user.name for user in await self._topology.users()}
            stored = None if name in there else ""
            becomes = "nobody logs in as this" if stored == "" else "the password stays as it is"
            self.ignored.append(f"user {name}: without a password_hash {becomes}")
        await self._topology.set_user(name, password_hash=stored, tags=tags_of(row))

    async def _add_permission(self, row: Row) -> None:
        require(row, "user", "vhost", "configure", "write", "read")
        await self._topology.set_permissions(
            text(row, "user"),
            configure=text(row, "configure"),
            write=text(row, "write"),
            read=text(row, "read"),
            virtual_host=text(row, "vhost"),
        )


def renamed_nodes(words: str) -> dict[str, str]:
    """`rabbit@a=n1,rabbit@b=n2`: what nodes that policies name are called here. Raises ApiError. Pure."""
    pairs = [pair.rpartition("=") for pair in words.split(",") if pair]
    if not all(theirs and ours for theirs, _, ours in pairs):
        raise bad_request(f"map-node {words[:80]!r} should be pairs of names, rabbit@a=n1,rabbit@b=n2")
    return {theirs: ours for theirs, _, ours in pairs}


def _binding_of(row: Row) -> Binding:
    """Raises ApiError."""
    kind = text(row, "destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise bad_request(f"destination_type should be queue or exchange, actually was {kind!r:.80}")
    return Binding(
        text(row, "source"),
        text(row, "destination"),
        text(row, "routing_key"),
        to_exchange=kind == "exchange",
        arguments=table(row, "arguments"),
    )


async def _import(call: Call) -> ApiAnswer:
    if "vhost" in call.names:
        await call.check_vhost()
    reading = _Import(call, call.body)
    await reading.run()
    if reading.ignored:
        told = reading.ignored[:TOLD_MAX]
        logger.info("definitions_ignored count=%d what=%r", len(reading.ignored), "; ".join(told))
    if reading.failed:
        failed = "; ".join(reading.failed[:TOLD_MAX])
        logger.warning("definitions_refused count=%d what=%r", len(reading.failed), failed)
        raise bad_request(f"{len(reading.failed)} objects were refused, the others are there: {failed}")
    return ApiAnswer(body={"ignored": reading.ignored[:TOLD_MAX]}) if reading.ignored else NO_CONTENT


# --- Parameters, and the cluster's order ----------------------------------------------------------------------------


async def _parameters(call: Call) -> ApiAnswer:
    if "vhost" in call.names:
        await call.check_vhost()
    return call.listed([])


async def _global_parameters(call: Call) -> ApiAnswer:
    return call.listed([await _cluster_name(call)])


async def _global_parameter(call: Call) -> ApiAnswer:
    if call.names["name"] != "cluster_name":
        raise not_found()
    return ApiAnswer(body=await _cluster_name(call))


async def _cluster_name(call: Call) -> Row:
    return {"name": "cluster_name", "value": (await call.client.metadata([])).cluster_name}


async def _none_such(call: Call) -> ApiAnswer:
    raise not_found()


async def _refused(call: Call) -> ApiAnswer:
    raise bad_request("there are no parameters, and no limits of virtual hosts, in mirrorlog")


async def _rebalance(call: Call) -> ApiAnswer:
    """Every log goes to its home, where masters of queues are spread evenly."""
    await call.client.admin.rebalance()
    return NO_CONTENT


_LIST: Final = {"GET": _parameters}
_ONE: Final = {"GET": _none_such, "PUT": _refused, "DELETE": _none_such}

ROUTES: Final[Routes] = {
    "definitions": {"GET": _export, "POST": _import},
    "definitions/:vhost": {"GET": _export, "POST": _import},
    "parameters": _LIST,
    "parameters/:component": _LIST,
    "parameters/:component/:vhost": _LIST,
    "parameters/:component/:vhost/:name": _ONE,
    "global-parameters": {"GET": _global_parameters},
    "global-parameters/:name": {"GET": _global_parameter, "PUT": _refused},
    "vhost-limits": _LIST,
    "vhost-limits/:vhost": _LIST,
    "vhost-limits/:vhost/:name": {"PUT": _refused, "DELETE": _none_such},
    "rebalance/queues": {"POST": _rebalance},
}
