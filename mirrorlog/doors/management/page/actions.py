"""What the page's forms do: each is a call of the management API or of `Admin`, with the rights of who sends it.

What came of it is said in a line. A form's values are texts; what they shall be is said here, and what is none is told.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mirrorlog.diagnosis.places import altered_text, stays_text, sync_text
from mirrorlog.doors.management.api import ROUTES
from mirrorlog.doors.management.calls import ApiAnswer, Call, Page
from mirrorlog.doors.management.messages import DEFAULT_EXCHANGE
from mirrorlog.doors.management.page.policy_form import body_of
from mirrorlog.doors.management.shapes import bad_request

_PLACE: Final = re.compile(r"[0-9]{1,18}")


class Form:
    """A form as it was sent."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """Empty when it is not there."""
        found = self._fields.get(name)
        return found[-1] if found else ""

    @property
    def pairs(self) -> dict[str, str]:
        """All of it that is not empty."""
        return {name: found[-1] for name, found in self._fields.items() if found[-1]}

    def all(self, name: str) -> list[str]:
        return list(self._fields.get(name, ()))


@dataclass(frozen=True, slots=True)
class Action:
    """`act`: what it does, in words when that is done; raises ApiError, MirrorlogError. `back`: the page to which it
    leads, with the fields that it `keeps`; `mends`: whether all are handed back to it when they are refused."""

    act: Callable[[Call, Form], Awaitable[str]]
    back: str = "queue"
    keeps: tuple[str, ...] = ("vhost", "name")
    mends: bool = False


async def _api(page: Page, call: Call, body: Mapping[str, Any], **names: str) -> ApiAnswer:
    return await page(replace(call, names={**call.names, **names}, body=body))


async def _sync(call: Call, form: Form) -> str:
    return sync_text(await call.client.admin.sync_queue(call.queue))


async def _cancel_sync(call: Call, form: Form) -> str:
    return sync_text(await call.client.admin.cancel_sync_queue(call.queue))


async def _purge(call: Call, form: Form) -> str:
    _check_sure(form)
    records = await call.client.admin.purge(call.queue)
    return f"{records} ready records are settled"


async def _delete(call: Call, form: Form) -> str:
    _check_sure(form)
    query = {flag: "true" for flag in ("if-empty", "if-unused") if form.one(flag)}
    await ROUTES["queues/:vhost/:queue"]["DELETE"](replace(call, query=query))
    return f"queue {form.one('name')} is deleted"


def _check_sure(form: Form) -> None:
    """Raises ApiError."""
    if form.one("sure") != "yes":
        raise bad_request("nothing was done: say that you are sure")


def placing_of(form: Callable[[str], str]) -> dict[str, Any]:
    """Where a queue shall be, as `alter` takes it; `form`: the value of a field. Raises ApiError. Pure."""
    asked: dict[str, Any] = {}
    if words := form("copies").strip():
        if words != "all" and not (words.isascii() and words.isdigit() and len(words) < 10):
            raise bad_request(f"copies {words[:40]!r} is no number, nor all")
        asked["copies"] = words if words == "all" else int(words)
    if words := form("nodes").strip():
        asked["nodes"] = [node.strip() for node in words.split(",") if node.strip()]
    if not asked:
        raise bad_request("say how many copies, or on which nodes")
    return asked


async def _move(call: Call, form: Form) -> str:
    asked, sync = placing_of(form.one), form.one("sync") == "yes"
    return altered_text(await call.client.admin.alter(call.queue, asked, sync=sync), sync=sync)


async def _cancel_move(call: Call, form: Form) -> str:
    return stays_text(await call.client.admin.cancel_move(call.queue))


async def _publish(call: Call, form: Form) -> str:
    # As a browser sends the ends of lines, nobody has typed them.
    payload = form.one("payload").replace("\r\n", "\n")
    body = {"routing_key": form.one("name"), "payload": payload, "payload_encoding": form.one("encoding") or "string"}
    answer = await _api(ROUTES["exchanges/:vhost/:exchange/publish"]["POST"], call, body, exchange=DEFAULT_EXCHANGE)
    return "published, and confirmed" if answer.body["routed"] else "it led to no queue: nothing was published"


async def _reset(call: Call, form: Form) -> str:
    """To the places that the dry run has shown."""
    groups, places = form.all("group"), form.all("offset")
    if not groups or len(groups) != len(places) or not all(map(_PLACE.fullmatch, places)):
        raise bad_request("say which groups are to stand where")
    offsets = {group: int(place) for group, place in zip(groups, places, strict=True)}
    force = form.one("force") == "yes"
    found = await call.client.admin.reset_groups(call.queue, groups, offsets=offsets, force=force)
    return "; ".join(f"group {each.group or '(own)'} stands at {each.target.queue_offset}" for each in found.groups)


async def _set_policy(call: Call, form: Form) -> str:
    page = ROUTES[_policies_path(form)]["PUT"]
    await _api(page, call, body_of(form.one), name=form.one("policy"))
    return f"policy {form.one('policy')} is set"


async def _clear_policy(call: Call, form: Form) -> str:
    await _api(ROUTES[_policies_path(form)]["DELETE"], call, {}, name=form.one("policy"))
    return f"policy {form.one('policy')} is cleared"


def _policies_path(form: Form) -> str:
    return f"{'operator-policies' if form.one('operator') == 'yes' else 'policies'}/:vhost/:name"


async def _close_connection(call: Call, form: Form) -> str:
    """The one that the page has shown: another one may have come by the same name."""
    _check_sure(form)
    since = form.one("since")
    if not _PLACE.fullmatch(since):
        raise bad_request("say since when the connection is there")
    await call.client.admin.close_connection(
        form.one("connection"), form.one("reason"), node_id=form.one("at"), since_us=int(since)
    )
    return f"connection {form.one('connection')} is closed; its client may connect again"


async def _pause(call: Call, form: Form) -> str:
    await call.client.admin.pause_moving(True)
    return "no log goes to other nodes until moving is resumed"


async def _resume(call: Call, form: Form) -> str:
    await call.client.admin.pause_moving(False)
    return "moving goes on"


async def _rebalance(call: Call, form: Form) -> str:
    moves = (await call.client.admin.rebalance()).moves
    going = [each.name for each in moves if not each.reason]
    stay = [f"{each.name} stays: {each.reason}" for each in moves if each.reason]
    said = f"handed over to their homes: {', '.join(going)}" if going else "every log that can be is at its home"
    return "; ".join([said, *stay])


ACTIONS: Final[Mapping[str, Action]] = {
    "sync": Action(_sync),
    "cancel-sync": Action(_cancel_sync),
    "move": Action(_move),
    "cancel-move": Action(_cancel_move),
    "purge": Action(_purge),
    "delete": Action(_delete, "queues", ()),
    "publish": Action(_publish),
    "reset": Action(_reset),
    "set-policy": Action(_set_policy, "policies", (), mends=True),
    "clear-policy": Action(_clear_policy, "policies", ()),
    "close-connection": Action(_close_connection, "connections", ("q", "node")),
    "pause": Action(_pause, "moves", ()),
    "resume": Action(_resume, "moves", ()),
    "rebalance": Action(_rebalance, "moves", ()),
}
"""By the word that a form's button has."""
