"""What cannot follow in a log is named; what is not known is believed."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.queues.changes import Change, EpochStarted, LogStartMoved, encode_change
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    ProducerState,
    QueueState,
    State,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.tools.offline import order as order_module
from mirrorlog.tools.offline.order import Lost, Order
from tests.commitlog.logs import make_batch
from tests.commitlog.rows import header

DATA = make_batch()
BAD = Range(400, 800, "no batch begins here")


def data(log_offset: int, base: int, **fields: int) -> tuple[BatchHeader, memoryview]:
    """Ten records of queue 1 appended at the µs `log_offset`, by producer 7 under the sequence of their offset."""
    made = header(log_offset, base=base, time_us=log_offset)
    numbered = {"producer_id": 7, "sequence": base, "epoch": 1, **fields}
    return made._replace(**numbered), DATA


def change(log_offset: int, change: Change, epoch: int = 1) -> tuple[BatchHeader, memoryview]:
    return _placed(log_offset, encode_change(change), epoch)


def states(log_offset: int, *found: State) -> tuple[BatchHeader, memoryview]:
    return _placed(log_offset, encode_checkpoint([encode_state(each) for each in found]), 1)


def _placed(log_offset: int, batch: bytearray, epoch: int) -> tuple[BatchHeader, memoryview]:
    made = read_header(batch)._replace(log_offset=log_offset, append_time_us=log_offset, epoch=epoch)
    return made, memoryview(batch)


def queue_state(following: int) -> QueueState:
    return QueueState(1, "q", "", {}, following, {}, 0)


def producer_state(epoch: int, following: int) -> ProducerState:
    return ProducerState(7, 1, epoch, following, 0, {})


def faults(*batches: tuple[BatchHeader, memoryview] | Range, order: Order | None = None) -> list[str]:
    """What is said of these batches and bad ranges."""
    order = order or Order()
    for each in batches:
        if isinstance(each, Range):
            order.gap(each)
        else:
            order.batch(*each)
    return [str(each) for each in order.faults]


@pytest.mark.parametrize(
    "batches",
    [
        (data(0, 5), data(400, 15)),
        (data(0, 5), data(400, 5, flags=1, append_time_us=-9), data(800, 15)),
        (data(0, 5), data(400, 15, producer_epoch=1, sequence=0)),
        (data(0, 5), data(400, 15, producer_id=8, sequence=3)),
        (data(0, 5), data(400, 15, producer_id=0), data(800, 25, sequence=15)),
        (data(0, 5), BAD, data(800, 45)),
        (data(0, 5), BAD, data(800, 45, producer_epoch=3, sequence=70)),
        (change(0, EpochStarted(epoch=1, node_id="n", start_id="s")), data(400, 5)),
        (change(400, LogStartMoved(log_offset=400)),),
        (data(0, 5), states(400, queue_state(15), producer_state(0, 15)), data(800, 15)),
        (states(0, queue_state(15), producer_state(2, 5)), data(400, 15, producer_epoch=2, sequence=5)),
        (data(0, 5), BAD, states(800, queue_state(35), producer_state(4, 7))),
    ],
)
def test_what_a_node_writes_is_no_fault(batches: tuple[tuple[BatchHeader, memoryview] | Range, ...]) -> None:
    """Goal: no false alarm. Method: copies, new producer epochs, bad bytes in between, states, each alone."""
    assert faults(*batches) == []


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ((data(0, 5), data(400, 25, sequence=15)), "400: queue 1 goes on at queue offset 25 and not at 15"),
        ((data(0, 5), data(400, 5, sequence=15)), "goes on at queue offset 5 and not at 15"),
        ((data(0, 5), BAD, data(800, 5, sequence=15)), "goes on at queue offset 5 and not at 15"),
        ((data(0, 5), BAD, data(800, 15), data(1200, 45, sequence=25)), "queue offset 45 and not at 25"),
        ((data(0, 5), data(400, 15, sequence=16)), "producer 7 in queue 1: sequence 16 and not 15"),
        ((data(0, 5), data(400, 15, sequence=5)), "sequence 5 and not 15"),
        ((data(0, 5), BAD, data(800, 15, sequence=5)), "sequence 5 and not 15"),
        ((data(0, 5, producer_epoch=2), data(400, 15, producer_epoch=1)), "epoch 1 after 2"),
        ((data(0, 5), data(400, 15, producer_epoch=1)), "epoch 1 begins at sequence 15"),
        ((data(0, 5), data(400, 15, append_time_us=-1)), "append time -1 after 0"),
        ((data(0, 5), change(400, EpochStarted(epoch=1, node_id="", start_id=""))), "epoch 1 stands within epoch 1"),
        ((change(0, EpochStarted(epoch=2, node_id="", start_id="")),), "epoch 2 stands within epoch 1"),
        ((change(400, LogStartMoved(log_offset=401)),), "the begin moves to 401, above this place"),
        ((data(0, 5), states(400, queue_state(25))), "goes on at queue offset 25 and not at 15"),
        ((data(0, 5), states(400, producer_state(0, 25))), "is said to stand at epoch 0, sequence 25 and not at 0, 15"),
        ((_placed(0, bytearray(make_batch(kind=Kind.CONTROL)), 1),), "neither a map with a type nor an array"),
        ((_placed(0, bytearray(make_batch(b"\xc1", kind=Kind.QUEUE_STATE)), 1),), "cannot be read"),
        ((_placed(0, bytearray(make_batch(b"\x92\xa1B\xc0", kind=Kind.CHECKPOINT)), 1),), None),
        ((_placed(0, bytearray(make_batch(b"\x91\xa1Q", kind=Kind.CHECKPOINT)), 1),), "a QueueState of 0 items"),
        ((_placed(0, bytearray(make_batch(b"\x92\xa1G\x80", kind=Kind.CHECKPOINT)), 1),), None),
        ((_placed(0, bytearray(make_batch(b"\x91\xa1G", kind=Kind.CHECKPOINT)), 1),), "a QueueGaps of 0 items"),
        ((_placed(0, bytearray(make_batch(b"\x81\xa4type\xaaBeginMoved", kind=Kind.CONTROL)), 1),), "does not fit"),
    ],
)
def test_what_cannot_follow_is_named(
    batches: tuple[tuple[BatchHeader, memoryview] | Range, ...], text: str | None
) -> None:
    """Goal: each rule catches its fault, and says what was expected. Method: one fault of each kind."""
    found = faults(*batches)
    assert len(found) == (text is not None)
    assert text is None or text in found[0]


def test_what_a_queue_lost_is_told_once() -> None:
    """Goal: the exact stretch between what stands before and behind bad bytes. Method: by a batch, then by a state."""
    order = Order()
    assert faults(data(0, 5), BAD, data(800, 45), data(1200, 55), BAD, states(1600, queue_state(95)), order=order) == []
    assert order.lost == [Lost(1, 15, 45, 800), Lost(1, 65, 95, 1600)]
    assert (order.queues[1].first, order.queues[1].next) == (5, 95)
    assert order.names == {1: "q"}


def test_only_the_whole_checkpoint_at_its_place_counts() -> None:
    """Goal: what a start relies on. Method: one at another place, one with bad bytes inside, one that is whole."""
    began, ended = CheckpointBegan(1), CheckpointEnded(400, 0)
    for batches, end in (
        ((states(0, began), states(400, CheckpointEnded(0, 0))), None),
        ((states(400, began), BAD, states(800, ended)), None),
        ((states(400, began), states(800, CheckpointEnded(0, 0))), None),
        ((states(400, began), data(600, 5), states(1000, ended)), states(1000, ended)[0].next_log_offset),
    ):
        order = Order(state=400)
        faults(*batches, order=order)
        assert order.state_end == end


def test_faults_and_producers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded memory. Method: small limits; the count goes on, and a forgotten producer is believed."""
    monkeypatch.setattr(order_module, "FAULTS_MAX", 3)
    monkeypatch.setattr(order_module, "PRODUCERS_MAX", 2)
    order = Order()
    for number in range(10):
        order.batch(*data(400 * number, 7 * number, producer_id=number))
    assert (len(order.faults), order.fault_count) == (3, 9)
    assert len(order._producers) == 2
