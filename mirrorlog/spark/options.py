"""The data source's options: names and meanings of Spark's Kafka source where it has them.

docs/land/spark.md says what each of them means. Text in, values out; a login may come from the environment. Spark gives
the names in small letters.

`read_from` is the master by default: it always has every confirmed record, and a mirror learns of a confirm a moment
later, so a read of the very end would wait there. Mirrors are the choice for large reads beside live producers.

`pushdown` is off by default, because Spark 4.2 keeps what was pushed down with the DataFrame and not with the query:
another query over the same `load()` then reads under the former one's conditions, and both sides of a union under one
side's. So it is for those who load anew for each query, and wants `spark.sql.python.filterPushdown.enabled`. Offsets
and times as options narrow a read as well, and always rightly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal

from mirrorlog.config import split_address
from mirrorlog.errors import BadInput, ConfigError
from mirrorlog.spark.access import NO_ACCESS, Access, login_of
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.positions import PARTITION, QueuePosition, parse_offsets

EARLIEST: Final = -2
LATEST: Final = -1

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN: Final = "headers"
POSITION_COLUMNS: Final = ("logId", "epoch", "appendTime")
COLUMNS: Final = (*KAFKA_COLUMNS, HEADERS_COLUMN, *POSITION_COLUMNS)
"""All columns that there are, in the order in which they stand."""

Mode = Literal["batch", "stream", "either"]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record appended at or after a time, µs UTC: `every_us` of all queues, or each queue's own.

    `else_latest`: where there is none, latest; else that is an error.
    """

    every_us: int | None = None
    by_queue_us: Mapping[str, int] = field(default_factory=dict)
    else_latest: bool = False

    def of(self, queue: str) -> int:
        """Of one queue. Raises BadOption for one that was not named."""
        found = self.by_queue_us.get(queue) if self.every_us is None else self.every_us
        if found is None:
            raise BadOption(f"queue {queue!r} is read, but no timestamp is given for it; name every queue")
        return found


Offsets = Literal["earliest", "latest"] | Mapping[str, int | QueuePosition] | AtTime
"""One word for all queues, a time, or for each queue a number (EARLIEST and LATEST too) or a position."""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Records of one trigger of a stream, over all queues; `delay_ms`: so long a trigger waits for `records_min`."""

    records_max: int | None = None
    records_min: int | None = None
    delay_ms: int = 15 * 60_000


NO_LIMITS: Final = TriggerLimits()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options. `starting` and `ending`: first and (exclusive) last queue offsets.

    Either `servers` or `path`; either `queues` or `pattern`. `columns`: empty for the usual ones.
    """

    servers: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    starting: Offsets = "earliest"
    ending: Offsets = "latest"
    min_partitions: int = 1
    include_headers: bool = False
    fail_on_data_loss: bool = True
    read_from: str = "master"
    access: Access = NO_ACCESS
    path: str | None = None
    pattern: str | None = None
    include_position: bool = False
    columns: tuple[str, ...] = ()
    partition_records_max: int | None = None
    limits: TriggerLimits = NO_LIMITS
    pushdown: bool = False

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that rows have."""
        if self.columns:
            return self.columns
        headers = (HEADERS_COLUMN,) if self.include_headers else ()
        return (*KAFKA_COLUMNS, *headers, *(POSITION_COLUMNS if self.include_position else ()))

    def subscribes(self, queue: str) -> bool:
        """Whether a queue of this name is read."""
        return queue in self.queues if self.pattern is None else re.fullmatch(self.pattern, queue) is not None


_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_NAMES: Final = (
    *("servers", _BOOTSTRAP, "path", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets"),
    *("startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "includeHeaders", "includePosition", "columns", "pushdown"),
    *("failOnDataLoss", "read_from", "tls_ca", "tls_cert", "tls_key", "user", "password"),
)
_KNOWN: Final = {name.lower(): name for name in _NAMES}
_OF_NODES: Final = ("servers", _BOOTSTRAP, "read_from", "tls_ca", "tls_cert", "tls_key", "user", "password")
_ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_PARTITIONS_MAX: Final = 100_000
_RECORDS_MAX: Final = 2**53
_MS_MAX: Final = 2**53
_PATTERN_MAX: Final = 1_000
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}
_DELAY: Final = re.compile(r"([0-9]{1,12})\s*([a-z]*)")


def parse_options(options: Mapping[str, str], mode: Mode = "batch") -> SourceOptions:
    """`mode`: what the options are for; `either` checks what both have in common. Raises BadOption naming the option
    and what is wrong with it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    _refuse_unknown(given)
    queues, pattern = _subscription(given)
    path = _path(given)
    return SourceOptions(
        servers=() if path is not None else _servers(given),
        queues=queues,
        starting=_starting(given, queues, mode),
        ending=_ending(given, queues, mode),
        min_partitions=_number(given, "minPartitions", _PARTITIONS_MAX) or 1,
        include_headers=boolean_of(given, "includeHeaders", False),
        fail_on_data_loss=boolean_of(given, "failOnDataLoss", True),
        read_from=given.get("read_from") or "master",
        access=access_of(given) if path is None else NO_ACCESS,
        path=path,
        pattern=pattern,
        include_position=boolean_of(given, "includePosition", False),
        columns=_columns(given),
        partition_records_max=_number(given, "maxRecordsPerPartition", _RECORDS_MAX),
        limits=_limits(given),
        pushdown=boolean_of(given, "pushdown", False),
    )


