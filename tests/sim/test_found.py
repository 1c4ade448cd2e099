"""What storms have found, each as the plan that shows it, with its story."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Plan, draw

PLANS = Path(__file__).parent / "plans"
WITHIN_S = 15.0
"""Of the processor: most plans take a second."""


def reason_of(name: str) -> str:
    """Why the plan fails; empty when it does not."""
    found = attempt(Plan.from_json((PLANS / f"{name}.json").read_text()), within_s=WITHIN_S)
    return found.reason if isinstance(found, Failure) else ""


def test_a_member_that_knows_none_of_its_leader_catches_up() -> None:
    """A node is away while others join and one of them becomes the coordinator. Back, it is sent what it lacks, and
    cannot say that it has it: it knows no address of that coordinator. By the plan that showed it."""
    assert not reason_of("leader_unknown")


def test_a_set_does_not_shrink_in_favour_of_a_run_that_is_over() -> None:
    """All nodes lose their power, and a coordinator that was elected before the master's new run had registered saw it
    live and its mirror dead: it took the mirror, which had everything, out of the set. By the plan that showed it."""
    assert not reason_of("shrunk_beside_a_dead_master")


def test_a_log_that_is_first_opened_on_a_full_disk_is_opened_once_there_is_room() -> None:
    """A node was given a copy to hold while its disk was full: it was opening it for ever. By the plan that showed
    it."""
    assert not reason_of("first_opened_on_a_full_disk")


def test_what_one_copy_alone_knows_to_be_confirmed_is_not_given_up() -> None:
    """All of a log stands on both disks, flushed, and one of the nodes alone knows that it is confirmed. An epoch is
    given out that nobody opens, and both lose their power. The other one was promoted, and gave up as doubtful what it
    did not know itself to be confirmed: everything, the queue too. By the plan that showed it."""
    assert not reason_of("confirmed_for_one_copy_only")


def test_a_copy_that_was_set_back_does_not_say_where_a_loss_ends() -> None:
    """A snapshot of a machine is taken, more is confirmed, and all lose their power with the last of it. Later the
    machine is set back to the snapshot: it held more than the log has now, and less than was lost. The checks took
    that for the end of the loss. By the plan that showed it."""
    assert not reason_of("set_back_to_before_a_loss")


def test_a_disk_log_that_is_torn_by_a_loss_of_power_reports_more_than_it_lost() -> None:
    """A disk is slow, and much is being written when its machine loses power: whole batches are left behind torn ones,
    far above the offset that was last written down as flushed. The only copy says that it may have lost something, as
    it has to; the checks held that a disk log never does. By the plan that showed it, in which nothing is gone."""
    assert not reason_of("torn_behind_the_flushed_offset")


def test_what_was_confirmed_in_the_place_of_a_declared_loss_is_not_lost_in_silence() -> None:
    """The master dies, bytes of its mirror go bad, and the mirror goes on with a loss declared and new records in its
    place. Its bytes go bad once more, and the former master, which is back, is the best copy: the next loss began where
    that one knew to be confirmed, far behind the records that had been confirmed since and are gone, and the mirror
    refused to be cut. By the plan that showed it."""
    assert not reason_of("lost_behind_a_declared_loss")


def test_no_storm_begins_before_the_queues_are_on_disk() -> None:
    """A cluster was slow to begin, and all machines lost power before any copy had flushed the queues. These were lost
    with the log, as was declared, and the producers waited for them for ever: nobody makes them anew. By the plan that
    showed it."""
    assert not reason_of("blackout_before_the_first_flush")


def test_the_last_good_copy_is_not_forgotten_beside_one_whose_bytes_went_bad() -> None:
    """A bit flips in a sealed segment, which a start believes: that copy is whole as far as anybody knows, and takes
    the log over when the other one's node is drained. That node was forgotten with its disk, and no new copy could be
    filled. By the plan that showed it; the operator starts such a node again."""
    assert not reason_of("forgotten_beside_a_flipped_bit")


def test_a_machine_is_not_set_back_while_another_one_has_still_to_hear_what_was_decided() -> None:
    """A master is cut off, and the two others decide without it that its mirror leads. As soon as the storm is over
    the third one is set back to before that: it made a majority with the former master, who had heard nothing yet, and
    both went on as if nothing had been decided; the new master never came in again. No cluster can hold what only a
    minority is left to know: the operator waits until all know it. By the plan that showed it."""
    assert not reason_of("set_back_beside_one_that_was_away")


@pytest.mark.long
def test_a_delay_that_ends_while_nothing_can_be_logged_does_not_stop_the_node() -> None:
    """Both mirrors die, and the master takes no changes before another one is there. A delay, or a lease, ends just
    then: its end cannot be logged, so it is due at once again, and the tick that looks at all that is due never came to
    its end. By the plan that showed it, with several seeds: it takes a delay that ends within a second."""
    plan = Plan.from_json((PLANS / "delays_end_while_too_few_copies_are_in_sync.json").read_text())
    for seed in range(5):
        found = attempt(replace(plan, seed=f"refused {seed}"), within_s=6)
        assert not isinstance(found, Failure), found.reason


def test_a_group_gets_over_the_gap_that_a_loss_has_left() -> None:
    """The only machine loses power, a loss is declared, and queue offsets leap by 2^32. A subscriber with a prefetch of
    five went over the gap by five at a time, with two changes in the log for each step. By a plan that shows it."""
    assert not reason_of("taken_from_across_a_leap")


@pytest.mark.long
def test_a_return_that_comes_as_its_lease_ends_counts_once() -> None:
    """A lease's holder gives a record back just when the lease ends: the return was gathered, the end was logged before
    it, and each of them counted an attempt. By the plan that showed it."""
    assert not reason_of("returned_as_its_lease_ended")


@pytest.mark.long
def test_a_subscription_that_closes_while_its_master_falls_keeps_nothing() -> None:
    """A subscription is closed and its master stands still; another one takes over, and the subscription with it, and
    gives it records. What it had to give back was told to the one before, and all that the new one had given stayed in
    its hand for as long as the connection lived. By the plan that showed it."""
    assert not reason_of("closed_while_its_master_fell")


def test_a_group_gets_over_two_gaps_of_which_the_second_loss_took_the_settlement_of_the_first() -> None:
    """The only machine loses power twice. The gap of the first loss was settled in all groups, and that was lost by the
    second, while a record behind the first leap stayed: copies knew the newest gap alone, and a subscriber went over
    the first one by its prefetch. By the plan that showed it."""
    assert not reason_of("gone_over_two_gaps")


def test_nobody_has_records_of_a_group_that_was_deleted() -> None:
    """A group is deleted while subscribers have records of it, and made anew by who takes from it next: he is given
    these once more. The checks had missed the deletion, and saw the records in two hands. By a plan that shows it."""
    assert not reason_of("deleted_and_made_anew")


@pytest.mark.long
def test_a_subscription_that_closes_while_nothing_can_be_logged_keeps_nothing() -> None:
    """A subscription is closed while the master's disk is full: its return was refused, nobody said it again, and the
    records stayed in its hand for as long as the connection lived. By a plan that showed it."""
    assert not reason_of("refused_on_a_full_disk_and_kept_in_hand")


@pytest.mark.long
def test_a_transaction_does_not_count_beside_another_one_that_settled_its_records() -> None:
    """Two masters fall, and a record comes to two subscribers, each of whom commits a transaction that acknowledges it
    and sends word of it. The second one found it settled, took that for its own earlier answer, and its word counted
    once more. By the plans that showed it."""
    for seed in (1, 3):
        found = attempt(draw(seed, kind="transactions: falling masters"), within_s=WITHIN_S)
        assert not isinstance(found, Failure), found.reason


@pytest.mark.long
def test_a_group_that_is_made_behind_what_all_had_settled_takes_these_records_for_plain_ones() -> None:
    """All machines lose power between the end of a record in the only group and its confirm. A group that is made then
    has the record plain on every copy, on one that started again as soon as it hears of the confirm. By the plan that
    showed it."""
    assert not reason_of("made_behind_what_all_had_settled")


def test_what_a_late_group_is_given_as_a_plain_record_comes_at_once() -> None:
    """A record of no time to live, and with a delay, is over in the queue's own group before another one is made: to
    that it is a plain one, without a delay. The checks had missed that. By the plan that showed it."""
    assert not reason_of("given_as_a_plain_record")
