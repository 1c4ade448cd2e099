"""Exchanges, bindings and virtual hosts of the management API.

A binding is named, within its source and destination, by its *properties key*: the routing key in percent-encoding and,
if it has arguments, a hash of these; `~` for neither. The default exchange is listed, and a binding from it to each
queue, as RabbitMQ has it: nothing of that is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

from mirrorlog.client.definitions.rows import Row, binding_row, exchange_of, exchange_row, table, text
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Routes, written
from mirrorlog.doors.management.shapes import ApiError, columns, not_found
from mirrorlog.errors import NoSuchUser
from mirrorlog.wire.messages.topology import Routing
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, split
from mirrorlog.wire.routing import DIRECT, PREDEFINED, Binding, Exchange

DEFAULT_EXCHANGE: Final = "amq.default"
"""What the default exchange, which has no name, is called in paths."""
_OF_VHOSTS: Final = frozenset({"description", "tags", "default_queue_type", "tracing"})
"""What RabbitMQ keeps of a virtual host, and is kept nowhere here."""
_NO_ARGUMENTS: Final = "~"
_KINDS: Final = {"e": True, "q": False, "exchange": True, "queue": False}
"""Of a destination: whether it is an exchange."""


# --- Rows -----------------------------------------------------------------------------------------------------------


def keyed_row(vhost: str, binding: Binding) -> Row:
    return {**binding_row(vhost, binding), "properties_key": properties_key(binding)}


def properties_key(binding: Binding) -> str:
    """As it stands in a binding's row, and once more in percent-encoding in its path."""
    key = quote_plus(binding.key).replace("~", "%7E")
    if not binding.arguments:
        return key or _NO_ARGUMENTS
    words = repr(sorted(binding.arguments.items())).encode()
    return f"{key}~{urlsafe_b64encode(hashlib.sha256(words).digest()[:16]).decode().rstrip('=')}"


def all_exchanges(routing: Routing) -> dict[str, Exchange]:
    """With those that every virtual host has."""
    return {"": Exchange(DIRECT), **PREDEFINED, **routing.exchanges}


# --- Exchanges ------------------------------------------------------------------------------------------------------


async def _exchanges(call: Call) -> ApiAnswer:
    rows = [
        exchange_row(vhost, name, exchange)
        for vhost in await call.vhosts()
        for name, exchange in sorted(all_exchanges(await _routing(call, vhost)).items())
    ]
    return call.listed(rows)


async def _routing(call: Call, vhost: str) -> Routing:
    return await call.client.admin.topology.routing(virtual_host=vhost)


def _name(call: Call) -> str:
    name = call.names["exchange"]
    return "" if name == DEFAULT_EXCHANGE else name


async def _found(call: Call) -> Exchange:
    """Raises ApiError when there is none that the path names."""
    found = all_exchanges(await _routing(call, call.vhost)).get(_name(call))
    if found is None:
        raise not_found()
    return found


async def _exchange(call: Call) -> ApiAnswer:
    row = exchange_row(call.vhost, _name(call), await _found(call))
    return ApiAnswer(body=columns([row], call.query)[0])


async def _declare_exchange(call: Call) -> ApiAnswer:
    exchange, name = exchange_of(dict(call.body)), _declared_name(call)
    is_new = name not in all_exchanges(await _routing(call, call.vhost))
    await call.client.admin.topology.declare_as(name, exchange, call.vhost)
    return written(is_new)


async def _delete_exchange(call: Call) -> ApiAnswer:
    name = _declared_name(call)
    await _found(call)
    if_unused = call.query.get("if-unused") == "true"
    await call.client.admin.topology.delete_exchange(name, if_unused=if_unused, virtual_host=call.vhost)
    return NO_CONTENT


def _declared_name(call: Call) -> str:
    """Raises ApiError for the default exchange, which nobody has declared."""
    if not (name := _name(call)):
        raise ApiError(401, "not_authorized", "operation not permitted on the default exchange")
    return name


# --- Bindings -------------------------------------------------------------------------------------------------------


