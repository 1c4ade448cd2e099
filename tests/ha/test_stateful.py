"""A master and one to three mirrors under arbitrary cuts of the byte stream, restarts and delays.

Hypothesis prints the steps that fail; run with `--hypothesis-seed=N` to repeat a run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorlog.config import Flush
from mirrorlog.wire.frames import Durability, Level
from tests.ha.world import Link, World

which = st.integers(0, 11)
everything = st.just(1 << 30)
few = st.integers(1, 300)


class ReplicationMachine(RuleBasedStateMachine):
    """Every step is followed by `World.check`; at the end all copies must be equal and every wait answered."""

    world: World

    @initialize(
        mirrors=st.integers(1, 3), flush=st.sampled_from(["memory", "disk"]), min_in_sync=st.integers(1, 2)
    )  # fmt: skip
    def start(self, mirrors: int, flush: Flush, min_in_sync: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mirrorlog-"))
        self.world = World(self.root, mirrors=mirrors, flush=flush, min_in_sync=min_in_sync)

    def link(self, number: int) -> Link:
        return self.world.links[number % len(self.world.links)]

    @rule(
        size=st.one_of(st.integers(0, 500), st.integers(20_000, 32_000)),
        level=st.sampled_from([Level.MASTER, Level.ONE, Level.MAJORITY, Level.ALL]),
        durability=st.sampled_from(Durability),
        timeout=st.sampled_from([0.1, 1.0, 30.0]),
    )
    def publish(self, size: int, level: int, durability: int, timeout: float) -> None:
        self.world.publish(size, level=level, durability=durability, timeout=timeout)

    @precondition(lambda self: self.world.links)
    @rule(number=which, size=st.one_of(everything, few), to_master=st.booleans())
    def deliver(self, number: int, size: int, to_master: bool) -> None:
        self.world.deliver(self.link(number), size, to_master=to_master)

    @precondition(lambda self: self.world.links)
    @rule(number=which, rounds=st.integers(1, 4))
    def talk(self, number: int, rounds: int) -> None:
        """Both ends of one link are served for a while: without it few runs would get past the greeting."""
        link = self.link(number)
        for _ in range(rounds):
            self.world.deliver(link, 1 << 30, to_master=True)
            self.world.deliver(link, 1 << 30, to_master=False)

    @precondition(lambda self: self.world.links)
    @rule(number=which, master_knows=st.booleans(), mirror_knows=st.booleans())
    def cut(self, number: int, master_knows: bool, mirror_knows: bool) -> None:
        self.world.cut(self.link(number), master_knows=master_knows, mirror_knows=mirror_knows)

    @rule(number=which)
    def finish_align(self, number: int) -> None:
        self.world.finish_align(self.world.mirrors[number % len(self.world.mirrors)])

    @precondition(lambda self: self.world.links)
    @rule(number=which)
    def finish_cold(self, number: int) -> None:
        self.world.finish_cold(self.link(number))

    @rule(number=which)
    def flush(self, number: int) -> None:
        self.world.flush(number % len(self.world.names))

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(number=which, clean=st.booleans())
    def restart_mirror(self, number: int, clean: bool) -> None:
        self.world.restart_mirror(number % len(self.world.mirrors), clean=clean)

    @rule(clean=st.booleans())
    def restart_master(self, clean: bool) -> None:
        self.world.restart_master(clean=clean)

    @rule(count=st.integers(0, 3), share=st.sampled_from([0.0, 0.5, 1.0]))
    def lose_power(self, count: int, share: float) -> None:
        """With `count` batches just published: left to chance, mirrors hardly ever have more than the master's disk."""
        if count:
            self.world.settle()
        for _ in range(count):
            self.world.publish(100, level=Level.MASTER)
            for number in range(len(self.world.links)):
                self.talk(number, 2)
        self.world.lose_power(share)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @invariant()
    def every_claim_is_true(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.settle()
            self.world.check()
            self.world.close()
        finally:
            shutil.rmtree(self.root)


_SHORT = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


class TestReplicationMachine(ReplicationMachine.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    settings = _SHORT


@pytest.mark.long
@pytest.mark.timeout(600)
class TestReplicationMachineForLong(ReplicationMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(_SHORT, max_examples=120)
