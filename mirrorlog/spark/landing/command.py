"""The command line of landings, for `python -m mirrorlog.spark.land`, `spark-submit` and `mqtool land`.

One queue into one table, once, is the plain form; `--follow` goes on, and `--config` takes many from a TOML file and
goes on unless `--once` is given. What has no option of its own is given as `--set key=value`, with the keys of that
file. An option that would have no effect is refused: whoever gave it expects one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.spark import command_line
from mirrorlog.spark.errors import BadLanding
from mirrorlog.spark.landing.definition import Landing, landing, read_landings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlog.spark.landing.results import LandResult, Observer
    from mirrorlog.spark.plan import QueueFacts

# Options that are keys of a landing, by the key.
_KEYS: Final = {
    **{key: key for key in ("servers", "path", "mode", "partition_by", "dead_letters", "read_from", "on_data_loss")},
    **{key: key for key in ("name", "tls_ca", "tls_cert", "tls_key", "user")},
    "table": "to",
}
_WITH_CONFIG: Final = {"config", "once", "take_over", "metrics_port", "metrics_host", "json", "debug"}
_PORT_MAX: Final = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 when the tables have everything that was confirmed, or on SIGTERM."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.land",
        "Append queues' confirmed records to Delta tables, each exactly once.\n"
        "With --config the file says which queues go where, and from which servers; options of a single landing are\n"
        "refused beside it; the variables for servers and TLS count for landings of which it names no servers.",
        example="flights --servers 127.0.0.1:7401 --to lake/flights",
    )
    command_line.add_queue(parser)
    add = parser.add_argument
    add("--to", metavar="TABLE", help="the Delta table: a path, delta://path, s3://…; made when it is not there")
    add("--config", metavar="FILE", help="a TOML file of many landings, instead of a queue and a table")
    command_line.add_servers(parser)
    add("--path", metavar="DIR", help="instead of servers: log directories of a cluster that is offline")
    add("--follow", action="store_true", help="go on landing what comes")
    add("--once", action="store_true", help="with --config: end when everything that is confirmed now is landed")
    add("--mode", help="raw (default), json, avro, protobuf")
    add("--partition-by", action="append", metavar="PART", help="date(timestamp), date(appendTime), hash(key, 16)")
    add("--dead-letters", metavar="TABLE", help="a Delta table for records that cannot be decoded")
    add("--read-from", help="nearest (default), mirror, master, or a node's id")
    add("--on-data-loss", help="fail (default) or skip: go on behind records that are gone")
    add("--hold", action="store_true", help="keep what is not landed from retention, also for a single run")
    add("--take-over", action="store_true", help="take the hold of a run of the same name that may still live")
    add("--name", help="of the landing, for its hold; by default the queue's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key of a landing, as in the file")
    command_line.add_access(parser)
    told = "serve Prometheus metrics while it runs, with --follow or --config (0: any port)"
    add("--metrics-port", type=_port, metavar="PORT", help=told)
    add("--metrics-host", metavar="ADDRESS", help="where: 127.0.0.1, or an address that other machines reach")
    command_line.add_json(parser, "print a JSON object per step")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _PORT_MAX):
        raise argparse.ArgumentTypeError(f"a port is 0 to {_PORT_MAX}, not {text!r}")
    return int(text)


# --- What is wanted -------------------------------------------------------------------------------------------------


def landings_of(options: argparse.Namespace) -> list[Landing]:
    """What the options describe. Raises BadInput for options that mean nothing together, BadLanding, ConfigError."""
    _refuse_idle(options)
    if options.config is not None:
        hold = options.take_over or not options.once
        landings = read_landings(options.config, {**_for_nodes(options), "hold": hold})
    else:
        landings = [landing(_keys(options))]
    if options.take_over and not any(made.hold for made in landings):
        raise BadInput("--take-over: there is no hold to take; a single run has one with --hold")
    return landings


def _refuse_idle(options: argparse.Namespace) -> None:
    """Raise BadInput naming two options of which one would do nothing."""
    if options.config is not None:
        _refuse_beside_config(options)
    elif options.once and options.follow:
        raise BadInput("--once and --follow: give one of them")
    elif options.once:
        raise BadInput("--once without --config: a single landing ends by itself, unless --follow is given")
    elif options.metrics_port is not None and not options.follow:
        raise BadInput("--metrics-port without --follow or --config: a run that ends has nobody who asks for metrics")
    command_line.refuse_beside_path(options)


def _refuse_beside_config(options: argparse.Namespace) -> None:
    if options.follow:
        raise BadInput("--follow and --config: the landings of a file go on by themselves, unless --once is given")
    for name, value in vars(options).items():
        if name not in _WITH_CONFIG and value not in (None, False, []):
            raise BadInput(f"{_spelled(name)} and --config: the file says it for each landing; leave one of them out")


def _spelled(name: str) -> str:
    if name == "queue":
        return "QUEUE"
    return "--queue" if name == "queue_option" else f"--{name.replace('_', '-')}"


def _keys(options: argparse.Namespace) -> dict[str, Any]:
    """As the keys of a landing. Raises BadLanding naming what is missing, or given twice."""
    named = {key: getattr(options, option) for key, option in _KEYS.items()}
    named |= {"queue": command_line.queue_of(options), "hold": options.hold or None}
    given = {key: value for key, value in named.items() if value is not None}
    keys = given | _settings(options.set, given)
    if "table" not in keys or not keys.keys() & {"queue", "queue_pattern"}:
        raise BadLanding("give a queue and a table: QUEUE --to TABLE, or many with --config FILE")
    return keys if "path" in keys else _for_nodes(options) | keys


def _for_nodes(options: argparse.Namespace) -> dict[str, Any]:
    """What is taken where nothing is given."""
    access = command_line.access_of(options).options()
    return {**access, "servers": command_line.servers_of(options), "hold": options.follow}


def _settings(texts: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in map(_setting, texts):
        if key in found:
            raise BadLanding(f"--set {key} is given twice: give it once")
        if key in given:
            option = "QUEUE" if key == "queue" else _spelled(_KEYS.get(key, key))
            raise BadLanding(f"--set {key} and {option}: give one of them")
        found[key] = value
    return found


def _setting(text: str) -> tuple[str, Any]:
    """A value is TOML where it can be, else text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise BadLanding(f"--set {text!r}: write KEY=VALUE")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


