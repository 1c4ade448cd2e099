"""Queues that are to be in another log than the one that they are in, on the node that masters that one.

What holds for a queue, its arguments and what policies say, stands in its log, and says where it shall be. A move may
come to nothing all the same: it was given up, the log that it led to went, or another queue came into a log that was
changed for one. So what is wanted is compared with what is, again and again, and what differs is asked for once more,
as `AlterQueue` asks.

It comes to an end. A queue moves only while its log's rule is unlike its arguments (`placing.unlike`), and the log
that is found or made for these is never unlike: so each queue moves once for each change of its arguments, whoever
asks. What does not come about is tried less and less often. Rejected: whatever `place_for` would choose now counts as
wanted (a setting, or a node that joins, would set queues in motion that nobody has touched).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import publisher_of
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import QueueGoverned, encode_changes
from mirrorlog.queues.checkpoint_states import GovernedState
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""Between two looks at all queues."""
AT_ONCE: Final = 500
"""Queues that are looked at in a turn of the loop, of however many logs."""
FIRST_S: Final = 5.0
"""How long a queue is left where it is not wanted before it is moved: whoever has just changed that moves it."""
RETRY_MAX_S: Final = 300.0
UNDER_WAY_MAX: Final = 8
"""Queues that are on their way from this node's logs when one more is sent: each takes nothing for a moment."""
REPEATS_PER_MINUTE: Final = 20
"""Of all queues that this node masters together: what came to nothing may do so again."""


class Astray(NamedTuple):
    """A queue that is not where its arguments lead. `tries`: that came to nothing; `again_at`: when the next one is due
    (s, the loop's clock); `reason`: why it is still there."""

    log_id: UUID
    tries: int
    again_at: float
    reason: str


class WantedPlaces:
    """`alter`: lets a queue go where its arguments lead. `is_left_alone`: whether a queue is not to be touched now."""

    def __init__(
        self,
        logs: HostedLogs,
        view: ClusterView,
        alter: Callable[[HostedLog, str], Awaitable[Any]],
        is_left_alone: Callable[[str], bool],
    ) -> None:
        self._logs = logs
        self._view = view
        self._alter = alter
        self._is_left_alone = is_left_alone
        self.astray: dict[str, Astray] = {}
        """By name."""
        self._looking: deque[tuple[HostedLog, deque[int]]] = deque()
        self._look_at = 0.0
        self._repeated_at: deque[float] = deque(maxlen=REPEATS_PER_MINUTE)
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        ready = self._view.cluster_version() >= versions.PLACEMENTS and self._view.has_heard()
        if not self._looking and now >= self._look_at and ready:
            self._look_at = now + LOOK_S
            self._forget()
            self._looking.extend((log, deque(log.replica.queues.queue_ids())) for log in self._mastered())
        room = AT_ONCE
        while self._looking and room > 0:
            log, ids = self._looking[0]
            many = min(room, len(ids)) if log.knows_confirmed else 0
            self._look(log, [ids.popleft() for _ in range(many)], now)
            room -= many
            if not ids or not many:
                self._looking.popleft()
        if self.astray and (self._task is None or self._task.done()):
            self._begin_one(now)

    async def stop(self) -> None:
        """Nothing is asked for any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- inside ---

    def _mastered(self) -> list[HostedLog]:
        return [log for log in self._logs if log.knows_confirmed and not self._view.is_transient(log.log_id)]

    def _forget(self) -> None:
        """What is another master's to say."""
        mastered = {log.log_id for log in self._mastered()}
        self.astray = {
            name: each
            for name, each in self.astray.items()
            if each.log_id in mastered and self._view.placed(name) == each.log_id
        }

    def _look(self, log: HostedLog, queue_ids: Iterable[int], now: float) -> None:
        for queue_id in queue_ids:
            queue = log.replica.queues.by_id.get(queue_id)
            if queue is None:
                continue
            here = self._view.placed(queue.name) == log.log_id
            if not here or not self._view.unlike(queue, log.log_id):
                self.astray.pop(queue.name, None)
            elif queue.name not in self.astray:
                first_s = 0.0 if queue.governed is not None else FIRST_S
                self.astray[queue.name] = Astray(log.log_id, 0, now + first_s, "")

    def _begin_one(self, now: float) -> None:
        moving = self._view.moves()
        if sum(name in self.astray for name in moving) >= UNDER_WAY_MAX:
            return
        due = (name for name, each in self.astray.items() if each.again_at <= now and name not in moving)
        name = next((name for name in due if not self._is_left_alone(name)), None)
        if name is None:
            return
        known = self.astray[name]
        log = self._logs.held(str(known.log_id))
        if self._view.moving_paused():
            self.astray[name] = known._replace(again_at=now + LOOK_S, reason="moving is paused")
        elif known.tries and len(self._repeated_at) == REPEATS_PER_MINUTE and now - self._repeated_at[0] < 60:
            self.astray[name] = known._replace(again_at=self._repeated_at[0] + 60)
        elif log is not None and log.knows_confirmed:
            # What is begun may be given up too: then it is still here when it is looked at again.
            again_at = now + min(RETRY_MAX_S, FIRST_S * 2 ** (known.tries + 1))
            self.astray[name] = known._replace(tries=known.tries + 1, again_at=again_at)
            if known.tries:
                self._repeated_at.append(now)
            self._task = asyncio.ensure_future(self._move(log, name))

    async def _move(self, log: HostedLog, name: str) -> None:
        reason = ""
        try:
            await self._alter(log, name)
        except MirrorlogError as error:
            reason = error.message
        logger.info("queue_astray log=%s queue=%r reason=%r", log.name, name, reason)
        if (known := self.astray.get(name)) is not None:
            self.astray[name] = known._replace(reason=reason)


