"""Which producers a publisher keeps."""

from __future__ import annotations

import pytest

from mirrorlog.client.publisher import queue_producers
from mirrorlog.client.publisher.queue_producers import IDLE_S, QueueProducers


class Producer:
    abandoned = False

    def abandon(self) -> None:
        self.abandoned = True


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_producers, "KEPT_MAX", 2)
    monkeypatch.setattr(queue_producers, "IDLE_KEPT_MAX", 4)


def kept(*names: str) -> tuple[QueueProducers, dict[str, Producer]]:
    of: QueueProducers = QueueProducers()
    made = {name: Producer() for name in names}
    for at, (name, producer) in enumerate(made.items()):
        of.add(name, producer, at)
    return of, made


def test_beyond_the_limit_those_go_that_were_used_longest_ago() -> None:
    """Goal: a queue for each answer fills nothing. Method: four, of which the first was used again; two may stay."""
    of, made = kept("a", "b", "c", "d")
    of.sent("a", 4)
    of.heard("a", made["a"])
    of.let_idle_go(3 + IDLE_S)
    assert [name for name, producer in made.items() if producer.abandoned] == ["b", "c"]
    assert list(of) == [made["d"], made["a"]]
    assert of.get("b") is None


def test_one_that_was_used_just_now_stays_until_there_are_very_many() -> None:
    """Goal: queues in turn start no producer for each message. Method: three young ones stay, of five one goes."""
    of, made = kept("a", "b", "c")
    of.let_idle_go(2)
    assert len(of) == 3
    for name in ("d", "e"):
        made[name] = Producer()
        of.add(name, made[name], 3)
    of.let_idle_go(3)
    assert [name for name, producer in made.items() if producer.abandoned] == ["a"]


def test_what_has_a_message_under_way_stays_whatever_the_limit() -> None:
    """Goal: no message ends because another queue was met. Method: all busy; one is heard of, and another one's word
    of a producer that went before does not count."""
    of, made = kept("a", "b", "c", "d", "e")
    for name in made:
        of.sent(name, 5)
    of.let_idle_go(1_000)
    assert len(of) == 5
    of.heard("b", Producer())
    of.heard("none", made["b"])
    of.heard("c", made["c"])
    of.let_idle_go(1_000)
    assert [name for name, producer in made.items() if producer.abandoned] == ["c"]
    of.drop("a")
    of.drop("a")
    assert made["a"].abandoned
