"""What the disk tells of a node's runs: the worst of all that the cluster has not heard of, whatever happens when."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec
import pytest

from mirrorlog.cluster.membership import run_history
from mirrorlog.cluster.membership.run_history import (
    BOOT_ID_PATH,
    FAILED_NAME,
    FILE_NAME,
    SINCE_MAX,
    RunHistory,
    RunRecord,
    own_boot_id,
)
from mirrorlog.cluster.state.commands import Addresses, NodeStarted, StartKind
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, NodeFacts
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import DiskFailed, DiskFull, LogCorrupt, UnsupportedVersion
from sim.disk import DiskModel, Moment, SimulatedFiles

DIRECTORY: Final = Path("/node")
PATH: Final = DIRECTORY / FILE_NAME
BOOT: Final = "this boot"
LATER: Final = "a later boot"
CLEAN, DIED, LOSSY = StartKind.CLEAN, StartKind.DIED, StartKind.LOSSY
MODELS: Final = {
    "sectors": DiskModel(),
    "pages, names in any order": DiskModel(unit_bytes=4096, ordered_names=False),
    "written back in between": DiskModel(ordered_names=False, write_back=0.2),
}


class Told(NamedTuple):
    """What a start reads."""

    before: str
    since: tuple[str, ...]
    kind: StartKind
    damaged: tuple[str, ...]


def opened(files: Files, start_id: str = "next", *, boot_id: str = BOOT, directory: Path = DIRECTORY) -> RunHistory:
    return RunHistory.open(files, directory, boot_id=boot_id, new_id=lambda: start_id)


def begun(files: Files, start_id: str, *, boot_id: str = BOOT) -> RunHistory:
    starts = opened(files, start_id, boot_id=boot_id)
    starts.begin()
    return starts


def told(files: SimulatedFiles, *, boot_id: str = BOOT) -> Told:
    starts = opened(files, boot_id=boot_id)
    return Told(starts.before, starts.since, starts.kind, starts.damaged)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(DIRECTORY, seed=1)


# --- What a start is worth ------------------------------------------------------------------------------------------


def test_a_blank_disk_has_lost_nothing(files: SimulatedFiles) -> None:
    """The cluster tells by its own start id whether there was a disk before; by opening an empty directory."""
    starts = opened(files, "r1")
    assert (starts.start_id, starts.kind) == ("r1", CLEAN)
    assert (starts.before, starts.since, starts.damaged) == ("", (), ())
    assert not files.tree(), "nothing is written before the run begins"


def test_each_run_has_an_id_of_its_own(files: SimulatedFiles) -> None:
    """By two starts that choose it themselves."""
    assert len({RunHistory.open(files, DIRECTORY, boot_id=BOOT).start_id for _ in range(2)}) == 2


@pytest.mark.parametrize("boot_id", [BOOT, LATER])
def test_after_a_clean_stop_the_boot_does_not_matter(files: SimulatedFiles, boot_id: str) -> None:
    """By a registered run that stops, and one that stops before it could be registered."""
    first = begun(files, "r1")
    first.registered()
    first.stopped()
    assert told(files.after_power_loss(), boot_id=boot_id) == Told("r1", (), CLEAN, ())
    begun(files, "r2").stopped()
    assert told(files.after_power_loss(), boot_id=boot_id) == Told("r1", ("r2",), CLEAN, ())


def test_after_a_death_the_boot_decides(files: SimulatedFiles) -> None:
    """The page cache of the same boot has what was written; by a registered run that ends without a word."""
    begun(files, "r1").registered()
    assert told(files, boot_id=BOOT) == Told("r1", (), DIED, ())
    assert told(files, boot_id=LATER) == Told("r1", (), LOSSY, ())


def test_a_clean_mark_counts_only_for_the_run_that_it_names(files: SimulatedFiles) -> None:
    """By one of an earlier run beside a later one, as no run of this version leaves it."""
    write(files, RunRecord(before="r1", since=("r2",), boot_id=BOOT, clean="r1"))
    assert told(files).kind is DIED
    write(files, RunRecord(before="r1", since=("r2",), boot_id=BOOT, clean="r2"))
    assert told(files).kind is CLEAN


def test_what_an_unregistered_run_lost_stays_lost(files: SimulatedFiles) -> None:
    """Better runs after it do not take it away, being registered does; by a lossy start, one that died and a clean one
    before the cluster hears of any."""
    begun(files, "r1").registered()
    begun(files, "r2", boot_id=LATER)
    begun(files, "r3", boot_id=LATER).stopped()
    last = begun(files, "r4", boot_id=LATER)
    assert (last.before, last.since, last.kind) == ("r1", ("r2", "r3"), LOSSY)
    last.registered()
    assert (last.before, last.since) == ("r4", ())
    assert told(files.after_power_loss(), boot_id=LATER) == Told("r4", (), DIED, ())


def test_the_newest_runs_are_remembered(files: SimulatedFiles) -> None:
    """And the one that is known to be registered, with the worst of all; by more runs than there is room for."""
    begun(files, "r0").registered()
    runs = [f"r{number}" for number in range(1, SINCE_MAX + 6)]
    begun(files, runs[0], boot_id=LATER)
    for run in runs[1:]:
        begun(files, run, boot_id=LATER)
    assert told(files, boot_id=LATER) == Told("r0", tuple(runs[-SINCE_MAX:]), LOSSY, ())
    assert len(files.content(PATH)) < run_history.FILE_BYTES_MAX // 10


# --- Damage and disks that failed -----------------------------------------------------------------------------------


def test_damage_is_told_until_the_cluster_has_heard_of_it(files: SimulatedFiles) -> None:
    """By damage in two runs, the second of which is registered with both."""
    begun(files, "r1").damage(["log-b"])
    second = begun(files.after_power_loss(), "r2")
    second.damage(["log-a", "log-b"])
    assert second.damaged == ("log-a", "log-b")
    second.registered(second.damaged)
    assert second.damaged == ()


def test_damage_after_the_registration_was_sent_is_for_the_next_start(files: SimulatedFiles) -> None:
    """The answer speaks of what was sent; by damage that is found before the answer, and by some after it."""
    starts = begun(files, "r1")
    starts.damage(["log-a"])
    sent = starts.damaged
    starts.damage(["log-b"])
    starts.registered(sent)
    starts.damage(["log-c"])
    starts.stopped()
    assert told(files.after_power_loss(), boot_id=LATER) == Told("r1", (), CLEAN, ("log-b", "log-c"))


def test_damage_that_is_known_costs_no_write(files: SimulatedFiles) -> None:
    """A failing log may say so often; by counting syncs."""
    starts = begun(files, "r1")
    starts.damage(["log-a"])
    before = files.faults.calls["fdatasync"]
    starts.damage(["log-a"])
    starts.damage([])
    assert files.faults.calls["fdatasync"] == before


def test_damage_that_could_not_be_written_is_written_with_what_comes_next(files: SimulatedFiles) -> None:
    """By a sync that fails, and the same damage, and another write, after it."""
    for step in (lambda starts: starts.damage(["log-a"]), lambda starts: starts.registered()):
        disk = files.after_kill()
        starts = begun(disk, "r1")
        disk.faults.fail("fdatasync", times=1)
        with pytest.raises(DiskFailed, match="check the disk"):
            starts.damage(["log-a"])
        assert starts.damaged == ("log-a",)
        step(starts)
        assert told(disk.after_power_loss()).damaged == ("log-a",)


def test_after_a_disk_failed_the_next_start_is_lossy(files: SimulatedFiles) -> None:
    """In the same boot too, until the cluster has heard of that one; by a failure in a registered run, which then stops
    in good order."""
    first = begun(files, "r1")
    first.registered()
    first.disk_failed()
    first.stopped()
    assert told(files.after_power_loss()) == told(files.after_kill()) == Told("r1", (), LOSSY, ())
    assert begun(files, "r2").kind is LOSSY
    third = begun(files, "r3")
    assert third.kind is LOSSY
    third.registered()
    assert told(files.after_power_loss()).kind is DIED


def test_a_disk_that_fails_while_the_registration_is_under_way_is_told_by_the_next_start(
    files: SimulatedFiles,
) -> None:
    """This one was registered as what it was; by a failure between the two."""
    starts = begun(files, "r1")
    starts.disk_failed()
    assert starts.kind is LOSSY
    starts.registered()
    assert told(files).kind is LOSSY


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "fsync_directory"])
def test_a_disk_that_syncs_no_more_can_still_be_told_to_have_failed(files: SimulatedFiles, operation: str) -> None:
    """It matters to the same boot, which reads the page cache; by a disk on which one operation fails for good."""
    starts = begun(files, "r1")
    starts.registered()
    files.faults.fail(operation)
    starts.disk_failed()
    assert told(files.after_kill()).kind is LOSSY
    assert told(files.after_power_loss(), boot_id=LATER).kind is LOSSY


def test_a_disk_that_takes_nothing_gets_no_clean_mark(files: SimulatedFiles, caplog: pytest.LogCaptureFixture) -> None:
    """The failure cannot be noted, which is logged, and a later success must not hide it; by a disk that recovers."""
    starts = begun(files, "r1")
    starts.registered()
    files.faults.fail("create")
    starts.disk_failed()
    files.faults.heal()
    starts.stopped()
    assert "disk_failure_not_noted" in caplog.text
    assert told(files).kind is DIED


# --- Crashes and failures -------------------------------------------------------------------------------------------

Step = Callable[[RunHistory], object]
RUNS: Final[tuple[tuple[str, tuple[Step, ...]], ...]] = (
    (BOOT, (RunHistory.begin, lambda starts: starts.damage(["log-a"]), lambda starts: starts.registered(["log-a"]))),
    (BOOT, (RunHistory.begin, RunHistory.registered, RunHistory.stopped)),
    (BOOT, (RunHistory.begin, RunHistory.disk_failed, RunHistory.stopped)),
    (BOOT, (RunHistory.begin,)),
    (LATER, (RunHistory.begin, lambda starts: starts.damage(["log-b", "log-c"]), RunHistory.stopped)),
    (LATER, (RunHistory.begin, lambda starts: starts.registered(["log-c"]), RunHistory.stopped)),
)
"""What six runs do, each in its boot."""


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(model: DiskModel, seed: int) -> None:
    """Never an unreadable file, and never more than was said; by kills and power losses at each operation of six runs,
    read in the same boot and in another."""
    files = SimulatedFiles(DIRECTORY, seed=seed, model=model)
    crashed: list[SimulatedFiles] = []

    def observe(_: Moment) -> None:
        files.observer = None
        crashed.extend((files.after_kill(), files.after_power_loss()))
        files.observer = observe

    total = 0
    for number, (boot_id, steps) in enumerate(RUNS):
        starts = opened(files, f"r{number}", boot_id=boot_id)
        for step in steps:
            old = {boot: told(files, boot_id=boot) for boot in (BOOT, LATER)}
            files.observer = observe
            step(starts)
            files.observer = None
            new = {boot: told(files, boot_id=boot) for boot in (BOOT, LATER)}
            for disk, boot in itertools.product(crashed, (BOOT, LATER)):
                assert told(disk, boot_id=boot) in (old[boot], new[boot]), f"seed {seed}, run {number}"
            assert told(files.after_power_loss()) == new[BOOT], "a step that returned is on disk"
            total += len(crashed)
            crashed.clear()
    assert total > 200


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_mark_never_survives_the_next_run(seed: int) -> None:
    """It would hide what that one loses; by reading a clean mark from the page cache, or from the disk, and a power
    loss right after the run has begun."""
    files = SimulatedFiles(DIRECTORY, seed=seed, model=DiskModel(ordered_names=False, write_back=0.2))
    first = begun(files, "r1")
    first.registered()
    crashed: list[SimulatedFiles] = []
    files.observer = lambda _: crashed.append(files.after_kill())
    first.stopped()
    assert {opened(disk).kind for disk in crashed} == {CLEAN, DIED}
    for disk in crashed:
        begun(disk, "r2")
        content = disk.after_power_loss().content(PATH)
        assert msgspec.msgpack.decode(content[12:], type=RunRecord).clean == ""
        assert told(disk.after_power_loss()) == Told("r1", ("r2",), DIED, ())
        assert told(disk.after_power_loss(), boot_id=LATER) == Told("r1", ("r2",), LOSSY, ())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["create", "pwrite", "fdatasync", "rename", "fsync_directory"])
@pytest.mark.parametrize(
    "step", [RunHistory.begin, RunHistory.registered, RunHistory.stopped, lambda it: it.damage(["log-a"])]
)
def test_a_step_that_failed_is_said_and_can_be_tried_again(
    files: SimulatedFiles, step: Step, operation: str, code: int
) -> None:
    """What is there meanwhile is the old or the new; by one failure of each operation."""
    starts = begun(files, "r1")
    starts.registered()
    starts.stopped()
    starts = opened(files, "r2")
    if step is not RunHistory.begin:
        starts.begin()
    old = told(files)
    files.model = DiskModel(forgets=True, ordered_names=False)
    files.faults.fail(operation, code, times=1)
    with pytest.raises(DiskFull if code == errno.ENOSPC else DiskFailed, match=str(PATH)):
        step(starts)
    between = [told(disk) for disk in (files.after_kill(), files.after_power_loss(), files.after_power_loss())]
    step(starts)
    new = told(files.after_power_loss())
    assert set(between) <= {old, new}
    assert old != new


def test_a_failure_that_stays_noted_stops_nothing(files: SimulatedFiles) -> None:
    """Its name is not removed, the start is told of it and can be tried again; by an unlink that fails."""
    begun(files, "r1").disk_failed()
    files.faults.fail("unlink", times=1)
    starts = opened(files, "r2")
    with pytest.raises(DiskFailed, match=FAILED_NAME):
        starts.begin()
    starts.begin()
    assert {path.name for path in files.tree()} == {FILE_NAME}
    assert told(files.after_power_loss()) == Told("", ("r1", "r2"), LOSSY, ())


def test_a_disk_that_cannot_be_read_is_said(files: SimulatedFiles) -> None:
    """By a read that fails."""
    begun(files, "r1")
    files.faults.fail("pread", times=1)
    with pytest.raises(DiskFailed, match="cannot read"):
        opened(files)


# --- Together with the cluster --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_the_cluster_hears_the_worst_of_what_it_has_not_heard(seed: int) -> None:
    """And never takes the disk for one that was set back; by random runs that end in any way, some of which are
    registered, and some of those hear of it."""
    random = Random(seed)
    files = SimulatedFiles(DIRECTORY, seed=seed, model=DiskModel(ordered_names=False))
    state = ClusterState("id", "name", nodes={"a": NodeFacts(member=1, addresses=Addresses())})
    boot, since_heard, since_applied = 0, CLEAN, CLEAN
    for number in range(60):
        starts = begun(files, f"r{number}", boot_id=f"boot {boot}")
        if random.random() < 0.4:
            started = NodeStarted(
                node="a",
                start_id=starts.start_id,
                kind=starts.kind,
                addresses=Addresses(),
                before=starts.before,
                since=starts.since,
            )
            state, outcome = applied(state, number + 1, started)
            assert outcome.refusal == "", f"seed {seed}"
            kind = state.nodes["a"].kind
            assert kind is since_heard, f"seed {seed}"
            assert worse(kind, since_applied) is kind, f"seed {seed}"
            since_applied = CLEAN
            if random.random() < 0.5:
                starts.registered()
                since_heard = CLEAN
        end, act = random.choice(ENDS)
        act(starts)
        power_lost = end is LOSSY and act is not RunHistory.disk_failed
        boot += power_lost
        files = files.after_power_loss() if power_lost else files.after_kill()
        since_heard, since_applied = worse(since_heard, end), worse(since_applied, end)


def nothing(starts: RunHistory) -> None:
    """A run that ends without a word."""


ENDS: Final[tuple[tuple[StartKind, Step], ...]] = (
    (CLEAN, RunHistory.stopped),
    (DIED, nothing),
    (LOSSY, nothing),
    (LOSSY, RunHistory.disk_failed),
)
"""How a run may end: what the next start is worth, and what this one says last."""


def worse(one: StartKind, other: StartKind) -> StartKind:
    return max(one, other, key=[CLEAN, DIED, LOSSY].index)


# --- Files that are not as they were written ------------------------------------------------------------------------


def write(files: SimulatedFiles, record: RunRecord) -> None:
    with files.open(PATH, create=True) as file:
        file.pwrite(framed(msgspec.msgpack.encode(record)), 0)


def framed(payload: bytes, *, version: int = 1) -> bytes:
    """A file as another version writes it."""
    head = b"MLST" + version.to_bytes(4, "little")
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "little") + payload


def test_damage_to_the_file_is_refused(files: SimulatedFiles) -> None:
    """A clean mark may be what was damaged; by flipping a bit of each byte, and by cutting the file anywhere."""
    begun(files, "r1").stopped()
    content = files.content(PATH)
    for at in range(len(content)):
        damaged = files.after_kill()
        damaged.flip_bit(PATH, at, at % 8)
        with pytest.raises(LogCorrupt, match="remove it"):
            opened(damaged)
        with damaged.open(PATH, create=True) as file:
            file.pwrite(content[:at], 0)
        with pytest.raises(LogCorrupt, match="remove it"):
            opened(damaged)


def test_a_node_whose_file_was_removed_counts_as_set_back(files: SimulatedFiles) -> None:
    """So the advice is safe; by removing it and asking the cluster's state machine."""
    begun(files, "r1").registered()
    files.unlink(PATH)
    starts = begun(files, "r2")
    state = ClusterState("id", "name", nodes={"a": NodeFacts(member=1, addresses=Addresses(), start_id="r1")})
    started = NodeStarted(node="a", start_id="r2", kind=starts.kind, addresses=Addresses(), before=starts.before)
    assert "set back" in applied(state, 1, started)[1].refusal
    state, outcome = applied(state, 1, msgspec.structs.replace(started, seen="r1"))
    assert (outcome.refusal, state.nodes["a"].kind) == ("", LOSSY)


