"""What storms have found of queues that go by themselves, each as the plan that shows it, with its story."""

from __future__ import annotations

import pytest

from tests.sim.test_found import reason_of


@pytest.mark.long
def test_a_declaration_at_a_mirror_is_a_use() -> None:
    """A queue with `x-expires` was declared again and again by a client whose node had become a mirror: it answered by
    itself that the queue is there, and the master, which had heard of nobody, let it go. By the plan that showed it."""
    assert not reason_of("declared_again_at_a_mirror")


def test_a_master_that_falls_while_it_deletes_says_so() -> None:
    """A master had the bindings of a queue taken away, and was none any more when that was done: an internal error, for
    whoever had asked, instead of the next one's address. By the plan that showed it."""
    assert not reason_of("deleted_while_its_master_fell")
