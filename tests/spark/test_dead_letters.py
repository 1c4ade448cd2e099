"""A record is a row or a dead letter: never both, never neither, whoever stalls or dies between commits of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import LandingConflict, TableOutOfStep
from mirrorlog.spark.land import land
from mirrorlog.spark.landing import dead_letters
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState, commit, table_state
from mirrorlog.spark.landing.dead_letters import (
    ahead_of,
    announce_dead,
    commit_dead,
    dead_rows,
    dead_state,
    ids_of,
    refuse_ahead,
    take_back,
)
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.runner import StepMoment
from mirrorlog.spark.landing.tables import DEAD_LETTERS, RAW
from mirrorlog.spark.landing.write.files import DataFile, FileFormat, FileWriter
from mirrorlog.spark.plan import QueueFacts
from tests.spark.queues import publish
from tests.spark.upserts import ListQueue, sample

FACTS = QueueFacts("c", "q", "i", "log-1", 1, 0, 100)
IDS = QueueIds(FACTS)
MAIN, DEAD = "/lake/main", "/lake/dead"
DEAD_IDS = ids_of(FACTS, MAIN)


# --- Every interleaving, with the tables as plain values ------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """`held`: queue offsets of its rows, or of its dead letters."""

    version: int | None = None
    ids: tuple[tuple[str, int], ...] = ()
    held: frozenset[int] = frozenset()

    def at(self, application_id: str) -> int:
        return dict(self.ids).get(application_id, 0)

    def changed(self, sets: Mapping[str, int], held: frozenset[int]) -> Table:
        version = 0 if self.version is None else self.version + 1
        return Table(version, tuple(sorted({**dict(self.ids), **sets}.items())), held)


Lake = tuple[Table, Table]
"""The landing's table, and that of its dead letters."""
Answer = Any
"""What a look or a commit gave, hashable: an error stands for itself."""
Done = tuple[Answer, ...]
"""What a landing has done so far: it is taken up again by doing it all over with the same answers."""


class Waits(BaseException):
    """A landing's next look or commit is not its turn."""


class World:
    """Gives a landing its old answers, then one new one, and then stops it."""

    def __init__(self, lake: Lake, done: Done) -> None:
        self.lake = list(lake)
        self.done = list(done)
        self._next = 0
        self._turns = 1

    def ask(self, do: Callable[[], Answer]) -> Answer:
        if self._next == len(self.done):
            if not self._turns:
                raise Waits
            self._turns = 0
            self.done.append(do())
        answer = self.done[self._next]
        self._next += 1
        if isinstance(answer, str):
            raise LandingConflict(answer)
        return answer

    def table_state(self, spark: object, table: str, names: Sequence[str]) -> TableState:
        place = [MAIN, DEAD].index(table)
        version, found = self.ask(lambda: (self.lake[place].version, self.lake[place].ids))
        shape = TableShape(DEAD_LETTERS if table == DEAD else RAW)
        return TableState(version, {name: dict(found).get(name) for name in names}, shape)

    def commit(
        self,
        spark: object,
        table: str,
        files: Sequence[int] = (),
        *,
        seen: TableState,
        sets: Mapping[str, int],
        note: object = None,
        shape: object = None,
    ) -> int:
        def do() -> Answer:
            place = [MAIN, DEAD].index(table)
            now = self.lake[place]
            known = dict(now.ids)
            if (seen.version is None) != (now.version is None):
                return "made or removed"
            if any(known.get(name) != version for name, version in seen.versions.items()):
                return "moved"
            self.lake[place] = now.changed(sets, now.held | frozenset(files))
            return self.lake[place].version

        return int(self.ask(do))

    def delete(self, spark: object, dead: str, table: str, facts: QueueFacts, *, landed: int, fence: int) -> None:
        """As Delta's: it looks, and commits later what it has seen; skipped or refused by the fence."""

        def do(seen: tuple[int, frozenset[int]]) -> Answer:
            if self.lake[1].at(DEAD_IDS.fence) != seen[0]:
                return "its fence was raised"
            gone = frozenset(offset for offset in seen[1] if offset >= landed)
            if gone:
                self.lake[1] = self.lake[1].changed({DEAD_IDS.fence: fence + 1}, self.lake[1].held - gone)
            return ()

        seen = self.ask(lambda: (self.lake[1].at(DEAD_IDS.fence), self.lake[1].held))
        if seen[0] <= fence:
            self.ask(partial(do, seen))


