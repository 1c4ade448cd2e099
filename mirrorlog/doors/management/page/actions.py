"""What the page's forms do: each is a call of the management API or of `Admin`, with the rights of who sends it.

What came of it is said in a line. A form's values are texts; what they shall be is said here, and what is none is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mirrorlog.diagnosis.places import altered_text, stays_text, sync_text
from mirrorlog.doors.management import messages, queues
from mirrorlog.doors.management.calls import ApiAnswer, Call, Page
from mirrorlog.doors.management.shapes import bad_request
from mirrorlog.wire.messages.queues import QueueSync


class Form:
    """A form as it was sent."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str:
        """Empty when it is not there."""
        found = self._fields.get(name)
        return found[-1] if found else ""

    def all(self, name: str) -> list[str]:
        return list(self._fields.get(name, ()))


@dataclass(frozen=True, slots=True)
class Action:
    """`act`: what it does, in words when that is done; raises ApiError, MirrorlogError. `back`: the page to which it
    leads, with the fields that it `keeps`."""

    act: Callable[[Call, Form], Awaitable[str]]
    back: str = "queue"
    keeps: tuple[str, ...] = ("vhost", "name")


async def _api(page: Page, call: Call, body: Mapping[str, Any], **names: str) -> ApiAnswer:
    return await page(replace(call, names={**call.names, **names}, body=body))


async def _sync(call: Call, form: Form) -> str:
    return _sync_words(await call.client.admin.sync_queue(call.queue))


async def _cancel_sync(call: Call, form: Form) -> str:
    return _sync_words(await call.client.admin.cancel_sync_queue(call.queue))


def _sync_words(found: QueueSync) -> str:
    return sync_text(found)


async def _purge(call: Call, form: Form) -> str:
    _check_sure(form)
    records = await call.client.admin.purge(call.queue)
    return f"{records} ready records are settled"


async def _delete(call: Call, form: Form) -> str:
    _check_sure(form)
    query = {flag: "true" for flag in ("if-empty", "if-unused") if form.one(flag)}
    await queues.ROUTES["queues/:vhost/:queue"]["DELETE"](replace(call, query=query))
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
    answer = await _api(
        messages.ROUTES["exchanges/:vhost/:exchange/publish"]["POST"], call, body, exchange=messages.DEFAULT_EXCHANGE
    )
    return "published, and confirmed" if answer.body["routed"] else "it led to no queue: nothing was published"


ACTIONS: Final[Mapping[str, Action]] = {
    "sync": Action(_sync),
    "cancel-sync": Action(_cancel_sync),
    "move": Action(_move),
    "cancel-move": Action(_cancel_move),
    "purge": Action(_purge),
    "delete": Action(_delete, "queues", ()),
    "publish": Action(_publish),
}
"""By the word that a form's button has."""
