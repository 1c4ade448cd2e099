"""`mqtool landings`, `landing-end`, and the commands that need Spark: `land`, `reconcile`, `audit`, `replay`, …"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from mirrorlog.diagnosis.cells import NOTHING, bytes_text
from mirrorlog.diagnosis.cluster_status import of_queues
from mirrorlog.errors import MissingDependency, NoSuchHold
from mirrorlog.tools.common.commands import SETTINGS
from mirrorlog.tools.common.options import AsJson, IfExists, OnlyVirtualHost, VirtualHost
from mirrorlog.tools.common.output import emit_with_outages, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.queues import HoldInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

PROGRAM_VARIABLE: Final = "MIRRORLOG_PROGRAM"
"""By it a module knows how the user called it, for its help and its errors."""
_PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
_NODES: Final = ("servers", "tls_ca", "tls_cert", "tls_key")
_HELP_TIMEOUT_S: Final = 60
# Of argparse's help, what stands between the description and the example.
_OPTIONS: Final = re.compile(r"^(?:positional arguments|options):\n.*(?=^Example: )", re.MULTILINE | re.DOTALL)


@watchable
def landings(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only those of this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List the landings that hold records: who, from which queue offset on, and how long without a renewal.

    `lag` counts the confirmed records that are not landed; `kept` is what the log keeps from there on, other queues'
    records among it. One that ended (expired, too-much) holds nothing; `mqtool landing-end` forgets it.

    Example: mqtool landings flights
    """
    found, outages = session_of(context).run(
        lambda client: of_queues(client, lambda log: log.holds, queue=queue, vhost=vhost), vhost=vhost
    )
    emit_with_outages(as_json, found, landings_view(found), outages)


def landings_view(found: Sequence[HoldInfo]) -> View:
    """One row per hold. Pure."""
    rows = [
        (
            shown(hold.queue),
            hold.name,
            hold.holder,
            str(hold.epoch),
            str(hold.queue_offset),
            str(hold.lag),
            NOTHING if hold.kept_bytes < 0 else bytes_text(hold.kept_bytes),
            hold.ended or _lease(hold),
            "yes" if hold.tiered else "no",
            hold.location or NOTHING,
        )
        for hold in found
    ]
    numbers = ("epoch", "offset", "lag", "kept")
    return table("", ("queue", "landing", "holder", *numbers, "lease", "tiered", "location"), rows, numbers=numbers)


def _lease(hold: HoldInfo) -> str:
    """Only the log's master knows what is left of it."""
    whole = f"{hold.lease_ms / 1000:g} s"
    return whole if hold.left_ms < 0 else f"{hold.left_ms / 1000:.1f} s of {whole}"


def landing_end(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue.")],
    name: Annotated[str, typer.Argument(help="The landing, as `mqtool landings` names it.")],
    if_exists: IfExists = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """End a landing's hold: retention frees what it kept, and what was tiered by it is not found any more.

    A landing that still runs registers again at its next step, and says what it missed: stop it first.

    Example: mqtool landing-end flights lake
    """

    async def end(client: Client) -> HoldInfo:
        of = qualified(vhost, queue)
        holds = await client.admin.holds(of)
        for hold in holds:
            if hold.name == name:
                await client.admin.end_hold(of, name)
                return hold
        known = ", ".join(hold.name for hold in holds) or "none"
        raise NoSuchHold(f"queue {queue!r} has no landing {name!r}; it has {known}")

    hold = session_of(context).remove(end, f"landing {name} of queue {queue}", if_exists=if_exists)
    held = f"it had ended: {hold.ended}" if hold.ended else f"{hold.holder} held it from {hold.queue_offset} on"
    typer.echo(f"landing {name} of queue {queue} ended; {held}")


# Commands that need Spark: this program becomes the module that does the work.
#
# So the tool itself starts fast, and its other commands work where there is no Spark. What is given to such a command
# goes to the module as it is, so each option is written down once, there; for the command's help the module is asked.


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A command of mqtool that a module with Spark does. `module`: what is run; `what`: the work, for messages;
    `usage`: its arguments, in short; `help`: of the command, without its options."""

    name: str
    module: str
    what: str
    usage: str
    help: str


def _command_of(job: SparkJob) -> Any:
    """`job` as a command, whose help has the options of the module."""
    app = typer.Typer(**SETTINGS)

    class JobCommand(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            formatter.write("\n")
            formatter.write(_options_of(job, ctx.command_path))

    @app.command(job.name, cls=JobCommand, help=job.help, options_metavar=job.usage, context_settings=_PASSED_ON)
    def run(context: typer.Context) -> None:
        become(context, job)

    return get_command(app)


def become(context: typer.Context, job: SparkJob) -> None:
    """Run the module in place of this process, with what was given to the command and, of the global options, those
    that were given on the command line; the others' variables are known there too. Raises MissingDependency without
    Spark."""
    _refuse_without_spark(job)
    arguments = [*_nodes(context), *(["--debug"] if session_of(context).debug else ()), *context.args]
    sys.stdout.flush()
    command = [sys.executable, "-m", job.module, *arguments]
    os.execve(sys.executable, command, {**os.environ, PROGRAM_VARIABLE: context.command_path})


def _refuse_without_spark(job: SparkJob) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency(f"{job.what} needs Spark: pip install 'mirrorlog[spark]'")


def _nodes(context: typer.Context) -> Iterator[str]:
    """Where the nodes are, as it was given: a context of TLS cannot be handed on, and a default is no wish."""
    root = context.find_root()
    for name in _NODES:
        source = root.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield from (f"--{name.replace('_', '-')}", str(root.params[name]))


def _options_of(job: SparkJob, program: str) -> str:
    """As the module's own help explains them."""
    try:
        _refuse_without_spark(job)
    except MissingDependency as error:
        return f"The options are told where Spark is installed: {error}\n"
    command = [sys.executable, "-m", job.module, "--help"]
    environment = {**os.environ, PROGRAM_VARIABLE: program}
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_HELP_TIMEOUT_S, check=False
    )
    found = _OPTIONS.search(told.stdout)
    return f"{found.group().rstrip()}\n" if found else f"See: {' '.join(command[1:])}\n"


