"""Requests between the members of a cluster, and their answers, as msgpack in ASK and TELL frames."""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_args

import msgspec

from mirrorlog import versions
from mirrorlog.cluster.raft.messages import Snapshot
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.errors import ProtocolError, UnsupportedVersion

_A = TypeVar("_A", bound="MemberAnswer")


class MemberRequest(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all questions."""


class MemberAnswer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all answers; an error is an ERROR frame."""


class AskApply(MemberRequest, frozen=True):
    """To the leader: let this command be an entry, and say what came of it. `pass_on`: to any member, which asks the
    leader."""

    command: bytes
    pass_on: bool = False


class Applied(MemberAnswer, frozen=True):
    """See `state.Outcome`."""

    index: int
    refusal: str = ""
    code: str = ""
    details: dict[str, Any] = {}


class AskFence(MemberRequest, frozen=True):
    """Keep `epoch` for the log, stop in the one before, and report. `start_id`: the run that is asked; `gently`: take
    nothing more first, and let the mirrors come to the log's end."""

    log_id: str
    epoch: int
    start_id: str
    gently: bool = False


class Fenced(MemberAnswer, frozen=True):
    """See `promotion.Report`."""

    start_id: str
    last_epoch: int
    end: int
    confirmed: int
    promised: int = 0


class AskElection(MemberRequest, frozen=True):
    """To the leader: the log's master cannot be followed by a copy that has promised `epoch` in a fence whose promotion
    came to nothing; promote somebody anew."""

    log_id: str
    epoch: int


class Noted(MemberAnswer, frozen=True):
    """It will be seen to, or is as was asked."""


class AskJoin(MemberRequest, frozen=True):
    """Of a node that is in no cluster: let it in. The one that is asked passes it on to the leader. `token`: made once
    for its disk, so that who asks again after an answer that was lost finds itself in. `version`: of its software."""

    node: str
    addresses: Addresses
    witness: bool = False
    token: str = ""
    version: int = versions.FIRST


class Joined(MemberAnswer, frozen=True):
    """It is in, as this member, and begins with `snapshot`: of what the node that answers has applied."""

    member: int
    snapshot: Snapshot


class AskState(MemberRequest, frozen=True):
    """To any member: what it knows of `node`, once it has applied everything up to `index`; the answer is as to a
    joining. Refused (NOT_A_MEMBER) when that is no node."""

    node: str
    index: int


class AskApplied(MemberRequest, frozen=True):
    """To any member: say so (Noted) once everything up to `index` is applied there."""

    index: int


class AskIndex(MemberRequest, frozen=True):
    """To the leader: up to which index has everything been decided? Applied, with that."""


class AskQueue(MemberRequest, frozen=True):
    """To the node that masters a log: which queue of it has this qualified name? Records leave for it."""

    name: str
    log_id: str


class QueueFound(MemberAnswer, frozen=True):
    """`queue_id`: 0 when there is none."""

    queue_id: int


class AskSizes(MemberRequest, frozen=True):
    """To any member: how large are the logs that you hold, and what do you know that copies of any log lack? LogSizes.
    Since `versions.PLACEMENTS`."""


class LogSizes(MemberAnswer, frozen=True):
    """Bytes by log id. `lags`: by log id and node, of copies that are not in sync, what they lack, at least: bytes and
    records; of the logs that are mastered here, and of others as far as it was heard before nobody mastered them."""

    sizes: dict[str, int]
    lags: dict[str, dict[str, tuple[int, int]]] = {}


class AskTake(MemberRequest, frozen=True):
    """To the node that masters a log: append this batch of records that leave another queue, as a producer's. Noted
    when all copies have it; else as a publish is refused."""

    log_id: str
    batch: bytes


class AskArrival(MemberRequest, frozen=True):
    """To the node that masters the log a queue moves to: take this piece of the queue's state, the `piece`-th, from 0;
    without a state no more come. `move`: its number; `attempt`: of whoever gives it, another one each time that he
    begins anew; `arriving`: a batch with the `QueueArriving` that it begins with.
    Answered with QueueArrival."""

    log_id: str
    move: int
    name: str
    queue_id: int
    piece: int
    attempt: str = ""
    state: bytes | None = None
    arriving: bytes = b""


class AskFree(MemberRequest, frozen=True):
    """To the node that masters a log which a queue has left: its records there are dead. Noted when that is
    confirmed."""

    log_id: str
    queue_id: int


class QueueArrival(MemberAnswer, frozen=True):
    """`wanted`: the number of the piece that is to come next; -1 when all are there, and confirmed."""

    wanted: int


class AskBatch(MemberRequest, frozen=True):
    """To the node that masters a log: the batch of a queue that holds this record, which is or was in that log.
    Answered with BatchTold."""

    log_id: str
    queue_id: int
    queue_offset: int


class BatchTold(MemberAnswer, frozen=True):
    """`batch`: as it stands in the log; empty when retention has freed the record, or a loss has taken it."""

    batch: bytes = b""


class AskRecords(MemberRequest, frozen=True):
    """To the node that masters a log which a queue has left: its newest batches there that begin in [first, until),
    queue offsets, as many as fit into `max_bytes`, at least one. `until`: where a batch ends. Answered with
    RecordsTold. Since `versions.SYNC`."""

    log_id: str
    queue_id: int
    first: int
    until: int
    max_bytes: int


class RecordsTold(MemberAnswer, frozen=True):
    """`batches`: as they stand in the log, in order; `first`: from there up to what was asked for there is nothing
    besides them. `lost`: instead of batches, the end of it, [first, next): a loss has taken that."""

    first: int
    batches: tuple[bytes, ...] = ()
    lost: tuple[int, int] | None = None


class AskHeld(MemberRequest, frozen=True):
    """To the node that masters a log which a queue has left: how much of it is there of [first, until), queue offsets?
    Answered with HeldTold. Since `versions.SYNC`."""

    log_id: str
    queue_id: int
    first: int
    until: int


class HeldTold(MemberAnswer, frozen=True):
    """`size`: bytes of its batches; `first`: where what is there begins."""

    size: int
    first: int


class AskBegin(MemberRequest, frozen=True):
    """To the node that masters a log which a queue has left: from where on has [first, until) of it to stay? `begin`:
    where the queue begins, as the log that it is in has decided: what is below is dead here too. `own`: the queue has
    limits of its own, `max_age_us`, `max_bytes`, of which `newer_bytes` stand in later logs; else this log's limits say
    it. Nothing above `floor` may go. Answered with BeginTold. Since `versions.SYNC`."""

    log_id: str
    queue_id: int
    begin: int
    first: int
    until: int
    floor: int
    own: bool = False
    max_age_us: int | None = None
    max_bytes: int | None = None
    newer_bytes: int = 0


class BeginTold(MemberAnswer, frozen=True):
    """`begin`: it may begin there, as far as this log is concerned; `size`: bytes of what is behind."""

    begin: int
    size: int


AskOfFormer = AskRecords | AskHeld | AskBegin
"""Of the master of a log that a queue was in before."""


class AskLooking(MemberRequest, frozen=True):
    """Of a node that looks for a cluster, to another one that does: what do you look for?"""


class LookingAnswer(MemberAnswer, frozen=True, tag="Looking"):
    """It is in no cluster. `address`: its own replication address, as others dial it; `seeds`: of which one founds a
    cluster, in order."""

    address: str
    seeds: tuple[str, ...] = ()


AnyQuestion = (
    AskApply
    | AskFence
    | AskElection
    | AskJoin
    | AskState
    | AskApplied
    | AskIndex
    | AskLooking
    | AskQueue
    | AskTake
    | AskSizes
    | AskArrival
    | AskFree
    | AskBatch
    | AskRecords
    | AskHeld
    | AskBegin
)
AnyAnswer = (
    Applied
    | Fenced
    | Noted
    | Joined
    | LookingAnswer
    | QueueFound
    | LogSizes
    | QueueArrival
    | BatchTold
    | RecordsTold
    | HeldTold
    | BeginTold
)

encode = msgspec.msgpack.Encoder().encode


class _Any(msgspec.Struct):
    """Whatever it is."""

    type: str


_NAME_SHOWN: Final = 64
_KNOWN: Final = frozenset(kind.__struct_config__.tag for kind in get_args(AnyQuestion))
_any = msgspec.msgpack.Decoder(_Any)
_questions: msgspec.msgpack.Decoder[AnyQuestion] = msgspec.msgpack.Decoder(AnyQuestion)
_answers: msgspec.msgpack.Decoder[AnyAnswer] = msgspec.msgpack.Decoder(AnyAnswer)


def decode_question(data: bytes) -> AnyQuestion:
    """Raises UnsupportedVersion for a question that is none here, ProtocolError for one that does not fit."""
    try:
        return _questions.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if (name := _unknown(data)) is not None:
            raise UnsupportedVersion(
                f"software of version {versions.OWN} does not know the question {name!r}; update this node"
            ) from None
        raise ProtocolError(f"a question does not fit: {error}") from None


def _unknown(data: bytes) -> str | None:
    """The name of a question that is well formed and not known."""
    try:
        name = _any.decode(data).type
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return name[:_NAME_SHOWN] if name not in _KNOWN else None


def decode_answer(data: bytes, kind: type[_A]) -> _A:
    """Raises ProtocolError for anything but that kind."""
    try:
        answer = _answers.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"an answer does not fit: {error}") from None
    if not isinstance(answer, kind):
        raise ProtocolError(f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer
