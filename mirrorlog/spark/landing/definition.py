"""What is landed where: one `Landing`, from options or from a declarative TOML of many (docs/land/landing.md).

Every key is checked when the file is read, so that a service does not find a mistyped number hours later; a key that is
not known is refused, and a near one named. A landing's `name` tells it from others in holds, metrics and in the table's
history; it is not part of the position, so it may be changed. By default it is the queue's, or the last part of the
table's path where there are several queues.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from mirrorlog.errors import BadInput, ConfigError
from mirrorlog.spark.access import NO_ACCESS, Access, login_of
from mirrorlog.spark.errors import BadLanding, BadOption
from mirrorlog.spark.landing.write.layout import NO_PARTITIONS, Layout, parse_layout
from mirrorlog.spark.landing.write.storage import KEEP_S_MIN, table_uri
from mirrorlog.spark.options import parse_servers

MODES: Final = ("raw", "json", "avro", "protobuf")
EVOLUTIONS: Final = ("add", "quarantine")
COMPRESSIONS: Final = ("none", "snappy", "zstd", "lz4")
WRITES: Final = ("append", "upsert")
ON_DATA_LOSS: Final = ("fail", "skip")

NAME_CHARS_MAX: Final = 255
"""Of a landing's name: nodes take no longer ones for a hold."""

