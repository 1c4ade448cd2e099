"""`mqnode`: runs one node until SIGTERM or SIGINT. At SIGHUP it reads certificates, keys and authorities anew."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
import uvloop

from mirrorlog import __version__
from mirrorlog.broker.node import BrokerNode
from mirrorlog.broker.resources.descriptors import fit
from mirrorlog.broker.service_manager import ServiceManager
from mirrorlog.commitlog.directory import close_directory
from mirrorlog.config import Loaded, Settings, load
from mirrorlog.errors import ConfigError, MirrorlogError
from mirrorlog.freed_memory import keep_freed_memory
from mirrorlog.log_lines import JsonEvents, configure_logs, json_line

logger = logging.getLogger(__name__)

# A batch that is opened, or gathered for a mirror, takes no page faults; the rare larger block goes back to the kernel.
_KEPT_BYTES: Final = 16 * 1024 * 1024
_BLOCK_BYTES: Final = 4 * 1024 * 1024

# The effective settings with what each means and where it comes from, as TOML that can be used again, or as JSON.


DEFAULT = "default"
_WIDTH = 48
_COMMENT_WIDTH = 100


class _Row(NamedTuple):
    """`key`: as files spell it. `origin`: the layer that gave the value last. `description`: "" where there is none."""

    key: str
    value: Any
    origin: str
    description: str


def as_toml(loaded: Loaded) -> str:
    """A file that gives the same settings; what is not set is a comment, as TOML has no word for it."""
    return "\n".join(_lines(loaded))


def as_json(loaded: Loaded) -> str:
    """`{section: {key: {"value": …, "origin": …}}}`."""
    found = {
        section: {row.key: {"value": row.value, "origin": row.origin} for row in rows}
        for section, rows in _sections(loaded)
    }
    return json.dumps(found, indent=2)


def _lines(loaded: Loaded) -> Iterator[str]:
    for number, (section, rows) in enumerate(_sections(loaded)):
        if number:
            yield ""
        yield f"[{section}]"
        for row in rows:
            yield from textwrap.wrap(
                row.description, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
            )
            setting = f"# {row.key} =" if row.value is None else f"{row.key} = {_toml(row.value)}"
            yield f"{setting:<{_WIDTH}} # {row.origin}"


def _sections(loaded: Loaded) -> Iterator[tuple[str, list[_Row]]]:
    """Each section with what it has."""
    settings = loaded.settings
    for section in type(settings).model_fields:
        model = getattr(settings, section)
        values = model.model_dump(mode="json", by_alias=True)
        fields = type(model).model_fields.items()
        yield (
            section,
            [
                _Row(
                    key := field.alias or name,
                    values[key],
                    loaded.origins.get((section, name), DEFAULT),
                    field.description or "",
                )
                for name, field in fields
            ],
        )


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items() if each is not None)} }}"
    # What JSON writes of strings, numbers and booleans is TOML, too.
    return json.dumps(value)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_EPILOG = (
    "Example: mqnode --config node1.toml --set log.segment_bytes=67108864; mqnode --node-id n2 --join 10.0.0.1:7402"
)


@app.command(epilog=_EPILOG)
def serve(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    config: Annotated[Path | None, typer.Option(help="TOML file with the node's settings.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.")
    ] = None,
    node_id: Annotated[str | None, typer.Option(help="Short for --set node.id=…")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Short for --set node.data_dir=…")] = None,
    bootstrap: Annotated[
        bool,
        typer.Option("--bootstrap", help="With a blank disk: found a cluster of this node alone; not with --join."),
    ] = False,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT[,…]",
            help="With a blank disk: replication addresses of nodes that may let this one in, or look for a cluster "
            "too; repeatable.",
        ),
    ] = None,
    witness: Annotated[
        bool, typer.Option("--witness", help="Short for --set node.witness=true: it votes and holds no messages.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Short for --set node.insecure=true: other machines need prove nothing.")
    ] = False,
    first_admin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The administrator whom a cluster without users gets; his password is in --first-admin-file.",
        ),
    ] = None,
    first_admin_file: Annotated[
        Path | None, typer.Option(help="Holds the password of --first-admin; nobody else may read it.")
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Set data of another cluster aside, renamed, and join anew.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the effective settings with the origin of each, and exit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --print-config: as JSON.")] = False,
    debug: Annotated[bool, typer.Option(help="Debug logs, and tracebacks for errors.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Run one mirrorlog node. Settings: defaults < file < environment (MIRRORLOG__SECTION__KEY) < flags."""
    if version:
        print(f"mqnode {__version__}")
        return
    flags = [*(overrides or ())]
    flags += [f"node.id={node_id!r}"] if node_id is not None else []
    flags += [f"node.data_dir={str(data_dir)!r}"] if data_dir else []
    flags += [f"cluster.join={[seed.strip() for each in join for seed in each.split(',')]!r}"] if join else []
    flags += ["node.witness=true"] if witness else []
    flags += ["node.insecure=true"] if insecure else []
    flags += [f"node.first_admin={first_admin!r}"] if first_admin is not None else []
    flags += [f"node.first_admin_file={str(first_admin_file)!r}"] if first_admin_file is not None else []
    try:
        loaded = load(config, flags)
        if bootstrap:
            _check_founder(loaded.settings)
        if print_config:
            print(as_json(loaded) if json else as_toml(loaded))
            return
        code = run_node(loaded.settings, debug=debug, bootstrap=bootstrap, discard=discard)
    except MirrorlogError as error:
        if debug:
            raise
        _say_failure(error)
        code = error.exit_code
    raise typer.Exit(code)


