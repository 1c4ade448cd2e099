"""What mqtool tells a user who may not see everything: what is right, or that he may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.tools.main import main
from tests.tools.conftest import SEGMENT_BYTES, Outcome

pytestmark = pytest.mark.process

REFUSED = 18
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """One node with a queue `q` and one of others; `bob` may read q and see no node, `eve` monitors and reads none."""
    with Cluster(1, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@pytest.fixture
def run(guarded: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("MIRRORLOG_NEW_PASSWORD", "secret")
    monkeypatch.setenv("MIRRORLOG_PASSWORD", "secret")

    def run(*arguments: str, user: str = "alice") -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(guarded.servers), *(("--user", user) if user else ()), *arguments])
        told = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), told.out, told.err)

    if run("users", user="").code == 0:
        _prepare(run)
    return run


def _prepare(run: Run) -> None:
    for queue in ("q", "secret"):
        assert run("declare", queue, user="").code == 0
        assert run("publish", queue, "--value", "x", "--value", "y", user="").code == 0
    assert run("receive", "q", "--group", "billing", "--create", "--count", "1", user="").code == 0
    assert run("user-set", "alice", "--tag", "administrator", user="").code == 0
    assert run("user-permissions", "alice", "--configure", ".*", "--write", ".*", "--read", ".*").code == 0
    for user, tags in (("bob", ()), ("eve", ("--tag", "monitoring"))):
        assert run("user-set", user, *tags).code == 0
    assert run("user-permissions", "bob", "--configure", "^$", "--write", "^q$", "--read", "^q$").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["groups"],
        ["rates"],
        ["rates", "q"],
        ["offsets"],
        ["offsets", "--queue", "q"],
        ["offsets", "--json"],
        ["producers"],
        ["landings"],
        ["nodes"],
        ["doctor"],
        ["doctor", "q"],
        ["doctor", "--json"],
        ["events"],
        ["vhosts"],
    ],
    ids=" ".join,
)
def test_who_may_not_see_nodes_is_told_so_and_nothing_else(run: Run, command: list[str]) -> None:
    """Goal: a refusal is no outage and no empty list. Method: each command that asks nodes how they are, for a user who
    may read one queue: exit code 18, one line that names the tags that suffice; with one of them there is an answer."""
    refused = run(*command, user="bob")
    assert (refused.code, refused.out, refused.err.count("\n")) == (REFUSED, "", 1)
    assert "administrator, management, monitoring, policymaker" in refused.err
    assert run(*command, user="eve").code == 0


def test_groups_of_a_queue_that_he_may_read_are_told_all_the_same(run: Run) -> None:
    """Goal: what a right to read gives is given, by the master's word alone. Method: both kinds of group, as text
    and as JSON; a queue that he may not read, and one that is not there."""
    assert run("consume", "q", "--group", "lake", "--commit", "--max", "1").code == 0
    found = {each["group"]: each for each in run("groups", "q", "--json", user="bob").json}
    assert (found["billing"]["floor"], found["billing"]["unsettled"]) == (1, 1)
    assert (found["lake"]["position"]["queue_offset"], found["lake"]["lag"]) == (1, 1)
    lines = [line.split() for line in run("groups", "q", user="bob").out.splitlines()]
    assert ["q", "lake", "-", "1", "1"] in lines
    seen = {each["group"]: each for each in run("groups", "q", "--json").json}
    assert seen["lake"]["position"]["epoch"] == 1
    assert "billing" in seen
    assert run("groups", "secret", user="bob").code == REFUSED
    assert run("groups", "no-such", user="bob").code in {5, REFUSED}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["receive", "secret", "--wait", "0.1"], REFUSED),
        (["consume", "secret", "--until-end"], REFUSED),
        (["consume", "secret", "--max", "1"], REFUSED),
        (["lease", "secret"], REFUSED),
        (["purge", "secret"], REFUSED),
        (["users"], REFUSED),
        (["drain", "n1"], REFUSED),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else str(each),
)
def test_what_he_may_not_do_is_refused(run: Run, command: list[str], code: int) -> None:
    """Goal: no command goes over a refusal in silence. Method: one of each way to ask; also of a queue without
    records."""
    outcome = run(*command, user="bob")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)


def test_a_queue_without_records_tells_a_stranger_nothing(run: Run) -> None:
    """Goal: to read nothing needs the right, too. Method: an empty queue that he may not read."""
    assert run("declare", "bare").code == 0
    assert run("consume", "bare", "--until-end").code == 0
    assert run("consume", "bare", "--until-end", user="bob").code == REFUSED
