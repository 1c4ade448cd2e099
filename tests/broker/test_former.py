"""Former copies: what is one, what may be freed, and what is found on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from mirrorlog.broker.hosting.former import (
    FILE_NAME,
    GOING,
    FormerDisk,
    FoundCopy,
    Note,
    due,
    named_here,
    noted,
    why_kept,
)
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME

MINE, OTHER = str(uuid4()), str(uuid4())


def state_of(*replicas: str, in_sync: tuple[str, ...] = (), marked: tuple[str, ...] = ()) -> ClusterState:
    log = LogFacts(
        number=0,
        name="main",
        flush="memory",
        replicas=replicas,
        in_sync=dict.fromkeys(in_sync, "a run"),
        marked=frozenset(marked),
    )
    return ClusterState(cluster_id="c", name="c", logs={MINE: log})


@pytest.mark.parametrize(
    ("state", "up", "reason"),
    [
        (state_of("a", "b", in_sync=("a", "b")), "ab", ""),
        (state_of("a", "n1", in_sync=("a", "n1")), "ab", "its copy is no former one"),
        (state_of("a", "b", in_sync=("a", "b")), "", "no node that is up has a whole copy"),
        (state_of("a", "b", in_sync=("a",)), "b", "no node that is up has a whole copy"),
        (state_of("a", "b", in_sync=("a", "b"), marked=("a", "b")), "ab", "no node that is up has a whole copy"),
        (state_of("a", "b", in_sync=("a", "b"), marked=("a",)), "b", ""),
        (state_of(), "ab", "no node that is up has a whole copy"),
        (ClusterState(cluster_id="c", name="c"), "ab", ""),
    ],
    ids=["whole", "named", "all down", "in sync is down", "marked", "one marked", "no copies left", "removed"],
)
def test_only_what_somebody_else_has_whole_may_go(state: ClusterState, up: str, reason: str) -> None:
    kept = why_kept(state, "n1", MINE, is_up=lambda node: node in up)
    assert reason in kept
    assert bool(reason) == bool(kept)


def test_named_are_those_of_which_the_node_is_a_replica() -> None:
    assert named_here(state_of("a", "n1"), "n1") == {MINE}
    assert named_here(state_of("a", "b"), "n1") == set()


def test_the_longest_kept_are_due_first_and_none_that_nobody_saw_go() -> None:
    notes = {"new": Note(9_000, True), "old": Note(1_000, True), "older": Note(0, True), "unseen": Note(0, False)}
    assert due(notes, now_us=9_500, keep_ms=5) == ["older", "old"]
    assert due(notes, now_us=9_500, keep_ms=0) == []


def test_what_was_noted_stays_and_what_is_gone_is_forgotten() -> None:
    """Since when a copy is a former one never moves; that it was seen to go is known for good."""
    first = noted({}, ["x", "y", "z"], known=["x"], seen=["y"], now_us=5)
    assert first == {"x": Note(5, True), "y": Note(5, True), "z": Note(5, False)}
    assert noted(first, ["x", "z"], known=["z"], seen=[], now_us=9) == {"x": Note(5, True), "z": Note(5, True)}


def make_copy(path: Path, log_id: str, size: int = 10) -> Path:
    directory = path / LOGS_NAME / log_id
    directory.mkdir(parents=True)
    (directory / IDENTITY_NAME).write_text(json.dumps({"name": "main", "log_id": log_id}))
    (directory / "0").write_bytes(bytes(size))
    (directory / "index").mkdir()
    return directory


def test_copies_are_found_by_their_directories(tmp_path: Path) -> None:
    """Not those that are named, that were set aside or that are no log's; one that was going when a process died is
    removed."""
    kept = make_copy(tmp_path, MINE, 1000)
    make_copy(tmp_path, OTHER)
    make_copy(tmp_path, f"{MINE}.aside-1")
    going = make_copy(tmp_path, f"{MINE}{GOING}")
    (tmp_path / LOGS_NAME / str(uuid4())).mkdir()
    disk = FormerDisk(OS_FILES, tmp_path)
    size = 1000 + (kept / IDENTITY_NAME).stat().st_size
    assert disk.find({OTHER}) == [FoundCopy(MINE, "main", size)]
    assert not going.exists()
    disk.remove(MINE)
    assert {each.name for each in (tmp_path / LOGS_NAME).iterdir()} >= {OTHER, f"{MINE}.aside-1"}
    assert disk.find({OTHER}) == []


def test_notes_survive_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    disk = FormerDisk(OS_FILES, tmp_path)
    assert disk.read_notes() == {}
    notes = {MINE: Note(5, True), OTHER: Note(7, False)}
    disk.write_notes(notes)
    assert disk.read_notes() == notes
    for content in (b"", b"\xff", b"[]", b'{"x": {"since_us": "no"}}', b"x" * 2_000_000):
        (tmp_path / FILE_NAME).write_bytes(content)
        assert disk.read_notes() == {}
