"""What a message ends with that leads to several queues, of which some send on what they refuse."""

from __future__ import annotations

from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.publisher.publications import whole
from mirrorlog.errors import MirrorlogError, OutcomeUnknown, QueueFull, SentToDeadLetters

TAKEN = {"r": Receipt(0, 0, 1, 1, 0, False)}
SENT_ON = SentToDeadLetters("it was full")


def ended(*, taken: bool = False, **failures: MirrorlogError) -> MirrorlogError:
    return whole(TAKEN if taken else {}, failures)


def test_where_all_others_have_it_the_producer_is_told_that_it_was_sent_on() -> None:
    """It is final: to send it again would be twice for those."""
    error = ended(taken=True, q=SENT_ON)
    assert isinstance(error, SentToDeadLetters)
    assert (error.details, error.retriable) == ({"queue": "q", "confirmed": ["r"]}, False)
    assert isinstance(ended(q=SENT_ON, s=SENT_ON), SentToDeadLetters)


def test_what_another_queue_refused_is_not_told_as_refused_for_it_is_somewhere() -> None:
    error = ended(s=QueueFull("no room"), q=SENT_ON)
    assert isinstance(error, OutcomeUnknown)
    assert error.message == "stored in the dead letters of q, and not in queue 's': no room"
    assert isinstance(ended(s=QueueFull("no room")), QueueFull)


def test_what_is_not_known_goes_before_all_else() -> None:
    assert isinstance(ended(q=SENT_ON, s=QueueFull("no room"), t=OutcomeUnknown("no answer")), OutcomeUnknown)
    assert ended(q=SENT_ON, t=OutcomeUnknown("no answer")).details["queue"] == "t"
