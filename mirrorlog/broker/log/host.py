"""What all logs of one node share: settings, replication, helpers, and whom to tell that the node must end."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mirrorlog.broker.log.disk_threads import DiskThreads
from mirrorlog.broker.ports import ClusterView, DeadLetterTransport, Refusing
from mirrorlog.broker.resources.budgets import OutgoingBudget
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.cluster.state.events import Event
from mirrorlog.commitlog.files import Files
from mirrorlog.config import Settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.service import HAService
from mirrorlog.wire.auth.credentials import Credentials
from mirrorlog.wire.endpoint import Endpoint


def _yield_to_others() -> None:
    """Give the calling thread a low priority: what it prepares is worth nothing if it takes the loop's core."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


class Helpers:
    """The threads that wait for disks. Each has one kind of work, so that one that is slow delays no other; `flush`: as
    many as there are logs that have something to flush."""

    def __init__(self) -> None:
        self.flush = DiskThreads("flush")
        self.warm = ThreadPoolExecutor(1, "warm")
        self.prepare = ThreadPoolExecutor(1, "prepare", initializer=_yield_to_others)
        self.read = ThreadPoolExecutor(2, "read")
        self.index = ThreadPoolExecutor(1, "index")
        self.disk = ThreadPoolExecutor(1, "disk")
        self.memory = ThreadPoolExecutor(1, "memory")
        self.dead_letters = ThreadPoolExecutor(1, "dead-letters", initializer=_yield_to_others)
        self.cluster = ThreadPoolExecutor(1, "cluster")
        self.promise = ThreadPoolExecutor(1, "promise")
        self.unpack = ThreadPoolExecutor(1, "unpack")
        self.login = ThreadPoolExecutor(1, "login", initializer=_yield_to_others)

    def shutdown(self) -> None:
        """Wait for what is under way; what was not begun is dropped."""
        for helper in vars(self).values():
            helper.shutdown(wait=True, cancel_futures=True)


FormerSizes = Callable[[str, int, int, int], Awaitable[Sequence[tuple[int, int, int]]]]
"""Of a queue, by name and id, what logs that it was in before have of [first, until): stretches and their bytes."""


async def _nothing_moved(name: str, queue_id: int, first: int, until: int) -> Sequence[tuple[int, int, int]]:
    """In no cluster."""
    return ()


@dataclass(frozen=True, slots=True)
class Host:
    """`failed` is called with what makes the node's copy of a log untrustworthy: the node ends. `view`: the cluster as
    the node knows it. `tell`: the node's chronicle, of what a log's master has to tell. `dead_letters`: how records
    that leave a queue come to others. `memory`: whether data is refused for want of memory. `outgoing`: what may be
    read for all readers of the node together. `log_count`: how many logs share what the node prepares."""

    settings: Settings
    start_id: str
    ha: HAService
    helpers: Helpers
    failed: Callable[[MirrorlogError], None]
    view: ClusterView
    files: Files
    credentials: Credentials
    tell: Callable[[Event], None]
    subscriptions: SubscriptionBook
    dead_letters: DeadLetterTransport
    memory: Refusing
    outgoing: OutgoingBudget[Endpoint]
    log_count: Callable[[], int] = lambda: 1
    former_sizes: FormerSizes = _nothing_moved