async def _all_bindings(call: Call, vhosts: Iterable[str]) -> dict[str, list[Binding]]:
    """By virtual host; those to queues from the default exchange first."""
    found: dict[str, list[Binding]] = {vhost: [] for vhost in vhosts}
    for vhost, name in sorted(split(queue.name) for queue in (await call.client.metadata(None)).queues):
        if vhost in found:
            found[vhost].append(Binding("", name, name))
    for vhost, bindings in found.items():
        bindings.extend((await _routing(call, vhost)).bindings)
    return found


async def _bindings(call: Call) -> ApiAnswer:
    found = await _all_bindings(call, await call.vhosts())
    return call.listed([keyed_row(vhost, each) for vhost, bindings in found.items() for each in bindings])


async def _queue_bindings(call: Call) -> ApiAnswer:
    await call.described()
    name = call.names["queue"]
    routing = await _routing(call, call.vhost)
    found = [each for each in routing.bindings if each.destination == name and not each.to_exchange]
    return _listed_bindings(call, [Binding("", name, name), *found])


async def _exchange_bindings(call: Call) -> ApiAnswer:
    """From it, or to it."""
    await _found(call)
    name, end = _name(call), call.names["end"]
    if end not in ("source", "destination"):
        raise not_found()
    if end == "source":
        found = [each for each in (await _all_bindings(call, [call.vhost]))[call.vhost] if each.source == name]
    else:
        routing = await _routing(call, call.vhost)
        found = [each for each in routing.bindings if each.destination == name and each.to_exchange]
    return _listed_bindings(call, found)


def _listed_bindings(call: Call, bindings: Iterable[Binding]) -> ApiAnswer:
    return call.listed([keyed_row(call.vhost, each) for each in bindings])


async def _between(call: Call) -> list[Binding]:
    """All from the source to the destination that the path names. Raises ApiError when one of these is not there."""
    to_exchange = _to_exchange(call)
    source, destination = _name(call), call.names["destination"]
    routing = await _routing(call, call.vhost)
    exchanges = all_exchanges(routing)
    if source not in exchanges or (to_exchange and destination not in exchanges):
        raise not_found()
    if not to_exchange:
        metadata = await call.client.metadata([qualified(call.vhost, destination)])
        if not (metadata.queues or metadata.placed or metadata.outages):
            raise not_found()
    if not source:
        return [] if to_exchange else [Binding("", destination, destination)]
    return [
        each
        for each in routing.bindings
        if (each.source, each.destination, each.to_exchange) == (source, destination, to_exchange)
    ]


def _to_exchange(call: Call) -> bool:
    """Raises ApiError."""
    if (kind := call.names["kind"]) not in _KINDS:
        raise not_found()
    return _KINDS[kind]


async def _bindings_between(call: Call) -> ApiAnswer:
    return _listed_bindings(call, await _between(call))


async def _bind(call: Call) -> ApiAnswer:
    binding = Binding(
        _declared_name(call),
        call.names["destination"],
        text(call.body, "routing_key"),
        to_exchange=_to_exchange(call),
        arguments=table(call.body, "arguments"),
    )
    await call.client.admin.topology.bind_all([binding], virtual_host=call.vhost)
    # Relative to the path that was asked, as RabbitMQ's: Terraform's provider takes its second part.
    where = f"{quote(binding.destination, safe='')}/{quote(properties_key(binding), safe='')}"
    return ApiAnswer(201, headers={"Location": where})


async def _named_binding(call: Call) -> Binding:
    """Raises ApiError when it is not there."""
    asked = call.names["properties"]
    for each in await _between(call):
        # Clients differ in how often they encode it.
        if asked in (key := properties_key(each), unquote_plus(key)):
            return each
    raise not_found()


async def _binding(call: Call) -> ApiAnswer:
    return ApiAnswer(body=keyed_row(call.vhost, await _named_binding(call)))


