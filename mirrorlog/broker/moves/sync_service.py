"""Sync: what a queue has left in former logs is copied to the one that it is in, on the node that masters that one
(decision 0051). Level-triggered, as `move_service` is: what the cluster wishes is compared with what the log says, and
what policies say of a queue (`ha-sync-mode`) with what the cluster wishes: where it is automatic, the queue has left
something, and nobody has said that no more is to be copied, the master of its log has the cluster wish for it
(decision 0058). So it begins whoever masters the log by then, and whenever the policy came.

Piece by piece, from the border down: the master of the former log gives the newest batches below it, they are appended
as copies, and once all copies have them the log says so (`SpanCopied`). That is all the progress there is: it is cut
with the log, and another master goes on from it. What the former log has lost is a gap here from then on. What was
appended and not said is met again; a batch stands twice then, and the later place counts. Now and then, and at the end,
it is looked up whether all of it is here, and the cluster is told (`RecordsCopied`): readers come here for what is here
from then on, and a former log of which nothing is left frees it.

One piece at a time is on its way or unconfirmed. Nothing of the queue waits for it: it takes and gives records as ever.
What fails is tried again, and says why it waits. What hangs, or ends by an error that nobody expected, begins anew,
less and less often.

Rejected: oldest first (retention frees what was just copied, and what is here has a hole in its middle for as long as
it takes); progress in the cluster's state alone (it would outlive records that a loss of this log takes).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.progress import Milestones
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.moves.background import ToldOnce
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed, publisher_of
from mirrorlog.cluster.requests import AskHeld, AskRecords, HeldTold, RecordsTold
from mirrorlog.cluster.state.commands import QueueSyncWished, RecordsCopied
from mirrorlog.cluster.state.events import Event, line_of
from mirrorlog.cluster.state.placements import Span
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.ha.pace import MovePace
from mirrorlog.queues.arguments import SYNC_MODE
from mirrorlog.queues.changes import SpanCopied, encode_change
from mirrorlog.queues.checkpoint_states import GapsState, encode_checkpoint, encode_state
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.queues import FormerSpan, QueueSync
from mirrorlog.wire.names import shown

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
PIECE_BYTES: Final = 1024 * 1024
PIECE_S: Final = 0.25
"""A piece is what the pace lets through in so long, at most PIECE_BYTES."""
PIECE_BYTES_MIN: Final = 64 * 1024
AT_ONCE: Final = 32
"""Batches of a piece that are appended in one step of the loop: half a millisecond."""
CHECKED_BYTES: Final = 16 * 1024 * 1024
"""Batches of the past whose places are looked at at once."""
TELL_S: Final = 5.0
"""How often the cluster is told how far a copying has come: each time is a decision."""
RETRY_S, RETRY_MAX_S = 0.1, 2.0
AUTOMATIC_LOOK_S: Final = 1.0
"""Between two looks for queues that a policy has copied."""
HANGS_S: Final = 30.0
"""A step that has come to nothing by then, not even to an error, is begun anew."""
RESTART_S, RESTART_MAX_S = 1.0, 600.0
"""How long a sync rests before it begins anew: twice as long each time in a row."""
CANCELLED: Final = "it was cancelled; no policy has it copied until somebody asks for it"
QUEUES_MAX: Final = 2
"""That are copied at once on a node; others wait."""
RATE_S: Final = 10.0
"""Over how long the speed is taken."""


@dataclass(slots=True)
class SyncProgress:
    """Of a queue that is copied here. Records count as queue offsets, bytes as those of their batches, of this
    mastership. `waits`: why it does not get on; empty while it does."""

    records: int = 0
    size: int = 0
    waits: str = ""
    step_until: float = inf
    """By then (s, the loop's clock) the step that is under way has come to something, or it hangs."""
    restarts: int = 0
    """In a row."""
    again_at: float = 0.0
    """It does not begin before."""
    steps: deque[tuple[float, int]] = field(default_factory=deque)
    """(when, bytes so far), s of the loop's clock."""
    whole: int = 0
    """Records that there were to copy when this began."""
    milestones: Milestones | None = None

    def copied(self, now: float, records: int, size: int) -> None:
        """So much more."""
        self.restarts = 0
        self.records += records
        self.size += size
        self.steps.append((now, self.size))
        while len(self.steps) > 2 and self.steps[0][0] < now - RATE_S:
            self.steps.popleft()

    def goes_on(self, now: float) -> None:
        """The step that is under way."""
        self.step_until = now + HANGS_S

    def bytes_per_s(self, now: float) -> float:
        """0 while nothing is copied."""
        if len(self.steps) < 2 or self.steps[-1][0] < now - RATE_S:
            return 0.0
        (since, before), (_, size) = self.steps[0], self.steps[-1]
        return (size - before) / max(now - since, 0.001)


class SyncService:
    """Of one node. `records`: what it says of its own logs; `pace`: of all that is sent or copied for a move
    here; `log_bytes_max`: what a log keeps, None for no limit; `tell`: the node's chronicle."""

    def __init__(
        self,
        logs: HostedLogs,
        view: ClusterView,
        *,
        records: FormerRecords,
        pace: MovePace,
        log_bytes_max: int | None,
        tell: Callable[[Event], None],
    ) -> None:
        self._logs = logs
        self._view = view
        self._records = records
        self._pace = pace
        self._log_bytes_max = log_bytes_max
        self._tell_event = tell
        self._look_at = self._look_for_policies_at = self._ticked_at = 0.0
        self._failures = ToldOnce()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wishing: asyncio.Task[None] | None = None
        self._told_at: dict[str, float] = {}
        self.progress: dict[str, SyncProgress] = {}
        """By name, of the queues that shall be copied here, and of those that were in this run."""

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if now < self._look_at or self._view.cluster_version() < versions.SYNC:
            return
        self._look_at, self._ticked_at = now + LOOK_S, now
        spans = self._view.places().spans
        self.progress = {name: each for name, each in self.progress.items() if name in spans}
        self._told_at = {name: at for name, at in self._told_at.items() if name in spans}
        for name, task in self._tasks.items():
            if (known := self.progress.get(name)) is not None and known.step_until <= now:
                known.step_until = inf
                self._restart(name, known, f"nothing came of a step within {HANGS_S:g} s")
                task.cancel()
        if now >= self._look_for_policies_at and (self._wishing is None or self._wishing.done()):
            self._look_for_policies_at = now + AUTOMATIC_LOOK_S
            if names := self._automatic():
                self._wishing = asyncio.ensure_future(self._wish(names))
        for name, log in self._due():
            progress = self.progress.setdefault(name, SyncProgress())
            if name in self._tasks or progress.again_at > now:
                continue
            if sum(not self.progress[each].waits for each in self._tasks if each in self.progress) >= QUEUES_MAX:
                progress.waits = f"{QUEUES_MAX} other queues are copied on this node"
                continue
            progress.waits = ""
            task = self._tasks[name] = asyncio.ensure_future(self._sync(log, name, progress))
            task.add_done_callback(partial(self._ended, name))

    async def stop(self) -> None:
        """Nothing is copied any more."""
        tasks = [*self._tasks.values(), *([self._wishing] if self._wishing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is to be done ---

    def _due(self) -> Iterator[tuple[str, HostedLog]]:
        """The queues that this node has to do something for now."""
        places = self._view.places()
        for name, spans in places.spans.items():
            log = self._logs.held(spans[-1].log_id)
            if log is not None and self._is_due(log, name, spans, wished=name in places.syncs):
                yield name, log

    def _queue(self, log: HostedLog, name: str) -> Queue | None:
        """Of a log that this node masters, if it is there to stay."""
        if not log.knows_confirmed or not isinstance(log.publisher, LogPublisher) or log.publisher.stopping:
            return None
        return None if name in self._view.moves() else log.replica.queues.get(name)

    def _automatic(self) -> list[str]:
        """The queues of which nobody has wished yet what a policy says of them."""
        places, found = self._view.places(), []
        for name, spans in places.spans.items():
            if places.may_sync_by_itself(name) and (log := self._logs.held(spans[-1].log_id)) is not None:
                queue = self._queue(log, name)
                if queue is not None and queue.effective.get(SYNC_MODE) == "automatic":
                    found.append(name)
        return found

    async def _wish(self, names: Iterable[str]) -> None:
        """What comes to nothing is looked at again."""
        for name in names:
            try:
                await self._view.decide_once(QueueSyncWished(name=name, automatic=True))
            except MirrorlogError as error:
                logger.info("sync_not_wished queue=%r reason=%r", name, str(error))
                return

    def _is_due(self, log: HostedLog, name: str, spans: Sequence[Span], *, wished: bool) -> bool:
        if (queue := self._queue(log, name)) is None:
            return False
        # What the cluster was told is here, and a declared loss of this log has taken, is copied again.
        behind = log.replica.queues.moves.firsts.get(queue.queue_id, 0) > spans[-1].first
        return behind or (wished and _newest_live(spans) is not None)

    async def _sync(self, log: HostedLog, name: str, progress: SyncProgress) -> None:
        """Until there is nothing to do, or this node does not do it any more."""
        retry_s = RETRY_S
        while True:
            spans, places = self._view.spans(name), self._view.places()
            if not spans or not self._is_due(log, name, spans, wished=name in places.syncs):
                return
            try:
                if reason := self._holds(log, name):
                    raise LogUnavailable(reason)
                if (wait_s := self._pace.wait_s(self._now())) > 0:
                    await asyncio.sleep(wait_s)
                progress.goes_on(self._ticked_at)
                await self._step(log, name, spans, progress)
                progress.waits, retry_s, progress.step_until = "", RETRY_S, inf
            except MirrorlogError as error:
                progress.step_until = inf
                if progress.waits != str(error):
                    progress.waits = str(error)
                    logger.info("sync_waits log=%s queue=%r reason=%r", log.name, name, str(error))
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _holds(self, log: HostedLog, name: str) -> str:
        """Why nothing is copied now; empty when it may be."""
        publisher = publisher_of(log, self._view)
        if self._view.places().paused:
            return "moving is paused; mqtool rebalance --resume lets it go on"
        if publisher.data_refused:
            return f"log {log.name} takes no data: {publisher.data_refused}"
        publisher.check_admitted()
        held, queue = log.replica.log.end - log.replica.log.begin, log.replica.queues.get(name)
        limited = queue is not None and queue.queue_id in log.replica.queues.limits
        if self._log_bytes_max is not None and not limited and held >= self._log_bytes_max:
            return (
                f"log {log.name} is as large as log.retention_bytes lets it be: copies would push out newer records; "
                "raise that, or give the queue retention of its own"
            )
        return ""

    # --- one step ---

    async def _step(self, log: HostedLog, name: str, spans: Sequence[Span], progress: SyncProgress) -> None:
        """A piece, or a word to the log or the cluster. Raises MirrorlogError: it is tried again."""
        replica, number, epoch = log.replica, _newest_live(spans), log.replica.log.epochs.current
        queue_id = replica.queues.find(name).queue_id
        at, border = replica.queues.moves.firsts.get(queue_id, 0), spans[-1].first
        if number is None:  # what is not here is nowhere: a loss has taken it
            await self._say(log, queue_id, border, epoch=epoch)
            return
        span = spans[number]
        begin = max(span.first, replica.index.begin(queue_id))
        if span.log_id == str(log.log_id) or at <= begin:
            await self._check_whole(log, queue_id, begin, spans[number + 1].first, progress)
            if at > span.first:
                await self._say(log, queue_id, span.first, epoch=epoch)
            await self._tell(log, name, queue_id, span, span.first)
            return
        first, size = await self._copy(log, name, span, at, epoch=epoch)
        progress.copied(self._now(), at - first, size)
        oldest = next(each.first for each in spans if not each.ended)
        self._tell_progress(log, name, progress, first - max(oldest, replica.index.begin(queue_id)))
        if first < border and self._now() >= self._told_at.get(name, 0.0):
            self._told_at[name] = self._now() + TELL_S
            await self._check_whole(log, queue_id, first, border, progress)
            await self._tell(log, name, queue_id, span, first)

    async def _copy(self, log: HostedLog, name: str, span: Span, at: int, *, epoch: int) -> tuple[int, int]:
        """The piece of a span that ends at `at`, of a queue of which all that follows is here; where the piece begins,
        and its bytes."""
        queue_id = log.replica.queues.find(name).queue_id
        begin = max(span.first, log.replica.index.begin(queue_id))
        allowed = int(self._pace.bytes_per_s * PIECE_S) if self._pace.bytes_per_s else PIECE_BYTES
        size = min(PIECE_BYTES, max(PIECE_BYTES_MIN, allowed))
        asked = AskRecords(log_id=span.log_id, queue_id=queue_id, first=begin, until=at, max_bytes=size)
        piece = await self._records.ask(asked, RecordsTold)
        _check(piece, asked)
        await self._append(log, name, queue_id, piece.batches)
        if piece.lost is not None:
            gap = GapsState({queue_id: piece.lost})
            publisher_of(log, self._view).append_control(encode_checkpoint([encode_state(gap)]))
        await self._say(log, queue_id, piece.first, epoch=epoch)
        return piece.first, sum(map(len, piece.batches))

    async def _append(self, log: HostedLog, name: str, queue_id: int, batches: Sequence[bytes]) -> None:
        """A piece; all copies have it when this returns. Raises MirrorlogError; a part of it may be there then."""
        replica = log.replica
        publisher = publisher_of(log, self._view)
        assert publisher.log is not None
        mastership = publisher.log.mastership
        for at in range(0, len(batches), AT_ONCE):
            if replica.queues.get(name) is None or publisher_of(log, self._view) is not publisher:
                raise LogUnavailable(f"queue {name!r} has left log {log.name}, or its master has changed")
            mastership.check_writable()
            try:
                for batch in batches[at : at + AT_ONCE]:
                    if not replica.index.holds(queue_id, read_header(batch).base_queue_offset):  # of an attempt before
                        replica.append_copied(memoryview(batch))
                        self._pace.spend(len(batch))
            finally:
                publisher.log.progressed(mastership.appended(replica.log.end))
            await asyncio.sleep(0)
        if batches:
            await confirmed(publisher_of(log, self._view).when_confirmed)

    async def _say(self, log: HostedLog, queue_id: int, first: int, *, epoch: int) -> None:
        """In the log, confirmed: from there on all is here. `epoch`: in which that was found."""
        if not log.replica.queues.has_id(queue_id) or log.replica.log.epochs.current != epoch:
            raise LogUnavailable(f"queue {queue_id} has left log {log.name}, or its master has changed")
        publisher = publisher_of(log, self._view)
        publisher.append_control(encode_change(SpanCopied(queue_id=queue_id, first=first)))
        await confirmed(publisher.when_confirmed)

    async def _check_whole(self, log: HostedLog, queue_id: int, first: int, until: int, progress: SyncProgress) -> None:
        """Whether every record of [first, until) is in this log, or known to be lost: before the cluster is told, and
        readers come here, or anybody frees what is elsewhere. Raises LogUnavailable."""
        at, index = first, log.replica.index
        while at < until:
            behind = index.gap_end(queue_id, at)
            if behind is None:
                past_until = index.past_until(queue_id, at)
                if past_until is None:
                    runs = index.entries(queue_id, at, PIECE_BYTES)
                else:
                    runs = await log.past.entries(queue_id, at, CHECKED_BYTES, until=past_until)
                if not runs or runs[0].base_queue_offset > at:
                    raise LogUnavailable(f"record {at} of queue {queue_id} was not copied to log {log.name}")
                behind = runs[-1].next_queue_offset
            at = max(behind, index.begin(queue_id))  # retention may have passed it
            await asyncio.sleep(0)
            progress.goes_on(self._ticked_at)

    async def _tell(self, log: HostedLog, name: str, queue_id: int, span: Span, first: int) -> None:
        """The cluster, once it is on the disks of all copies: the former log frees it then. Raises LogUnavailable when
        it has decided otherwise meanwhile."""
        if not log.replica.queues.has_id(queue_id):
            raise LogUnavailable(f"queue {name!r} has left log {log.name}")
        seen = self._view.span_seen(name, span)  # while the queue is here: what is decided meanwhile makes it void
        await confirmed(partial(publisher_of(log, self._view).when_confirmed, on_disk=True))
        outcome = await self._view.decide_once(RecordsCopied(name=name, log_id=span.log_id, first=first, span=seen))
        if outcome.refusal:
            raise LogUnavailable(outcome.refusal)

    def _tell_progress(self, log: HostedLog, name: str, progress: SyncProgress, left: int) -> None:
        """`left`: records; fewer than none where retention has passed them."""
        now, left = self._now(), max(0, left)
        if progress.milestones is None:
            progress.whole, progress.milestones = progress.records + left, Milestones(now)
        percent = 100 * (progress.whole - left) // max(1, progress.whole)
        if left and not progress.milestones.due(percent, now):
            return
        facts = {"queue": name, "percent": percent, "records": progress.records, "bytes": progress.size}
        text = f"{percent} % of what former logs have of queue {shown(name)} is copied, {left} records are left"
        event = Event(kind="sync_progressed", text=text, log=log.name, details={**facts, "left_records": left})
        logger.info("%s", line_of(event))
        self._tell_event(event)

    async def told(self, name: str) -> QueueSync:
        """How far a queue is, whose log this node masters. Raises NoSuchQueue, or QueueMoving."""
        log = self._logs.held(self._view.spans(name)[-1].log_id) if self._view.spans(name) else None
        progress, places = self.progress.get(name, SyncProgress()), self._view.places()
        queue = log.replica.queues.find(name) if log is not None else None
        spans = places.spans.get(name, ())
        done_records, done_bytes, former = progress.records, progress.size, list[FormerSpan]()
        for number, span in enumerate(spans[:-1]):
            if log is not None and queue is not None and not span.ended:
                queue_id, replica = queue.queue_id, log.replica
                begin = max(span.first, replica.index.begin(queue_id))
                until = min(spans[number + 1].first, replica.queues.moves.firsts.get(queue_id, 0))
                former.append(await self._former(queue_id, span.log_id, begin, until))
        rate, left = progress.bytes_per_s(self._now()), sum(each.size for each in former)
        return QueueSync(
            queue=name,
            wished=name in places.syncs,
            log=log.name if log is not None else "",
            spans=[each for each in former if each.records],
            done_records=done_records,
            done_bytes=done_bytes,
            bytes_per_s=rate,
            seconds_left=left / rate if rate and all(each.size >= 0 for each in former) else -1.0,
            waits=progress.waits if name in places.syncs else CANCELLED if name in places.unsynced else "",
        )

    async def _former(self, queue_id: int, log_id: str, first: int, until: int) -> FormerSpan:
        asked = AskHeld(log_id=log_id, queue_id=queue_id, first=first, until=until)
        size, unknown = -1, ""
        if first < until:
            try:
                size = (await self._records.ask(asked, HeldTold)).size
            except MirrorlogError as error:
                unknown = str(error)
        return FormerSpan(
            log=self._name(log_id),
            log_id=log_id,
            first=min(first, until),
            next=until,
            records=max(0, until - first),
            size=size,
            unknown=unknown,
        )

    def _name(self, log_id: str) -> str:
        facts = self._view.log_facts(log_id)
        return facts.name if facts is not None else log_id

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        with suppress(asyncio.CancelledError):
            if isinstance(error := task.exception(), Exception):
                self._failures.tell("sync", error)
                if (progress := self.progress.get(name)) is not None:
                    self._restart(name, progress, f"{type(error).__name__}: {error}")

    def _restart(self, name: str, progress: SyncProgress, why: str) -> None:
        """It begins anew by itself, after a while."""
        rest_s = min(RESTART_MAX_S, RESTART_S * 2**progress.restarts)
        progress.restarts, progress.again_at, progress.waits = progress.restarts + 1, self._ticked_at + rest_s, why
        facts = {"queue": name, "restarts": progress.restarts, "rest_s": rest_s, "reason": why}
        text = f"copying what former logs have of queue {shown(name)} begins anew in {rest_s:g} s: {why}"
        event = Event(kind="sync_restarted", text=text, details=facts)
        logger.warning("%s", line_of(event))
        self._tell_event(event)


def _check(piece: RecordsTold, asked: AskRecords) -> None:
    """Raises LogUnavailable for what was not asked for."""
    at = asked.until
    for batch in reversed(piece.batches):
        header = read_header(batch)
        if (header.queue_id, header.base_queue_offset + header.record_count) != (asked.queue_id, at):
            raise LogUnavailable(f"queue {asked.queue_id}: a batch was told that does not end at {at}")
        at = header.base_queue_offset
    if not asked.first <= piece.first < asked.until or piece.first > at:
        raise LogUnavailable(f"queue {asked.queue_id}: told was {piece.first}, of what is below {asked.until}")


def _newest_live(spans: Sequence[Span]) -> int | None:
    """The newest span before the last one that has records."""
    return next((number for number in reversed(range(len(spans) - 1)) if not spans[number].ended), None)