def test_what_a_newer_version_wrote_is_named_so(files: SimulatedFiles) -> None:
    """Removing it would be the wrong advice; by the next format, and by a kind of start that is not known."""
    for content in (framed(b"?", version=2), framed(msgspec.msgpack.encode({"kind": "shaken"}))):
        with files.open(PATH, create=True) as file:
            file.pwrite(content, 0)
        with pytest.raises(UnsupportedVersion, match="start the version that wrote it"):
            opened(files)


def test_more_fields_are_ignored(files: SimulatedFiles) -> None:
    """A newer version may add them; by a record with one more."""
    with files.open(PATH, create=True) as file:
        file.pwrite(framed(msgspec.msgpack.encode({"before": "r1", "weather": "fine"})), 0)
    assert told(files).before == "r1"


# --- The boot -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not BOOT_ID_PATH.exists(), reason=f"there is no {BOOT_ID_PATH} here")
def test_the_boot_has_one_id() -> None:
    """By asking twice."""
    assert own_boot_id() == own_boot_id() != ""


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\n"], ids=["missing", "empty", "no text"])
def test_an_unknown_boot_is_none_that_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """So that each unclean start counts as lossy, and the log says so; by a file that is of no use."""
    if content is not None:
        (tmp_path / "boot_id").write_bytes(content)
    assert own_boot_id(tmp_path / "boot_id") != own_boot_id(tmp_path / "boot_id")
    assert "boot_id_unknown" in caplog.text


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    """By three runs in a real directory."""
    first = opened(OS_FILES, "r1", directory=tmp_path)
    first.begin()
    first.registered()
    first.disk_failed()
    second = opened(OS_FILES, "r2", directory=tmp_path)
    second.begin()
    second.damage(["log-a"])
    second.stopped()
    third = opened(OS_FILES, "r3", directory=tmp_path)
    assert (third.before, third.since, third.kind, third.damaged) == ("r1", ("r2",), LOSSY, ("log-a",))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