JOBS: Final = (
    SparkJob(
        "land",
        "mirrorlog.spark.land",
        what="landing",
        usage="[QUEUE] [OPTIONS]",
        help="""
        Append a queue's confirmed records to a Delta table, each exactly once; the table tells where to go on.

        It needs Spark and Java (pip install mirrorlog[spark]). With --config a file says which queues go where and
        from which servers: --servers and TLS options, also those of mqtool itself, are refused then, and their
        variables count where it names no servers.

        Example: mqtool land flights --to delta:///lake/flights

        Example: mqtool land orders --to /lake/orders --follow --mode raw

        Example: mqtool land --config landings.toml
        """,
    ),
    SparkJob(
        "reconcile",
        "mirrorlog.spark.reconcile",
        what="reconciling",
        usage="QUEUE --table TABLE [OPTIONS]",
        help="""
        Compare a queue's log with its table: each record once, with the same content; print the ranges that differ.

        Exit code 15 when they differ. It needs Spark and Java (pip install mirrorlog[spark]).

        Example: mqtool reconcile flights --table /lake/flights
        """,
    ),
    SparkJob(
        "audit",
        "mirrorlog.spark.audit",
        what="an audit",
        usage="QUEUE [OPTIONS]",
        help="""
        Compare all copies of a queue by the bytes of their batches; print where they differ or are damaged.

        Every node's copy is read whole. Exit code 15 when one differs or is damaged, 9 when one could not be read. It
        needs the Python package of Spark, not Java (pip install mirrorlog[spark]).

        Example: mqtool audit flights
        """,
    ),
    SparkJob(
        "replay",
        "mirrorlog.spark.replay",
        what="a replay",
        usage="--table TABLE --to-queue NAME [OPTIONS]",
        help="""
        Publish records of a landed table, or of one of dead letters, to a queue again; nothing is published twice.

        It needs Spark and Java (pip install mirrorlog[spark]).

        Example: mqtool replay --table /lake/flights --to-queue again --dry-run
        """,
    ),
    SparkJob(
        "analysis",
        "mirrorlog.spark.analysis",
        what="an analysis",
        usage="JOB --table TABLE [OPTIONS]",
        help="""
        Measure a landed queue: throughput, lag, redeliveries, latency; a table, or files and a picture with --out.

        It asks the table and no node. It needs Spark and Java (pip install mirrorlog[spark]).

        Example: mqtool analysis latency --table /lake/flights --out report
        """,
    ),
    SparkJob(
        "upkeep",
        "mirrorlog.spark.landing.upkeep",
        what="upkeep",
        usage="--table TABLE [OPTIONS]",
        help="""
        Tidy a landed table, also while landings run: join small files, write a checkpoint, remove old files.

        It asks the table and no node. It needs Spark and Java (pip install mirrorlog[spark]).

        Example: mqtool upkeep --table /lake/flights --compact --checkpoint
        """,
    ),
)

land, reconcile, audit, replay, analysis, upkeep = map(_command_of, JOBS)
