"""`mqtool recover-cluster`, on the disks of stopped nodes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.cluster.membership.run_history import RunHistory
from mirrorlog.tools.main import main
from tests.cluster.survivors import FILES, Disk, commands
from tests.tools.conftest import Outcome

Offline = Callable[..., Outcome]

FIVE = ("a", "b", "c", "d", "e")


@pytest.fixture
def disks(tmp_path: Path) -> dict[str, Disk]:
    """Two of five; `a` knows of less than `b`."""
    known = {"a": commands()[:-1], "b": commands()}
    return {name: Disk(tmp_path, name, known[name], names=FIVE) for name in known}


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Offline:
    """Run the command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["recover-cluster", *map(str, arguments)])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run


def test_each_survivor_comes_to_the_same_on_its_own_machine(
    disks: dict[str, Disk], offline: Offline, tmp_path: Path
) -> None:
    """Goal: one cluster, not two. Method: save on each, then the two commands that two operators type."""
    for name, disk in disks.items():
        assert offline("--data-dir", disk.path, "--save", tmp_path / f"{name}.survivor").code == 0
    told = {}
    for name, disk in disks.items():
        files = [part for each in disks for part in ("--file", tmp_path / f"{each}.survivor")]
        done = offline("--data-dir", disk.path, *files, "--survivors", "a,b", "--accept-loss", "--json")
        assert done.code == 0, done.err
        told[name] = done.json
    assert told["a"]["fingerprint"] == told["b"]["fingerprint"]
    assert [told[name]["changed"] for name in "ab"] == [["a"], ["b"]]
    assert told["a"]["lost"] == ["c", "d", "e"]
    assert disks["a"].state() == disks["b"].state()
    assert disks["a"].read().members.voters == (1, 2)


def test_on_one_machine_one_command_does_it_and_may_be_repeated(disks: dict[str, Disk], offline: Offline) -> None:
    """Goal: a crash in the middle is no disaster. Method: one disk done before, then both, twice."""
    both = ["--data-dir", disks["a"].path, "--data-dir", disks["b"].path, "--survivors", "b, a"]
    would = offline(*both)
    assert would.code == 0
    assert "node a would begin anew; nothing was changed" in would.out
    assert disks["a"].state().incarnation == disks["b"].state().incarnation == 1
    assert "node b begins anew; its former Raft files are in" in offline(*both, "--accept-loss").out
    again = offline(*both, "--accept-loss")
    assert again.code == 0, again.err
    assert again.out.count("had begun anew already") == 2


def test_a_survivor_that_was_left_behind_takes_over_what_the_other_has(
    disks: dict[str, Disk], offline: Offline, tmp_path: Path
) -> None:
    """Goal: the second machine may come later. Method: the first one is recovered, and its file is saved again."""
    files = {name: tmp_path / f"{name}.survivor" for name in disks}
    for name, disk in disks.items():
        offline("--data-dir", disk.path, "--save", files[name])
    first = ["--data-dir", disks["a"].path, "--file", files["b"], "--survivors", "a,b", "--accept-loss"]
    assert offline(*first).code == 0
    offline("--data-dir", disks["a"].path, "--save", files["a"])
    second = offline("--data-dir", disks["b"].path, "--file", files["a"], "--survivors", "a,b", "--accept-loss")
    assert second.code == 0, second.err
    assert "decided already, as on node a" in second.out
    assert disks["a"].state() == disks["b"].state()


def test_what_cannot_be_meant_is_refused(disks: dict[str, Disk], offline: Offline, tmp_path: Path) -> None:
    """Goal: a slip of the pen loses nothing. Method: wrong names, no directory, a file that is older than its disk."""
    a, b = disks["a"].path, disks["b"].path
    assert "name exactly those that go on" in offline("--data-dir", a, "--survivors", "a,b").err
    assert "give --data-dir" in offline("--survivors", "a").err
    assert "no node's data directory" in offline("--data-dir", tmp_path, "--survivors", "a").err
    assert offline("--data-dir", a, "--data-dir", b, "--save", tmp_path / "x").code == 2
    saved = tmp_path / "a.survivor"
    offline("--data-dir", a, "--save", saved)
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    saved.write_bytes(content)
    damaged = offline("--data-dir", b, "--file", saved, "--survivors", "a,b")
    assert (damaged.code, damaged.err.count("\n")) == (2, 1)
    assert disks["a"].state().incarnation == 1


def test_a_file_that_is_older_than_its_disk_is_refused(
    disks: dict[str, Disk], offline: Offline, tmp_path: Path
) -> None:
    """Goal: both machines are given the same. Method: the node starts once more after its file was saved."""
    saved = tmp_path / "a.survivor"
    offline("--data-dir", disks["a"].path, "--save", saved)
    run = RunHistory.open(FILES, disks["a"].path, boot_id="boot")
    run.begin()
    outcome = offline("--data-dir", disks["a"].path, "--file", saved, "--data-dir", disks["b"].path,
                      "--survivors", "a,b", "--accept-loss")  # fmt: skip
    assert "has run since its file was saved" in outcome.err
    assert disks["b"].state().incarnation == 1
