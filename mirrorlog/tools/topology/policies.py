"""`mqtool set-policy`, `list-policies`, …; and `list-queues`, which shows by RabbitMQ's names what they have led to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from mirrorlog.diagnosis.cells import NOTHING
from mirrorlog.diagnosis.cluster_status import AllStatuses, gather, logs_in, newest_view
from mirrorlog.diagnosis.facts import told_queues
from mirrorlog.diagnosis.places import why_queue_unmet, with_reasons
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.tools.common.options import AsJson, IfExists, OnlyVirtualHost, VirtualHost
from mirrorlog.tools.common.output import cell_text, emit, emit_with_outages, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.queues import Metadata, QueueInfo
from mirrorlog.wire.messages.status import QueueCounts, QueueStatus
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, split
from mirrorlog.wire.policies import APPLY_TO, ApplyTo, PolicyRow, wrong_apply_to

if TYPE_CHECKING:
    from mirrorlog.client import Client


# --- Policies ---------------------------------------------------------------------------------------------------------

PolicyName = Annotated[str, typer.Argument(help="The policy's name.")]
Pattern = Annotated[str, typer.Argument(help="A regular expression, searched for in names of queues and exchanges.")]
Definition = Annotated[str, typer.Argument(help='JSON: {"ha-mode": "exactly", "ha-params": 2}.')]
Priority = Annotated[int, typer.Option("--priority", help="Of several the highest counts.")]


def set_policy(
    context: typer.Context,
    name: PolicyName,
    pattern: Pattern,
    definition: Definition,
    *,
    priority: Priority = 0,
    apply_to: Annotated[str, typer.Option("--apply-to", help="queues, exchanges or all.")] = "all",
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Set a policy: what holds for the queues and exchanges whose names fit a pattern, those that come later too.

    It holds at once; what has to move for it begins to, and is shown by rebalance --watch. Of several policies that
    fit a name the one with the highest priority counts, of equals the first by name. docs/use/policies.md has the keys.

    Example: mqtool set-policy --priority 1 --apply-to queues ha-two '^orders' '{"ha-mode": "exactly", "ha-params": 2}'
    """
    _set_policy(context, name, pattern, definition, priority=priority, apply_to=apply_to, operator=False, vhost=vhost)


def set_operator_policy(
    context: typer.Context,
    name: PolicyName,
    pattern: Pattern,
    definition: Definition,
    *,
    priority: Priority = 0,
    apply_to: Annotated[str, typer.Option("--apply-to", help="queues.")] = "queues",
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Set an operator's policy, which caps what arguments and other policies say. Needs the tag administrator.

    Example: mqtool set-operator-policy short '.*' '{"max-length": 1000000}'
    """
    _set_policy(context, name, pattern, definition, priority=priority, apply_to=apply_to, operator=True, vhost=vhost)


def clear_policy(
    context: typer.Context,
    name: PolicyName,
    if_exists: IfExists = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take a policy away; queues and exchanges are then as the next one says, or as they were declared.

    Exit code 5 when there is none of that name.

    Example: mqtool clear-policy ha-two
    """
    _clear_policy(context, name, operator=False, vhost=vhost, if_exists=if_exists)


def clear_operator_policy(
    context: typer.Context,
    name: PolicyName,
    if_exists: IfExists = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take an operator's policy away. Exit code 5 when there is none of that name.

    Example: mqtool clear-operator-policy short
    """
    _clear_policy(context, name, operator=True, vhost=vhost, if_exists=if_exists)


@watchable
def list_policies(context: typer.Context, vhost: OnlyVirtualHost = None, as_json: AsJson = False) -> None:
    """List the policies with the number of queues that each is the one of, what ties with it, and why one cannot be
    met.

    Example: mqtool list-policies --json
    """
    _list_policies(context, vhost, operator=False, as_json=as_json)


@watchable
def list_operator_policies(context: typer.Context, vhost: OnlyVirtualHost = None, as_json: AsJson = False) -> None:
    """List the policies of operators.

    Example: mqtool list-operator-policies
    """
    _list_policies(context, vhost, operator=True, as_json=as_json)


def policies_view(rows: Sequence[PolicyRow]) -> View:
    """One row per policy. Pure."""
    cells = [
        (
            row.virtual_host,
            row.name,
            row.policy.pattern,
            row.policy.apply_to,
            json.dumps(row.policy.definition),
            str(row.policy.priority),
            str(row.queues),
            _remark(row),
        )
        for row in rows
    ]
    columns = ("vhost", "name", "pattern", "apply-to", "definition", "priority", "queues", "remark")
    return table("", columns, cells, numbers=("priority", "queues"))


def _remark(row: PolicyRow) -> str:
    tied = f"before {', '.join(row.ties)} by name" if row.ties else ""
    return "; ".join(filter(None, (row.reason, tied))) or NOTHING


def _set_policy(
    context: typer.Context,
    name: str,
    pattern: str,
    text: str,
    *,
    priority: int,
    apply_to: str,
    operator: bool,
    vhost: str,
) -> None:
    definition, applied = _definition(text), _applied(apply_to)
    session_of(context).run(
        lambda client: client.admin.topology.set_policy(
            name, pattern, definition, priority=priority, apply_to=applied, operator=operator, virtual_host=vhost
        )
    )
    typer.echo(f"policy {name} for pattern {pattern!r} is set, with priority {priority}, in virtual host {vhost}")


def _definition(text: str) -> Mapping[str, Any]:
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"the definition is no JSON: {error}") from None
    if not isinstance(definition, dict):
        raise BadRequest('the definition must be a JSON object, as {"ha-mode": "all"}')
    return definition


def _applied(text: str) -> ApplyTo:
    for each in APPLY_TO:
        if each == text:
            return each  # type: ignore[no-any-return]
    raise BadRequest(wrong_apply_to(text))


def _clear_policy(context: typer.Context, name: str, *, operator: bool, vhost: str, if_exists: bool) -> None:
    session_of(context).remove(
        lambda client: client.admin.topology.clear_policy(name, operator=operator, virtual_host=vhost),
        f"policy {name}",
        if_exists=if_exists,
    )
    typer.echo(f"policy {name} is gone from virtual host {vhost}")


def _list_policies(context: typer.Context, vhost: str | None, *, operator: bool, as_json: bool) -> None:
    found = session_of(context).run(_policies_seen, vhost=vhost)
    rows = [row for row in found if row.operator == operator and vhost in (None, row.virtual_host)]
    fields = [_policy_fields(row) for row in rows]
    emit(as_json, fields, policies_view(rows))


async def _policies_seen(client: Client) -> list[PolicyRow]:
    """With why each cannot be met now, as far as whoever asks may see how the cluster is."""
    rows = (await client.admin.topology.policies()).policies
    try:
        return with_reasons(rows, (await client.admin.status()).cluster)
    except MirrorlogError:
        return rows


def _policy_fields(row: PolicyRow) -> dict[str, Any]:
    """As RabbitMQ's API has them, and what is ours behind. Pure."""
    return {
        "vhost": row.virtual_host,
        "name": row.name,
        **row.policy.value,
        "queues": row.queues,
        "ties": row.ties,
        "reason": row.reason,
    }


# --- Queues, by RabbitMQ's columns ------------------------------------------------------------------------------------


class ListedQueue(NamedTuple):
    """`copies_in_sync`: nodes; `told`: by the master of its log; None while that says nothing; `unmet`: why what its
    arguments and policies ask for cannot be had now, empty when it can."""

    info: QueueInfo
    copies_in_sync: list[str]
    told: QueueStatus | None
    unmet: str


def _sum(queue: ListedQueue, *names: str) -> int | None:
    counts: list[int] = [getattr(queue.told, name, -1) for name in names]
    return None if min(counts) < 0 else sum(counts)  # -1: nobody tells


def _counted(queue: ListedQueue, name: str) -> float | None:
    if queue.told is None:
        return None
    return getattr(queue.told.counts or QueueCounts(), name)  # type: ignore[no-any-return]  # a number


def _in_sync(queue: ListedQueue) -> list[str]:
    return [node for node in queue.info.mirrors if node in queue.copies_in_sync]


COLUMNS: Final[Mapping[str, Callable[[ListedQueue], Any]]] = {
    "name": lambda queue: split(queue.info.name)[1],
    "vhost": lambda queue: split(queue.info.name)[0],
    "type": lambda queue: "classic",
    "durable": lambda queue: queue.info.arguments.get("durable", True),
    "auto_delete": lambda queue: queue.info.arguments.get("auto-delete", False),
    "exclusive": lambda queue: queue.info.arguments.get("exclusive", False),
    "arguments": lambda queue: queue.info.arguments,
    "policy": lambda queue: queue.info.policy,
    "operator_policy": lambda queue: queue.info.operator_policy,
    "effective_policy_definition": lambda queue: queue.info.by_policies,
    "state": lambda queue: "down" if queue.info.reason or not queue.info.master else "running",
    "reason": lambda queue: queue.info.reason,
    "mirrorlog_reason": lambda queue: queue.unmet,
    **dict.fromkeys(("pid", "leader", "master"), lambda queue: queue.info.master),
    **dict.fromkeys(("slave_pids", "mirrors"), lambda queue: queue.info.mirrors),
    **dict.fromkeys(("synchronised_slave_pids", "in_sync"), _in_sync),
    "members": lambda queue: [queue.info.master, *queue.info.mirrors],
    "messages": lambda queue: _sum(queue, "ready", "unacknowledged"),
    "messages_ready": lambda queue: _sum(queue, "ready"),
    "messages_unacknowledged": lambda queue: _sum(queue, "unacknowledged"),
    "consumers": lambda queue: _sum(queue, "consumers"),
    "messages_delayed": lambda queue: _sum(queue, "delayed"),
    "oldest_age_ms": lambda queue: _sum(queue, "oldest_age_ms"),
    "messages_dead_lettered": lambda queue: _counted(queue, "dead_lettered"),
    "publish_rate": lambda queue: _counted(queue, "publish_rate"),
    "ack_rate": lambda queue: _counted(queue, "ack_rate"),
    "first": lambda queue: queue.info.begin,
    "next": lambda queue: queue.info.next,
    "log": lambda queue: queue.info.log_id,
}
"""Those of RabbitMQ's that mean something here, by its names, and ours: nodes where it has processes."""


@watchable
def list_queues(
    context: typer.Context,
    columns: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(COLUMNS)}.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List queues by any columns, under RabbitMQ's names of them; name and messages by default.

    Queues of which no node can tell come last, with the reason.

    Example: mqtool list-queues name policy pid slave_pids synchronised_slave_pids state
    """
    wanted = columns or ["name", "messages"]
    if unknown := [each for each in wanted if each not in COLUMNS]:
        raise BadRequest(f"info keys {', '.join(unknown)} are not supported; there are {', '.join(COLUMNS)}")

    async def ask(client: Client) -> tuple[Metadata, AllStatuses]:
        metadata = await client.admin.metadata()
        return metadata, await gather(client, metadata)

    metadata, statuses = session_of(context).run(ask, vhost=vhost)
    facts = [each for each in queue_facts(metadata, statuses) if vhost in (None, split(each.info.name)[0])]
    rows = [{column: COLUMNS[column](queue) for column in wanted} for queue in facts]
    cells = [[cell_text(row[column]) for column in wanted] for row in rows]
    outages = [each for each in metadata.outages if vhost in (None, split(each.name)[0])]
    emit_with_outages(as_json, rows, table("", wanted, cells), outages)


def queue_facts(metadata: Metadata, statuses: AllStatuses) -> list[ListedQueue]:
    """By name. Pure."""
    view = newest_view(statuses.nodes)
    logs = logs_in(view)
    told = told_queues(statuses)
    return [
        ListedQueue(
            info,
            log.in_sync if (log := logs.get(info.log_id)) is not None else [],
            told.get((info.log_id, info.name)),
            why_queue_unmet(info, view, log),
        )
        for info in sorted(metadata.queues, key=lambda info: info.name)
    ]
