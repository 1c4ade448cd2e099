"""Who is waited for so that it can be let in: a copy that follows closely, for a while, and nobody again and again."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from mirrorlog.errors import MirrorAhead
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.in_sync import (
    CATCH_UP_S,
    NEAR_S,
    REST_MAX_S,
    REST_S,
    Candidate,
    CatchUp,
    Grow,
    InSyncSet,
    Shrink,
    Wish,
)
from mirrorlog.ha.mastership import Mastership
from mirrorlog.wire.frames import Durability
from tests.ha.stage import ALONE, LAG_S, WITH_N1, Stage, both, decided

LOOK_S = 0.05
N1, N2 = Candidate("n1", "n1a"), Candidate("n2", "n2a")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The master is in sync alone."""
    return Stage(tmp_path, ALONE)


def steadily(stage: Stage, *far: HAConnection, near: tuple[HAConnection, ...] = (), looks: int = 1) -> list[Wish]:
    """Publish before each look; those that are `far` have acked what was there at the look before. What is wished."""
    wishes = []
    for _ in range(looks):
        before = stage.replica.log.end
        stage.publish()
        for link in near:
            stage.ack(link)
        for link in far:
            stage.ack(link, before)
        if (wish := stage.look(after=LOOK_S)) is not None:
            wishes.append(wish)
    return wishes


def awaited(stage: Stage, run: str = "n1a", *, near: tuple[HAConnection, ...] = ()) -> HAConnection:
    """A link of this run, whose copy is awaited since the last look."""
    link = stage.link(run)
    assert steadily(stage, link, near=near, looks=2) == []
    assert stage.awaited == link.node_id
    return link


def silence(stage: Stage, seconds: float) -> list[Wish]:
    """Looks at which nothing new has come."""
    looked = (stage.look(after=LOOK_S) for _ in range(round(seconds / LOOK_S)))
    return [wish for wish in looked if wish is not None]


def wait(stage: Stage, copies: int = ALL_MEMBERS) -> list[Answer]:
    """Publish, and wait for so many copies: the answers of that step. The token is "p"."""
    end = stage.publish()
    return stage.mastership.wait("p", end=end, copies=copies, durability=Durability.MEMORY, deadline=99.0)


OK = Answer("p", PutStatus.PUT_OK, 1)


# --- From awaited to let in -----------------------------------------------------------------------------------------


def test_a_copy_that_follows_a_busy_log_is_awaited_and_wished_in(stage: Stage) -> None:
    """Let a copy ack what was there a look ago, for ever: nobody is asked for it before it is awaited, and the next
    look finds that it has everything."""
    link = awaited(stage)
    assert steadily(stage, link) == [Grow("n1", "n1a", 5)]
    assert stage.awaited == ""


def test_a_awaited_copy_is_waited_for_like_a_member(stage: Stage) -> None:
    """Publish while it is silent: what comes after is confirmed with its ack, and never more than it has."""
    link = awaited(stage)
    before, end = stage.confirmed, stage.publish()
    assert stage.confirmed == before
    stage.ack(link, end)
    assert stage.confirmed == end
    last = stage.publish()
    assert stage.confirmed == end
    stage.ack(link)
    assert (stage.confirmed, stage.mastership.copies_up) == (last, 1)


def test_a_awaited_copy_counts_for_all_and_for_no_number(tmp_path: Path) -> None:
    """Let one publish wait for all and one for two copies: the member's ack answers the second alone; for three the
    awaited copy is none."""
    stage, near = both(tmp_path)
    far = awaited(stage, "n2a", near=(near,))
    for copies in (ALL_MEMBERS, 2, 3):
        end = stage.publish()
        stage.mastership.wait(copies, end=end, copies=copies, durability=Durability.MEMORY, deadline=99.0)
    assert stage.ack(near) == [Answer(2, PutStatus.PUT_OK, 2)]
    assert stage.ack(far) == [Answer(ALL_MEMBERS, PutStatus.PUT_OK, 2)]
    assert stage.mastership.waiting == 1