async def _unbind(call: Call) -> ApiAnswer:
    _declared_name(call)
    binding, topology = await _named_binding(call), call.client.admin.topology
    take = topology.unbind_exchange if binding.to_exchange else topology.unbind
    await take(binding.source, binding.destination, binding.key, binding.arguments, virtual_host=call.vhost)
    return NO_CONTENT


# --- Virtual hosts --------------------------------------------------------------------------------------------------


async def _vhost_rows(call: Call) -> list[Row]:
    names, metadata, statuses = await call.vhosts(), await call.client.metadata(None), await call.statuses()
    running = {node: "running" for node, told in statuses.by_node.items() if not isinstance(told, Exception)}
    stopped = dict.fromkeys(statuses.by_node.keys() - running.keys(), "stopped")
    rows = {name: _vhost_row(name, {**running, **stopped}) for name in names}
    for info in metadata.queues:
        row, told = rows.get(split(info.name)[0]), statuses.queue(info)
        if row is not None and told is not None and told.ready >= 0:
            row["messages_ready"] += told.ready
            row["messages_unacknowledged"] += told.unacknowledged
            row["messages"] += told.ready + told.unacknowledged
    return list(rows.values())


def _vhost_row(name: str, nodes: dict[str, str]) -> Row:
    return {
        "name": name,
        "description": "Default virtual host" if name == DEFAULT_VIRTUAL_HOST else "",
        "tags": [],
        "metadata": {"description": "", "tags": []},
        "tracing": False,
        "cluster_state": nodes,
        "messages": 0,
        "messages_ready": 0,
        "messages_unacknowledged": 0,
    }


async def _vhosts(call: Call) -> ApiAnswer:
    return call.listed(await _vhost_rows(call))


async def _vhost(call: Call) -> ApiAnswer:
    return ApiAnswer(body=columns(await _vhost_rows(call), call.query)[0])


async def _add_vhost(call: Call) -> ApiAnswer:
    """Whoever makes one may do everything in it, as in RabbitMQ."""
    topology = call.client.admin.topology
    is_new = call.vhost not in [each.name for each in await topology.virtual_hosts()]
    await topology.add_virtual_host(call.vhost)
    if is_new and call.login is not None:
        with contextlib.suppress(NoSuchUser):  # a cluster without users takes any login
            await topology.set_permissions(
                call.login.user, configure=".*", write=".*", read=".*", virtual_host=call.vhost
            )
    return written(is_new, sorted(call.body.keys() & _OF_VHOSTS))


async def _delete_vhost(call: Call) -> ApiAnswer:
    """A virtual host that has queues stays: theirs would go with their records, by one call."""
    await call.check_vhost()
    await call.client.admin.topology.delete_virtual_host(call.vhost)
    return NO_CONTENT


async def _start_vhost(call: Call) -> ApiAnswer:
    """It runs wherever its cluster does."""
    await call.check_vhost()
    if call.names["node"] not in {node.node_id for node in (await call.client.metadata([])).nodes}:
        raise not_found()
    return NO_CONTENT


_BETWEEN: Final = "bindings/:vhost/e/:exchange/:kind/:destination"

ROUTES: Final[Routes] = {
    "exchanges": {"GET": _exchanges},
    "exchanges/:vhost": {"GET": _exchanges},
    "exchanges/:vhost/:exchange": {"GET": _exchange, "PUT": _declare_exchange, "DELETE": _delete_exchange},
    "exchanges/:vhost/:exchange/bindings/:end": {"GET": _exchange_bindings},
    "queues/:vhost/:queue/bindings": {"GET": _queue_bindings},
    "bindings": {"GET": _bindings},
    "bindings/:vhost": {"GET": _bindings},
    _BETWEEN: {"GET": _bindings_between, "POST": _bind},
    f"{_BETWEEN}/:properties": {"GET": _binding, "DELETE": _unbind},
    "vhosts": {"GET": _vhosts},
    "vhosts/:vhost": {"GET": _vhost, "PUT": _add_vhost, "DELETE": _delete_vhost},
    "vhosts/:vhost/start/:node": {"POST": _start_vhost},
}
