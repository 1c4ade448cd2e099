"""Definitions of the management API: all that is declared, written into one document and read from one; policies, and
those of operators: listed, set, cleared; and parameters, of which there are none.

What is passed over of a document, and what means something else here, stands in the answer (`ignored`, `noted`) and in
the door's log. What is refused does not hold up the rest: the answer is 400 and names it when all else is done. What is
wrong with a policy is told as RabbitMQ tells it, `Validation failed` and lines below it, but all of it at once.
"""

from __future__ import annotations

import logging
from typing import Final

from mirrorlog.client.definitions.plan import for_rabbitmq, plan, renamed_nodes
from mirrorlog.client.definitions.rows import Row, policy_of
from mirrorlog.client.definitions.transfer import document_of, set_policy, take_in
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Page, Routes, written
from mirrorlog.doors.management.shapes import bad_request, columns, not_found
from mirrorlog.wire.policies import PolicyRow

logger = logging.getLogger(__name__)

TOLD_MAX: Final = 200
"""What is ignored, or refused, and stands in one answer or line of the log."""


async def _export(call: Call) -> ApiAnswer:
    """Of the virtual host that the path names, or of all; `for=rabbitmq`: as that takes it as a whole."""
    if "vhost" in call.names:
        await call.check_vhost()
    nodes = _nodes(call)
    document = await document_of(call.client, call.names.get("vhost"))
    if (reader := call.query.get("for", "mirrorlog")) not in ("mirrorlog", "rabbitmq"):
        raise bad_request(f"for {reader[:80]!r} should be mirrorlog or rabbitmq")
    if reader == "mirrorlog":
        return ApiAnswer(body=document)
    document, left = for_rabbitmq(document, nodes=nodes)
    if left:
        logger.info("definitions_left_out count=%d what=%r", len(left), "; ".join(left[:TOLD_MAX]))
    return ApiAnswer(body=document)


def _nodes(call: Call) -> dict[str, str]:
    """Raises BadRequest."""
    return renamed_nodes(call.query.get("map-node", "").split(","))


async def _import(call: Call) -> ApiAnswer:
    if "vhost" in call.names:
        await call.check_vhost()
    found = await take_in(call.client, plan(call.body, vhost=call.names.get("vhost"), nodes=_nodes(call)))
    told = {"ignored": found.ignored, "noted": found.noted}
    for kind, words in told.items():
        if words:
            logger.info("definitions_%s count=%d what=%r", kind, len(words), "; ".join(words[:TOLD_MAX]))
    if found.refused:
        refused = "; ".join(found.refused[:TOLD_MAX])
        logger.warning("definitions_refused count=%d what=%r", len(found.refused), refused)
        raise bad_request(f"{len(found.refused)} objects were refused, the others are there: {refused}")
    body = {kind: words[:TOLD_MAX] for kind, words in told.items() if words}
    return ApiAnswer(body=body) if body else NO_CONTENT


# --- Policies -------------------------------------------------------------------------------------------------------


def policy_row(row: PolicyRow) -> Row:
    """`mirrorlog_reason`: why it cannot be met now, if it cannot."""
    found: Row = {"vhost": row.virtual_host, "name": row.name, **row.policy.value}
    return found | ({"mirrorlog_reason": row.reason} if row.reason else {})


def _pages(path: str, *, operator: bool) -> dict[str, dict[str, Page]]:
    """Of the one sort or the other."""

    async def all_(call: Call) -> ApiAnswer:
        vhosts = await call.vhosts()
        rows = [row for row in await call.policies() if row.operator == operator]
        return call.listed([policy_row(row) for row in rows if row.virtual_host in vhosts])

    async def found(call: Call) -> PolicyRow | None:
        sought = call.vhost, call.names["name"], operator
        rows = await call.policies()
        return next((row for row in rows if (row.virtual_host, row.name, row.operator) == sought), None)

    async def one(call: Call) -> ApiAnswer:
        if (row := await found(call)) is None:
            raise not_found()
        return ApiAnswer(body=columns([policy_row(row)], call.query)[0])

    async def set_(call: Call) -> ApiAnswer:
        policy, before = policy_of(call.body), await found(call)
        await set_policy(call.client, call.vhost, call.names["name"], policy, operator=operator)
        return written(before is None)

    async def clear(call: Call) -> ApiAnswer:
        if await found(call) is None:
            raise not_found()
        topology = call.client.admin.topology
        await topology.clear_policy(call.names["name"], operator=operator, virtual_host=call.vhost)
        return NO_CONTENT

    return {
        path: {"GET": all_},
        f"{path}/:vhost": {"GET": all_},
        f"{path}/:vhost/:name": {"GET": one, "PUT": set_, "DELETE": clear},
    }


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
    **_pages("policies", operator=False),
    **_pages("operator-policies", operator=True),
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