def test_a_copy_that_is_ready_needs_no_catch_up(stage: Stage) -> None:
    """Let one follow and another one hold everything: that one is wished in, and nobody is awaited beside it."""
    far, ready = stage.link("n1a"), stage.link("n2a")
    assert steadily(stage, far) == []
    assert steadily(stage, far, near=(ready,)) == [Grow("n2", "n2a", 5)]
    assert (stage.awaited, steadily(stage, far, looks=5), stage.awaited) == ("", [], "")


def test_a_copy_without_the_epochs_start_batch_is_not_awaited(tmp_path: Path) -> None:
    """Where nothing of the epoch is confirmed yet, whoever holds the confirmed offset does not hold the first batch."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a"))
    first = stage.replica.log.end
    stage.mastership.epoch_start_end = stage.publish()
    stage.ack(stage.link("n2a"), first)
    assert silence(stage, 1.0) == []
    assert stage.awaited == ""


def test_on_a_disk_log_what_is_flushed_makes_near(tmp_path: Path) -> None:
    """Let a copy ack everything in memory and nothing on disk, then on disk too, a look late."""
    stage = Stage(tmp_path, ALONE, durability=Durability.DISK)
    link = stage.link("n1a")
    for _ in range(3):
        stage.publish()
        stage.ack(link)
        stage.look(after=LOOK_S)
        assert stage.awaited == ""
    for expected in ("", "n1"):
        before = stage.replica.log.end
        stage.publish()
        stage.ack(link, flushed=before)
        stage.look(after=LOOK_S)
        assert stage.awaited == expected


# --- Dropped --------------------------------------------------------------------------------------------------------


def test_a_awaited_copy_that_does_not_come_is_dropped_and_answers(stage: Stage) -> None:
    """Let a publish wait for one that falls silent: within its time nothing is asked of the cluster, then the publish
    is answered, and the next one at once."""
    awaited(stage)
    assert wait(stage) == []
    assert silence(stage, CATCH_UP_S - LOOK_S) == []
    assert (stage.awaited, stage.answers) == ("n1", [])
    assert silence(stage, 2 * LOOK_S) == []
    assert (stage.awaited, stage.answers, stage.confirmed) == ("", [OK], stage.replica.log.end)
    assert wait(stage) == [OK]


def test_a_dropped_copy_rests_and_may_come_in_by_itself_meanwhile(stage: Stage) -> None:
    """Let it follow again, a look late: it is not awaited for seconds, but wished in as soon as it has everything."""
    link = awaited(stage)
    silence(stage, CATCH_UP_S + LOOK_S)
    assert stage.awaited == ""
    stage.ack(link)
    assert steadily(stage, link, looks=20) == []
    assert stage.awaited == ""
    assert steadily(stage, near=(link,)) == [Grow("n1", "n1a", 5)]


def test_a_awaited_copy_whose_link_ends_is_dropped(stage: Stage) -> None:
    """Cut the link under a waiting publish: the next look answers it."""
    link = awaited(stage)
    wait(stage)
    stage.mastership.leave(link)
    assert stage.confirmed < stage.replica.log.end
    stage.look()
    assert (stage.awaited, stage.answers, stage.confirmed) == ("", [OK], stage.replica.log.end)


def test_a_new_link_of_the_same_run_goes_on_being_awaited(stage: Stage) -> None:
    """Replace the link between two looks: what is acked on the new one counts, and the copy comes in."""
    awaited(stage)
    before, end = stage.confirmed, stage.publish()
    link = stage.link("n1a", holds=before)
    assert (stage.awaited, stage.confirmed) == ("n1", before)
    stage.ack(link)
    assert (stage.confirmed, stage.look()) == (end, Grow("n1", "n1a", 5))


@pytest.mark.parametrize(
    "facts",
    [
        decided(5, "n0a", starts="n1b"),
        InSyncSet(6, ("n0", "n2"), {"n0": "n0a"}, frozenset(), 1, {"n0": "n0a", "n1": "n1a", "n2": "n2a"}),
    ],
    ids=["another run", "no replica"],
)
def test_a_awaited_copy_whose_acks_count_no_more_is_dropped(stage: Stage, facts: InSyncSet) -> None:
    """Learn that its node runs anew, or holds no copy any more, and let the old link go on: it is not waited for."""
    link = awaited(stage)
    wait(stage)
    answers = stage.mastership.learned(facts)
    stage.look()
    assert (answers + stage.answers, stage.awaited, stage.confirmed) == ([OK], "", stage.replica.log.end)
    stage.ack(link)
    assert stage.look() is None


def test_another_run_does_not_speak_for_a_awaited_copy(stage: Stage) -> None:
    """Let the node's next run make a link, which the cluster does not know yet: nothing is confirmed by it."""
    awaited(stage)
    before, end = stage.confirmed, stage.publish()
    stage.link("n1b", holds=end)
    assert stage.confirmed == before


def test_a_log_that_closes_awaits_nobody(stage: Stage) -> None:
    """Let the master find that it has lost something: who is awaited is dropped, what waits is answered."""
    awaited(stage)
    wait(stage)
    stage.mastership.ahead(MirrorAhead("mirror n2 holds more"))
    stage.look()
    assert (stage.awaited, stage.answers) == ("", [OK])


# --- Beside what the cluster is asked -------------------------------------------------------------------------------


def proposed_by_catch_up(stage: Stage) -> tuple[HAConnection, Grow]:
    link = awaited(stage)
    (wish,) = steadily(stage, link)
    assert isinstance(wish, Grow)
    return link, wish


def test_a_copy_for_which_a_command_is_out_is_never_dropped(stage: Stage) -> None:
    """Court a copy, propose it, and cut its link: however long nothing is heard, and also once nobody waits for the
    outcome any more, nothing is confirmed without it, until a higher version is known."""
    link, wish = proposed_by_catch_up(stage)
    stage.mastership.leave(link)
    before = stage.confirmed
    wait(stage)
    assert silence(stage, 3 * CATCH_UP_S) == []
    stage.mastership.wish_unknown(wish)
    assert set(silence(stage, 3 * CATCH_UP_S)) == {Shrink((), 5)}
    assert (stage.confirmed, stage.answers) == (before, [])
    assert stage.mastership.learned(decided(6, "n0a")) == [OK]


def test_a_copy_that_is_let_in_is_a_member_that_was_awaited(stage: Stage) -> None:
    """Learn of the growth: the copy counts, and is not awaited any more."""
    link, wish = proposed_by_catch_up(stage)
    stage.mastership.learned(WITH_N1)
    stage.mastership.wish_ended(wish, refused=False)
    assert steadily(stage, link, looks=5) == []
    assert (stage.awaited, stage.mastership.copies_up) == ("", 2)


def test_nobody_is_awaited_while_something_is_asked(stage: Stage) -> None:
    """Let a second copy follow while the first is proposed, and in the second after its refusal."""
    link, wish = proposed_by_catch_up(stage)
    other = stage.link("n2a")
    assert steadily(stage, link, other, looks=10) == []
    assert stage.awaited == ""
    stage.mastership.wish_ended(wish, refused=True)
    assert steadily(stage, link, other) == []
    assert stage.awaited == ""


def test_a_refused_copy_does_not_keep_another_one_from_being_awaited(stage: Stage) -> None:
    """Let two follow and refuse the first each time: the other one is proposed by the second wish."""
    links = stage.link("n1a"), stage.link("n2a")
    asked = []
    while len(asked) < 2:
        for wish in steadily(stage, *links):
            assert isinstance(wish, Grow)
            asked.append(wish.node)
            stage.mastership.wish_ended(wish, refused=True)
        assert stage.now < 10.0
    assert set(asked) == {"n1", "n2"}


def test_a_copy_that_never_comes_does_not_keep_another_one_out(stage: Stage) -> None:
    """Court one that falls silent whenever it is awaited: the other one is wished in right after it."""
    sick, sound = stage.link("n1a"), stage.link("n2a")
    steadily(stage, sick)
    assert steadily(stage, sick, looks=1) == []
    assert stage.awaited == "n1"
    wishes: list[Wish] = []
    while not wishes:
        wishes = steadily(stage, sound)
        assert stage.now < 2 * CATCH_UP_S
    assert wishes == [Grow("n2", "n2a", 5)]


def test_nobody_else_is_proposed_while_one_is_awaited(stage: Stage) -> None:
    """Let another copy hold everything meanwhile: it is wished in once the awaited one was dropped."""
    awaited(stage)
    stage.ack(stage.link("n2a"))
    assert silence(stage, CATCH_UP_S - LOOK_S) == []
    assert stage.awaited == "n1"
    assert silence(stage, 3 * LOOK_S) == [Grow("n2", "n2a", 5)]


def test_a_member_that_is_lost_meanwhile_holds_still_beside_the_awaited_copy(tmp_path: Path) -> None:
    """Cut the member's link while another copy is awaited: that one comes in, and nothing is confirmed without
    either."""
    stage, near = both(tmp_path)
    far = awaited(stage, "n2a", near=(near,))
    stage.mastership.leave(near)
    before = stage.confirmed
    assert steadily(stage, far) == [Grow("n2", "n2a", 5)]
    stage.ack(far)
    assert stage.confirmed == before < stage.replica.log.end


def test_who_is_dropped_gives_way_to_the_members_only(tmp_path: Path) -> None:
    """Drop a awaited copy while the member is behind: what is confirmed is what the member has."""
    stage, near = both(tmp_path)
    awaited(stage, "n2a", near=(near,))
    middle = stage.publish()
    stage.publish()
    stage.ack(near, middle)
    assert stage.confirmed < middle
    silence(stage, CATCH_UP_S + LOOK_S)
    assert (stage.awaited, stage.confirmed) == ("", middle)


def test_a_set_that_shrinks_meanwhile_leaves_the_catch_up_as_it_is(tmp_path: Path) -> None:
    """Learn that the coordinator let the member go: the awaited copy is still waited for, and the wish for it names
    the version that is known then."""
    stage, near = both(tmp_path)
    far = awaited(stage, "n2a", near=(near,))
    before, end = stage.confirmed, stage.publish()
    assert stage.mastership.learned(decided(6, "n0a")) == []
    assert (stage.awaited, stage.confirmed) == ("n2", before)
    stage.ack(far, end)
    assert (stage.confirmed, stage.look()) == (end, Grow("n2", "n2a", 6))


def test_a_copy_that_is_awaited_under_a_shrink_is_dropped_in_time(tmp_path: Path) -> None:
    """Let a member have to leave while another copy is awaited, and nothing be heard of that wish: no command names
    the copy, so it is dropped when its time is over, though it has everything."""
    stage, near = both(tmp_path, lag_s=CATCH_UP_S / 2)
    far = awaited(stage, "n2a", near=(near,))
    stage.mastership.leave(near)
    before = stage.confirmed
    wait(stage)
    assert silence(stage, CATCH_UP_S - 2 * LOOK_S) == [Shrink(("n1",), 5)]
    stage.ack(far)
    assert stage.awaited == "n2"
    assert silence(stage, 3 * LOOK_S) == []
    assert (stage.awaited, stage.confirmed) == ("", before)
    assert stage.mastership.learned(decided(6, "n0a")) == [OK]


def test_a_new_mastership_awaits_nobody_who_was_awaited_before(stage: Stage) -> None:
    """Make the next mastership of the log while a copy is awaited: it waits for its members, and nobody else."""
    awaited(stage)
    stage.publish()
    assert stage.confirmed < stage.replica.log.end
    following = Mastership(
        name="main",
        own="n0",
        in_sync=ALONE,
        lag_s=LAG_S,
        durability=Durability.MEMORY,
        confirmed=stage.confirmed,
        waiting_max=100,
    )
    following.appended(stage.replica.log.end)
    assert (following.awaited, following.progress.confirmed) == (None, stage.replica.log.end)


