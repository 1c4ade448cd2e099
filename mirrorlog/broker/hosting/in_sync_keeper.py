"""Brings to the cluster what a master wishes for its in-sync set, and back what came of it; and tells how far the
copies are that it fills.

What may be wished, and who is waited for meanwhile, is `ha.mastership`'s and `ha.in_sync`'s to say. Of a log in which
nothing goes on nothing is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mirrorlog.broker.log.progress import Milestones
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.state.commands import Command, Holder, InSyncGrown, InSyncShrunk, Seen
from mirrorlog.cluster.state.events import Event, line_of
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.ha.in_sync import Grow, Wish
from mirrorlog.ha.mastership import Mastership

logger = logging.getLogger(__name__)


class InSyncKeeper:
    """The in-sync set of one mastership. `tick` from time to time; `stop` when the mastership ends."""

    def __init__(
        self,
        log_id: str,
        epoch: int,
        mastership: Mastership,
        cluster: ClusterView,
        progressed: Callable[[Iterable[Answer]], None],
        *,
        tell: Callable[[Event], None],
    ) -> None:
        """`progressed`: is given the waits that a wish's end has answered, or that of a copy's catching up; `tell`: the
        node's chronicle."""
        self._log_id = log_id
        self._epoch = epoch
        self._mastership = mastership
        self._cluster = cluster
        self._progressed = progressed
        self._asking: asyncio.Task[None] | None = None
        self._fills = MirrorFills(mastership.name)
        self._tell = tell

    def tick(self, now: float) -> None:
        """`now`: the loop's clock in s."""
        if self._mastership.at_rest:
            return
        if self._asking is None and (wish := self._mastership.wish(now)) is not None:
            self._asking = asyncio.ensure_future(self._ask(wish))
        self._catch_up(now)
        self._tell_fills(now)

    def stop(self) -> None:
        """Nothing is wished any more; what is under way may still be decided, by its version for this epoch alone."""
        if self._asking is not None:
            self._asking.cancel()

    def left_open(self) -> list[Event]:
        """The ends of what was told to go on and ends with this mastership. Who is in sync by now the cluster says: a
        mirror that came to be may be what ends it, and this one has not heard of that."""
        facts = self._cluster.log_facts(self._log_id)
        members = frozenset(facts.in_sync) if facts is not None else self._mastership.in_sync
        return self._fills.ended(self._end(), members=members)

    def _end(self) -> int:
        return self._mastership.progress.held(self._mastership.own).written

    def _catch_up(self, now: float) -> None:
        before, answers = self._mastership.awaited, self._mastership.catch_up(now)
        awaited = self._mastership.awaited
        if awaited == before:
            return
        self._progressed(answers)
        event, copy = ("mirror_catching_up", awaited) if awaited is not None else ("mirror_caught_up_in_vain", before)
        assert copy is not None
        logger.info("%s log=%s node=%s run=%s", event, self._log_id, copy.node, copy.start_id)

    def _tell_fills(self, now: float) -> None:
        mastership = self._mastership
        told = self._fills.look(now, end=self._end(), reached=mastership.filling, members=mastership.in_sync)
        for event in told:
            logger.info("%s", line_of(event))
            self._tell(event)

    async def _ask(self, wish: Wish) -> None:
        try:
            outcome = await self._cluster.decide_once(self._command(wish))
        except MirrorlogError as error:
            logger.info("in_sync_unknown log=%s wish=%s reason=%r", self._log_id, wish, str(error))
            self._mastership.wish_unknown(wish)
        else:
            logger.info("in_sync_asked log=%s wish=%s refusal=%r", self._log_id, wish, outcome.refusal)
            self._progressed(self._mastership.wish_ended(wish, refused=bool(outcome.refusal)))
        finally:
            self._asking = None

    def _command(self, wish: Wish) -> Command:
        seen = Seen(self._epoch, wish.version)
        if isinstance(wish, Grow):
            return InSyncGrown(log_id=self._log_id, seen=seen, holder=Holder(wish.node, wish.start_id))
        return InSyncShrunk(log_id=self._log_id, seen=seen, nodes=wish.nodes)


class MirrorFills:
    """The copies of one log that are being filled, as its master sees them, and what there is to tell of them. What
    lacks less than FILL_BYTES_MIN when it is first looked at is there before anybody has read of it."""

    FILL_BYTES_MIN: Final = 1024 * 1024

    def __init__(self, log: str) -> None:
        self._log = log
        # From where on, how far, and what of it was told.
        self._filled: dict[str, tuple[int, int, Milestones]] = {}

    def look(self, now: float, *, end: int, reached: Mapping[str, int], members: frozenset[str]) -> list[Event]:
        """`end`: the log's; `reached`: how far each copy is that follows and is no member; `members`: those in sync."""
        gone = self._filled.keys() - reached.keys()
        found = [self._ended(node, end, members, "it does not follow any more") for node in sorted(gone)]
        for node, at in sorted(reached.items()):
            lacks = end - at
            if node not in self._filled:
                if lacks >= self.FILL_BYTES_MIN:
                    self._filled[node] = at, at, Milestones(now)
                    facts = {"offset": at, "left_bytes": lacks}
                    found.append(
                        self._event("mirror_sync_begun", node, f"gets {lacks} bytes from offset {at} on", facts)
                    )
                continue
            begun, _, milestones = self._filled[node]
            self._filled[node] = begun, at, milestones
            percent = 100 * (at - begun) // max(1, end - begun)
            if milestones.due(percent, now):
                facts = {"percent": percent, "bytes": at - begun, "left_bytes": lacks}
                told = f"has {percent} % of what it lacked, {lacks} bytes are left"
                found.append(self._event("mirror_sync_progressed", node, told, facts))
        return found

    def ended(self, end: int, *, members: frozenset[str]) -> list[Event]:
        """Nobody is filled from here any more."""
        why = "this node masters the log no more"
        return [self._ended(node, end, members, why) for node in sorted(self._filled)]

    def _ended(self, node: str, end: int, members: frozenset[str], why_not: str) -> Event:
        begun, came_to, _ = self._filled.pop(node)
        whole = node in members
        facts = {"bytes": (end if whole else came_to) - begun, "in_sync": whole}
        return self._event(
            "mirror_sync_ended", node, f"is filled no more: {'it is in sync' if whole else why_not}", facts
        )

    def _event(self, kind: str, node: str, told: str, facts: Mapping[str, object]) -> Event:
        text = f"log {self._log}: the mirror on {node} {told}"
        return Event(kind=kind, text=text, node=node, log=self._log, details=facts)