def parse_servers(text: str, option: str = "servers") -> tuple[str, ...]:
    """`host:port,host:port` as addresses. Raises BadOption."""
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise BadOption(f"option {option!r} is missing or empty; give host:port, or several with commas between")
    for server in servers:
        try:
            split_address(server)
        except ConfigError as error:
            raise BadOption(f"option {option!r}: {error}") from None
    return servers


def offsets_json(queue: str, queue_offset: int | QueuePosition) -> str:
    """The value of startingOffsets or endingOffsets for one queue."""
    if isinstance(queue_offset, QueuePosition):
        return json.dumps({queue: {PARTITION: queue_offset.as_json()}})
    return json.dumps({queue: {PARTITION: queue_offset}})


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in _KNOWN:
            near = [_KNOWN[each] for each in get_close_matches(name, _KNOWN, n=3)]
            advice = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(_NAMES)}"
            raise BadOption(f"option {name!r} is not known; {advice}")


# --- Where from -----------------------------------------------------------------------------------------------------


def _servers(given: Mapping[str, str]) -> tuple[str, ...]:
    if "servers" in given and _BOOTSTRAP in given:
        raise BadOption(f"options 'servers' and {_BOOTSTRAP!r} mean the same; give one of them")
    if _BOOTSTRAP in given:
        return parse_servers(given[_BOOTSTRAP], _BOOTSTRAP)
    return parse_servers(given.get("servers", ""))


def _path(given: Mapping[str, str]) -> str | None:
    if "path" not in given:
        return None
    if not given["path"]:
        raise BadOption("option 'path' is empty; give the directory of a log, or one with several")
    for name in _OF_NODES:
        if name in given:
            raise BadOption(f"option {name!r} is for reading from nodes, 'path' for reading files; give one of them")
    return given["path"]


def access_of(given: Mapping[str, str]) -> Access:
    """Files of TLS, and a login, which may be the environment's. Raises BadOption."""
    ca, certificate, key = (given.get(name) or None for name in ("tls_ca", "tls_cert", "tls_key"))
    if (certificate is None) != (key is None):
        raise BadOption("options 'tls_cert' and 'tls_key' are needed together")
    try:
        return Access(ca, certificate, key, *login_of(given.get("user"), given.get("password"), "option"))
    except BadInput as error:
        raise BadOption(error.message) from None


