"""`mqtool import-definitions`, `export-definitions`: all that is declared, as a document of RabbitMQ's form."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorlog.errors import BadInput, BadRequest
from mirrorlog.tools.common.options import AsJson, OnlyVirtualHost
from mirrorlog.tools.common.output import emit, print_json
from mirrorlog.tools.common.session import session_of

if TYPE_CHECKING:
    from mirrorlog.client import Client
    from mirrorlog.client.definitions.transfer import Imported

STDIO = "-"
_MAPPED: Final = "What a node that policies name is called where they go; may be repeated."


def import_definitions(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The document; - is stdin.")],
    *,
    map_node: Annotated[list[str] | None, typer.Option(metavar="THEIRS=OURS", help=_MAPPED)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made, and make nothing.")] = False,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """Make what a document of RabbitMQ's has: virtual hosts, policies, exchanges, queues, bindings, users, permissions.

    Queues, exchanges and bindings that are there stay as they are; policies, users and permissions become as the
    document says. Every object and key that means nothing here is named, and what means something else. What is refused
    holds up nothing else; then the exit code is 2, and the same document can be read once more. With --vhost objects
    that name no virtual host go into that one, and those that name another are ignored, and named. Users come last: in
    a cluster that has none, log in (--user) as one of the administrators that the document has.

    Example: mqtool import-definitions rabbit.json --map-node rabbit@a=n1
    """
    from mirrorlog.client.definitions.plan import named, plan, renamed_nodes
    from mirrorlog.client.definitions.transfer import Imported, take_in

    found = plan(_document(file), vhost=vhost, nodes=renamed_nodes(map_node or []))
    if dry_run:
        steps = [named(step) for stage in found.steps for step in stage]
        told = Imported(steps, ignored=found.ignored, noted=found.noted, refused=found.refused)
    else:
        told = session_of(context).run(lambda client: take_in(client, found))
    emit(as_json, {**asdict(told), "dry_run": dry_run}, _lines(told, "would be made" if dry_run else "is there"))
    if told.refused:
        raise BadRequest(f"{len(told.refused)} objects {'make no sense' if dry_run else 'were refused'}, see above")


def _lines(told: Imported, done: str) -> str:
    """Pure."""
    lines = [f"{each}: {done}" for each in told.done]
    for word, found in (("ignored", told.ignored), ("note", told.noted), ("refused", told.refused)):
        lines += [f"{word}: {' '.join(each.split())}" for each in found]
    counts = f"{len(told.ignored)} ignored, {len(told.refused)} refused"
    return "\n".join([*lines, f"{len(told.done)} objects: {done}; {counts}"])


def _document(file: str) -> dict[str, Any]:
    """Raises BadInput."""
    try:
        text = sys.stdin.read() if file == STDIO else Path(file).read_text()
        document = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{file} has no definitions: it should be a JSON object")
    return document


def export_definitions(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to; - is stdout.", show_default=False)] = STDIO,
    *,
    for_rabbitmq: Annotated[
        bool, typer.Option("--for-rabbitmq", help="Without what RabbitMQ refuses; what is left out is told.")
    ] = False,
    map_node: Annotated[list[str] | None, typer.Option(metavar="OURS=THEIRS", help=_MAPPED)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """Write all that is declared as one JSON document, as RabbitMQ's tools do: to read it here once more, or there.

    Without exclusive queues, records and hashes of passwords. While nobody can tell how some queue was declared, for
    its nodes are down, nothing is written: the exit code is 3, try again. RabbitMQ refuses all of a document for one
    key of a policy that it does not know: --for-rabbitmq leaves these out, and users, and says what promotes a mirror.

    Example: mqtool export-definitions cluster.json --for-rabbitmq
    """
    from mirrorlog.client.definitions.plan import for_rabbitmq as theirs
    from mirrorlog.client.definitions.plan import renamed_nodes
    from mirrorlog.client.definitions.transfer import document_of

    nodes = renamed_nodes(map_node or [])
    if nodes and not for_rabbitmq:
        raise BadInput("--map-node is for --for-rabbitmq")

    async def ask(client: Client) -> dict[str, Any]:
        return await document_of(client, vhost)

    left: list[str] = []
    document = session_of(context).run(ask, vhost=vhost)
    if for_rabbitmq:
        document, left = theirs(document, nodes=nodes)
    if file == STDIO:
        print_json(document)
    else:
        _write(file, document)
        emit(as_json, {"file": file, "left_out": left}, f"{_count(document)} objects are in {file}")
    if not as_json or file == STDIO:
        for each in left:
            typer.echo(f"left out: {each}", err=True)


def _write(file: str, document: dict[str, Any]) -> None:
    """Raises BadInput."""
    try:
        Path(file).write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror or error}") from None


def _count(document: dict[str, Any]) -> int:
    """Pure."""
    sections: list[Sequence[Any]] = [each for each in document.values() if isinstance(each, list)]
    return sum(map(len, sections))
