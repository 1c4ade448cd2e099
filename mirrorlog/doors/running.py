"""A door as a process: its options, its log, its signals, and its end with the process that started it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from typing import Protocol

import uvloop

from mirrorlog.doors.door_tls import DoorTls, add_options
from mirrorlog.doors.parent import watch_parent
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.renewal import Renewal


class Door(Protocol):
    """`renewal`: of its files of TLS."""

    renewal: Renewal

    def stop(self) -> None:
        """Ask for a clean end; `run` returns soon after. Idempotent."""

    async def run(self) -> None:
        """Serve until stopped. Raises MirrorlogError."""


class MakeDoor(Protocol):
    """Makes the door, on the loop. Raises MirrorlogError."""

    def __call__(self, *, node: str, bind: str, tls: DoorTls) -> Door: ...


def run_door(make: MakeDoor, *, prog: str, name: str) -> int:
    """By the command line; the exit code. `prog`: as it is started; `name`: for help and errors, as in "gRPC"."""
    parser = argparse.ArgumentParser(prog=prog, description=f"The {name} door of a node.")
    parser.add_argument("--node", required=True, metavar="HOST:PORT", help="the node's client port")
    parser.add_argument("--bind", required=True, metavar="HOST:PORT", help="where to serve; port 0: any free one")
    parser.add_argument("--debug", action="store_true", help="debug logs, and tracebacks for errors")
    add_options(parser)
    arguments = parser.parse_args()
    _configure_logs(arguments.bind, debug=arguments.debug)
    try:
        uvloop.run(_main(make, arguments.node, arguments.bind, DoorTls.of(arguments)))
    except MirrorlogError as error:
        if arguments.debug:
            raise
        print(f"{name.lower()} door: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _main(make: MakeDoor, node: str, bind: str, tls: DoorTls) -> None:
    door = make(node=node, bind=bind, tls=tls)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, door.stop)
    loop.add_signal_handler(signal.SIGHUP, door.renewal.ask)
    await watch_parent(door.stop)
    await door.run()


def _configure_logs(bind: str, *, debug: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO,
        format=f"%(asctime)s.%(msecs)03dZ %(levelname)s door={bind} %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    logging.Formatter.converter = time.gmtime
    logging.getLogger("asyncio").setLevel(logging.WARNING)
