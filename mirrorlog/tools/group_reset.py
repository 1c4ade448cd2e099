"""`mqtool group-reset`: have groups of a queue stand somewhere else."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from mirrorlog.errors import BadInput, NoSuchGroup
from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import GroupMove, GroupsReset
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

_OWN: Final = "(own)"
_STREAM: Final = "stream"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")
_OFFSET: Final = re.compile(r"[0-9]{1,18}")


def group_reset(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="Groups, as `mqtool groups QUEUE` names them; '' or (own) is the queue's own."),
    ] = None,
    *,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, a queue offset, +N or -N records, or a time (ISO 8601).")
    ],
    every: Annotated[bool, typer.Option("--all", help="All groups of the queue, all of them or none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while somebody is at a group; its subscriptions and leases end.")
    ] = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Have groups of a queue read on from somewhere else, and wait until that is confirmed.

    Groups that ack forget what they have settled, returned or leased; of stream groups the position moves. Refused
    while somebody is subscribed, or has something in hand, or was heard of in the last ten seconds, unless forced.

    Example: mqtool group-reset flights billing --to earliest --dry-run
    """
    if every and groups:
        raise BadInput("name the groups that are to be reset, or give --all, not both")
    if not every and not groups:
        raise BadInput("name the groups that are to be reset, or give --all")
    named = None if every else ["" if group == _OWN else group for group in groups or ()]
    target = target_of(to)
    key = qualified(vhost, queue)

    async def reset(client: Client) -> GroupsReset:
        try:
            return await client.admin.reset_groups(key, named, dry_run=dry_run, force=force, **target)
        except NoSuchGroup:
            raise await _no_such_group(client, key, named or []) from None

    found = session_of(context).run(reset)
    if as_json:
        print_json(found)
    else:
        show(reset_view(found, forced=force))


async def _no_such_group(client: Client, queue: str, named: list[str]) -> NoSuchGroup:
    """Says which there are."""
    there = sorted(each.group for each in (await client.admin.groups(queue)).groups)
    missing = ", ".join(repr(group or _OWN) for group in named if group not in there)
    have = ", ".join(group or _OWN for group in there) or "none"
    return NoSuchGroup(f"queue {shown(queue)} has no group {missing}; it has {have}")


def target_of(text: str) -> dict[str, Any]:
    """What `--to` says, as options of `Admin.reset_groups`. Raises BadInput. Pure."""
    if text in ("earliest", "latest"):
        return {"to": text}
    if _SHIFT.fullmatch(text):
        return {"shift": int(text)}
    if _OFFSET.fullmatch(text):
        return {"to": int(text)}
    return {"to": _EPOCH + timedelta(microseconds=parse_time(text))}


def reset_view(found: GroupsReset, *, forced: bool) -> RenderableType:
    """One row per group. Pure."""
    if not found.groups:
        return Text("the queue has no group")
    rows = [
        (
            each.group or _OWN,
            each.kind,
            str(each.source.queue_offset),
            str(each.target.queue_offset),
            f"{each.target.queue_offset - each.source.queue_offset:+d}",
            _note(each, found, forced),
        )
        for each in found.groups
    ]
    numbers = ("from", "to", "by")
    return table("", ("group", "kind", *numbers, ""), rows, numbers=numbers)


def _note(move: GroupMove, found: GroupsReset, forced: bool) -> str:
    who = f": {move.active}" if move.active else ""
    if found.done:
        # A reader is told of nothing: what it stores next is where it stands.
        back = "; it stores its old position again: stop it, and reset once more" if move.kind == _STREAM else ""
        return f"reset by force{who}{back}" if who else "reset"
    if who:
        return f"would be reset by force{who}" if forced else f"would be refused{who}"
    refused = not forced and any(each.active for each in found.groups)
    return "would stay: another one is active" if refused else "would be reset"
