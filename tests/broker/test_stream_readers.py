"""Who reads as a stream group, as far as a node can know."""

from __future__ import annotations

import pytest

from mirrorlog.broker.session.group_requests import ACTIVE_S, StreamReaders
from mirrorlog.errors import ExclusiveTaken


def test_a_reader_is_active_for_ten_seconds_after_its_last_word_while_its_connection_is_there() -> None:
    """Asked for, stored again, grown old, gone; another connection's word counts for itself."""
    readers, one, other = StreamReaders(), object(), object()
    assert readers.active("q", "g", now=0.0) == ""
    readers.note("q", "g", one, 0.0)
    readers.note("q", "g", one, 5.0)
    assert readers.active("q", "g", now=ACTIVE_S + 1) == "heard 6.0 s ago"
    assert readers.active("q", "h", now=6.0) == readers.active("p", "g", now=6.0) == ""
    assert readers.active("q", "g", now=5.0 + ACTIVE_S) == ""
    readers.note("q", "g", other, 6.0)
    readers.forget(one)
    assert readers.active("q", "g", now=7.0) == "heard 1.0 s ago"
    readers.forget(other)
    assert readers.active("q", "g", now=7.0) == ""


def test_one_that_names_itself_has_the_group_while_its_connection_and_the_mastership_last() -> None:
    """Over a new connection too; whoever comes first behind it; the name is what counts."""
    readers, one, other = StreamReaders(), object(), object()

    def claim(reader: str, session: object, epoch: int = 1, group: str = "g") -> None:
        readers.claim("q", group, reader, session, epoch=epoch, peer="1.2.3.4:5")

    claim("a", one)
    claim("a", other)
    claim("b", one, group="h")
    readers.forget(one)
    with pytest.raises(
        ExclusiveTaken, match=r"queue q is read as group 'g' already, by 1\.2\.3\.4:5: give this reader"
    ):
        claim("b", one)
    claim("b", one, epoch=2)
    with pytest.raises(ExclusiveTaken):
        claim("a", other, epoch=2)
    readers.leave("q", "g", "a")
    with pytest.raises(ExclusiveTaken):
        claim("a", other, epoch=2)
    readers.forget(one)
    claim("a", other, epoch=2)
    readers.leave("q", "g", "a")
    claim("c", one, epoch=2)


def test_a_reader_that_has_left_is_not_at_work_any_more() -> None:
    """Goal: a group can be set back as soon as its reader was closed. Another one's leave says nothing of this one."""
    readers, session = StreamReaders(), object()
    readers.claim("q", "g", "a", session, epoch=1, peer="1.2.3.4:5")
    readers.note("q", "g", session, 0.0)
    readers.leave("q", "g", "b")
    assert readers.active("q", "g", now=0.1)
    readers.leave("q", "g", "a")
    assert not readers.active("q", "g", now=0.1)


def test_what_is_remembered_is_bounded_by_time_and_number() -> None:
    """Names without end: those of the last ten seconds, 10,000 at most, and none that no group can have."""
    readers, session = StreamReaders(), object()
    for each in range(30_000):
        readers.note("q", f"g{each}", session, 0.0)
    assert len(readers._heard) == 10_000
    assert readers.active("q", "g29999", now=1.0)
    readers.note("q", "late", session, ACTIVE_S)
    assert list(readers._heard) == [("q", "late")]
    readers.note("q", "x" * 1000, session, ACTIVE_S)
    assert list(readers._heard) == [("q", "late")]
