"""What the commands of Spark's jobs share: options for nodes and TLS, errors in one line, Ctrl-C, a line of progress.

    def main(arguments=None):
        return run(parser().parse_args(arguments), _work)

Each of these commands is a module (`python -m mirrorlog.spark.reconcile`), and most are mqtool's as well, which becomes
the module and says by a variable how it was called. So help and examples name what the user typed. Servers and TLS
have mqtool's variables and default.

Light: nothing here imports pyspark or pyarrow before a session is asked for, so help and wrong options cost no second.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.spark.access import PASSWORD_VARIABLE, USER_VARIABLE, Access, login_of

if TYPE_CHECKING:
    from rich.console import RenderableType

PROGRAM_VARIABLE: Final = "MIRRORLOG_PROGRAM"
"""How the user called a module: "mqtool land"."""

SERVERS_VARIABLE: Final = "MIRRORLOG_SERVERS"
TLS_VARIABLES: Final = ("MIRRORLOG_TLS_CA", "MIRRORLOG_TLS_CERT", "MIRRORLOG_TLS_KEY")
DEFAULT_SERVERS: Final = f"127.0.0.1:{CLIENT_PORT}"

_TLS: Final = ("tls_ca", "tls_cert", "tls_key")

INTERRUPTED: Final = 128 + signal.SIGINT
_USAGE: Final = 2

OnStep = Callable[[str], None]


class Parser(argparse.ArgumentParser):
    """As argparse's, but a wrong call is one line, and an option is written out: an abbreviation that works today is
    another option tomorrow."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"error: {' '.join(message.split())}; see: {self.prog} --help\n")


def command(module: str, description: str, *, example: str) -> Parser:
    """The parser of `python -m module`. `example`: its arguments, which end the help behind the program's name."""
    program = os.environ.get(PROGRAM_VARIABLE) or f"python -m {module}"
    parser = Parser(
        program,
        description=description,
        epilog=f"Example: {program} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # the example stays one line
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    return parser


def add_json(parser: argparse.ArgumentParser, what: str = "print JSON instead of tables") -> None:
    """Add --json. `what` it does."""
    parser.add_argument("--json", action="store_true", help=what)


def add_queue(parser: argparse.ArgumentParser) -> None:
    """Add QUEUE, and --queue for the same."""
    parser.add_argument("queue", nargs="?", metavar="QUEUE", help="the queue's name, or several with commas between")
    parser.add_argument("--queue", dest="queue_option", metavar="NAME", help="the same")


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Add --servers. What is not given is in the variable of mqtool, or this machine."""
    told = f"client addresses host:port, commas between (default: ${SERVERS_VARIABLE} or {DEFAULT_SERVERS})"
    parser.add_argument("--servers", metavar="ADDRESSES", help=told)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add --tls-ca, --tls-cert, --tls-key and --user."""
    ca, certificate, key = (f"(default: ${name})" for name in TLS_VARIABLES)
    told = f"for nodes that speak TLS: the authorities that are trusted {ca}"
    parser.add_argument("--tls-ca", metavar="FILE", help=told)
    parser.add_argument("--tls-cert", metavar="FILE", help=f"a certificate to show, with --tls-key {certificate}")
    parser.add_argument("--tls-key", metavar="FILE", help=f"its key, not encrypted {key}")
    told = f"where nodes have users; the password is ${PASSWORD_VARIABLE} (default: ${USER_VARIABLE})"
    parser.add_argument("--user", metavar="NAME", help=told)


def queue_of(options: argparse.Namespace) -> str | None:
    """Given in one way or the other, if at all. Raises BadInput when in both."""
    if options.queue is not None and options.queue_option is not None:
        raise BadInput(f"QUEUE {options.queue!r} and --queue {options.queue_option!r}: give one of them")
    queue: str | None = options.queue if options.queue is not None else options.queue_option
    return queue


def queues_of(options: argparse.Namespace) -> list[str]:
    """The names, at least one. Raises BadInput."""
    names = [name.strip() for name in (queue_of(options) or "").split(",") if name.strip()]
    if not names:
        raise BadInput("give a queue: QUEUE or --queue NAME")
    return names


def servers_of(options: argparse.Namespace) -> str:
    """As text: given, else of the environment, else of this machine."""
    return str(options.servers or os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVERS)


def access_of(options: argparse.Namespace) -> Access:
    """Given, else of the environment. Raises BadInput for a user without a password."""
    names = zip(_TLS, TLS_VARIABLES, strict=True)
    ca, certificate, key = (getattr(options, option) or os.environ.get(variable) for option, variable in names)
    login = (None, "") if getattr(options, "path", None) is not None else login_of(options.user, None, "option")
    return Access(ca, certificate, key, *login)


def refuse_beside_path(options: argparse.Namespace) -> None:
    """Raise BadInput for options of nodes where log directories are read."""
    for name in ("servers", "read_from", "user", *_TLS):
        if options.path is not None and getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise BadInput(f"--{option} and --path: log directories are read without nodes; leave one of them out")


def run(options: argparse.Namespace, work: Callable[[argparse.Namespace], int]) -> int:
    """The exit code of `work`, or of the error that it ended with, which is told in one line on stderr; 130 after
    Ctrl-C, and 1 without a word when nobody reads the output any more."""
    try:
        with _quiet(options):
            code = work(options)
            sys.stdout.flush()
            return code
    except MirrorlogError as error:
        return _told(options, error.message, error.exit_code)
    except KeyboardInterrupt:
        return _told(options, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # `… | head`: the reader has what it wanted. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _told(options: argparse.Namespace, message: str, code: int) -> int:
    if options.debug:
        traceback.print_exc()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


class Shown(Protocol):
    """A result of a command."""

    def view(self) -> RenderableType: ...
    def fields(self) -> dict[str, Any]: ...


def show(found: Sequence[Shown], *, as_json: bool, soft_wrap: bool = False) -> None:
    """Print results, as tables or as a JSON list."""
    if as_json:
        print(json.dumps([each.fields() for each in found], indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=soft_wrap)
    for each in found:
        console.print(each.view())


@contextmanager
def status(text: str) -> Iterator[OnStep]:
    """A line on stderr that says what is under way, and how to change it; it goes with the block. In a log there is
    the first one only. Nothing may be printed in the block, or it would stand in that line."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        print(text, file=sys.stderr, flush=True)
        yield lambda step: None
        return
    with console.status(Text(text)) as shown:
        yield lambda step: shown.update(Text(step))  # no markup: a queue may be called [red]


@contextmanager
def _quiet(options: argparse.Namespace) -> Iterator[None]:
    """py4j logs what it raises as well, with a traceback."""
    log = logging.getLogger()
    if not options.debug:
        log.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        log.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts
