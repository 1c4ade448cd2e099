"""A cluster for the process tests of the tools, and mqtool as a function."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.tools.main import main

SEGMENT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Tool = Callable[..., Outcome]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three copies in sync; for tests that leave the nodes as they found them."""
    with Cluster(3, segment_bytes=SEGMENT_BYTES) as started:
        started.wait_in_sync()
        yield started


@pytest.fixture
def mqtool(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Tool:
    """Run one command against the cluster, in this process; `servers` instead of all its nodes."""

    def run(*arguments: str, servers: list[str] | None = None) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(servers or cluster.servers), *arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run