# --- The work -------------------------------------------------------------------------------------------------------


def _work(options: argparse.Namespace) -> int:
    landings = landings_of(options)
    is_single = landings[0].queue_pattern is None and len(landings[0].queues) == 1
    if options.config is not None or options.follow or not is_single:
        return _serve(options, landings)
    return _land(options, landings[0])


def _app_name(landings: Sequence[Landing]) -> str:
    return f"land {', '.join(each.name for each in landings)}"


def _land(options: argparse.Namespace, made: Landing) -> int:
    """One queue, to what is confirmed now."""
    from mirrorlog.spark.landing.service.display import watching_run

    (facts,) = _facts(made)
    with watching_run(made, as_json=options.json) as view:
        result = _landed(made, facts, view, take_over=options.take_over)
    if not options.json:
        print(land_line(result, made), flush=True)
    return 0


def _landed(made: Landing, facts: QueueFacts, view: Observer, *, take_over: bool) -> LandResult:
    from mirrorlog.spark.landing.holds import Holds
    from mirrorlog.spark.landing.runner import Runner, land_all
    from mirrorlog.spark.session import started_spark

    with ExitStack() as stack:
        spark = stack.enter_context(started_spark(_app_name([made])))
        holds = Holds(made, take_over=take_over) if made.hold else None
        if holds is not None:
            stack.callback(holds.end)
        try:
            view.planned(_remaining(spark, made, facts))
            return land_all(Runner(spark, view.moment), made, holds, partial(view.step_ended, made))
        except MirrorlogError as error:
            view.step_failed(made, error)
            raise


def _remaining(spark: SparkSession, made: Landing, facts: QueueFacts) -> range:
    """Queue offsets that the table does not have."""
    from mirrorlog.spark.landing.commit.delta_log import table_state
    from mirrorlog.spark.landing.positions import QueueIds

    ids = QueueIds(facts)
    landed = table_state(spark, made.table, [ids.offset]).versions[ids.offset]
    return range(max(landed or 0, facts.begin), facts.next)


def land_line(result: LandResult, made: Landing) -> str:
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


def _serve(options: argparse.Namespace, landings: Sequence[Landing]) -> int:
    from mirrorlog.spark.landing.service.display import watching
    from mirrorlog.spark.landing.service.service import Service
    from mirrorlog.spark.landing.upkeep import TableUpkeep
    from mirrorlog.spark.session import started_spark

    if options.config is None:
        _facts(landings[0])
    stop = threading.Event()
    once = options.once or not (options.config or options.follow)
    with ExitStack() as stack:
        with command_line.status("starting Spark"):
            spark = stack.enter_context(started_spark(_app_name(landings)))
        _stop_on_signals(stop)
        with watching(
            landings, as_json=options.json, metrics_port=options.metrics_port, metrics_host=options.metrics_host
        ) as observer:
            upkeep = TableUpkeep(spark, on_done=observer.upkeep_done)
            take_over = options.take_over
            service = Service(spark, landings, observer=observer, once=once, take_over=take_over, upkeep=upkeep)
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


def _facts(made: Landing) -> Sequence[QueueFacts]:
    """Of its queues. Asked before the session, which takes seconds: an unknown queue or a wrong address is told at
    once. Raises NoSuchQueue, and what the nodes answer."""
    from mirrorlog.spark.landing.planning import queues_of, source_options
    from mirrorlog.spark.reading.lookup import open_lookup

    with open_lookup(source_options(made)) as lookup:
        return queues_of(made, lookup)


if __name__ == "__main__":
    sys.exit(main())
