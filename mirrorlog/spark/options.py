"""The data source's options: names and meanings of Spark's Kafka source where it has them.

    servers                  host:port, commas between (also as kafka.bootstrap.servers)
    subscribe                queue names, commas between
    startingOffsets          earliest (default), or JSON {"queue": {"0": offset}} naming every queue; -2 is earliest
    endingOffsets            latest (default), or the same JSON; -1 is latest. Exclusive
    minPartitions            at least so many tasks, as far as there are records; by default one per queue
    includeHeaders           true adds the column `headers`
    failOnDataLoss           true (default): offsets that are not there any more are an error; false: skipped
    read_from                master (default), mirror, or a node's id
    tls_ca                   for nodes that speak TLS: a file, PEM, with the authorities that are trusted
    tls_cert, tls_key        files, PEM, with the certificate to show and its key, where nodes ask for one

`read_from` is the master by default: it always has every confirmed record, and a mirror learns of a confirm a moment
later, so a read of the very end would wait there. Mirrors are the choice for large reads beside live producers.

Pure: text in, values out. Spark gives the names in small letters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mirrorlog.config import split_address
from mirrorlog.errors import ConfigError
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.tls import NO_TLS, TlsFiles

EARLIEST: Final = -2
LATEST: Final = -1

Offsets = Literal["earliest", "latest"] | Mapping[str, int]
"""One word for all queues, or a number for each; numbers may be EARLIEST or LATEST."""

_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_NAMES: Final = (
    "servers",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "read_from",
    "tls_ca",
    "tls_cert",
    "tls_key",
)
_KNOWN: Final = {name.lower(): name for name in (*_NAMES, _BOOTSTRAP)}
_PARTITION: Final = "0"
_PARTITIONS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options. `starting` and `ending`: first and (exclusive) last queue offsets."""

    servers: tuple[str, ...]
    queues: tuple[str, ...]
    starting: Offsets = "earliest"
    ending: Offsets = "latest"
    min_partitions: int = 1
    include_headers: bool = False
    fail_on_data_loss: bool = True
    read_from: str = "master"
    tls: TlsFiles = NO_TLS


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises BadOption naming the option and what is wrong with it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name in given:
        if name not in _KNOWN:
            raise BadOption(f"option {name!r} is not known; there are {', '.join([*_NAMES, _BOOTSTRAP])}")
    queues = _list(given, "subscribe")
    return SourceOptions(
        servers=_servers(given),
        queues=queues,
        starting=_offsets(given, "startingOffsets", "earliest", queues),
        ending=_offsets(given, "endingOffsets", "latest", queues),
        min_partitions=_positive(given, "minPartitions", 1),
        include_headers=_boolean(given, "includeHeaders", False),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", True),
        read_from=given.get("read_from") or "master",
        tls=_tls(given),
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


def offsets_json(queue: str, queue_offset: int) -> str:
    """The value of startingOffsets or endingOffsets for one queue."""
    return json.dumps({queue: {_PARTITION: queue_offset}})


def _servers(given: Mapping[str, str]) -> tuple[str, ...]:
    if "servers" in given and _BOOTSTRAP in given:
        raise BadOption(f"options 'servers' and {_BOOTSTRAP!r} mean the same; give one of them")
    if _BOOTSTRAP in given:
        return parse_servers(given[_BOOTSTRAP], _BOOTSTRAP)
    return parse_servers(given.get("servers", ""))


def _tls(given: Mapping[str, str]) -> TlsFiles:
    found = TlsFiles(*(given.get(name) or None for name in ("tls_ca", "tls_cert", "tls_key")))
    if (found.certificate is None) != (found.key is None):
        raise BadOption("options 'tls_cert' and 'tls_key' are needed together")
    return found


def _list(given: Mapping[str, str], option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.get(option, "").split(",") if part.strip())
    if not names:
        raise BadOption(f"option {option!r} is missing or empty; give a queue's name, or several with commas between")
    if len(set(names)) < len(names):
        raise BadOption(f"option {option!r} names a queue twice")
    return names


def _boolean(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"option {option!r} is true or false, not {text!r}")
    return text == "true"


def _positive(given: Mapping[str, str], option: str, default: int) -> int:
    text = given.get(option.lower(), str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _PARTITIONS_MAX):
        raise BadOption(f"option {option!r} is a number from 1 to {_PARTITIONS_MAX}, not {text!r}")
    return int(text)


def _offsets(
    given: Mapping[str, str], option: str, default: Literal["earliest", "latest"], queues: tuple[str, ...]
) -> Offsets:
    """A batch read cannot start at the latest offset or end at the earliest one: it would always be empty."""
    text = given.get(option.lower(), default)
    if text.lower() == default:
        return default
    refused = LATEST if default == "earliest" else EARLIEST
    shape = f'{default} or JSON like {{"queue": {{"0": 23}}}}'
    try:
        named = json.loads(text)
    except ValueError:
        raise BadOption(f"option {option!r} is {shape}, not {text!r}") from None
    if not isinstance(named, dict):
        raise BadOption(f"option {option!r} is {shape}, not {text!r}")
    if named.keys() != set(queues):
        raise BadOption(f"option {option!r} must name exactly the subscribed queues: {', '.join(queues)}")
    return {queue: _offset(option, queue, partitions, refused) for queue, partitions in named.items()}


def _offset(option: str, queue: str, partitions: Any, refused: int) -> int:
    if not isinstance(partitions, dict) or partitions.keys() != {_PARTITION}:
        raise BadOption(f'option {option!r}, queue {queue!r}: a queue has one partition, so give {{"0": offset}}')
    offset = partitions[_PARTITION]
    if type(offset) is not int or not EARLIEST <= offset < 2**63 or offset == refused:
        special = "-2 for earliest" if refused == LATEST else "-1 for latest"
        raise BadOption(f"option {option!r}, queue {queue!r}: {offset!r} is no queue offset (0 and up, or {special})")
    return offset