@dataclass(frozen=True)
class Lander:
    """A run of a landing whose schema cannot decode the records of `bad`, up to the queue offset `until`."""

    bad: frozenset[int]
    until: int

    def run(self, world: World) -> None:
        """As a step of the runner."""
        spark: Any = None
        state, dead = world.table_state(spark, MAIN, [*IDS]), dead_state(spark, DEAD, MAIN, [FACTS])
        while ahead := ahead_of(state, dead, MAIN, [FACTS]):
            take_back(spark, DEAD, MAIN, ahead[0], seen=state, dead_seen=dead)
            state, dead = world.table_state(spark, MAIN, [*IDS]), dead_state(spark, DEAD, MAIN, [FACTS])
        wanted = range(state.versions[IDS.offset] or 0, self.until)
        letters: Any = [offset for offset in wanted if offset in self.bad]
        if letters:
            state = dead_letters.announce_dead(spark, MAIN, {FACTS: self.until}, seen=state, note={})
            commit_dead(spark, DEAD, letters, seen=dead, sets={DEAD_IDS.offset: self.until}, note={})
        if wanted:
            rows = [offset for offset in wanted if offset not in self.bad]
            world.commit(spark, MAIN, rows, seen=state, sets={IDS.offset: self.until})


Moved = tuple[Lake, Done | None]


class Model:
    """All that landers can do to a lake, one look or commit of one of them after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, landers: Sequence[Lander]) -> None:
        self._patch = patch
        self._landers = landers

    def states(self, lake: Lake) -> Iterator[Lake]:
        """Of the lake, whoever has got how far. That somebody dies is that he never does anything any more."""
        first: tuple[Lake, tuple[Done | None, ...]] = (lake, ((),) * len(self._landers))
        known, waiting = {first}, [first]
        while waiting:
            lake, runs = waiting.pop()
            yield lake
            for number, done in enumerate(runs):
                if done is None:
                    continue
                changed, now = self.moved(lake, self._landers[number], done)
                state = (changed, (*runs[:number], now, *runs[number + 1 :]))
                if state not in known:
                    known.add(state)
                    waiting.append(state)

    def moved(self, lake: Lake, lander: Lander, done: Done) -> Moved:
        """After the lander's next look or commit; None as what it has done when that was the last one."""
        world = World(lake, done)
        self._patch.setattr(dead_letters, "table_state", world.table_state)
        self._patch.setattr(dead_letters, "commit", world.commit)
        self._patch.setattr(dead_letters, "_delete", world.delete)
        self._patch.setattr(dead_letters, "sync_commits", lambda *_, **__: None)
        ended = False
        try:
            lander.run(world)
            ended = True
        except Waits:
            pass
        except MirrorlogError:
            ended = True
        return (world.lake[0], world.lake[1]), None if ended else tuple(world.done)

    def landed(self, lake: Lake, lander: Lander) -> Lake:
        """Alone, to its end."""
        done: Done | None = ()
        while done is not None:
            lake, done = self.moved(lake, lander, done)
        return lake


def fault_of(lake: Lake) -> str | None:
    """What is wrong with it, whoever is in the middle of what."""
    main, dead = lake
    landed = main.at(IDS.offset)
    both = main.held & {offset for offset in dead.held if offset < landed}
    neither = set(range(landed)) - main.held - dead.held
    too_many = {offset for offset in main.held if offset >= landed}
    hidden = {offset for offset in dead.held if offset >= max(landed, main.at(IDS.dead))}
    for what, found in (("both", both), ("neither", neither), ("too many", too_many), ("hidden", hidden)):
        if found:
            return f"{what}: {sorted(found)} in {lake}"
    return None


ODD, EVEN, NONE = frozenset({1, 3, 5}), frozenset({0, 2, 4}), frozenset[int]()
EMPTY: Lake = (Table(), Table())
BEGUN: Lake = (
    Table(0, ((IDS.offset, 2),), frozenset({0})),
    Table(0, ((DEAD_IDS.offset, 2),), frozenset({1})),
)
TEAMS = [
    (Lander(ODD, 4), Lander(NONE, 4)),
    (Lander(ODD, 4), Lander(EVEN, 3)),
    (Lander(ODD, 4), Lander(NONE, 3), Lander(EVEN, 4)),
    (Lander(ODD, 4), Lander(EVEN, 4), Lander(EVEN, 5)),
]


