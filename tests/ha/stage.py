"""A master with a real log, links over which a test says what it likes, and an in-sync set that the cluster changes."""

from __future__ import annotations

from pathlib import Path

from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.ha.in_sync import Grow, InSyncSet, Wish
from mirrorlog.ha.mastership import Mastership
from mirrorlog.queues.changes import LogStartMoved, encode_change
from mirrorlog.wire.frames import Durability
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, Pull
from tests.ha.links import ack_of, connection_of
from tests.ha.replicas import append, flush, open_master, settings_of

LAG_S = 10.0
REPLICAS = ("n0", "n1", "n2")


def decided(version: int, *members: str, marked: tuple[str, ...] = (), wanted: int = 1, starts: str = "") -> InSyncSet:
    """A set of runs: "n1b" is run "n1b" of node n1. `starts`: the runs that are known beside, with spaces between."""
    known = {run[:2]: run for run in ("n1a", "n2a", *members, *starts.split())}
    return InSyncSet(
        version=version,
        replicas=REPLICAS,
        members={run[:2]: run for run in members},
        marked=frozenset(marked),
        copies_wanted=wanted,
        starts=known,
    )


ALONE = decided(5, "n0a")
WITH_N1 = decided(6, "n0a", "n1a")


class Stage:
    """The master is n0. `answers`: those that a look at the copies has brought."""

    def __init__(
        self,
        directory: Path,
        in_sync: InSyncSet,
        *,
        durability: Durability = Durability.MEMORY,
        lossy: bool = False,
        lag_s: float = LAG_S,
    ) -> None:
        self.replica = open_master(directory, settings_of("n0", REPLICAS))
        self.now = 0.0
        self.durability = durability
        self.answers: list[Answer] = []
        self.mastership = Mastership(
            name="main",
            own="n0",
            in_sync=in_sync,
            lag_s=lag_s,
            durability=durability,
            confirmed=0,
            waiting_max=100,
            lossy=lossy,
        )
        self.mastership.epoch_start_end = self.replica.log.end
        self.grown()

    @property
    def confirmed(self) -> int:
        return self.mastership.progress.confirmed

    @property
    def awaited(self) -> str:
        """The node; empty for nobody."""
        return self.mastership.awaited.node if self.mastership.awaited is not None else ""

    def grown(self) -> list[Answer]:
        flush(self.replica)
        self.mastership.progress.flushed(self.replica.log.flushed)
        answers = self.mastership.appended(self.replica.log.end)
        self.replica.set_confirmed(self.confirmed)
        return answers

    def publish(self, size: int = 100) -> int:
        """One batch more; the log's end."""
        append(self.replica, size)
        self.grown()
        return self.replica.log.end

    def move_start(self, log_offset: int) -> None:
        """Append the decision that the log begins there."""
        self.replica.append_change(encode_change(LogStartMoved(log_offset=log_offset)), 1)
        self.grown()

    def link(self, run: str, *, holds: int = 0, begin: int = 0) -> HAConnection:
        """A proven link of this run, whose copy reaches from `begin` so far."""
        link = connection_of(self.replica, node=run[:2], start_id=run)
        epochs = [EpochEntry(*each) for each in self.replica.log.epochs.entries] if holds else []
        said = FollowRequest(log_id=str(self.replica.log_id), epochs=epochs, begin=begin, end=holds, confirmed=0)
        link.follow(said, self.now)
        link.pull(Pull(log_offset=holds), self.now)
        self.mastership.join(link)
        self.mastership.proven(link)
        return link

    def ack(self, link: HAConnection, log_offset: int | None = None, *, flushed: int = 0) -> list[Answer]:
        """Everything, or so far."""
        written = self.replica.log.end if log_offset is None else log_offset
        answers = []
        link.pump(self.now)
        while (sent := link.write_half.next_transfer) < written:
            answers += self.mastership.acked(link, ack_of(sent, epoch=self.replica.log.epochs.current), self.now)
            link.pump(self.now)
        last = ack_of(written, epoch=self.replica.log.epochs.current, flushed=flushed)
        return answers + self.mastership.acked(link, last, self.now)

    def look(self, after: float = 0.0) -> Wish | None:
        """What a timer does, so much later. Who is awaited then, `awaited` tells."""
        self.now += after
        wish = self.mastership.wish(self.now)
        self.answers += self.mastership.catch_up(self.now)
        return wish

    def wish(self, after: float = 0.0) -> Wish | None:
        """What is wished for up to then, as a timer asks."""
        until = self.now + after
        while self.now < until - 0.1:
            if (wish := self.look(after=0.1)) is not None:
                return wish
        self.now = until
        return self.look()

    def proposed(self, run: str = "n1a") -> tuple[HAConnection, Grow]:
        """A link of this run that holds everything, and the wish to let it in."""
        link = self.link(run)
        self.ack(link)
        wish = self.wish()
        assert isinstance(wish, Grow)
        return link, wish


def both(directory: Path, wanted: int = 1, lag_s: float = LAG_S) -> tuple[Stage, HAConnection]:
    """n1 is in sync too, and has everything."""
    stage = Stage(directory, decided(5, "n0a", "n1a", wanted=wanted), lag_s=lag_s)
    link = stage.link("n1a")
    stage.ack(link)
    assert stage.confirmed == stage.replica.log.end
    return stage, link