def _subscription(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """Queue names, or a pattern."""
    pattern = given.get("subscribepattern")
    if pattern is None:
        return _list(given, "subscribe", "a queue"), None
    if "subscribe" in given:
        raise BadOption("give one of the options 'subscribe' and 'subscribePattern'")
    if not 0 < len(pattern) <= _PATTERN_MAX:
        raise BadOption(f"option 'subscribePattern' has {len(pattern)} letters; it has 1 to {_PATTERN_MAX}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadOption(f"option 'subscribePattern' is no regular expression: {error}") from None
    return (), pattern


def _list(given: Mapping[str, str], option: str, what: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.get(option.lower(), "").split(",") if part.strip())
    if not names:
        raise BadOption(f"option {option!r} is missing or empty; give {what}'s name, or several with commas between")
    if len(set(names)) < len(names):
        raise BadOption(f"option {option!r} names {what} twice")
    return names


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in given:
        return ()
    names = _list(given, "columns", "a column")
    for name in names:
        if name not in COLUMNS:
            raise BadOption(f"option 'columns': there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return names


# --- From where to where --------------------------------------------------------------------------------------------


def _starting(given: Mapping[str, str], queues: tuple[str, ...], mode: Mode) -> Offsets:
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption(f"option 'startingOffsetsByTimestampStrategy' is error or latest, not {strategy!r}")
    times = _times(given, "starting", queues, else_latest=strategy == "latest")
    if times is not None:
        return times
    default: Literal["earliest", "latest"] = "latest" if mode == "stream" else "earliest"
    # A batch read cannot start at the latest offset: it would always be empty.
    refused = (LATEST,) if mode == "batch" else ()
    return _offsets(given, "startingOffsets", default, queues, refused)


def _ending(given: Mapping[str, str], queues: tuple[str, ...], mode: Mode) -> Offsets:
    if mode == "stream":
        for option in _ENDINGS:
            if option.lower() in given:
                raise BadOption(f"option {option!r} is for batch reads; a stream has no end, but trigger availableNow")
    times = _times(given, "ending", queues, else_latest=True)
    return times if times is not None else _offsets(given, "endingOffsets", "latest", queues, (EARLIEST,))


def _times(given: Mapping[str, str], prefix: str, queues: tuple[str, ...], *, else_latest: bool) -> AtTime | None:
    if f"{prefix}timestamp" in given:
        option = f"{prefix}Timestamp"
        try:
            named: Any = int(given[option.lower()][:20])
        except ValueError:
            named = None
        return AtTime(_micros(option, given[option.lower()], named), else_latest=else_latest)
    option = f"{prefix}OffsetsByTimestamp"
    if option.lower() not in given:
        return None
    named = _named(given[option.lower()], option, 'JSON like {"queue": {"0": 1700000000000}}', queues)
    by_queue = {queue: _micros(option, partitions, _only(partitions)) for queue, partitions in named.items()}
    return AtTime(by_queue_us=by_queue, else_latest=else_latest)


def _only(partitions: Any) -> Any:
    return partitions[PARTITION] if isinstance(partitions, dict) and partitions.keys() == {PARTITION} else None


def _micros(option: str, shown: object, milliseconds: Any) -> int:
    if type(milliseconds) is not int or not -_MS_MAX <= milliseconds <= _MS_MAX:
        raise BadOption(f"option {option!r}: {shown!r:.80} is no time in ms since 1970 (UTC)")
    return milliseconds * 1_000


def _offsets(
    given: Mapping[str, str],
    option: str,
    default: Literal["earliest", "latest"],
    queues: tuple[str, ...],
    refused: tuple[int, ...],
) -> Offsets:
    text = given.get(option.lower(), default)
    words: dict[str, Literal["earliest", "latest"]] = {}
    if EARLIEST not in refused:
        words["earliest"] = "earliest"
    if LATEST not in refused:
        words["latest"] = "latest"
    if text.lower() in words:
        return words[text.lower()]
    named = _named(text, option, f'{" or ".join(words)} or JSON like {{"queue": {{"0": 23}}}}', queues)
    try:
        positions = parse_offsets(named)
    except BadInput as error:
        raise BadOption(f"option {option!r}, {error}") from None
    for queue, position in positions.items():
        if position.offset in refused:
            special = "-2 for earliest" if LATEST in refused else "-1 for latest"
            raise BadOption(
                f"option {option!r}, queue {queue!r}: {position.offset} is no queue offset (0 and up, or {special})"
            )
    return {queue: _plain(position) for queue, position in positions.items()}


def _plain(position: QueuePosition) -> int | QueuePosition:
    return position.offset if position == QueuePosition(position.offset) else position


def _named(text: str, option: str, shape: str, queues: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object that has exactly the subscribed queues; under a pattern that is for the plan to check."""
    try:
        named = json.loads(text)
    except (ValueError, RecursionError):
        named = None
    if not isinstance(named, dict):
        raise BadOption(f"option {option!r} is {shape}, not {text!r:.200}")
    if queues and named.keys() != set(queues):
        raise BadOption(f"option {option!r} must name exactly the subscribed queues: {', '.join(queues)}")
    return named


# --- How much -------------------------------------------------------------------------------------------------------


def _limits(given: Mapping[str, str]) -> TriggerLimits:
    found = TriggerLimits(
        _number(given, "maxOffsetsPerTrigger", _RECORDS_MAX),
        _number(given, "minOffsetsPerTrigger", _RECORDS_MAX),
        _delay_ms(given.get("maxtriggerdelay", "15m")),
    )
    if found.records_max is not None and found.records_min is not None and found.records_min > found.records_max:
        raise BadOption(f"minOffsetsPerTrigger {found.records_min} is above maxOffsetsPerTrigger {found.records_max}")
    return found


def _delay_ms(text: str) -> int:
    matched = _DELAY.fullmatch(text.lower())
    if matched is None or matched[2] not in _UNITS_MS:
        raise BadOption(f"option 'maxTriggerDelay' is a duration like 90s, 15m or 1h, not {text!r:.80}")
    return int(matched[1]) * _UNITS_MS[matched[2]]


def boolean_of(given: Mapping[str, str], option: str, default: bool) -> bool:
    """Raises BadOption."""
    text = given.get(option.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"option {option!r} is true or false, not {text!r}")
    return text == "true"


def _number(given: Mapping[str, str], option: str, most: int) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= most):
        raise BadOption(f"option {option!r} is a number from 1 to {most}, not {text!r:.80}")
    return int(text)
