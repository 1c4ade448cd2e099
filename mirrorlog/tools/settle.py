"""`mqtool settle`: say what became of leased records, by their receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.errors import BadInput
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client

_ACK: Final = "ack"
_NACK: Final = "return"
_RELEASE: Final = "release"
_REJECT: Final = "reject"
_DONE: Final = {
    _ACK: "acknowledged",
    _NACK: "given back",
    _RELEASE: "given back as if nobody had seen it",
    _REJECT: "declared dead",
}
_UNCHANGED: Final = "was settled or given back before; nothing changed"


def settle(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    receipts: Annotated[list[str], typer.Argument(help="As `mqtool lease` printed them.")],
    *,
    ack: Annotated[bool, typer.Option("--ack", help="They are done; so it is without an option, too.")] = False,
    nack: Annotated[bool, typer.Option("--nack", help="Give them back, counted.")] = False,
    release: Annotated[bool, typer.Option("--release", help="Give them back as if nobody had seen them.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Declare them dead.")] = False,
    delay_ms: Annotated[
        int, typer.Option("--delay-ms", min=0, metavar="MS", help="With --nack, --release: before they may come again.")
    ] = 0,
    group: Annotated[str, typer.Option("--group", help="Of the lease; by default the queue's own.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per receipt.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Settle leased records by their receipts, one after the other; each is confirmed by all copies.

    A receipt whose lease is over still acknowledges its record as long as nobody else has got it (else RECEIPT_STALE),
    and gives nothing back. Each is told as it is done: at an error those that were told of are settled.

    Example: mqtool settle flights 17-3-5d41402a --nack --delay-ms 5000
    """
    how = _how(ack=ack, nack=nack, release=release, reject=reject)
    if delay_ms and how not in (_NACK, _RELEASE):
        raise BadInput("--delay-ms is for what --nack or --release gives back")
    key = qualified(vhost, queue)

    async def settle_each(client: Client) -> None:
        for receipt in receipts:
            changed = await client.settle_receipt(key, receipt, group=group, how=how, delay_ms=delay_ms)
            # At once: whoever meets an error at the next one knows how far it came.
            if as_json:
                print_json_line({"receipt": receipt, "settled": changed})
            else:
                typer.echo(f"{receipt} {_DONE[how] if changed else _UNCHANGED}")

    session_of(context).run(settle_each)


def _how(**asked: bool) -> str:
    words = {"ack": _ACK, "nack": _NACK, "release": _RELEASE, "reject": _REJECT}
    chosen = [words[name] for name, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise BadInput("--ack, --nack, --release and --reject exclude each other")
    return chosen[0] if chosen else _ACK