# What policies say of queues comes into these queues' logs, on the node that masters each.
#
# A queue's log says what holds for it (`QueueGoverned`), so that every copy and every later master goes by the same,
# from the same record on. So what the cluster has decided is compared with what the log says: for each version of the
# policies and each mastership, and every now and then, for queues that have come from elsewhere meanwhile. What follows
# for where the queue is, is the other's to see to.


CHANGES_AT_ONCE: Final = 50
"""Of one batch."""
GOVERN_AGAIN_S: Final = 5.0
"""Between two looks at the queues of a log of which nothing has changed, while there are policies."""


class QueueGovernor:
    """Of one node."""

    def __init__(self, logs: HostedLogs, view: ClusterView) -> None:
        self._logs = logs
        self._view = view
        self._looked: dict[HostedLog, tuple[int, int, float]] = {}
        """(version of the policies, epoch, when it is looked at again) of each log."""
        self._looking: deque[tuple[HostedLog, deque[int]]] = deque()

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        version = self._view.policies_version()
        if not version or self._view.cluster_version() < versions.POLICIES or not self._view.has_heard():
            return
        if not self._looking:
            self._looked = {log: looked for log, looked in self._looked.items() if log.masters}
            for log in self._logs:
                if log.masters and log.knows_confirmed and self._is_due(log, version, now):
                    self._looked[log] = (version, log.replica.log.epochs.current, now + GOVERN_AGAIN_S)
                    self._looking.append((log, deque(log.replica.queues.queue_ids())))
        if self._looking:
            log, ids = self._looking[0]
            some = [ids.popleft() for _ in range(min(AT_ONCE, len(ids)))]
            found = (log.replica.queues.by_id.get(queue_id) for queue_id in some)
            if not self.govern(log, [queue for queue in found if queue is not None]):
                self._looked.pop(log, None)
                ids.clear()
            if not ids:
                self._looking.popleft()

    def _is_due(self, log: HostedLog, version: int, now: float) -> bool:
        known = self._looked.get(log)
        return known is None or known[:2] != (version, log.replica.log.epochs.current) or known[2] <= now

    def govern(self, log: HostedLog, queues: Iterable[Queue]) -> bool:
        """Let the log say what holds for these of its queues, where it does not yet. False when it takes nothing at the
        moment."""
        found = (self.change(queue.queue_id, queue.name, queue.arguments, queue.governed) for queue in queues)
        changes = [change for change in found if change is not None]
        try:
            for at in range(0, len(changes), CHANGES_AT_ONCE):
                some = changes[at : at + CHANGES_AT_ONCE]
                publisher_of(log, self._view).append_change(encode_changes(some), _noted)
                for change in some:
                    for tell in log.replica.on_governed:
                        tell(change.queue_id)
        except MirrorlogError as error:
            logger.debug("queues_not_governed log=%s reason=%r", log.name, error.message)
            return False
        return True

    def change(
        self, queue_id: int, name: str, arguments: Mapping[str, Any], there: GovernedState | None = None
    ) -> QueueGoverned | None:
        """What the log of a queue has to say; None when it says all of it (`there`), or may not yet."""
        version = self._view.policies_version()
        if not version or self._view.cluster_version() < versions.POLICIES:
            return None
        holds = self._view.effective(name, arguments)
        effective = holds.arguments if holds.policy or holds.operator else {}
        said = (there.policy, there.operator_policy, there.arguments) if there is not None else ("", "", {})
        if said == (holds.policy, holds.operator, effective):
            return None
        return QueueGoverned(
            queue_id=queue_id, version=version, policy=holds.policy, operator_policy=holds.operator, arguments=effective
        )


def _noted(error: MirrorlogError | None) -> None:
    """It counts from its append; a master that loses it looks again."""
