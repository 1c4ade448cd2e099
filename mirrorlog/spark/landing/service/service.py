"""The landing service: many landings in one Spark session, each exactly once, for as long as it runs.

    Service(spark, landings, observer=display).run(stop)

It looks at the queues about once a second, one question per cluster, and lets one landing at a time take its step: a
step uses all of Spark's workers anyway, and the driver's commits stay in order. A landing that fails (its table is
refused, its nodes are away, another one commits to its table) is told with its reason and tried again, and the others
go on. The holds of all are renewed beside that, however long a step or a duty of upkeep takes. `stop` ends the service
after the step that is under way; what is landed by then is landed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import SPARK_ERRORS, SparkFailed, StorageFailed
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.planning import source_options
from mirrorlog.spark.landing.results import Observer
from mirrorlog.spark.landing.runner import Runner
from mirrorlog.spark.landing.service.schedule import Schedule, Turn
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.lookup import open_lookup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY_S: Final = 1.0
_CONFLICTS_MAX: Final = 3

Upkeep = Callable[[Landing], None]
"""Called after a step of a landing, and between steps: tidies its table when that is due."""


class Service:
    """`once`: ends when everything is landed that was confirmed at the first look; a landing that fails is not tried
    again then. `take_over`: the holds of runs that may still live. `upkeep`: see there; what it raises is told, and
    ends or delays no landing."""

    def __init__(
        self,
        spark: SparkSession,
        landings: Sequence[Landing],
        *,
        observer: Observer | None = None,
        once: bool = False,
        take_over: bool = False,
        upkeep: Upkeep = lambda landing: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schedule = Schedule.of(landings)
        self._spark = spark
        self._runner = Runner(spark)
        self._observer = observer or Observer()
        self._once = once
        self._upkeep = upkeep
        self._now = now
        self._holds = {each.name: Holds(each, take_over=take_over) for each in landings if each.hold}
        self._looked = float("-inf")

    def run(self, stop: threading.Event) -> list[Turn]:
        """Until `stop` is set, or with `once` until all is landed; how each landing stands then."""
        try:
            with ExitStack() as stack:
                for holds in self._holds.values():
                    stack.enter_context(holds.kept())
                while not stop.is_set() and not all(turn.done for turn in self.schedule.turns):
                    if not self._advance():
                        stop.wait(LOOK_EVERY_S / 4)
        finally:
            self._end_holds()
        return self.schedule.turns

    def _advance(self) -> bool:
        """One look if it is time, and one step if one is due; whether there was one."""
        if self._now() - self._looked >= LOOK_EVERY_S:
            self._look()
        turn = self.schedule.next(self._now(), once=self._once)
        if turn is not None:
            self._step(turn)
        return turn is not None

    # --- looks ---

    def _look(self) -> None:
        for turns in _by_source(self.schedule.turns):
            try:
                with open_lookup(source_options(turns[0].landing)) as lookup:
                    facts = lookup.facts(None)
            except MirrorlogError as error:
                self._fail_all(turns, error)
                continue
            for turn in turns:
                ends = _ends(turn.landing, facts)
                turn.looked(ends, self._now())
                self._observer.looked(turn.landing, {queue: end for queue, (_, end) in ends.items()})
        self._looked = self._now()
        for turn in self.schedule.turns:
            self._attempt(turn, self._check_hold)
            self._tidy(turn)

    def _fail_all(self, turns: Iterable[Turn], error: MirrorlogError) -> None:
        for turn in turns:
            if not turn.done and self._now() >= turn.retry_at:
                self._failed(turn, error)

    def _check_hold(self, turn: Turn) -> None:
        holds = self._holds.get(turn.landing.name)
        if holds is not None:
            holds.check()

    def _tidy(self, turn: Turn) -> None:
        if turn.landed is None or turn.done:
            return
        try:
            self._upkeep(turn.landing)
        except (MirrorlogError, OSError) as error:
            self._observer.upkeep_failed(turn.landing, self._told(turn, error))

    # --- steps ---

    def _step(self, turn: Turn) -> None:
        self._observer.step_began(turn.landing)

        def step(turn: Turn) -> None:
            result = self._runner.step(turn.landing, self._holds.get(turn.landing.name))
            turn.ended(result, self._now())
            turn.done = self._once and turn.reached
            self._observer.step_ended(turn.landing, result)

        self._attempt(turn, step)

    def _attempt(self, turn: Turn, do: Callable[[Turn], None]) -> None:
        try:
            do(turn)
        except (MirrorlogError, OSError) as error:
            self._failed(turn, self._told(turn, error))

    def _told(self, turn: Turn, error: MirrorlogError | OSError) -> MirrorlogError:
        """The error as one that has a code. Raises it when Spark is gone."""
        if isinstance(error, SparkFailed) and not self._spark_lives():
            raise error  # nothing can be landed any more, and whoever started the service must know
        return StorageFailed(f"{turn.landing.table}: {error}") if isinstance(error, OSError) else error

    def _spark_lives(self) -> bool:
        jvm: Any = self._spark._jvm
        try:
            return bool(jvm.java.lang.System.currentTimeMillis())
        except (*SPARK_ERRORS, OSError):
            return False

    def _failed(self, turn: Turn, error: MirrorlogError) -> None:
        turn.failed(error, self._now())
        # Another landing of the table may just have been faster; anything else needs somebody, or time.
        again = error.code == "LANDING_CONFLICT" and turn.failures < _CONFLICTS_MAX
        turn.done = self._once and not again
        self._observer.step_failed(turn.landing, error)

    def _end_holds(self) -> None:
        for turn in self.schedule.turns:
            holds = self._holds.get(turn.landing.name)
            if holds is not None:
                try:
                    holds.end()
                except MirrorlogError as error:
                    self._observer.step_failed(turn.landing, error)


def _by_source(turns: Sequence[Turn]) -> Iterable[list[Turn]]:
    """Landings that ask the same nodes, or read the same files, are looked at together."""
    found: dict[object, list[Turn]] = {}
    for turn in turns:
        if not turn.done:
            landing = turn.landing
            found.setdefault((landing.servers, landing.path, landing.access), []).append(turn)
    return found.values()


def _ends(landing: Landing, facts: Sequence[QueueFacts]) -> Mapping[str, tuple[int, int]]:
    options = source_options(landing)
    return {each.name: (each.begin, each.next) for each in facts if options.subscribes(each.name)}
