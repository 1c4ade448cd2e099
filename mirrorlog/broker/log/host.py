"""What all logs of one node share: settings, replication, helpers, and whom to tell that the node must end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mirrorlog import versions
from mirrorlog.broker.log.in_sync import Decides
from mirrorlog.broker.ports import DeadLetterTransport, Refusing
from mirrorlog.broker.resources.budgets import OutgoingBudget
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.cluster.state.events import Event
from mirrorlog.commitlog.files import Files
from mirrorlog.config import Member, Settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.service import HAService
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.endpoint import Endpoint


def _yield_to_others() -> None:
    """Give the calling thread a low priority: what it prepares is worth nothing if it takes the loop's core."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


class Helpers:
    """The threads that wait for disks. Each has one kind of work, so that one that is slow delays no other; each log
    has one more for its flushes."""

    def __init__(self) -> None:
        self.warm = ThreadPoolExecutor(1, "warm")
        self.prepare = ThreadPoolExecutor(1, "prepare", initializer=_yield_to_others)
        self.read = ThreadPoolExecutor(2, "read")
        self.index = ThreadPoolExecutor(1, "index")
        self.disk = ThreadPoolExecutor(1, "disk")
        self.memory = ThreadPoolExecutor(1, "memory")
        self.letters = ThreadPoolExecutor(1, "letters", initializer=_yield_to_others)
        self.cluster = ThreadPoolExecutor(1, "cluster")
        self.promise = ThreadPoolExecutor(1, "promise")
        self.unpack = ThreadPoolExecutor(1, "unpack")
        self.login = ThreadPoolExecutor(1, "login", initializer=_yield_to_others)

    def shutdown(self) -> None:
        """Wait for what is under way; what was not begun is dropped."""
        for helper in vars(self).values():
            helper.shutdown(wait=True, cancel_futures=True)


def _ignore(event: Event) -> None:
    """Nobody keeps a chronicle."""


def _not_known(virtual_host: str) -> int:
    """Of no cluster."""
    return 0


def _own_version() -> int:
    """Of no cluster either: what this software writes."""
    return versions.OWN


@dataclass(frozen=True, slots=True)
class Host:
    """`failed` is called with what makes the node's copy of a log untrustworthy: the node ends. `member`: where a node
    is reached, as far as that is known. `tell`: the node's chronicle, of what a log's master has to tell.
    `routing_version`: of a virtual host, as this node knows it; 0 when it knows none. `cluster_version`: what may be
    written (`mirrorlog.versions`). `letters`: how records that leave a queue come to others; None: they wait.
    `memory`: whether data is refused for want of memory; None: nobody measures it. `outgoing`: what may be read for
    all readers of the node together."""

    settings: Settings
    start_id: str
    ha: HAService
    helpers: Helpers
    failed: Callable[[MirrorlogError], None]
    cluster: Decides
    files: Files
    member: Callable[[str], Member | None]
    credentials: Credentials = OPEN
    tell: Callable[[Event], None] = _ignore
    routing_version: Callable[[str], int] = _not_known
    subscriptions: SubscriptionBook = field(default_factory=SubscriptionBook)
    cluster_version: Callable[[], int] = _own_version
    letters: DeadLetterTransport | None = None
    memory: Refusing | None = None
    outgoing: OutgoingBudget[Endpoint] | None = None
