"""By network and by path the same rows: a real node writes, both readers read it, also after kill -9.

Method: random records into several queues of a node with small segments; what the client reads is compared with what
the offline reader finds in the node's directory, running, killed, and started again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.errors import NoSuchQueue
from mirrorlog.spark.offline import LogDirectories
from mirrorlog.spark.reading.nodes import ask_nodes
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from tests.spark.offline_logs import Row, range_of, rows_of
from tests.spark.queues import every_kind_of_record

pytestmark = pytest.mark.process

QUEUES = ["a", "b", "c"]
MIB = 1024 * 1024
SMALL = {"log.kept_mapped_bytes": 0, "limits.max_batch_bytes": MIB, "limits.max_record_bytes": MIB // 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(1, data_dir=tmp_path, segment_bytes=MIB, settings=SMALL) as cluster:
        yield cluster


def publish(cluster: Cluster, dice: random.Random, rounds: int) -> None:
    kinds = every_kind_of_record(400)
    with Client(*cluster.servers) as client:
        for queue in QUEUES:
            client.admin.declare(queue)
        producers: list[Any] = [
            client.producer(queue, compression=dice.choice(["none", "lz4", "zstd"])).start() for queue in QUEUES
        ]
        for _ in range(rounds):
            records = [dice.choice(kinds) for _ in range(dice.randint(1, 200))]
            dice.choice(producers).send_many(
                [dice.randbytes(dice.randint(0, 200)) if each.value else each.value for each in records],
                keys=[each.key for each in records],
                headers=[each.headers for each in records],
                timestamps=[each.timestamp_us for each in records],
            )


def by_network(cluster: Cluster) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    with Client(*cluster.servers) as client:
        for queue in QUEUES:
            with client.consumer(queue, start="earliest", until="confirmed") as consumer:
                found[queue] = rows_of(consumer.batches())
    return found


def by_path(path: Path) -> dict[str, list[Row]]:
    logs = LogDirectories.open(str(path))
    return {facts.name: rows_of(logs.batches(range_of(facts))) for facts in logs.facts(QUEUES)}


def wait_until_the_path_has(path: Path, expected: dict[str, list[Row]]) -> None:
    """The checkpoint, which is all that an offline reader may believe, is written twice a second."""

    def met() -> bool | None:
        with suppress(NoSuchQueue):
            return by_path(path) == expected or None
        return None

    wait_for(met, timeout=20, what=lambda: "the path has what the node says")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_network_and_path_give_the_same_rows_also_after_a_kill(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    publish(cluster, dice, 300)
    expected = by_network(cluster)
    assert sum(map(len, expected.values())) > 5_000
    wait_until_the_path_has(tmp_path, expected)
    facts = LogDirectories.open(str(tmp_path)).facts(QUEUES)
    assert facts == ask_nodes(cluster.servers, QUEUES)
    wait_for(lambda: [*tmp_path.rglob("*.table")] or None, timeout=20, what=lambda: "a segment is sealed")
    assert by_path(tmp_path) == expected
    node = cluster.nodes["n1"]
    publish(cluster, dice, 5)
    node.kill()
    killed = by_path(tmp_path)
    node.start()
    restarted = by_network(cluster)
    for queue in QUEUES:
        assert killed[queue][: len(expected[queue])] == expected[queue]
        assert killed[queue] == restarted[queue][: len(killed[queue])], "confirmed, and never more"
    wait_until_the_path_has(tmp_path, restarted)
