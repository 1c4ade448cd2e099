"""Policies of the management API, and those of operators: listed, set, cleared; and as definitions have them.

What is wrong with one is told as RabbitMQ tells it, `Validation failed` and lines below it, but all of it at once. In
definitions a policy of an operator is a parameter of the component `operator_policy`, as RabbitMQ writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorlog.client import Client
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Page, Routes, written
from mirrorlog.doors.management.shapes import ApiError, Row, bad_request, columns, not_found, require
from mirrorlog.errors import BadRequest
from mirrorlog.wire.policies import Policy, PolicyRow, wrong_apply_to

COMPONENT: Final = "operator_policy"
"""Of the parameter that is an operator's policy."""
DEFAULT_PRIORITY: Final = 0
_OPTIONAL: Final = ("apply-to", "priority")


# --- Rows -----------------------------------------------------------------------------------------------------------


def policy_row(row: PolicyRow) -> Row:
    """`mirrorlog_reason`: why it cannot be met now, if it cannot."""
    found: Row = {"vhost": row.virtual_host, "name": row.name, **row.policy.value}
    return found | ({"mirrorlog_reason": row.reason} if row.reason else {})


def policy_of(body: Mapping[str, Any]) -> Policy:
    """What a body says; whether it makes sense the node decides. Raises ApiError."""
    require(body, "pattern", "definition")
    pattern, definition = body["pattern"], body["definition"]
    given = {name: body[name] for name in _OPTIONAL if body.get(name) is not None}
    apply_to, priority = given.get("apply-to", "all"), given.get("priority", DEFAULT_PRIORITY)
    wrong = []
    if not isinstance(pattern, str):
        wrong.append(f"pattern should be a binary but was {pattern!r:.80}")
    if not isinstance(definition, dict):
        wrong.append(f"definition should be an object, actually was {definition!r:.80}")
    if reason := wrong_apply_to(apply_to):
        wrong.append(reason)
    if isinstance(priority, bool) or not isinstance(priority, int):
        wrong.append(f"priority should be a whole number, actually was {priority!r:.80}")
    if wrong:
        raise _invalid(wrong)
    return Policy(pattern=pattern, definition=definition, apply_to=apply_to, priority=priority)


def _invalid(wrong: Sequence[str]) -> ApiError:
    return bad_request("Validation failed\n\n" + "\n".join(wrong) + "\n")


async def set_policy(client: Client, vhost: str, name: str, policy: Policy, *, operator: bool) -> None:
    """Raises ApiError naming all that is wrong with it, MirrorlogError."""
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
        raise _invalid([str(each) for each in wrong]) from None


async def all_policies(client: Client, *, operator: bool) -> list[PolicyRow]:
    """By virtual host and name."""
    found = [each for each in (await client.admin.topology.policies()).policies if each.operator == operator]
    return sorted(found, key=lambda row: (row.virtual_host, row.name))


# --- Pages ----------------------------------------------------------------------------------------------------------


def _pages(path: str, *, operator: bool) -> dict[str, dict[str, Page]]:
    """Of the one sort or the other."""

    async def all_(call: Call) -> ApiAnswer:
        vhosts = await call.vhosts()
        rows = await all_policies(call.client, operator=operator)
        return call.listed([policy_row(row) for row in rows if row.virtual_host in vhosts])

    async def found(call: Call) -> PolicyRow | None:
        rows = await all_policies(call.client, operator=operator)
        sought = call.vhost, call.names["name"]
        return next((row for row in rows if (row.virtual_host, row.name) == sought), None)

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


ROUTES: Final[Routes] = {
    **_pages("policies", operator=False),
    **_pages("operator-policies", operator=True),
}
