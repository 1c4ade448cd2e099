"""The options of the writer. Text in, values out; a login may come from the environment.

    servers                  host:port, commas between (also as kafka.bootstrap.servers)
    queue                    the queue to write to, whatever a column `topic` says (also as topic). Without it every row
                             goes to the queue that its column `topic` names
    confirm                  all (default), majority, one, master, or a number of copies
    durability               memory (default) or disk: where each of these copies has a record when it is confirmed
    compression              none (default), lz4 or zstd, of each batch
    declare                  true makes a queue that is not there; false (default): it is an error
    delivery_timeout_ms      how long a record may take until it is confirmed, 30000 by default
    tls_ca, tls_cert, tls_key, user, password   as for reading

As for Kafka's sink the option goes above the column: rows that were read from one queue and are written to another have
a column `topic`, which names where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorlog.client.options import check_timeout, parse_compression, parse_durability, parse_level
from mirrorlog.errors import BadRequest
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.options import access_of, parse_servers

_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_NAMES: Final = (
    "servers",
    _BOOTSTRAP,
    "queue",
    "topic",
    "confirm",
    "durability",
    "compression",
    "declare",
    "delivery_timeout_ms",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "user",
    "password",
)
_KNOWN: Final = frozenset(_NAMES)
# Spark's own, which it hands on.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
DELIVERY_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Checked options. `queue`: None when rows name theirs."""

    servers: tuple[str, ...]
    queue: str | None = None
    confirm: str = "all"
    durability: str = "memory"
    compression: str = "none"
    declare: bool = False
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    access: Access = NO_ACCESS


def parse_writer_options(options: Mapping[str, str]) -> WriterOptions:
    """Raises BadOption naming the option and what is wrong with it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    _refuse_unknown(given)
    confirm = given.get("confirm", "all").lower()
    if confirm in ("none", "0"):
        raise BadOption("option 'confirm': a task must know that its records are there; give master at least")
    durability, compression = given.get("durability", "memory").lower(), given.get("compression", "none").lower()
    timeout_ms = given.get("delivery_timeout_ms", str(DELIVERY_TIMEOUT_MS))
    if not (timeout_ms.isascii() and timeout_ms.isdigit() and len(timeout_ms) <= 20):
        raise BadOption(f"option 'delivery_timeout_ms' is a number of ms, not {timeout_ms!r:.80}")
    try:
        parse_level(confirm)
        parse_durability(durability)
        parse_compression(compression)
        check_timeout("delivery_timeout_ms", int(timeout_ms))
    except BadRequest as error:
        raise BadOption(f"option of the writer: {error}") from None
    return WriterOptions(
        servers=parse_servers(_either(given, "servers", _BOOTSTRAP) or ""),
        queue=_either(given, "queue", "topic"),
        confirm=confirm,
        durability=durability,
        compression=compression,
        declare=_declare(given),
        delivery_timeout_ms=int(timeout_ms),
        access=access_of(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    if "path" in given:
        raise BadOption("option 'path' is for reading; records are written to nodes, named by 'servers': save() alone")
    for name in given.keys() - _KNOWN - _OF_SPARK:
        raise BadOption(f"option {name!r} is not one of the writer's; there are {', '.join(_NAMES)}")


def _either(given: Mapping[str, str], name: str, other: str) -> str | None:
    if name in given and other in given:
        raise BadOption(f"options {name!r} and {other!r} mean the same; give one of them")
    found = given.get(name, given.get(other))
    if found == "":
        raise BadOption(f"option {name!r} is empty")
    return found


def _declare(given: Mapping[str, str]) -> bool:
    text = given.get("declare", "false").lower()
    if text not in ("true", "false"):
        raise BadOption(f"option 'declare' is true or false, not {text!r:.80}")
    return text == "true"
