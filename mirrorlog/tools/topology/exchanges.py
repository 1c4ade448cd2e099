"""`mqtool exchanges`, `bind`, `vhosts`, …: exchanges, bindings and virtual hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.diagnosis.cells import NOTHING
from mirrorlog.errors import NoSuchQueue
from mirrorlog.tools.common.options import AsJson, IfExists, VirtualHost, parse_arguments
from mirrorlog.tools.common.output import emit, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.topology import Routing, VirtualHostInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified
from mirrorlog.wire.routing import PREDEFINED, Binding

if TYPE_CHECKING:
    from mirrorlog.client import Client


@watchable
def exchanges(context: typer.Context, vhost: VirtualHost = DEFAULT_VIRTUAL_HOST, as_json: AsJson = False) -> None:
    """List the exchanges, those that every virtual host has among them.

    The default exchange, which has no name, leads every key to the queue of that name.

    Example: mqtool exchanges --vhost shop
    """
    routing = session_of(context).run(lambda client: client.admin.topology.routing(virtual_host=vhost))
    emit(as_json, dict(sorted({**PREDEFINED, **routing.exchanges}.items())), exchanges_view(routing))


def exchanges_view(routing: Routing) -> View:
    """One row per exchange. Pure."""
    bindings = Counter(binding.source for binding in routing.bindings)
    rows = []
    for name, exchange in sorted({**PREDEFINED, **routing.exchanges}.items()):
        properties = [
            word
            for word, said in (
                ("transient", not exchange.durable),
                ("auto-delete", exchange.auto_delete),
                ("internal", exchange.internal),
            )
            if said
        ]
        rows.append(
            (name, exchange.type, str(bindings[name]), exchange.alternate or NOTHING, " ".join(properties) or NOTHING)
        )
    return table("", ("exchange", "kind", "bindings", "alternate", "properties"), rows, numbers=("bindings",))


def exchange_declare(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The exchange's name.")],
    kind: Annotated[str, typer.Option("--kind", help="direct, fanout, topic or headers.")] = "direct",
    arg: Annotated[list[str] | None, typer.Option("--arg", help="NAME=VALUE, as x-delayed-type=topic.")] = None,
    *,
    alternate: Annotated[str, typer.Option("--alternate", help="The exchange that gets what matches nothing.")] = "",
    auto_delete: Annotated[bool, typer.Option("--auto-delete", help="It goes with the last binding from it.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Only other exchanges give it messages.")] = False,
    transient: Annotated[bool, typer.Option("--transient", help="Declared as not durable; kept all the same.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Make an exchange, and wait until all nodes know it.

    Nothing happens when it exists with the same properties; with others it is an error (exit code 6).

    Example: mqtool exchange-declare orders --kind topic
    """
    session_of(context).run(
        lambda client: client.admin.topology.declare_exchange(
            name,
            kind,
            durable=not transient,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate,
            arguments=parse_arguments(arg or []),
            virtual_host=vhost,
        )
    )
    typer.echo(f"exchange {name} is there: {kind}")


def exchange_delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The exchange's name.")],
    *,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only while no binding leads from it.")] = False,
    if_exists: IfExists = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Delete an exchange with its bindings.

    Example: mqtool exchange-delete orders --if-unused
    """
    session_of(context).remove(
        lambda client: client.admin.topology.delete_exchange(name, if_unused=if_unused, virtual_host=vhost),
        f"exchange {name}",
        if_exists=if_exists,
    )
    typer.echo(f"exchange {name} is gone")


Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="NAME=VALUE", help="What a headers exchange compares; JSON or text. Repeatable."),
]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="The destination is an exchange.")]


def bind(
    context: typer.Context,
    exchange: Annotated[str, typer.Argument(help="Where messages come from.")],
    destination: Annotated[str, typer.Argument(help="The queue.")],
    key: Annotated[str, typer.Option("--key", help="Routing key, or a topic's pattern with * and #.")] = "",
    *,
    arg: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Bind a queue to an exchange, and wait until all nodes know it: what is published then is routed by it.

    Example: mqtool bind orders invoices --key orders.*.paid
    """
    binding = Binding(exchange, destination, key, to_exchange=to_exchange, arguments=parse_arguments(arg or []))
    session_of(context).run(lambda client: client.admin.topology.bind_all([binding], virtual_host=vhost))
    typer.echo(f"exchange {exchange} leads to {destination}")


