"""What a queue may be declared with: the names, what each takes, and what it means to whoever asks. Pure.

An argument that is not known is refused, or its owner would believe in it. Those of RabbitMQ's about its own stores are
taken, and change nothing (`policies.means_nothing`). A log may hold some, of any shape, that an older version took:
whoever reads them passes over what does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from mirrorlog import versions
from mirrorlog.cluster.state.placements import PROMOTES
from mirrorlog.commitlog.format.attributes import DURATION_MS_MAX, PRIORITY_MAX
from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.config import COPIES_MAX, Locator
from mirrorlog.errors import BadRequest
from mirrorlog.queues.limits.length import DROP_HEAD, LengthLimits
from mirrorlog.queues.limits.lifetime import AUTO_DELETE, DURABLE, EXCLUSIVE, EXPIRES, is_transient
from mirrorlog.wire.names import check_new, is_key, qualified, split
from mirrorlog.wire.policies import means_nothing

ARGUMENTS_MAX: Final = 100
DEPTH_MAX: Final = 8

TIER_KEEP_MS: Final = 3_600_000
"""How long a tiered queue keeps in the log what is landed, by default: an hour, since most readers are not further
behind, and the log serves them faster than a table."""

COPIES_ASKED_MAX: Final = 255
"""Of a queue: more than there are nodes means all."""

ALL: Final = "all"
"""What may be said for that number of copies; nobody stores it, nor has to know it but who is asked."""

DELIVERY_LIMIT_MAX: Final = 254
"""Attempts are counted up to one more."""

_NUMBER_MAX: Final = 2**63 - 1
TIMEOUT_MS_MAX: Final = 366 * 24 * 3600 * 1000


class _Number(NamedTuple):
    """A whole number from `least` to `most`; `or_else`: what -1 stands for, if it is allowed."""

    least: int
    most: int
    or_else: str = ""


_RETENTION: Final = "retention"
_TIER_KEEP: Final = "tier_keep_ms"
_LIMITS: Final = ("retention_ms", "retention_bytes")
_SINGLE_ACTIVE: Final = "x-single-active-consumer"
_CONSUMER_TIMEOUT: Final = "x-consumer-timeout"
_DELIVERY_LIMIT: Final = "x-delivery-limit"
_MESSAGE_TTL: Final = "x-message-ttl"
_MAX_PRIORITY: Final = "x-max-priority"
_MAX_LENGTH: Final = "x-max-length"
_MAX_LENGTH_BYTES: Final = "x-max-length-bytes"
_OVERFLOW: Final = "x-overflow"
_LOG_GROUP: Final = "x-log-group"
_NODES: Final = "nodes"
_COPIES: Final = "copies"
MIN_IN_SYNC: Final = "min_in_sync"
SYNC_MODE: Final = "ha-sync-mode"
REPLACE_AFTER: Final = "replace-after-ms"
TOPOLOGY: Final = "mirror-topology"
OF_POLICIES: Final = (SYNC_MODE, REPLACE_AFTER, TOPOLOGY, *PROMOTES)
"""Of a place, too, and of policies alone: no queue is declared with them."""
LOCATOR: Final = "queue-master-locator"
_LOCATOR_OF_RABBITMQ: Final = f"x-{LOCATOR}"
_DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
_DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"

REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
"""What becomes of a publish to a queue that is full: the oldest records go for it, or it is refused; the last one sends
it to the queue's dead letters besides; without an exchange for them it is as the second, as in RabbitMQ."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "flush": ("memory", "disk"),
    _RETENTION: ("limits", "work"),
    _OVERFLOW: (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX),
    **dict.fromkeys((LOCATOR, _LOCATOR_OF_RABBITMQ), ("min-masters", "client-local", "random")),
}
NUMBERS: Final[Mapping[str, _Number]] = {
    _COPIES: _Number(1, COPIES_ASKED_MAX),
    MIN_IN_SYNC: _Number(1, COPIES_MAX),
    **dict.fromkeys(_LIMITS, _Number(1, _NUMBER_MAX, "that of the log")),
    _TIER_KEEP: _Number(0, _NUMBER_MAX // 1000),
    _CONSUMER_TIMEOUT: _Number(1, TIMEOUT_MS_MAX),
    _DELIVERY_LIMIT: _Number(0, DELIVERY_LIMIT_MAX, "no limit"),
    _MESSAGE_TTL: _Number(0, DURATION_MS_MAX),
    EXPIRES: _Number(1, TIMEOUT_MS_MAX),
    _MAX_PRIORITY: _Number(0, PRIORITY_MAX),
    **dict.fromkeys((_MAX_LENGTH, _MAX_LENGTH_BYTES), _Number(0, _NUMBER_MAX)),
}
_FLAGS: Final = (_SINGLE_ACTIVE, AUTO_DELETE, DURABLE, EXCLUSIVE)
_DEAD_LETTERING: Final = (_DEAD_LETTER_EXCHANGE, _DEAD_LETTER_KEY)
_OF_RECORDS: Final = (_MESSAGE_TTL, _MAX_PRIORITY, _MAX_LENGTH, _MAX_LENGTH_BYTES, _OVERFLOW, *_DEAD_LETTERING)
PLACING: Final = ("flush", "copies", _NODES, MIN_IN_SYNC, LOCATOR, _LOCATOR_OF_RABBITMQ)
"""What says where a queue is; these can be changed."""
OF_PLACES: Final = (*PLACING, *OF_POLICIES)
"""The same, with what policies alone say of it."""
_KNOWN: Final = (
    *PLACING,
    *(*_LIMITS, _TIER_KEEP, _RETENTION),
    *(_SINGLE_ACTIVE, _CONSUMER_TIMEOUT, _DELIVERY_LIMIT),
    *_OF_RECORDS,
    AUTO_DELETE,
    EXPIRES,
    DURABLE,
    EXCLUSIVE,
    _LOG_GROUP,
)

_LIFETIMES: Final = (AUTO_DELETE, EXPIRES, DURABLE, EXCLUSIVE)
_WITH_GROUPS: Final = frozenset({_SINGLE_ACTIVE, _CONSUMER_TIMEOUT, _DELIVERY_LIMIT, *_OF_RECORDS, *_LIFETIMES})
_OF_PLACEMENTS: Final = frozenset({_NODES, MIN_IN_SYNC, LOCATOR, _LOCATOR_OF_RABBITMQ})
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TEXT: Final = re.compile(r"[^\x00-\x1f\x7f]{0,255}")
"""An exchange's name, or a routing key."""

# What an error repeats of a name or a value that somebody else chose.
_SHOWN_CHARS: Final = 80


def check_declaration(name: str, arguments: Mapping[str, Any], *, placed: bool) -> None:
    """Whether a queue may be declared so, wherever it will be. `placed`: it has a place, so it may be there since
    before what is asked of new ones was; its log knows. Raises BadRequest."""
    if not is_key(name):
        raise BadRequest("a queue's name has 1 to 255 characters and no control characters")
    _check_shape(arguments)
    if not placed:
        check_new("queue", split(name)[1])
        check_names(arguments, known={})
        check_values(arguments)


def _check_shape(arguments: Mapping[str, Any]) -> None:
    """What every node and every format can carry, nested a little. Deeper ones would be stored by one decoder and
    refused by another, and then copies differ."""
    if len(arguments) > ARGUMENTS_MAX:
        raise BadRequest(f"{len(arguments)} arguments are above the limit of {ARGUMENTS_MAX}")
    for key, value in arguments.items():
        if not _is_plain(value, DEPTH_MAX):
            raise BadRequest(
                f"argument {_shown(key)} is no number, text, bytes or flag, nor lists or tables of these, "
                f"nested at most {DEPTH_MAX} deep"
            )


def without_words(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As a queue has them: copies are a number, also where somebody says "all"."""
    return {**arguments, _COPIES: COPIES_ASKED_MAX} if arguments.get(_COPIES) == ALL else {**arguments}


def check_names(arguments: Iterable[str], *, known: Container[str]) -> None:
    """`known`: what the queue has already, perhaps from a version that kept whatever it was given. Raises
    BadRequest."""
    for key in arguments:
        if key in _KNOWN or key in known or means_nothing(key):
            continue
        there_are = f"there are {', '.join(_KNOWN)}"
        if key.startswith("x-"):
            raise BadRequest(f"argument {_shown(key)} is not known yet, as not all x-… of RabbitMQ's are; {there_are}")
        near = get_close_matches(key[:_SHOWN_CHARS], _KNOWN, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise BadRequest(f"argument {_shown(key)} is not known; {there_are}{meant}")


def check_values(arguments: Mapping[str, Any]) -> None:
    """Raises BadRequest for a value that its argument does not take."""
    for key, value in arguments.items():
        if key in CHOICES and value not in CHOICES[key]:
            *others, last = map(repr, CHOICES[key])
            raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be {', '.join(others)} or {last}")
        if key in NUMBERS:
            _check_number(key, value, NUMBERS[key])
        if key in _FLAGS and type(value) is not bool:
            raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be true or false")
    _check_dead_lettering(arguments)
    _check_transient(arguments)
    _check_nodes(arguments)
    if _LOG_GROUP in arguments and not log_group_of(arguments):
        group = arguments[_LOG_GROUP]
        raise BadRequest(f"argument {_LOG_GROUP!r} is {_shown(group)}, it must be a name, of 1 to 255 characters")


def fits(name: str, value: Any) -> bool:
    """Whether an argument is of a shape that it takes: a log may hold others (see above)."""
    try:
        check_values({name: value})
    except BadRequest:
        return False
    return True


def _check_nodes(arguments: Mapping[str, Any]) -> None:
    if _NODES not in arguments:
        return
    nodes = arguments[_NODES]
    named = isinstance(nodes, list | tuple) and all(isinstance(each, str) and _NODE.fullmatch(each) for each in nodes)
    if not named or not 1 <= len(nodes) <= COPIES_MAX or len(set(nodes)) != len(nodes):
        raise BadRequest(
            f"argument {_NODES!r} is {_shown(nodes)}, it must be a list of 1 to {COPIES_MAX} names of nodes, each once"
        )
    if "copies" in arguments:
        raise BadRequest(
            f"arguments {_NODES!r} and 'copies' both say how many copies there are; leave one of them away"
        )


def _check_transient(arguments: Mapping[str, Any]) -> None:
    """A queue that goes with its node is on that node alone, and in memory."""
    if not is_transient(arguments):
        return
    alone = dict.fromkeys((_LOG_GROUP, _NODES)) | {"copies": 1, MIN_IN_SYNC: 1, "flush": "memory"}
    for key, allowed in alone.items():
        if (value := arguments.get(key)) not in (None, allowed):
            raise BadRequest(
                f"argument {key!r} is {_shown(value)}, and a queue that is exclusive or not durable is on one node, in "
                "memory; leave one of them away"
            )


def difference_of(declared: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In which argument a queue is not as somebody declares it, for people; empty when both mean the same."""
    declared, wanted = _without_defaults(declared), _without_defaults(wanted)
    for key in sorted(declared.keys() | wanted.keys()):
        there, asked = declared.get(key), wanted.get(key)
        if there != asked:
            return f"{_with(key, there)}, asked for {_with(key, asked)}"
    return ""


def _with(key: str, value: Any) -> str:
    return f"without {key}" if value is None else f"with {key}={value!r}"


def _without_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What says nothing that would not hold anyway is left out: a queue is durable, and no other flag is set. So is
    what means nothing: programs that say it, and those that do no more, share a queue."""
    said = (item for item in arguments.items() if not means_nothing(item[0]))
    return {key: value for key, value in said if not (key in _FLAGS and value is (key == DURABLE))}


def version_needed(arguments: Mapping[str, Any]) -> int:
    """At which version a cluster has to run for a queue with these arguments: a master of the software before would not
    keep what they say."""
    if not _OF_PLACEMENTS.isdisjoint(arguments):
        return versions.PLACEMENTS
    needs = arguments.get(_RETENTION) == "work" or not _WITH_GROUPS.isdisjoint(arguments) or _LOG_GROUP in arguments
    return versions.GROUPS if needs else versions.FIRST


def log_group_of(arguments: Mapping[str, Any]) -> str:
    """Which queues it is in one log with, by a name that they have in common in their virtual host; empty: any."""
    group = arguments.get(_LOG_GROUP)
    return group if isinstance(group, str) and TEXT.fullmatch(group) else ""


def log_group_key(name: str, arguments: Mapping[str, Any]) -> str:
    """The qualified name of the log group of the queue `name`; empty without one."""
    group = log_group_of(arguments)
    return qualified(split(name)[0], group) if group else ""


def locator_of(arguments: Mapping[str, Any]) -> Locator | None:
    """How the home of a queue is chosen; None: as the cluster does."""
    locator = arguments.get(LOCATOR, arguments.get(_LOCATOR_OF_RABBITMQ))
    return locator if locator in CHOICES[LOCATOR] else None


def is_work_queue(arguments: Mapping[str, Any]) -> bool:
    """Whether the queue keeps what is not settled, and nothing else."""
    return arguments.get(_RETENTION) == "work"


def leaves_retention_open(arguments: Mapping[str, Any]) -> bool:
    """Whether nothing is said of what the queue keeps."""
    return _RETENTION not in arguments and limits_of(arguments) is None


def lengths_of(arguments: Mapping[str, Any]) -> LengthLimits | None:
    """How long a queue may be; None when it may be of any length."""
    records, size = (_number_of(arguments, key) for key in (_MAX_LENGTH, _MAX_LENGTH_BYTES))
    if records is None and size is None:
        return None
    overflow = arguments.get(_OVERFLOW)
    return LengthLimits(records, size, overflow if overflow in CHOICES[_OVERFLOW] else DROP_HEAD)


def message_ttl_ms(arguments: Mapping[str, Any]) -> int | None:
    """How long records of the queue are of use, behind their append; None: for ever."""
    return _number_of(arguments, _MESSAGE_TTL)


def limits_of(arguments: Mapping[str, Any]) -> QueueLimits | None:
    """A queue's own retention; None when it has none."""
    age_ms, size = (
        limit if type(limit := arguments.get(key)) is int and 1 <= limit <= _NUMBER_MAX else None for key in _LIMITS
    )
    if age_ms is None and size is None:
        return None
    return QueueLimits(max_age_us=None if age_ms is None else age_ms * 1000, max_bytes=size)


def tier_keep_us(arguments: Mapping[str, Any]) -> int:
    """How old what is landed has to be before it may go from the log early (µs)."""
    keep = arguments.get(_TIER_KEEP)
    return 1000 * (keep if type(keep) is int and 0 <= keep <= _NUMBER_MAX // 1000 else TIER_KEEP_MS)


def _check_number(key: str, value: object, allowed: _Number) -> None:
    # A flag is an int to Python, and to nobody else.
    if type(value) is int and (allowed.least <= value <= allowed.most or (value == -1 and allowed.or_else)):
        return
    numbers = f"from {allowed.least} to {allowed.most}" + (f", or -1 for {allowed.or_else}" if allowed.or_else else "")
    word = f", or {ALL!r}" if key == _COPIES else ""
    raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be a whole number {numbers}{word}")


def _number_of(arguments: Mapping[str, Any], key: str) -> int | None:
    allowed = NUMBERS[key]
    value = arguments.get(key)
    return value if type(value) is int and allowed.least <= value <= allowed.most else None


class DeadLetters(NamedTuple):
    """Where records go that die: `exchange`, in the queue's virtual host; `routing_key` None: each record's own."""

    exchange: str
    routing_key: str | None


def dead_letters_of(arguments: Mapping[str, Any]) -> DeadLetters | None:
    """None when records that die are gone."""
    exchange, key = arguments.get(_DEAD_LETTER_EXCHANGE), arguments.get(_DEAD_LETTER_KEY)
    if not isinstance(exchange, str):
        return None
    return DeadLetters(exchange, key if isinstance(key, str) else None)


def _check_dead_lettering(arguments: Mapping[str, Any]) -> None:
    for key in _DEAD_LETTERING:
        value = arguments.get(key, "")
        if not isinstance(value, str) or not TEXT.fullmatch(value):
            raise BadRequest(
                f"argument {key!r} is {_shown(value)}, it must be a text of at most 255 characters without control "
                "characters"
            )
    if _DEAD_LETTER_KEY in arguments and _DEAD_LETTER_EXCHANGE not in arguments:
        raise BadRequest(f"argument {_DEAD_LETTER_KEY!r} needs {_DEAD_LETTER_EXCHANGE!r} besides")


def _is_plain(value: object, depth: int) -> bool:
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each, depth - 1) for key, each in value.items())
    return isinstance(value, list | tuple) and all(_is_plain(each, depth - 1) for each in value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
