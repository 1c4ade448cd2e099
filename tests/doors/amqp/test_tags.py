"""Delivery tags, and what a publisher is told in as few answers as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.doors.amqp.tags import Confirms, DeliveryTags, UnknownTag


def test_tags_are_settled_alone_or_up_to_one() -> None:
    """Goal: ack, and ack multiple. Method: of five, one in the midst, then up to the fourth, then all."""
    tags: DeliveryTags[str] = DeliveryTags()
    assert [tags.add(each) for each in "abcde"] == [1, 2, 3, 4, 5]
    assert tags.settle(3, False) == ["c"]
    assert tags.settle(4, True) == ["a", "b", "d"]
    for tag, multiple in ((3, False), (4, True), (9, False)):
        with pytest.raises(UnknownTag):
            tags.settle(tag, multiple)
    assert tags.next() == 6
    assert tags.settle(0, True) == ["e"]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60), st.integers(1, 7))
def test_each_publish_is_answered_once_and_as_it_ended(ends: list[tuple[int, bool]], step: int) -> None:
    """Goal: nothing is confirmed that has not ended. Method: any order of ends; a plain model reads the answers."""
    confirms, ended, told = Confirms(), dict[int, bool](), dict[int, bool]()
    for _ in range(31):
        confirms.publish()
    for count, (at, well) in enumerate(ends):
        if at + 1 not in ended:
            ended[at + 1] = well
            confirms.end(at + 1, well=well)
        if count % step == 0 or count == len(ends) - 1:
            for tag, multiple, is_ack in confirms.take():
                told.update({each: is_ack for each in range(1 if multiple else tag, tag + 1) if each not in told})
                assert ended[tag] == is_ack
            assert told == ended
