"""The command line of landings, for `python -m mirrorlog.spark.land`, `spark-submit` and `mqtool land`.

One queue into one table, once, is the plain form; `--follow` goes on, and `--config` takes many from a TOML file and
goes on unless `--once` is given. What has no option of its own is given as `--set key=value`, with the keys of that
file.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import tomllib
import traceback
from collections.abc import Sequence
from typing import Any, Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import BadLanding
from mirrorlog.spark.landing.definition import Landing, landing, read_landings

_ONE: Final = ("servers", "path", "mode", "read_from", "on_data_loss", "tls_ca", "tls_cert", "tls_key")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 when the tables have everything that was confirmed, or on SIGTERM."""
    given = _parser().parse_args(arguments)
    try:
        landings = read_landings(given.config) if given.config else [landing(_keys(given))]
        return _run(given, landings)
    except MirrorlogError as error:
        if given.debug:
            traceback.print_exc()
        print(f"error: {' '.join(error.message.split())}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m mirrorlog.spark.land",
        description="Append queues' confirmed records to Delta tables, each exactly once.",
        epilog="Example: python -m mirrorlog.spark.land flights --servers 127.0.0.1:7401 --to lake/flights",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # the example stays one line
    )
    add = parser.add_argument
    add("queue", nargs="?", metavar="QUEUE", help="the queue's name, or several with commas between")
    add("--queue", dest="queue_option", metavar="NAME", help="the same")
    add("--to", metavar="TABLE", help="the Delta table: a path, delta://path, s3://…; made when it is not there")
    add("--config", metavar="FILE", help="a TOML file of many landings, instead of a queue and a table")
    add("--servers", help="client addresses host:port, commas between")
    add("--path", metavar="DIR", help="instead of servers: log directories of a cluster that is offline")
    add("--follow", action="store_true", help="go on landing what comes")
    add("--once", action="store_true", help="with --config: end when everything that is confirmed now is landed")
    add("--mode", help="raw (default), json, avro, protobuf")
    add("--partition-by", action="append", metavar="PART", help="date(timestamp), date(appendTime), hash(key, 16)")
    add("--dead-letters", metavar="TABLE", help="a Delta table for records that cannot be decoded")
    add("--read-from", help="mirror (default), nearest, master, or a node's id")
    add("--on-data-loss", help="fail (default) or skip: go on behind records that are gone")
    add("--hold", action="store_true", help="keep what is not landed from retention, also for a single run")
    add("--take-over", action="store_true", help="take the hold of a run of the same name that may still live")
    add("--name", help="of the landing, for its hold; by default the queue's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key of a landing, as in the file")
    add("--tls-ca", metavar="FILE", help="for nodes that speak TLS: the authorities that are trusted")
    add("--tls-cert", metavar="FILE", help="a certificate to show, with --tls-key")
    add("--tls-key", metavar="FILE", help="its key, not encrypted")
    add("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics while it runs (0: any port)")
    add("--json", action="store_true", help="print a JSON object per step")
    add("--debug", action="store_true", help="show a traceback with an error")
    return parser


def _keys(given: argparse.Namespace) -> dict[str, Any]:
    """As the keys of a landing. Raises BadLanding naming what is missing."""
    queue = given.queue or given.queue_option
    pattern = any(each.partition("=")[0].strip() == "queue_pattern" for each in given.set)
    if not given.to or not (queue or pattern):
        raise BadLanding("give a queue and a table: QUEUE --to TABLE, or many with --config FILE")
    keys: dict[str, Any] = {"table": given.to, "hold": given.hold or given.follow}
    named = {name: getattr(given, name) for name in (*_ONE, "partition_by", "dead_letters", "name")}
    keys |= {name: value for name, value in named.items() if value is not None}
    if queue:
        keys["queue"] = queue
    if "path" in keys:
        keys.pop("hold")
    return keys | dict(map(_setting, given.set))


def _setting(text: str) -> tuple[str, Any]:
    """A value is TOML where it can be, else text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise BadLanding(f"--set {text!r}: write KEY=VALUE")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _run(given: argparse.Namespace, landings: Sequence[Landing]) -> int:
    from rich.console import Console

    from mirrorlog.spark.landing.planning import source_options
    from mirrorlog.spark.lookup import open_lookup
    from mirrorlog.spark.session import any_session

    if not given.config:
        # Before the session, which takes seconds: an unknown queue or a wrong address is told at once.
        with open_lookup(source_options(landings[0])) as lookup:
            refuse_missing(landings[0], lookup.facts(landings[0].queues or None))
    with Console(stderr=True).status("starting Spark"):
        spark = any_session(f"land {', '.join(each.name for each in landings)}"[:200])
    try:
        service = bool(given.config) or given.follow or landings[0].queue_pattern or len(landings[0].queues) > 1
        return _serve(given, spark, landings) if service else _land(given, spark, landings[0])
    finally:
        spark.stop()


def _land(given: argparse.Namespace, spark: Any, made: Landing) -> int:
    """One queue, to what is confirmed now."""
    from mirrorlog.spark.land import land_all
    from mirrorlog.spark.landing.holds import Holds
    from mirrorlog.spark.landing.runner import Runner

    holds = Holds(made, take_over=given.take_over) if made.hold else None
    try:
        result = land_all(Runner(spark), made, holds)
    finally:
        if holds is not None:
            holds.end()
    if given.json:
        import json

        print(json.dumps({"queue": made.queues[0], "table": made.table, **result.as_json()}), flush=True)
    else:
        print(land_line(result, made), flush=True)
    return 0


def land_line(result: Any, made: Landing) -> str:
    """What a run did, in one line."""
    version = "no table yet" if result.table_version is None else f"table version {result.table_version}"
    queue, table = made.queues[0], made.table
    missed = "".join(f"; {each}" for each in result.missed)
    dead = f", {result.dead_letters:,} dead letters" if result.dead_letters else ""
    if result.first == result.next:
        return f"nothing to land: {table} has queue {queue!r} up to {result.next} ({version}){missed}"
    return (
        f"landed {result.rows:,} records of queue {queue!r}, {result.first} up to {result.next}, in {table} "
        f"({version}{dead}){missed}"
    )


def _serve(given: argparse.Namespace, spark: Any, landings: Sequence[Landing]) -> int:
    from mirrorlog.spark.landing.display import watching
    from mirrorlog.spark.landing.service import Service
    from mirrorlog.spark.landing.upkeep import TableUpkeep

    stop = threading.Event()
    once = given.once or not (given.config or given.follow)
    _stop_on_signals(stop)
    with watching(landings, as_json=given.json, metrics_port=given.metrics_port) as observer:
        upkeep = TableUpkeep(spark, on_done=observer.upkeep_done)
        service = Service(spark, landings, observer=observer, once=once, take_over=given.take_over, upkeep=upkeep)
        turns = service.run(stop)
    failed = [turn.error for turn in turns if turn.error is not None]
    return failed[0].exit_code if once and failed else 0


def _stop_on_signals(stop: threading.Event) -> None:
    """SIGTERM, and the first Ctrl-C, end the service behind its current commit."""

    def ask(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)


def refuse_missing(made: Landing, found: Sequence[Any]) -> None:
    """Raise NoSuchQueue naming the landing's queues that there are not."""
    from mirrorlog.errors import NoSuchQueue

    names = {facts.name for facts in found}
    missing = [name for name in made.queues if name not in names]
    if missing:
        raise NoSuchQueue(f"no queue {', '.join(map(repr, missing))}; see: mqtool queues")


if __name__ == "__main__":
    sys.exit(main())