# --- Who is near, and who rests -------------------------------------------------------------------------------------


class Looks:
    """Looks at a log that grows by 100 per look, and copies that are so many looks behind and never come."""

    def __init__(self, *, won: bool = False) -> None:
        """`won`: whoever is awaited is proposed at the next look, and comes to nothing."""
        self.catch_up = CatchUp()
        self.number = 100
        self.begun: list[tuple[float, Candidate]] = []
        self._won = won

    @property
    def now(self) -> float:
        return self.number * LOOK_S

    def go_on(self, seconds: float, behind: Mapping[Candidate, int]) -> list[tuple[float, Candidate]]:
        """When somebody was awaited, and who."""
        self.begun = []
        for _ in range(round(seconds / LOOK_S)):
            self.look({copy: (self.number - looks) * 100 for copy, looks in behind.items()})
        return self.begun

    def look(self, reached: Mapping[Candidate, int]) -> None:
        before = self.catch_up.awaited
        if self._won:
            self.catch_up.won(self.now)
        self.catch_up.look(self.now, confirmed=self.number * 100, reached=reached, free=True)
        if self.catch_up.awaited is not None and self.catch_up.awaited != before:
            self.begun.append((self.now, self.catch_up.awaited))
        self.number += 1


def test_a_copy_is_near_up_to_a_quarter_of_a_second() -> None:
    """Let copies follow at the log's pace, the one less and the other one more behind than that."""
    looks = round(NEAR_S / LOOK_S)
    assert len(Looks().go_on(3.0, {N1: looks - 1})) == 1
    assert Looks().go_on(30.0, {N1: looks + 1}) == []


def test_a_copy_that_is_slower_than_the_log_is_not_near() -> None:
    """Let a copy take half of what comes: it reaches each offset, but later and later."""
    looks = Looks()
    for number in range(600):
        looks.look({N1: 9_500 + number * 50})
    assert looks.begun == []


def test_a_master_that_was_stopped_finds_nobody_near_at_once() -> None:
    """Look again after ten seconds: that a copy has what was confirmed before says nothing, until the next look."""
    looks = Looks()
    looks.look({N1: 9_900})
    looks.number += 200
    looks.look({N1: 29_900})
    assert looks.begun == []
    looks.look({N1: 30_200})
    assert [copy for _, copy in looks.begun] == [N1]


def test_a_copy_that_never_comes_is_awaited_less_and_less() -> None:
    """Let it follow closely and never come, for four minutes: each rest is twice as long, up to a minute."""
    begun = [now for now, _ in Looks().go_on(250.0, {N1: 1})]
    rests = [later - earlier - CATCH_UP_S for earlier, later in pairwise(begun)]
    expected = [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S, REST_MAX_S, REST_MAX_S]
    assert rests == pytest.approx(expected, abs=3 * LOOK_S)


def test_two_copies_that_never_come_take_turns() -> None:
    """Let both follow closely and never come: the second is awaited right after the first, and each rests alone."""
    (first_at, first), (second_at, second), *more = Looks().go_on(30.0, {N1: 1, N2: 1})
    assert {first, second} == {N1, N2}
    assert second_at - first_at == pytest.approx(CATCH_UP_S, abs=3 * LOOK_S)
    assert {copy for _, copy in more} == {N1, N2}


def test_copies_that_are_proposed_in_vain_take_turns() -> None:
    """Let the cluster refuse whoever comes: the next one is the other one."""
    begun = [copy for _, copy in Looks(won=True).go_on(1.0, {N1: 1, N2: 1})]
    assert len(begun) > 5
    assert all(earlier != later for earlier, later in pairwise(begun))


def test_the_next_run_does_not_rest_for_the_one_before() -> None:
    """Restart a node whose copy did not come."""
    looks = Looks()
    looks.go_on(2.0, {N1: 1})
    assert looks.catch_up.awaited is None
    assert [copy for _, copy in looks.go_on(0.5, {Candidate("n1", "n1b"): 1})] == [Candidate("n1", "n1b")]
