"""What a transaction settles: taken out of its subscriptions' hands when it is committed, and given back when it does
not count. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirrorlog.client.in_hand import Granted
from mirrorlog.client.ranges import Range, joined
from mirrorlog.client.settlements import FINAL
from mirrorlog.client.subscription import Subscription
from mirrorlog.errors import NotGranted
from mirrorlog.wire.frames import How


@dataclass(slots=True, eq=False)
class Taken:
    """What is settled, in one way, of a subscription's grants of one session. By what it is, it keeps back its records
    while it is under way."""

    subscription: Subscription
    session: int
    epoch: int
    how: How = How.ACK
    delay_ms: int = 0
    parts: list[tuple[Granted, int, int]] = field(default_factory=list)

    @property
    def ranges(self) -> list[Range]:
        return joined((first, following) for _, first, following in self.parts)


def settle(taken: Sequence[Taken]) -> None:
    """Nobody else settles them meanwhile, and nothing of what ends is given out again. Raises NotGranted, and nothing
    has changed then."""
    done: list[Taken] = []
    marked: list[tuple[Subscription, Granted, int, int]] = []
    try:
        for each in taken:
            for granted, first, following in each.parts:
                each.subscription.hand.settle(granted, first, following)
                marked.append((each.subscription, granted, first, following))
            if each.how in FINAL:
                each.subscription.hand.withhold(each, each.ranges)
            done.append(each)
    except NotGranted:
        for each in done:
            if each.subscription.hand.release(each, settled=False):
                each.subscription.wake()
        for subscription, granted, first, following in marked:
            subscription.hand.reopen(granted, first, following)
        raise


def release(taken: Sequence[Taken], *, settled: bool) -> None:
    """The commit has ended; whether it counts."""
    for each in taken:
        if not settled:
            for part in each.parts:
                each.subscription.hand.reopen(*part)
        if each.subscription.hand.release(each, settled=settled):
            each.subscription.wake()
