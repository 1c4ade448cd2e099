"""What a node tells of its cluster, and what that costs its loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.cluster.coordination.liveness import Life


class Looked(dict[str, str]):
    """How often somebody goes through all of it."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


def test_telling_outages_goes_through_no_log_group_while_nothing_is_out_and_once_when_much_is() -> None:
    """Goal: after a failover all clients ask at once, and a cluster may have 10,000 groups. Method: 16 logs, a group in
    one of them, 100 queues; metadata of all queues and of one, with nothing down and then with everything down: that
    there are groups is said of the log that has them alone."""
    ids = [str(uuid4()) for _ in range(16)]
    down, asked = set[str](), list[str]()
    groups = Looked(shop=ids[0])

    def log(number: int) -> Any:
        return SimpleNamespace(
            number=number, name=f"log{number}", replicas=(f"n{number}",), in_sync=(f"n{number}",), promotable=(),
            master=SimpleNamespace(node=f"n{number}"),
        )  # fmt: skip

    def life(node: str) -> Life:
        asked.append(node)
        return Life.DOWN if node in down else Life.UP

    view = NodeView()
    state = SimpleNamespace(
        transient={}, logs={log_id: log(number) for number, log_id in enumerate(ids)}, log_groups=groups,
        queues={f"q{number}": ids[number % 16] for number in range(100)},
        nodes={f"n{number}": SimpleNamespace(stopped=False) for number in range(16)},
    )  # fmt: skip
    view.service = cast(Any, SimpleNamespace(state=state, life=life, identity=SimpleNamespace(node="n1")))
    assert view.outages(None) == view.outages(["q1"]) == []
    assert groups.looks == 0
    asked.clear()
    view.outages(["q3"])
    assert set(asked) == {"n3"}
    down.update(state.nodes)
    told = view.outages(None)
    assert len(told) == 100
    assert groups.looks == 1
    assert {each.log_id for each in told if "another x-log-group" in each.reason} == {ids[0]}
    assert [each.name for each in view.outages(["q5", "never"])] == ["q5"]
    state.log_groups = Looked(other=ids[1])
    error = view.outage(UUID(ids[1]))
    assert error is not None
    assert "another x-log-group" in error.message
