"""Questions of newer members are told apart from what is none."""

from __future__ import annotations

import msgspec
import pytest

from mirrorlog.cluster.requests import AskState, QueueFound, decode_answer, decode_question, encode
from mirrorlog.errors import ProtocolError, UnsupportedVersion


def test_a_question_comes_back_as_it_was() -> None:
    """Also with a field more, from a newer member."""
    asked = AskState(node="a", index=7)
    assert decode_question(encode(asked)) == asked
    assert decode_question(msgspec.msgpack.encode({"type": "AskState", "node": "a", "index": 7, "new": 1})) == asked


def test_a_question_of_a_newer_member_is_not_supported() -> None:
    """So it is answered, and the asker can do without; by one that nobody knows, its name kept short."""
    with pytest.raises(UnsupportedVersion, match="does not know the question 'AskTomorrow'"):
        decode_question(msgspec.msgpack.encode({"type": "AskTomorrow", "day": 1}))
    with pytest.raises(UnsupportedVersion) as told:
        decode_question(msgspec.msgpack.encode({"type": "x" * 10_000}))
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xa4type\xa2\xff\xfe",
        b"\x81\xa4type\xa2\xff\xfe",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode({"type": "AskState"}),
        msgspec.msgpack.encode({"type": 7}),
    ],
)
def test_what_is_no_question_is_an_error_of_the_protocol(data: bytes) -> None:
    """By bytes that are none, and by a known one that lacks what it asks about."""
    with pytest.raises(ProtocolError) as told:
        decode_question(data)
    assert not isinstance(told.value, UnsupportedVersion)


@pytest.mark.parametrize(
    "data", [b"\x82\xa4type\xa8AskState\xa4node\xa2\xff\xfe", b"\x82\xa4type\xa8AskState\xa2\xff\xfe\x01"]
)
def test_text_that_is_none_is_an_error_of_the_protocol(data: bytes) -> None:
    """As a value and as the name of a field, in questions and in answers: msgspec has another error for it."""
    with pytest.raises(ProtocolError):
        decode_question(data)
    with pytest.raises(ProtocolError):
        decode_answer(data.replace(b"AskState", b"QueueFnd"), QueueFound)