@pytest.mark.long_after(1)
@pytest.mark.parametrize(("team", "lake"), [*((team, BEGUN) for team in TEAMS), (TEAMS[0], EMPTY), (TEAMS[1], EMPTY)])
def test_a_record_is_a_row_or_a_dead_letter_in_every_interleaving(
    monkeypatch: pytest.MonkeyPatch, team: Sequence[Lander], lake: Lake
) -> None:
    """Goal: two and three landings at once, of other schemas, each of which may stall or die before each of its looks
    and commits. Walk through all states there are, on tables that are plain values; from each of them a landing that is
    alone must be able to go on."""
    model = Model(monkeypatch, team)
    ends: dict[Lake, Lake] = {}
    for state in model.states(lake):
        assert fault_of(state) is None
        if state not in ends:
            ends[state] = end = model.landed(state, Lander(ODD, 5))
            assert fault_of(end) is None
            assert (end[0].at(IDS.offset), end[0].held | end[1].held) == (5, set(range(5)))


@pytest.mark.long
def test_the_model_finds_what_each_part_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the test above can fail. Leave out the announcement; the fence of the delete."""

    def faults(team: Sequence[Lander]) -> set[str]:
        found = filter(None, map(fault_of, Model(monkeypatch, team).states(BEGUN)))
        return {fault.partition(":")[0] for fault in found}

    assert faults(TEAMS[3]) == set()
    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "announce_dead", lambda *_, seen, **__: seen)
        assert "both" in faults(TEAMS[0])
    with monkeypatch.context() as patch:
        patch.setattr(World, "delete", delete_without_fence)
        assert "neither" in faults(TEAMS[3])


def delete_without_fence(world: World, *_: object, landed: int, fence: int) -> None:
    def do() -> Answer:
        world.lake[1] = world.lake[1].changed({}, frozenset(held for held in world.lake[1].held if held < landed))
        return ()

    world.ask(do)


# --- With real tables -----------------------------------------------------------------------------------------------

QUEUE = ListQueue.of(sample(20), "q")
OF = QUEUE.facts


@dataclass(frozen=True)
class Tables:
    """Of one landing. What is planned is what is seen now."""

    spark: SparkSession
    main: str
    dead: str

    @property
    def seen(self) -> TableState:
        return table_state(self.spark, self.main, [*QueueIds(OF)])

    @property
    def dead_seen(self) -> TableState:
        return dead_state(self.spark, self.dead, self.main, [OF])

    @property
    def letters(self) -> list[int]:
        return sorted(DeltaTable(self.dead).to_pyarrow_table()["offset"].to_pylist())

    @property
    def ahead(self) -> bool:
        return ahead_of(self.seen, self.dead_seen, self.main, [OF]) == [OF]

    def announce(self, following: int, seen: TableState | None = None) -> TableState:
        seen = seen or self.seen
        return announce_dead(self.spark, self.main, {OF: following}, seen=seen, note={}, shape=TableShape(RAW))

    def bury(self, first: int, following: int, dead_seen: TableState | None = None) -> None:
        sets = {ids_of(OF, self.main).offset: following}
        files = self._files(first, following)
        commit_dead(self.spark, self.dead, files, seen=dead_seen or self.dead_seen, sets=sets, note={})

    def land(self, following: int, seen: TableState | None = None) -> None:
        shape = TableShape(RAW) if self.seen.version is None else None
        sets = {QueueIds(OF).offset: following}
        commit(self.spark, self.main, seen=seen or self.seen, sets=sets, note={}, shape=shape)

    def take_back(self) -> None:
        take_back(self.spark, self.dead, self.main, OF, seen=self.seen, dead_seen=self.dead_seen)

    def _files(self, first: int, following: int) -> list[DataFile]:
        raw = QUEUE.rows(first, following)
        reasons = pa.array(["bad"] * raw.num_rows)
        with FileWriter(FileFormat(self.dead), 0) as writer:
            writer.write(dead_rows(raw, reasons, table=self.main, incarnation=OF.incarnation, schema_version=""))
            return writer.finish()


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "main"), str(tmp_path / "dead"))


@pytest.mark.long
def test_who_was_overtaken_leaves_no_dead_letters(tables: Tables) -> None:
    """Goal: the announcement is the compare-and-set that comes first. Let another landing land between the plan of one
    and its announcement, and announce between two others'."""
    late = tables.seen
    tables.land(4)
    with pytest.raises(LandingConflict):
        tables.announce(6, late)
    late = tables.seen
    after = tables.announce(6)
    assert (tables.ahead, tables.dead_seen.version) == (True, None)
    with pytest.raises(LandingConflict):
        tables.announce(8, late)
    with pytest.raises(LandingConflict):
        tables.land(8, late)
    with pytest.raises(TableOutOfStep, match="same dead_letters"):
        refuse_ahead(tables.seen, tables.main, [OF])
    tables.bury(4, 6)
    tables.land(6, after)
    assert (tables.ahead, tables.letters) == (False, [4, 5])
    refuse_ahead(tables.seen, tables.main, [OF])


