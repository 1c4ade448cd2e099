"""A piece on its way: what follows from each answer of a target."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog.errors import (
    BadBatch,
    BatchTooLarge,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    OutOfSequence,
    QueueFull,
    RecordTooLarge,
    StaleProducerEpoch,
)
from mirrorlog.queues.changes import Addressed, DeadLetterTarget
from mirrorlog.queues.dead_letters.forwarding import EXPIRED, REDRIVEN, REJECTED
from mirrorlog.queues.dead_letters.pieces import Step, reduced, refused, served

OTHER = DeadLetterTarget("other", "log", 8, 3, 70, [2, 3])
IN_USE = BadBatch("used for another batch", producer_epoch=5)


def piece_of(*targets: DeadLetterTarget, kept: tuple[int, ...] = ()) -> Addressed:
    return Addressed(departure=1, ranges=[0, 10], targets=list(targets), kept=list(kept))


def target(*ranges: int, epoch: int = 5, sequence: int = 40, tables: int = -1) -> DeadLetterTarget:
    return DeadLetterTarget("dead", "log", 9, epoch, sequence, list(ranges), tables=tables)


def after(piece: Addressed, error: MirrorlogError, reason: str = REJECTED) -> Step:
    step = refused(piece, reason, error)
    assert step is not None
    return step


@pytest.mark.parametrize(
    ("error", "epoch"),
    [(OutOfSequence("-", last=-1), 6), (StaleProducerEpoch("-", producer_epoch=9), 10), (IN_USE, 6)],
)
def test_all_that_goes_to_one_queue_is_numbered_anew_together(error: MirrorlogError, epoch: int) -> None:
    """A half that kept the former epoch would find it ended by the other one. What others have stays as it is."""
    step = after(piece_of(target(0, 2), OTHER, target(2, 5, sequence=42)), error)
    assert step.logged
    assert step.piece.targets == [
        target(0, 2, epoch=epoch, sequence=0),
        OTHER,
        target(2, 5, epoch=epoch, sequence=2),
    ]


def test_what_has_landed_is_not_named_when_the_rest_is_logged_anew() -> None:
    """Else the next master would send it again, under an epoch that the rest has ended."""
    going = served(piece_of(target(0, 2), target(2, 5, sequence=42)))
    assert after(going, OutOfSequence("-", last=-1)).piece.targets == [target(2, 5, epoch=6, sequence=0)]


def test_what_is_left_of_a_target_goes_under_the_numbers_of_all() -> None:
    step = reduced(piece_of(target(0, 5), OTHER), [0, 1, 3, 4])
    assert (step.logged, step.piece.targets) == (True, [replace(target(1, 3, 4, 5), numbered=5), OTHER])
    assert step.piece.targets[0].following == target(0, 5).following == 45
    again = reduced(step.piece, [1, 2])
    assert again.piece.targets[0] == replace(target(2, 3, 4, 5), numbered=5)
    assert reduced(again.piece, [2, 5]) == Step(piece_of(OTHER), "gone", logged=False)


def test_numbers_in_use_say_of_what_is_left_that_all_of_it_had_landed() -> None:
    left = reduced(piece_of(target(0, 5), OTHER), [0, 1]).piece
    assert after(left, IN_USE) == Step(piece_of(OTHER), "landed", logged=False)


@pytest.mark.parametrize("error", [BatchTooLarge("-"), RecordTooLarge("-")])
def test_what_is_too_large_goes_in_halves(error: MirrorlogError) -> None:
    step = after(piece_of(target(0, 2, 4, 7), OTHER), error)
    assert step.piece.targets == [target(0, 2), target(4, 7, sequence=42), OTHER]
    assert step.logged


def test_a_letter_tells_less_where_it_is_too_large_alone() -> None:
    """All, the newest, nothing; nothing only where somebody's rejection is in each circle that it may go. At last it is
    kept, and those behind it go on."""
    told = {}
    for reason in (REJECTED, EXPIRED):
        piece, told[reason] = piece_of(target(3, 4), OTHER), list[int]()
        while (step := after(piece, BatchTooLarge("-"), reason)).what != "held":
            piece = step.piece
            told[reason].append(piece.targets[0].tables)
        assert step == Step(piece_of(OTHER, kept=(3, 4)), "held")
    assert told == {REJECTED: [1, 0], EXPIRED: [1]}


def test_dead_letters_are_given_up_for_a_queue_that_is_gone_and_for_nothing_else() -> None:
    piece = piece_of(target(3, 4, tables=0), OTHER)
    assert after(piece, NoSuchQueue("-")) == Step(piece_of(OTHER), "dropped", logged=False)
    for error in (BadBatch("-"), QueueFull("-"), LogUnavailable("-")):
        assert refused(piece, REJECTED, error) is None


def test_what_is_redriven_stays_where_nobody_takes_it() -> None:
    piece = piece_of(target(3, 4), OTHER, kept=(7, 8))
    for error in (NoSuchQueue("-"), BadBatch("-"), BatchTooLarge("-"), RecordTooLarge("-")):
        assert after(piece, error, REDRIVEN) == Step(piece_of(OTHER, kept=(3, 4, 7, 8)), "stayed")
    assert refused(piece, REDRIVEN, QueueFull("-")) is None


def test_a_target_that_says_it_holds_what_comes_behind_has_the_first_part_too() -> None:
    """A piece in parts that all landed, of which a checkpoint remembers the newest ones only: not sent anew."""
    piece = piece_of(target(0, 2), target(2, 4, sequence=42))
    assert after(piece, OutOfSequence("-", last=43)) == Step(served(piece), "landed", logged=False)
    assert after(piece, OutOfSequence("-", last=41)).what == "landed"
    assert after(piece, OutOfSequence("-", last=40)).what == "renumbered"


def test_what_is_freed_before_anything_was_sent_leaves_nothing_to_recognize() -> None:
    """Numbers in use are those of a piece that a loss has taken out of the log then: it goes under others."""
    left = reduced(piece_of(target(0, 5), OTHER), [0, 1], sent=False)
    assert left == Step(piece_of(target(1, 5), OTHER), "reduced")
    assert after(left.piece, IN_USE).piece.targets == [target(1, 5, epoch=6, sequence=0), OTHER]