_MIB: Final = 1024 * 1024
_LEASE_S_MIN: Final = 10.0
_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f]{{1,{NAME_CHARS_MAX}}}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How often a table is tidied, in seconds; None: not by this landing. `vacuum_keep_s`: how long files that are not
    of the table any more stay for readers of older versions."""

    compact_every_s: float | None = None
    checkpoint_every_s: float | None = None
    vacuum_every_s: float | None = None
    vacuum_keep_s: float = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """One or more queues that are landed in one table. Made by `landing` or `read_landings`, which check.

    - `servers`, or `path`: the nodes, or the log directories of a cluster that is offline.
    - `queues`, or `queue_pattern`: a regular expression that a name matches as a whole.
    - `table`, `dead_letters`: as Spark names them.
    - `decoder`: settings of the decoder of `mode`, by name.
    - `evolution`: what a record that has more than the table does: add columns, or go to the dead letters.
    - `max_records`, `max_bytes`: of one commit. The bytes are those in the log and an estimate: a step looks at some
      batches of what is pending, and takes all records to be as large as the largest there.
    - `max_latency_s`: how old the oldest record that is not landed may become in a service before it commits.
    - `read_from`: nearest (a copy on the same host, else any mirror, else the master), mirror (any mirror; the master
      of a queue that has none), master, or a node's id.
    - `write`, `key`: append every record, or keep the latest of each key: the record's own, or these columns of its
      value.
    - `hold`, `lease_s`: whether the landing keeps its records from retention, and how long after its last sign of life.
    - `tiered`: what is landed may be dropped from the log early; its bytes are in the table then, so only raw.
    """

    name: str
    table: str
    servers: tuple[str, ...] = ()
    path: str | None = None
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    mode: str = "raw"
    decoder: Mapping[str, str] = field(default_factory=dict)
    evolution: str = "quarantine"
    dead_letters: str | None = None
    partition_by: Layout = NO_PARTITIONS
    cluster_by: tuple[str, ...] = ()
    zorder_by: tuple[str, ...] = ()
    compression: str = "snappy"
    target_file_bytes: int = 256 * _MIB
    max_records: int = 10_000_000
    max_bytes: int = 4096 * _MIB
    max_latency_s: float = 60.0
    read_from: str = "nearest"
    write: str = "append"
    key: tuple[str, ...] = ()
    change_data_feed: bool = False
    on_data_loss: str = "fail"
    hold: bool = True
    lease_s: float = 3600.0
    tiered: bool = False
    upkeep: Upkeep = Upkeep()
    access: Access = NO_ACCESS

    @property
    def decoded(self) -> bool:
        """Whether values become columns."""
        return self.mode != "raw"


def landing(given: Mapping[str, Any]) -> Landing:
    """The landing that these keys describe. Raises BadLanding naming the key."""
    _refuse_unknown(given, _PARSERS, "key")
    values = {name: _PARSERS[name](name, value) for name, value in given.items()}
    if "queue" in values:
        values["queues"] = values.pop("queue")
    settled = _settled(values)
    _refuse_contradictions(settled)
    return settled


def read_landings(file: str | PathLike[str], given: Mapping[str, Any] = MappingProxyType({})) -> list[Landing]:
    """All landings of a TOML file. `given`: see `parse_landings`. Raises BadLanding naming the landing and the key,
    ConfigError when it is no TOML."""
    path = Path(file)
    try:
        return parse_landings(tomllib.loads(path.read_text(encoding="utf-8")), given)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except BadLanding as error:
        raise BadLanding(f"{path}: {error}") from None


def parse_landings(document: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})) -> list[Landing]:
    """As `read_landings`, of what the file holds. `given`: where nodes are, who lands and whether records are held, for
    landings of which the file does not say it: it says either where nodes are, with what they need, or nothing."""
    _refuse_unknown(document, ("defaults", "landing"), "section")
    defaults, tables = document.get("defaults", {}), document.get("landing", [])
    if not isinstance(defaults, dict):
        raise BadLanding("section 'defaults': write [defaults], not [[defaults]]")
    if not isinstance(tables, list) or not tables:
        raise BadLanding("section 'landing': write a [[landing]] for each table; there is none")
    found = [_numbered(number, _completed({**defaults, **each}, given)) for number, each in enumerate(tables, 1)]
    _refuse_twins(found)
    return found


def _completed(keys: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if "path" in keys:
        return keys
    own = {"hold"} if "servers" in keys else given.keys()
    kept = {"hold"} if keys.get("tiered") else set()  # what is tiered is held
    return {**{name: given[name] for name in own - kept if name in given}, **keys}


def _numbered(number: int, given: Mapping[str, Any]) -> Landing:
    try:
        return landing(given)
    except BadLanding as error:
        raise BadLanding(f"landing {given.get('name') or given.get('queue') or number}: {error}") from None


def _refuse_twins(found: Sequence[Landing]) -> None:
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise BadLanding(f"key 'name': two landings are called {name!r}; give each a name of its own")


def _settled(values: dict[str, Any]) -> Landing:
    """The defaults that follow from other keys, and keys that are gathered in one value."""
    if "table" not in values:
        raise BadLanding("key 'table' is missing; give the Delta table's path or URI")
    if bool(values.get("queues")) == bool(values.get("queue_pattern")):
        raise BadLanding("give either key 'queue' or key 'queue_pattern'")
    if bool(values.get("servers")) == bool(values.get("path")):
        raise BadLanding("give either key 'servers' (running nodes) or key 'path' (log directories)")
    values.setdefault("name", _default_name(values))
    upkeep = Upkeep(**{name: values.pop(name) for name in _names(Upkeep) if name in values})
    (ca, certificate, key), user = (values.pop(name, None) for name in _TLS), values.pop("user", None)
    access = Access(ca, certificate, key, *(_login(user) if values.get("servers") else (None, "")))
    if values.get("path"):
        values.setdefault("hold", False)
    return Landing(**values, upkeep=upkeep, access=access)


def _login(user: str | None) -> tuple[str | None, str]:
    """Who lands; the password is never a key, for definitions lie in repositories and are printed."""
    try:
        return login_of(user, None, "key")
    except BadInput as error:
        raise BadLanding(f"key 'user': {error}") from None


def _default_name(values: Mapping[str, Any]) -> str:
    """The queue's, or that of the table of several: all their names may be more than a hold's name can be."""
    queues: Sequence[str] = values.get("queues") or ()
    return str(queues[0] if len(queues) == 1 else _name("name", values["table"].rstrip("/").rpartition("/")[2]))


def _refuse_contradictions(made: Landing) -> None:
    wrong: list[tuple[bool, str]] = [
        (made.decoded and not made.decoder, f"key 'decoder': mode {made.mode!r} needs a schema; see the manual"),
        (bool(made.decoder) and not made.decoded, "key 'decoder': mode 'raw' decodes nothing; set key 'mode'"),
        (made.dead_letters == made.table, "key 'dead_letters': it is the table itself; give it one of its own"),
        (bool(made.cluster_by) and bool(made.partition_by), "key 'cluster_by': a table has partitions or clusters"),
        (bool(made.cluster_by) and bool(made.zorder_by), "key 'zorder_by': a clustered table orders itself"),
        (made.tiered and bool(made.path), "keys 'tiered' and 'path': log directories are read offline, nothing goes"),
        (made.tiered and not made.hold, "keys 'tiered' and 'hold': only with hold = true can records go early"),
        (made.tiered and made.decoded, f"keys 'tiered' and 'mode': only mode 'raw' keeps bytes, not {made.mode!r}"),
        (bool(made.path) and made.hold, "key 'hold': log directories that are read offline keep everything"),
        (
            (made.access.certificate is None) != (made.access.key is None),
            "keys 'tls_cert' and 'tls_key' belong together",
        ),
        (made.write == "upsert" and bool(made.partition_by), "key 'partition_by': not with write = 'upsert' yet"),
        (bool(made.key) and made.write != "upsert", "key 'key': only with write = 'upsert'"),
        (bool(made.key) and not made.decoded, "key 'key': names columns of values; set key 'mode' to decode them"),
        (
            made.tiered and made.write == "upsert",
            "keys 'tiered' and 'write': an upserted table does not have every record",
        ),
    ]
    for is_wrong, message in wrong:
        if is_wrong:
            raise BadLanding(message)


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any] | Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise BadLanding(f"{what} {name!r} is not known; {hint}")


def _names(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]


# --- One parser per kind of value. Each takes the key, for its errors, and the value. -------------------------------


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadLanding(f"key {key!r}: give a text, not {value!r}")
    return value.strip()


def _name(key: str, value: object) -> str:
    text = _text(key, value)
    if not _NAME.fullmatch(text):
        raise BadLanding(f"key {key!r}: give 1 to {NAME_CHARS_MAX} characters without control characters, not {text!r}")
    return text


def _texts(key: str, value: object) -> tuple[str, ...]:
    """A list, or one text with commas between."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts:
        raise BadLanding(f"key {key!r}: give a text or a list of them, not {value!r}")
    found = tuple(_text(key, part) for part in parts)
    if len(set(found)) < len(found):
        raise BadLanding(f"key {key!r} names something twice: {', '.join(found)}")
    return found


