"""What the members ask each other, and the answers, as msgpack in ASK and TELL frames."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from mirrorlog.cluster.commands import Addresses
from mirrorlog.errors import ProtocolError

_A = TypeVar("_A", bound="Answer")


class Question(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all questions."""


class Answer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all answers; an error is an ERROR frame."""


class AskApply(Question, frozen=True):
    """To the leader: let this command be an entry, and say what came of it."""

    command: bytes


class Applied(Answer, frozen=True):
    """See `state.Outcome`."""

    index: int
    refusal: str = ""


class AskFence(Question, frozen=True):
    """Keep `epoch` for the log, stop in the one before, and report. `start_id`: the run that is asked."""

    log_id: str
    epoch: int
    start_id: str


class Fenced(Answer, frozen=True):
    """See `promotion.Report`."""

    start_id: str
    last_epoch: int
    end: int
    confirmed: int
    promised: int = 0


class AskJoin(Question, frozen=True):
    """Of a node that is in no cluster: let it in. The one that is asked passes it on to the leader. `token`: made once
    for its disk, so that who asks again after an answer that was lost finds itself in."""

    node: str
    addresses: Addresses
    witness: bool = False
    token: str = ""


class Joined(Answer, frozen=True):
    """It is in, as this member. `state`: of the cluster, encoded, so that it knows whom to reach."""

    member: int
    state: bytes


AnyQuestion = AskApply | AskFence | AskJoin
AnyAnswer = Applied | Fenced | Joined

encode = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[AnyQuestion] = msgspec.msgpack.Decoder(AnyQuestion)
_answers: msgspec.msgpack.Decoder[AnyAnswer] = msgspec.msgpack.Decoder(AnyAnswer)


def decode_question(data: bytes) -> AnyQuestion:
    """Raises ProtocolError."""
    try:
        return _questions.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a question does not fit: {error}") from None


def decode_answer(data: bytes, kind: type[_A]) -> _A:
    """Raises ProtocolError for anything but that kind."""
    try:
        answer = _answers.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an answer does not fit: {error}") from None
    if not isinstance(answer, kind):
        raise ProtocolError(f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer
