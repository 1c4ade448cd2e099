"""The fuzzers for a few seconds each; `make attack` and `make fuzz-nodes` let them run for longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.middle import run
from tests.attacks.stage import KINDS, Stage, stage, tracebacks

pytestmark = pytest.mark.process

FUZZERS = ("fuzz_client", "fuzz_replication", "fuzz_http", "fuzz_grpc")
_GROWTH_BYTES_MAX = 128 * 1024 * 1024


@pytest.fixture(scope="module", params=[KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])])
def stand(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as stand:
        yield stand


@pytest.mark.long
@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_nearly_right_bytes_at_any_port_harm_nobody(stand: Stage, fuzzer: str) -> None:
    """Goal: no node ends, no election is held, no master deposed, memory stays, no traceback is in a log, and a
    bystander's publishes are all confirmed. Method: two seconds of mutated messages, by a fixed seed, at all nodes of
    either kind of cluster."""
    outcome = stand.attacked(fuzzer, seconds=2.0, seed=20261123)
    assert outcome.harmless, outcome
    assert outcome.inputs > 50, outcome
    assert outcome.grew_bytes < _GROWTH_BYTES_MAX, outcome
    assert tracebacks(stand.cluster.directory) == 0


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("where", "tls"),
    [("client", True), pytest.param("client", False, marks=pytest.mark.long), ("nodes", False)],
)
def test_somebody_in_the_middle_takes_and_adds_no_record(where: str, tls: bool) -> None:
    """Goal: what was confirmed over TLS, or where nodes talk to each other, is there, once and in order, whatever
    happened to the bytes on their way; over a plain client port, what is there is what was sent. Method: three seconds
    of flips, drops, doubles and moves."""
    outcome = run(where, seconds=3.0, seed=20261123, tls=tls)
    assert not outcome.wrong, outcome
    assert outcome.changed > 0, outcome