def _table(key: str, value: object) -> str:
    try:
        return table_uri(_text(key, value))
    except BadLanding as error:
        raise BadLanding(str(error).replace("'table'", repr(key), 1)) from None


def _servers(key: str, value: object) -> tuple[str, ...]:
    try:
        return parse_servers(",".join(_texts(key, value)))
    except BadOption as error:
        raise BadLanding(f"key {key!r}: {error}") from None


def _pattern(key: str, value: object) -> str:
    text = _text(key, value)
    try:
        re.compile(text)
    except re.error as error:
        raise BadLanding(f"key {key!r}: {text!r} is no regular expression: {error}") from None
    return text


def _settings(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise BadLanding(f"key {key!r}: write it as {{ name = value }}, not {value!r}")
    return {str(name): each if isinstance(each, str) else str(each).lower() for name, each in value.items()}


def _layout(key: str, value: object) -> Layout:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise BadLanding(f"key {key!r}: give a list like ['date(timestamp)'], not {value!r}")
    return parse_layout([_text(key, part) for part in parts], key=key)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadLanding(f"key {key!r}: true or false, not {value!r}")
    return value


def _one_of(choices: Sequence[str]) -> Callable[[str, object], str]:
    def parse(key: str, value: object) -> str:
        if value not in choices:
            raise BadLanding(f"key {key!r} is one of {', '.join(choices)}, not {value!r}")
        return cast(str, value)

    return parse


def _whole(least: int) -> Callable[[str, object], int]:
    def parse(key: str, value: object) -> int:
        if type(value) is not int or not least <= value < 2**62:
            raise BadLanding(f"key {key!r} is a whole number from {least:,} on, not {value!r}")
        return value

    return parse


def _seconds(least: float) -> Callable[[str, object], float]:
    def parse(key: str, value: object) -> float:
        if type(value) not in (int, float) or not least <= cast(float, value) < 1e10:
            raise BadLanding(f"key {key!r} is a number of seconds from {least:g} on, not {value!r}")
        return float(cast(float, value))

    return parse


_TLS: Final = ("tls_ca", "tls_cert", "tls_key")

_PARSERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "name": _name,
    "servers": _servers,
    "path": _text,
    "queue": _texts,
    "queue_pattern": _pattern,
    "table": _table,
    "mode": _one_of(MODES),
    "decoder": _settings,
    "evolution": _one_of(EVOLUTIONS),
    "dead_letters": _table,
    "partition_by": _layout,
    "cluster_by": _texts,
    "zorder_by": _texts,
    "compression": _one_of(COMPRESSIONS),
    "target_file_bytes": _whole(64 * 1024),
    "max_records": _whole(1),
    "max_bytes": _whole(1),
    "max_latency_s": _seconds(0),
    "read_from": _text,
    "write": _one_of(WRITES),
    "key": _texts,
    "change_data_feed": _flag,
    "on_data_loss": _one_of(ON_DATA_LOSS),
    "hold": _flag,
    "lease_s": _seconds(_LEASE_S_MIN),
    "tiered": _flag,
    "compact_every_s": _seconds(1),
    "checkpoint_every_s": _seconds(1),
    "vacuum_every_s": _seconds(1),
    "vacuum_keep_s": _seconds(KEEP_S_MIN),
    **dict.fromkeys((*_TLS, "user"), _text),
}
