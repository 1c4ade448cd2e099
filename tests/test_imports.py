"""Imports point down only, and what decides touches nothing outside.

Method: every file of the package is parsed, never imported, and each import is compared with the table of
what its layer may reach. The scanner is tried on fabricated sources too, so one that has gone blind fails.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "mirrorlog"

BOTTOM = {"attempts", "errors", "config", "pb", "versions"}
BATCHES = {"commitlog.format", "commitlog.attributes", "commitlog.body", "commitlog.codec"}
SERVER = ["commitlog", "wire", "ha", "cluster", "queues", "broker"]
"""From the bottom up: each may import those before it."""

ALLOWED: dict[str, set[str]] = {
    **{layer: {*SERVER[:height], *BOTTOM} for height, layer in enumerate(SERVER)},
    **dict.fromkeys(BOTTOM, BOTTOM),
    "client": {"wire", *BATCHES, *BOTTOM},
    "doors": {"client", "wire", *BATCHES, *BOTTOM},
    # Offline, on the disks of nodes that are stopped.
    "tools": {"client", "wire", "commitlog", "cluster.recovering", *BOTTOM},
    # Offline too: of queues it knows what their changes in the log mean, and nothing of who makes them.
    "spark": {"client", "wire", "commitlog", "queues.changes", *BOTTOM},
    # Starts nodes as processes, so it needs nothing of their inside.
    "testing": {"client", "wire", *BOTTOM},
}
"""For each layer, the modules (with all below them) that it may import besides itself."""

PURE = [
    "mirrorlog/attempts.py",
    "mirrorlog/broker/budgets.py",
    "mirrorlog/broker/counters.py",
    "mirrorlog/broker/disk_limits.py",
    "mirrorlog/broker/duties.py",
    "mirrorlog/broker/gathered.py",
    "mirrorlog/broker/lease_numbers.py",
    "mirrorlog/broker/login_turns.py",
    "mirrorlog/broker/memory_limits.py",
    "mirrorlog/broker/placing.py",
    "mirrorlog/broker/refused_access.py",
    "mirrorlog/broker/works.py",
    "mirrorlog/client/attributed.py",
    "mirrorlog/client/backoff.py",
    "mirrorlog/client/batching.py",
    "mirrorlog/client/begins.py",
    "mirrorlog/client/bulk.py",
    "mirrorlog/client/columns.py",
    "mirrorlog/client/consumed.py",
    "mirrorlog/client/cursor.py",
    "mirrorlog/client/in_hand.py",
    "mirrorlog/client/lease_receipts.py",
    "mirrorlog/client/options.py",
    "mirrorlog/client/pipeline.py",
    "mirrorlog/client/ranges.py",
    "mirrorlog/client/receipts.py",
    "mirrorlog/client/resumption.py",
    "mirrorlog/client/settlements.py",
    "mirrorlog/client/sightings.py",
    "mirrorlog/cluster/advice.py",
    "mirrorlog/cluster/commands.py",
    "mirrorlog/cluster/coordinator.py",
    "mirrorlog/cluster/events.py",
    "mirrorlog/cluster/founders.py",
    "mirrorlog/cluster/founding.py",
    "mirrorlog/cluster/liveness.py",
    "mirrorlog/cluster/machine.py",
    "mirrorlog/cluster/promotion.py",
    "mirrorlog/cluster/questions.py",
    "mirrorlog/cluster/raft/core.py",
    "mirrorlog/cluster/raft/effects.py",
    "mirrorlog/cluster/raft/log.py",
    "mirrorlog/cluster/raft/members.py",
    "mirrorlog/cluster/raft/messages.py",
    "mirrorlog/cluster/raft/progress.py",
    "mirrorlog/cluster/runs.py",
    "mirrorlog/cluster/seeking.py",
    "mirrorlog/cluster/state.py",
    "mirrorlog/cluster/topology.py",
    "mirrorlog/cluster/unclean.py",
    "mirrorlog/commitlog/attributes.py",
    "mirrorlog/commitlog/body.py",
    "mirrorlog/commitlog/codec.py",
    "mirrorlog/commitlog/format.py",
    "mirrorlog/commitlog/gaps.py",
    "mirrorlog/commitlog/index.py",
    "mirrorlog/commitlog/retention.py",
    "mirrorlog/commitlog/scan.py",
    "mirrorlog/ha/actions.py",
    "mirrorlog/ha/client.py",
    "mirrorlog/ha/connection.py",
    "mirrorlog/ha/court.py",
    "mirrorlog/ha/group_transfer.py",
    "mirrorlog/ha/in_sync.py",
    "mirrorlog/ha/losses.py",
    "mirrorlog/ha/mastership.py",
    "mirrorlog/ha/progress.py",
    "mirrorlog/ha/rate.py",
    "mirrorlog/queues/*.py",
    "mirrorlog/queues/holds.py",
    "mirrorlog/spark/checks/buckets.py",
    "mirrorlog/spark/checks/copy_audit.py",
    "mirrorlog/spark/declared_gaps.py",
    "mirrorlog/spark/decode/avro_decoder.py",
    "mirrorlog/spark/decode/avro_resolution.py",
    "mirrorlog/spark/decode/avro_schema.py",
    "mirrorlog/spark/decode/avro_values.py",
    "mirrorlog/spark/decode/avro_writers.py",
    "mirrorlog/spark/decode/columns.py",
    "mirrorlog/spark/decode/ddl.py",
    "mirrorlog/spark/decode/decoded.py",
    "mirrorlog/spark/decode/discovery.py",
    "mirrorlog/spark/decode/json_decoder.py",
    "mirrorlog/spark/decode/json_fast.py",
    "mirrorlog/spark/decode/json_strict.py",
    "mirrorlog/spark/decode/protobuf_decoder.py",
    "mirrorlog/spark/decode/protobuf_schema.py",
    "mirrorlog/spark/decode/texts.py",
    "mirrorlog/spark/decode/types.py",
    "mirrorlog/spark/decode/widening.py",
    "mirrorlog/spark/checks/differences.py",
    "mirrorlog/spark/filters.py",
    "mirrorlog/spark/landing/layout.py",
    "mirrorlog/spark/landing/positions.py",
    "mirrorlog/spark/landing/schedule.py",
    "mirrorlog/spark/landing/statistics.py",
    "mirrorlog/spark/positions.py",
    "mirrorlog/spark/triggers.py",
    "mirrorlog/versions.py",
    "mirrorlog/wire/frames.py",
    "mirrorlog/wire/greeting.py",
    "mirrorlog/wire/locations.py",
    "mirrorlog/wire/messages.py",
    "mirrorlog/wire/names.py",
    "mirrorlog/wire/places.py",
    "mirrorlog/wire/proof.py",
    "mirrorlog/wire/routing.py",
    "mirrorlog/wire/turns.py",
]
"""What decides: bytes or events and `now` in, actions out."""

IMPURE = {"asyncio", "logging", "os", "random", "select", "socket", "ssl", "threading", "time"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `module` is dotted and absolute, `line` counts from 1."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports(file: str, source: str) -> Iterator[Import]:
    """Every import in `source`, wherever it stands; `file` is the path below the root."""
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from a import b` may mean the module a.b: the longer name is the one to judge.
            origin = _origin(file, node)
            yield from (Import(file, node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def _origin(file: str, node: ast.ImportFrom) -> str:
    folders = Path(file).parts[: -node.level] if node.level else ()
    return ".".join([*folders, *([node.module] if node.module else [])])


def upward(file: str, source: str) -> list[Import]:
    """The imports that leave the layer of `file` in a direction that is not allowed."""
    layer = Path(file).with_suffix("").parts[1]
    if layer == "__init__":
        reach: set[str] = set()
    else:
        assert layer in ALLOWED, f"{file}: layer {layer} is not in the table of this test"
        reach = {layer, *ALLOWED[layer]}
    return [found for found in imports(file, source) if not _within(found.module, reach)]


def _within(module: str, reach: set[str]) -> bool:
    top, _, inner = module.partition(".")
    return top != PACKAGE or any(f"{inner}.".startswith(f"{allowed}.") for allowed in {*reach, "__version__"})


def impure(file: str, source: str) -> list[Import]:
    """The imports that let `file` touch a clock, a disk, a socket, a thread or a log."""
    return [found for found in imports(file, source) if found.module.partition(".")[0] in IMPURE]


def sources(patterns: list[str]) -> list[str]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def generated(file: str) -> bool:
    return file.startswith(f"{PACKAGE}/pb/")


def listing(found: list[Import]) -> str:
    return "\n".join(map(str, found))


@pytest.mark.parametrize("file", [file for file in sources([f"{PACKAGE}/**/*.py"]) if not generated(file)])
def test_imports_point_down_only(file: str) -> None:
    found = upward(file, (ROOT / file).read_text())
    assert not found, listing(found)


@pytest.mark.parametrize("file", sources(PURE))
def test_what_decides_touches_nothing_outside(file: str) -> None:
    found = impure(file, (ROOT / file).read_text())
    assert not found, listing(found)


def test_the_package_is_found() -> None:
    assert f"{PACKAGE}/errors.py" in sources([f"{PACKAGE}/**/*.py"])


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("mirrorlog/commitlog/segment.py", "import mirrorlog.wire.frames"),
        ("mirrorlog/wire/frames.py", "from mirrorlog.ha import client"),
        ("mirrorlog/ha/service.py", "from mirrorlog import broker"),
        ("mirrorlog/ha/service.py", "from .. import broker"),
        ("mirrorlog/ha/service.py", "from ..broker.main import main"),
        ("mirrorlog/ha/service.py", "from ..client import Producer"),
        ("mirrorlog/queues/deliver.py", "def late():\n    import mirrorlog.broker"),
        ("mirrorlog/cluster/view.py", "if TYPE_CHECKING:\n    from mirrorlog.queues.policy import Policy"),
        ("mirrorlog/client/producer.py", "from mirrorlog.commitlog import segment"),
        ("mirrorlog/client/producer.py", "from mirrorlog.commitlog.formatting import text"),
        ("mirrorlog/doors/http.py", "from mirrorlog.ha.client import HAClient"),
        ("mirrorlog/tools/dump.py", "from mirrorlog.broker.node import Node"),
        ("mirrorlog/spark/source.py", "import pyspark, mirrorlog.queues"),
        ("mirrorlog/testing/cluster.py", "from mirrorlog.broker.main import main"),
        ("mirrorlog/errors.py", "from mirrorlog.wire.frames import Frame"),
        ("mirrorlog/config.py", "import mirrorlog"),
        ("mirrorlog/__init__.py", "from mirrorlog.client import Client"),
    ],
)
def test_an_import_in_the_wrong_direction_is_caught(file: str, source: str) -> None:
    found = upward(file, f"'''A docstring.'''\n{source}\n")
    assert len(found) == 1
    assert str(found[0]).startswith(f"{file}:{2 + source.count(chr(10))} imports mirrorlog")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("mirrorlog/commitlog/segment.py", "from mirrorlog.commitlog.format import Header"),
        ("mirrorlog/commitlog/segment.py", "from .format import Header"),
        ("mirrorlog/commitlog/segment.py", "from ..errors import BadBatch"),
        ("mirrorlog/broker/main.py", "from mirrorlog import config, ha, queues"),
        ("mirrorlog/broker/main.py", "from mirrorlog import __version__"),
        ("mirrorlog/client/producer.py", "from mirrorlog.commitlog import body, format"),
        ("mirrorlog/client/producer.py", "from mirrorlog.commitlog.format import Header"),
        ("mirrorlog/client/admin.py", "import mirrorlog_plugins"),
        ("mirrorlog/tools/verify.py", "from mirrorlog.commitlog.recovery import recover"),
        ("mirrorlog/config.py", "from mirrorlog.errors import ConfigError"),
    ],
)
def test_an_import_downward_is_allowed(file: str, source: str) -> None:
    assert upward(file, source) == []


@pytest.mark.parametrize("source", ["import os.path", "from time import monotonic", "import json, asyncio"])
def test_a_decider_that_reaches_outside_is_caught(source: str) -> None:
    assert len(impure("mirrorlog/ha/progress.py", source)) == 1


def test_a_decider_may_import_a_module_that_only_sounds_impure() -> None:
    assert impure("mirrorlog/ha/progress.py", "from mirrorlog.wire.time import tick\nimport timeit") == []