def unbind(
    context: typer.Context,
    exchange: Annotated[str, typer.Argument(help="Where messages come from.")],
    destination: Annotated[str, typer.Argument(help="The queue.")],
    key: Annotated[str, typer.Option("--key", help="As it was bound.")] = "",
    *,
    arg: Arguments = None,
    to_exchange: ToExchange = False,
    if_exists: IfExists = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take a binding away, the one with exactly this key and these arguments.

    Example: mqtool unbind orders invoices --key orders.*.paid
    """
    arguments = parse_arguments(arg or [])

    async def ask(client: Client) -> None:
        topology = client.admin.topology
        take = topology.unbind_exchange if to_exchange else topology.unbind
        await take(exchange, destination, key, arguments, virtual_host=vhost)

    session_of(context).remove(ask, "that binding", if_exists=if_exists)
    typer.echo(f"that binding from exchange {exchange} to {destination} is gone")


@watchable
def bindings(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Only those from or to this exchange or queue.", show_default=False)
    ] = None,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """List the bindings of a virtual host. A name of no exchange or queue is an error.

    Example: mqtool bindings orders
    """

    async def look(client: Client) -> list[Binding]:
        routing = await client.admin.topology.routing(virtual_host=vhost)
        found = [each for each in routing.bindings if name in (None, each.source, each.destination)]
        if name and not found and name not in {**PREDEFINED, **routing.exchanges}:
            try:
                await client.queue_info(qualified(vhost, name))
            except NoSuchQueue:
                raise NoSuchQueue(f"there is no exchange and no queue {name!r}", queue=name) from None
        return found

    found = session_of(context).run(look)
    found.sort(key=lambda each: (each.source, each.to_exchange, each.destination, each.key, repr(each.arguments)))
    emit(as_json, found, bindings_view(found))


def bindings_view(found: Sequence[Binding]) -> View:
    """One row per binding. Pure."""
    rows = [
        (
            each.source,
            "exchange" if each.to_exchange else "queue",
            each.destination,
            each.key or NOTHING,
            " ".join(f"{name}={value!r}" for name, value in sorted(each.arguments.items())) or NOTHING,
        )
        for each in found
    ]
    return table("", ("from", "to", "destination", "key", "arguments"), rows)


@watchable
def vhosts(context: typer.Context, as_json: AsJson = False) -> None:
    """List the virtual hosts, with how many exchanges, bindings and queues were declared in each.

    Example: mqtool vhosts
    """
    found = session_of(context).run(lambda client: client.admin.topology.virtual_hosts())
    emit(as_json, found, vhosts_view(found))


def vhosts_view(found: Sequence[VirtualHostInfo]) -> View:
    """One row per virtual host. Pure."""
    rows = [(each.name, str(each.exchanges), str(each.bindings), str(each.queues), str(each.version)) for each in found]
    numbers = ("exchanges", "bindings", "queues", "version")
    return table("", ("virtual host", *numbers), rows, numbers=numbers)


def vhost_add(context: typer.Context, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Make a virtual host, which has names of its own. Nothing happens when it exists.

    Example: mqtool vhost-add shop
    """
    session_of(context).run(lambda client: client.admin.topology.add_virtual_host(name))
    typer.echo(f"virtual host {name} is there")


def vhost_delete(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Its name.")], if_exists: IfExists = False
) -> None:
    """Delete a virtual host with its exchanges, bindings and permissions. An error while it has queues.

    Example: mqtool vhost-delete shop
    """
    session_of(context).remove(
        lambda client: client.admin.topology.delete_virtual_host(name), f"virtual host {name}", if_exists=if_exists
    )
    typer.echo(f"virtual host {name} is gone")