@pytest.mark.long
def test_what_was_announced_does_not_come_once_it_is_taken_back(tables: Tables) -> None:
    """Goal: a driver that stalls is shut out of both tables. Stall before the dead letters of a new table, and behind
    those of an old one."""
    dead_seen = tables.dead_seen
    stalled = tables.announce(6)
    tables.take_back()
    assert not tables.ahead
    with pytest.raises(LandingConflict):
        tables.bury(0, 6, dead_seen)
    with pytest.raises(LandingConflict):
        tables.land(6, stalled)
    after = tables.announce(3)
    tables.bury(0, 3)
    tables.land(3, after)
    stalled = tables.announce(6)
    tables.bury(3, 6)
    assert (tables.ahead, tables.letters) == (True, [0, 1, 2, 3, 4, 5])
    tables.take_back()
    assert (tables.ahead, tables.letters) == (False, [0, 1, 2])
    with pytest.raises(LandingConflict):
        tables.land(6, stalled)


@pytest.mark.long
def test_a_delete_that_comes_late_deletes_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: Delta itself keeps a stalled take-back from the letters of a landing that began later. Stall one before its
    delete; let another one take back, announce and commit dead letters; go on."""
    delete = dead_letters._delete
    tables.announce(6)
    tables.bury(0, 6)

    def stalled(*args: Any, **rest: Any) -> None:
        monkeypatch.setattr(dead_letters, "_delete", delete)
        tables.take_back()
        tables.announce(8)
        tables.bury(0, 2)
        delete(*args, **rest)

    monkeypatch.setattr(dead_letters, "_delete", stalled)
    with pytest.raises(LandingConflict, match="takes its dead letters back"):
        tables.take_back()
    assert tables.letters == [0, 1]


JSON: dict[str, Any] = {"mode": "json", "decoder": {"schema": "n BIGINT"}}


def offsets(table: Path, column: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=[column])[column].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("write", ["append", "upsert"])
def test_a_landing_of_another_schema_that_is_overtaken_leaves_rows_alone(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path, write: str
) -> None:
    """Goal: landed or a dead letter, with real steps. One landing holds records with a new field for bad; while it
    writes another one lands them as rows. Then the same with a death between the commits."""
    table, dead = tmp_path / "table", tmp_path / "dead"
    bad = partial(land, spark, servers, queue, table, **JSON, write=write, dead_letters=str(dead))
    good = partial(bad, evolution="add")
    good_values = [Record(b'{"n": %d}' % n, key=b"%d" % n) for n in range(3)]
    publish(servers, queue, [*good_values, Record(b"none", key=b"3")])
    bad()
    publish(servers, queue, [Record(b'{"n": %d, "more": 1}' % n, key=b"%d" % n) for n in range(4, 8)])

    def overtake(now: StepMoment) -> None:
        if now is StepMoment.WRITTEN:
            assert good().rows == 4

    with pytest.raises(LandingConflict):
        bad(on_moment=overtake)
    assert (offsets(table, "_offset"), offsets(dead, "offset")) == ([0, 1, 2, 4, 5, 6, 7], [3])
    publish(servers, queue, [Record(b'{"n": 8, "other": 1}', key=b"8")])
    with pytest.raises(Died):
        bad(on_moment=die_behind_dead_letters)
    assert offsets(dead, "offset") == [3, 8]
    with pytest.raises(TableOutOfStep, match="same dead_letters"):
        land(spark, servers, queue, table, **JSON, write=write)
    good()
    assert (offsets(table, "_offset"), offsets(dead, "offset")) == ([0, 1, 2, 4, 5, 6, 7, 8], [3])


class Died(BaseException):
    """In place of a kill."""


def die_behind_dead_letters(now: StepMoment) -> None:
    if now is StepMoment.DEAD_LETTERS:
        raise Died
