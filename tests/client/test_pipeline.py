"""The producer's pipeline against a model of the node: real sequence rules, lost links, late bytes, refusals.

The node's side is the real producer table, so both sides of invariant 9 meet here.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.client.producer.pipeline import Pipeline, ProducerStats
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import Flag, read_header
from mirrorlog.errors import (
    BadBatch,
    ConnectionLost,
    DiskFull,
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    OutcomeUnknown,
    OutOfSequence,
    QueueFull,
    QueueMoving,
    Refused,
    SentToDeadLetters,
    StaleProducerEpoch,
)
from mirrorlog.queues.producers import ProducerTable
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm

QUEUE_ID = 3
PRODUCER_ID = 77
DELIVERY_S = 30.0
REFUSALS: list[type[MirrorlogError]] = [InSyncReplicasNotEnough, NotMaster, QueueMoving, DiskFull]


def batch_of(*numbers: int, deadline: float = DELIVERY_S) -> PendingBatch:
    batch = PendingBatch(deadline)
    for number in numbers:
        batch.add(b"%d" % number, None, (), None, 10)
    batch.close()
    return batch


def pipeline_of(*, idempotent: bool = True, max_in_flight: int = 4, retry_full: bool = True) -> Pipeline:
    return Pipeline(
        idempotent=idempotent,
        max_in_flight=max_in_flight,
        stats=ProducerStats(),
        jitter=lambda: 1.0,
        retry_full=retry_full,
    )


def confirm_of(base: int, *, duplicate: bool = False) -> Confirm:
    return Confirm(base * 100, base, 1, 3, 0, CONFIRM_DUPLICATE if duplicate else 0)


class ModelNode:
    """A log of record numbers behind the real sequence rules."""

    def __init__(self) -> None:
        self.table = ProducerTable(producers_max=1)
        self.records: list[int] = []
        self.letters: list[int] = []

    def publish(self, batch: bytes, *, full: bool) -> Confirm | SentToDeadLetters:
        """What it is answered with once it is confirmed. `full`: it goes to dead letters. Raises as the node does."""
        header = read_header(batch)
        landed, duplicate = self.table.check(header), True
        if landed is None:
            duplicate, place = False, self.letters if full else self.records
            base, flags = len(place), Flag.REFUSED if full else Flag.NONE
            self.table.apply(header._replace(base_queue_offset=base, log_offset=100 * base, epoch=1, flags=int(flags)))
            place += [int(record.value or b"") for record in parse_batch_body(batch).records()]
            landed = self.table.check(header)
            assert landed is not None
        if landed.refused:
            return SentToDeadLetters("full")
        return confirm_of(landed.base_queue_offset, duplicate=duplicate)

    def forget(self) -> None:
        """Another producer takes the only place in the table."""
        header = read_header(batch_of(0).encoded(QUEUE_ID, PRODUCER_ID + 1))
        self.table.apply(header._replace(epoch=1))


class Link:
    """One connection: batches on their way, and answers on theirs. `client_gone`: nobody reads the answers."""

    def __init__(self) -> None:
        self.sent: deque[tuple[PendingBatch, bytes]] = deque()
        self.waiting: deque[tuple[PendingBatch, Confirm | SentToDeadLetters]] = deque()
        self.answers: deque[tuple[PendingBatch, Confirm | MirrorlogError]] = deque()


class PipelineMachine(RuleBasedStateMachine):
    """Whatever the node and the links do, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pipeline = pipeline_of()
        self.node = ModelNode()
        self.link = Link()
        self.lost_links: list[Link] = []
        self.batches: list[tuple[PendingBatch, list[int]]] = []
        self.next_number = 0

    # --- the client's side ---

    @rule(records=st.integers(1, 3))
    def send(self, records: int) -> None:
        numbers = list(range(self.next_number, self.next_number + records))
        self.next_number += records
        batch = batch_of(*numbers, deadline=self.now + DELIVERY_S)
        self.batches.append((batch, numbers))
        self.pipeline.add(batch)
        self.pump()

    def pump(self) -> None:
        self.pipeline.expire(self.now)
        while (batch := self.pipeline.next_to_send(self.now)) is not None:
            self.link.sent.append((batch, bytes(batch.encoded(QUEUE_ID, PRODUCER_ID))))

    @rule(seconds=st.sampled_from([0.05, 1.0, 7.0, 25.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @precondition(lambda self: self.pipeline.in_flight)
    @rule()
    def lose_link(self) -> None:
        """The client sees the end; what it had sent may still arrive, later, behind what comes on the new link."""
        lost, self.link = self.link, Link()
        for batch, _ in [*lost.sent]:
            self.pipeline.failed(batch, ConnectionLost("cut"), self.now)
        for batch, *_ in [*lost.waiting, *lost.answers]:
            self.pipeline.failed(batch, ConnectionLost("cut"), self.now)
        lost.answers.clear()
        self.lost_links.append(lost)

    @precondition(lambda self: self.link.answers)
    @rule()
    def hear(self) -> None:
        batch, answer = self.link.answers.popleft()
        if isinstance(answer, Confirm):
            self.pipeline.confirmed(batch, answer, self.now)
        else:
            self.pipeline.failed(batch, answer, self.now)
        self.pump()

    # --- the node's side ---

    @precondition(lambda self: any(link.sent for link in self.lost_links))
    @rule(which=st.integers(0, 3))
    def late_bytes_arrive(self, which: int) -> None:
        late = [link for link in self.lost_links if link.sent]
        self.take(late[which % len(late)], None)

    @precondition(lambda self: self.link.sent)
    @rule(full=st.booleans())
    def node_takes(self, full: bool) -> None:
        """`full`: unless it has it, it goes to the queue's dead letters."""
        self.take(self.link, None, full=full)

    @precondition(lambda self: self.link.sent)
    @rule(refusal=st.sampled_from([*REFUSALS, BadBatch, NoSuchQueue]))
    def node_refuses(self, refusal: type[MirrorlogError]) -> None:
        self.take(self.link, refusal("nothing was stored"))

    def take(self, link: Link, refusal: MirrorlogError | None, *, full: bool = False) -> None:
        batch, data = link.sent.popleft()
        if refusal is not None:
            link.answers.append((batch, refusal))
            return
        try:
            answer = self.node.publish(data, full=full)
        except MirrorlogError as error:
            link.answers.append((batch, error))
        else:
            link.waiting.append((batch, answer))

    @precondition(lambda self: self.link.waiting)
    @rule(timed_out=st.booleans())
    def node_answers(self, timed_out: bool) -> None:
        batch, answer = self.link.waiting.popleft()
        self.link.answers.append((batch, FlushSlaveTimeout("too late") if timed_out else answer))

    @precondition(lambda self: len(self.node.table))
    @rule()
    def node_forgets(self) -> None:
        """The producer was idle for too long, or is one too many."""
        self.node.forget()

    # --- what must hold ---

    @invariant()
    def nobody_hears_of_numbers(self) -> None:
        """A producer that was forgotten, or gave a sequence up, goes on by itself."""
        for batch, _ in self.batches:
            assert not isinstance(batch.outcome, OutOfSequence | StaleProducerEpoch), str(batch.outcome)

    @invariant()
    def nothing_lands_twice_and_the_order_is_kept(self) -> None:
        assert self.node.records == sorted(set(self.node.records))
        assert self.node.letters == sorted(set(self.node.letters))
        assert set(self.node.letters).isdisjoint(self.node.records)

    @invariant()
    def what_ended_well_or_as_refused_is_so(self) -> None:
        stored = {*self.node.records, *self.node.letters}
        for batch, numbers in self.batches:
            if isinstance(batch.outcome, Confirm):
                base = batch.outcome.base_queue_offset
                assert self.node.records[base : base + len(numbers)] == numbers
            elif isinstance(batch.outcome, SentToDeadLetters):
                assert set(self.node.letters).issuperset(numbers)
            elif batch.outcome is not None and not isinstance(batch.outcome, OutcomeUnknown):
                assert stored.isdisjoint(numbers), f"{type(batch.outcome).__name__} says that nothing was stored"

    def teardown(self) -> None:
        """A well behaved node from here on: every batch ends, and late bytes change nothing that was said."""
        for _ in range(200):
            while self.link.sent:
                self.node_takes(full=False)
            while self.link.waiting:
                self.node_answers(timed_out=False)
            while self.link.answers:
                self.hear()
            self.now += 0.5
            self.pump()
        for link in self.lost_links:
            while link.sent:
                self.take(link, None)
        self.nothing_lands_twice_and_the_order_is_kept()
        self.what_ended_well_or_as_refused_is_so()
        assert all(batch.outcome is not None for batch, _ in self.batches)
        assert len(self.pipeline) == 0


TestPipelineMachine = PipelineMachine.TestCase
TestPipelineMachine.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)


# --- Single rules -------------------------------------------------------------------------------------------------


def send_all(pipeline: Pipeline, *batches: PendingBatch, now: float = 0.0) -> list[tuple[int, int]]:
    """Add the batches and give (producer epoch, sequence) of those that left."""
    for batch in batches:
        pipeline.add(batch)
    return take_all(pipeline, now)


def take_all(pipeline: Pipeline, now: float) -> list[tuple[int, int]]:
    left = []
    while (batch := pipeline.next_to_send(now)) is not None:
        header = read_header(batch.encoded(QUEUE_ID, PRODUCER_ID))
        left.append((header.producer_epoch, header.sequence))
    return left


def test_sequences_count_records_and_at_most_max_in_flight_leave() -> None:
    """A sequence is the number of the batch's first record; by sending more batches than may be in flight."""
    pipeline = pipeline_of(max_in_flight=2)
    first, second, third = batch_of(0, 1, 2), batch_of(3), batch_of(4)
    assert send_all(pipeline, first, second, third) == [(0, 0), (0, 3)]
    pipeline.confirmed(first, confirm_of(0), 0.1)
    assert take_all(pipeline, 0.1) == [(0, 4)]


def test_it_is_ready_only_when_a_new_batch_would_leave_at_once() -> None:
    """Else an open batch had better go on filling; by each thing that holds batches back."""
    pipeline = pipeline_of(max_in_flight=1)
    first, second = batch_of(0), batch_of(1)
    assert pipeline.ready(0.0)
    send_all(pipeline, first)
    assert not pipeline.ready(0.0), "as many are in flight as may be"
    pipeline.add(second)
    pipeline.confirmed(first, confirm_of(0), 0.1)
    assert not pipeline.ready(0.1), "another one waits before it"
    take_all(pipeline, 0.1)
    pipeline.failed(second, DiskFull("full"), 0.2)
    assert not pipeline.ready(0.2), "a retry is not due yet"
    take_all(pipeline, 5.0)
    pipeline.confirmed(second, confirm_of(1), 5.0)
    assert pipeline.ready(5.0)


def test_a_retry_sends_the_identical_bytes() -> None:
    """Same bytes after an unknown outcome; by comparing both attempts."""
    pipeline = pipeline_of()
    batch = batch_of(0, 1)
    send_all(pipeline, batch)
    before = bytes(batch.encoded(QUEUE_ID, PRODUCER_ID))
    pipeline.failed(batch, FlushSlaveTimeout("late"), 1.0)
    assert take_all(pipeline, 5.0) == [(0, 0)]
    assert bytes(batch.encoded(QUEUE_ID, PRODUCER_ID)) == before


def test_what_went_to_dead_letters_has_used_its_number_and_nothing_waits_for_it() -> None:
    """The batches behind it go on under the same producer epoch, and its own attempt is not made again."""
    pipeline = pipeline_of(max_in_flight=2)
    first, second, third = batch_of(0, 1), batch_of(2), batch_of(3)
    assert send_all(pipeline, first, second, third) == [(0, 0), (0, 2)]
    pipeline.failed(first, SentToDeadLetters("full"), 0.1)
    assert isinstance(first.outcome, SentToDeadLetters)
    assert take_all(pipeline, 0.1) == [(0, 3)]
    pipeline.confirmed(second, confirm_of(0), 0.2)
    pipeline.failed(third, SentToDeadLetters("full"), 0.2)
    assert pipeline.empty


def test_a_retry_that_is_told_of_dead_letters_ends_the_retrying() -> None:
    pipeline = pipeline_of()
    first, second = batch_of(0), batch_of(1)
    send_all(pipeline, first)
    pipeline.failed(first, ConnectionLost("cut"), 0.1)
    assert take_all(pipeline, 5.0) == [(0, 0)]
    pipeline.failed(first, SentToDeadLetters("full"), 5.0)
    assert pipeline.last_error is None
    assert send_all(pipeline, second, now=5.0) == [(0, 1)]


def test_followers_of_a_refused_batch_wait_and_go_again_in_order() -> None:
    """Nothing is sent until all answers are in, then from the first unresolved; by answering one by one."""
    pipeline = pipeline_of()
    first, second, third = batch_of(0), batch_of(1), batch_of(2)
    send_all(pipeline, first, second, third)
    pipeline.failed(first, InSyncReplicasNotEnough("two"), 1.0)
    assert take_all(pipeline, 100.0) == []
    pipeline.failed(second, OutOfSequence("gap", last=-1), 1.0)
    assert take_all(pipeline, 100.0) == []
    pipeline.failed(third, OutOfSequence("gap", last=-1), 1.0)
    assert take_all(pipeline, 1.0) == [], "a retry waits for its backoff"
    assert take_all(pipeline, 2.1) == [(0, 0)], "one goes ahead: the others would only be refused with it"
    pipeline.confirmed(first, confirm_of(0), 2.2)
    assert take_all(pipeline, 2.2) == [(0, 1), (0, 2)]


def test_what_a_full_queue_refuses_ends_at_once_for_who_wants_that() -> None:
    """Goal: told, and what follows goes on without a pause. Method: three in flight of which the first and the third
    are refused as full; one that may be stored by a lost attempt is not said to be refused."""
    pipeline = pipeline_of(retry_full=False)
    first, second, third = batch_of(0), batch_of(1), batch_of(2)
    assert send_all(pipeline, first, second, third) == [(0, 0), (0, 1), (0, 2)]
    pipeline.failed(first, QueueFull("full"), 0.1)
    assert isinstance(first.outcome, QueueFull)
    pipeline.failed(second, OutOfSequence("behind it", last=5), 0.1)
    pipeline.failed(third, QueueFull("full"), 0.1)
    assert isinstance(third.outcome, QueueFull)
    assert take_all(pipeline, 0.1) == [(1, 0)]
    pipeline.failed(second, ConnectionLost("gone"), 0.2)
    assert take_all(pipeline, 5.0) == [(1, 0)]
    pipeline.failed(second, QueueFull("full"), 5.1)
    assert isinstance(second.outcome, OutcomeUnknown)
    again, fourth = pipeline_of(), batch_of(3)
    send_all(again, fourth)
    again.failed(fourth, QueueFull("full"), 0.1)
    assert fourth.outcome is None


def test_backoff_grows_by_tenths_and_a_confirm_resets_it() -> None:
    """20 ms, 22 ms, … 250 ms; by refusing again and again and asking when the retry is due."""
    pipeline = pipeline_of()
    batch, now, pauses = batch_of(0, deadline=1e9), 0.0, []
    send_all(pipeline, batch)
    for _ in range(29):
        pipeline.failed(batch, DiskFull("full"), now)
        due = pipeline.resume_at()
        assert due is not None
        pauses.append(round(due - now, 3))
        now = due
        assert take_all(pipeline, now) == [(0, 0)]
    assert pauses[:4] == [0.02, 0.022, 0.024, 0.027]
    assert pauses[26:] == [0.238, 0.25, 0.25]
    pipeline.confirmed(batch, confirm_of(0), now)
    again = batch_of(1, deadline=1e9)
    send_all(pipeline, again, now=now)
    pipeline.failed(again, DiskFull("full"), now)
    assert pipeline.resume_at() == pytest.approx(now + 0.02)


def test_a_deadline_after_refusals_only_is_a_refusal_with_the_last_reason() -> None:
    """Nothing can have been stored, and the caller learns why; by refusing until the deadline."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    send_all(pipeline, batch)
    pipeline.failed(batch, InSyncReplicasNotEnough("2 copies are up"), 1.0)
    pipeline.expire(DELIVERY_S)
    assert isinstance(batch.outcome, InSyncReplicasNotEnough)
    assert "2 copies are up" in str(batch.outcome)


@pytest.mark.parametrize("failures", [[FlushSlaveTimeout], [ConnectionLost], [ConnectionLost, InSyncReplicasNotEnough]])
def test_a_deadline_after_an_attempt_without_an_answer_is_unknown(failures: list[type[MirrorlogError]]) -> None:
    """A later refusal says nothing about an earlier attempt; by letting that one be unknown."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    send_all(pipeline, batch)
    for number, failure in enumerate(failures):
        pipeline.failed(batch, failure("so"), 1.0 + 5 * number)
        take_all(pipeline, 4.0 + 5 * number)
    pipeline.expire(DELIVERY_S)
    assert isinstance(batch.outcome, OutcomeUnknown)


def test_a_batch_that_never_left_is_refused_naming_why_there_was_no_link() -> None:
    """Without a connection nothing was stored, and the error is a Refused; by reporting a failed connect."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    pipeline.add(batch)
    pipeline.not_connected(ConnectionLost("no connection to n1"))
    pipeline.expire(DELIVERY_S)
    assert isinstance(batch.outcome, Refused)
    assert "no connection to n1" in str(batch.outcome)


def test_a_given_up_sequence_starts_a_new_producer_epoch() -> None:
    """What follows a gap is numbered from 0 under epoch + 1; by letting the first batch expire."""
    pipeline = pipeline_of()
    first, second = batch_of(0), batch_of(1, deadline=2 * DELIVERY_S)
    send_all(pipeline, first, second)
    pipeline.failed(first, DiskFull("full"), 1.0)
    pipeline.failed(second, OutOfSequence("gap", last=-1), 1.0)
    pipeline.expire(DELIVERY_S)
    assert isinstance(first.outcome, DiskFull)
    assert second.outcome is None
    assert take_all(pipeline, DELIVERY_S + 2) == [(1, 0)]


def test_what_is_in_flight_behind_a_deadline_keeps_its_own() -> None:
    """A confirm that comes in time is told; nothing else leaves until then. By a first batch without an answer."""
    pipeline = pipeline_of(max_in_flight=3)
    first, second, third, fourth = (batch_of(n, deadline=DELIVERY_S + n) for n in range(4))
    send_all(pipeline, first, second, third, fourth)
    pipeline.expire(DELIVERY_S)
    assert isinstance(first.outcome, OutcomeUnknown)
    assert pipeline.next_deadline() == DELIVERY_S + 1
    assert take_all(pipeline, DELIVERY_S) == [], "what leaves now would be under the number that was given up"
    confirm = confirm_of(1)
    pipeline.confirmed(second, confirm, DELIVERY_S + 0.5)
    assert second.outcome is confirm
    pipeline.expire(DELIVERY_S + 2)
    assert isinstance(third.outcome, OutcomeUnknown)
    assert take_all(pipeline, DELIVERY_S + 2) == [(1, 0)]


def test_batches_that_never_left_cost_no_epoch_and_no_backoff_when_they_end() -> None:
    """No number of theirs was ever used; by an outage in which one batch after another ends."""
    pipeline = pipeline_of()
    batches = [batch_of(n, deadline=10.0 + n) for n in range(5)]
    for batch in batches:
        pipeline.add(batch)
    pipeline.not_connected(ConnectionLost("no connection"))
    for now in (10.0, 11.0, 12.0):
        pipeline.expire(now)
    assert [isinstance(batch.outcome, Refused) for batch in batches] == [True, True, True, False, False]
    assert take_all(pipeline, 12.0) == [(0, 0)]


def test_a_long_outage_ends_each_batch_once_without_looking_at_the_others() -> None:
    """Thousands of small batches may wait; by counting how many are asked for their deadline while half of them end."""
    asked = 0

    class Asked(PendingBatch):
        __slots__ = ("_asked_deadline",)

        @property
        def deadline(self) -> float:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return self._asked_deadline

        @deadline.setter
        def deadline(self, value: float) -> None:
            self._asked_deadline = value

    pipeline = pipeline_of()
    batches = [Asked(float(n)) for n in range(2000)]
    for batch in batches:
        batch.add(b"", None, (), None, 10)
        pipeline.add(batch)
    for now in range(1000):
        pipeline.expire(float(now))
    assert sum(batch.outcome is not None for batch in batches) == 1000
    assert asked <= 3 * 1000


def test_bad_input_fails_its_batch_alone() -> None:
    """The batches around a bad one land; by a node that calls one of three bad."""
    pipeline = pipeline_of()
    first, bad, last = batch_of(0), batch_of(1), batch_of(2)
    send_all(pipeline, first, bad, last)
    pipeline.confirmed(first, confirm_of(0), 0.1)
    pipeline.failed(bad, BadBatch("wrong"), 0.1)
    pipeline.failed(last, OutOfSequence("gap", last=0), 0.1)
    assert isinstance(bad.outcome, BadBatch)
    assert take_all(pipeline, 0.1) == [(1, 0)], "no backoff: the node is well"
    assert last.outcome is None


@pytest.mark.parametrize("error", [OutOfSequence("unknown", last=-1), StaleProducerEpoch("ended", producer_epoch=6)])
def test_a_forgotten_producer_goes_on_under_a_new_epoch(error: MirrorlogError) -> None:
    """Nothing was stored and nothing is wrong with the batch; by a node that does not know the producer any more."""
    pipeline = pipeline_of()
    before, first, second = batch_of(0), batch_of(1), batch_of(2)
    send_all(pipeline, before)
    pipeline.confirmed(before, confirm_of(0), 0.1)
    send_all(pipeline, first, second, now=0.2)
    pipeline.failed(first, error, 0.3)
    pipeline.failed(second, OutOfSequence("unknown", last=-1), 0.3)
    assert first.outcome is second.outcome is None
    epoch = int(error.details.get("producer_epoch", 0)) + 1
    assert take_all(pipeline, 1.0) == [(epoch, 0)]
    pipeline.confirmed(first, confirm_of(1), 1.1)
    assert take_all(pipeline, 1.1) == [(epoch, 1)]


@pytest.mark.parametrize("error", [OutOfSequence("unknown", last=-1), StaleProducerEpoch("ended", producer_epoch=6)])
def test_a_forgotten_producer_does_not_send_again_what_may_be_stored(error: MirrorlogError) -> None:
    """The node that forgot it cannot tell a retry any more; by losing the first attempt of a batch."""
    pipeline = pipeline_of()
    batch, after = batch_of(0), batch_of(1)
    send_all(pipeline, batch)
    pipeline.failed(batch, ConnectionLost("cut"), 0.1)
    take_all(pipeline, 1.0)
    pipeline.failed(batch, error, 1.1)
    assert isinstance(batch.outcome, OutcomeUnknown)
    assert send_all(pipeline, after, now=5.0) == [(int(error.details.get("producer_epoch", 0)) + 1, 0)]


def test_a_node_that_never_takes_any_number_is_given_up_at_the_deadline() -> None:
    """Going on under a new epoch ends too; by a node that answers as if it never knew the producer."""
    pipeline = pipeline_of()
    batch, now, attempts = batch_of(0), 0.0, 0
    pipeline.add(batch)
    while batch.outcome is None:
        attempts += len(take_all(pipeline, now))
        pipeline.failed(batch, OutOfSequence("unknown", last=-1), now)
        now += 0.1
        pipeline.expire(now)
    assert isinstance(batch.outcome, Refused)
    assert attempts <= 4 * DELIVERY_S + 20, "with a backoff"


def test_an_unexplained_out_of_sequence_is_told_and_the_producer_goes_on() -> None:
    """The node holds another number under this epoch: the batch fails, the next goes out under a new epoch."""
    pipeline = pipeline_of()
    first, second = batch_of(0), batch_of(1)
    send_all(pipeline, first)
    pipeline.failed(first, OutOfSequence("gap", last=9), 0.1)
    assert isinstance(first.outcome, OutOfSequence)
    assert send_all(pipeline, second, now=0.1) == [(1, 0)]


@pytest.mark.parametrize("error", [OutOfSequence("gone", last=9), BadBatch("other bytes"), NoSuchQueue("none")])
def test_bad_input_on_a_retry_is_unknown_since_the_first_attempt_may_have_landed(error: MirrorlogError) -> None:
    """No error that means "nothing was stored" ends a batch that may be stored; by failing the second attempt."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    send_all(pipeline, batch)
    pipeline.failed(batch, ConnectionLost("cut"), 1.0)
    take_all(pipeline, 5.0)
    pipeline.failed(batch, error, 5.0)
    assert isinstance(batch.outcome, OutcomeUnknown)
    assert str(error) in str(batch.outcome)


def test_a_later_refusal_does_not_prove_that_lost_bytes_never_arrive() -> None:
    """What was sent on a connection that was lost may come late, even if the node did not have it when it was asked;
    by giving up on it after such an answer."""
    pipeline = pipeline_of()
    first, second, third = batch_of(0, deadline=90.0), batch_of(1), batch_of(2, deadline=90.0)
    send_all(pipeline, first, second, third)
    for batch in (first, second, third):
        pipeline.failed(batch, ConnectionLost("cut"), 1.0)
    assert take_all(pipeline, 5.0) == [(0, 0)]
    pipeline.confirmed(first, confirm_of(0), 5.0)
    assert take_all(pipeline, 5.0) == [(0, 1), (0, 2)]
    pipeline.failed(second, DiskFull("full"), 6.0)
    pipeline.failed(third, OutOfSequence("gap", last=0), 6.0)
    pipeline.expire(DELIVERY_S)
    assert isinstance(second.outcome, OutcomeUnknown)
    assert isinstance(third.outcome, OutcomeUnknown), "it must not be numbered anew: it would land twice"


def test_an_answer_of_a_kind_not_known_here_counts_as_perhaps_stored() -> None:
    """A newer node's error code must not be taken for a refusal; by an error of the tree's root."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    send_all(pipeline, batch)
    pipeline.failed(batch, MirrorlogError("NEW_CODE: something"), 1.0)
    assert batch.outcome is None
    pipeline.expire(DELIVERY_S)
    assert isinstance(batch.outcome, OutcomeUnknown)


def test_without_a_producer_id_an_unknown_attempt_ends_at_once_and_a_refused_one_is_retried() -> None:
    """Only what surely was not stored is sent again; by one of each."""
    pipeline = pipeline_of(idempotent=False)
    unknown, refused = batch_of(0), batch_of(1)
    send_all(pipeline, unknown, refused)
    pipeline.failed(unknown, FlushSlaveTimeout("late"), 1.0)
    pipeline.failed(refused, InSyncReplicasNotEnough("two"), 1.0)
    assert isinstance(unknown.outcome, OutcomeUnknown)
    assert refused.outcome is None
    assert take_all(pipeline, 5.0) == [(0, 0)]


def test_an_answer_to_a_batch_that_has_ended_changes_nothing() -> None:
    """A confirm after the deadline is too late to tell; by sending one."""
    pipeline = pipeline_of()
    batch = batch_of(0)
    send_all(pipeline, batch)
    pipeline.expire(DELIVERY_S)
    outcome = batch.outcome
    pipeline.confirmed(batch, confirm_of(0), DELIVERY_S + 1)
    assert batch.outcome is outcome
    assert isinstance(outcome, OutcomeUnknown)


def test_closing_tells_what_may_be_stored_from_what_is_not() -> None:
    """In flight is unknown, never sent is refused; by closing with one of each."""
    pipeline = pipeline_of(max_in_flight=1)
    in_flight, unsent = batch_of(0), batch_of(1)
    send_all(pipeline, in_flight, unsent)
    pipeline.fail_all(Refused("the producer was closed"))
    assert isinstance(in_flight.outcome, OutcomeUnknown)
    assert type(unsent.outcome) is Refused


def test_stats_count_records_and_attempts() -> None:
    """The demo's numbers; by one refusal, one unknown, one duplicate confirm."""
    stats = ProducerStats()
    pipeline = Pipeline(idempotent=True, max_in_flight=4, stats=stats, jitter=lambda: 0.0)
    batch = batch_of(0, 1)
    send_all(pipeline, batch)
    pipeline.failed(batch, DiskFull("full"), 0.0)
    take_all(pipeline, 1.0)
    pipeline.failed(batch, FlushSlaveTimeout("late"), 1.0)
    take_all(pipeline, 3.0)
    pipeline.confirmed(batch, confirm_of(0, duplicate=True), 3.0)
    counted = (stats.refused_attempts, stats.unknown_attempts, stats.retries, stats.confirmed, stats.duplicates)
    assert counted == (1, 1, 2, 2, 2)
    assert stats.failed == 0