def _say_failure(error: MirrorlogError) -> None:
    """On one line, of the form that all lines have."""
    if any(isinstance(each.formatter, JsonEvents) for each in logging.getLogger().handlers):
        logger.critical("node_failed kind=%s reason=%r", type(error).__name__, str(error))
    else:
        print(f"mqnode: {error}", file=sys.stderr)


def _check_founder(settings: Settings) -> None:
    """Raises ConfigError for a node that was not meant to found a cluster, or cannot be the first one of it."""
    if settings.cluster.join:
        raise ConfigError(
            "--bootstrap founds a cluster of this node alone, --join (cluster.join) looks for one: give --bootstrap to "
            "the first node alone, and --join to the others; nodes that all look found one by themselves"
        )
    if settings.node.witness:
        raise ConfigError(
            "--bootstrap with --witness (node.witness) founds a cluster that can hold no messages; give --bootstrap to "
            "a node that holds some, and start the witness with --join HOST:PORT of that one"
        )


def run_node(settings: Settings, *, debug: bool = False, bootstrap: bool = False, discard: bool = False) -> int:
    """Run a node in this process; its exit code. `bootstrap`, `discard`: see `broker.entry.Entry`. Raises
    MirrorlogError when it cannot start."""
    manager = ServiceManager.of_environment()
    configure_logs(as_json=settings.node.log_format == "json", debug=debug, node=settings.node.id)
    os.umask(0o077)  # what is made from here on, by the index and by doors too, is nobody else's
    close_directory(settings.node.data_dir)
    settings, capped = fit(settings)

    # The objects of a publish die with it. Looking for cycles among them every few publishes, and among all that lives
    # now and then, would hold the loop up for nothing.
    gc.set_threshold(50_000, 20, 100)
    keep_freed_memory(_KEPT_BYTES, block_bytes=_BLOCK_BYTES)

    def say_ready(line: str) -> None:
        as_json = settings.node.log_format == "json"
        print(json_line(line, logger=logger.name, node=settings.node.id) if as_json else line, flush=True)

    async def main() -> int:
        manager.starting()
        node = BrokerNode(
            settings,
            debug=debug,
            bootstrap=bootstrap,
            discard=discard,
            capped=capped,
            ready=say_ready,
            manager=manager,
        )
        watching = asyncio.ensure_future(manager.watch())
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, node.stop)
        loop.add_signal_handler(signal.SIGHUP, node.renewal.ask)
        try:
            return await node.run()
        finally:
            watching.cancel()

    return uvloop.run(main())


def main() -> None:
    """Entry point of the console script: exits with 0, or with the exit code of the error on its one line."""
    try:
        code = app(prog_name="mqnode", standalone_mode=False)
    except typer.TyperException as error:
        # A flag that nobody knows is a setting that nobody knows.
        print(f"mqnode: {' '.join(error.format_message().split())}; see mqnode --help", file=sys.stderr)
        code = ConfigError.exit_code
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
