"""The HTTP door of a node: `python -m mirrorlog.doors.http_door --node HOST:PORT --bind HOST:PORT`.

A process of its own and a client of the native door, as the gRPC door is and for the same reason. It serves at once,
whether the node answers or not: that is what it is there to tell. It ends at SIGTERM, SIGINT, or when the process that
started it is gone. At SIGHUP it reads the files of TLS anew.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from functools import partial

import uvloop

from mirrorlog.client import Client
from mirrorlog.doors.door_tls import NO_TLS, DoorTls, add_options
from mirrorlog.doors.http_answers import DEADLINE_MS, StatusSource, ask_node
from mirrorlog.doors.http_routes import make_app
from mirrorlog.doors.http_server import HttpServer, address_of, bind_socket
from mirrorlog.doors.parent import watch_parent
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.renewal import Renewal


class HttpDoor:
    """One door. `run` returns when it was stopped. Raises BadRequest for a node that is no address, ConfigError for
    files of TLS that are none."""

    def __init__(self, *, node: str, bind: str, tls: DoorTls = NO_TLS) -> None:
        self._bind = bind
        to_nodes, port = tls.to_nodes(), tls.port()
        self.renewal = Renewal([each for each in (to_nodes, port) if each is not None])
        self._client = Client(node, role="door", connect_timeout_ms=DEADLINE_MS, tls=to_nodes)
        self._bound = bind
        source = StatusSource(partial(ask_node, self._client, node))
        self._server = HttpServer(make_app(source), self._tell_started, tls=port)

    def stop(self) -> None:
        """Ask for a clean end; `run` returns soon after. Idempotent."""
        self._server.should_exit = True

    async def run(self) -> None:
        """Serve until stopped. Raises PortTaken."""
        with bind_socket(self._bind) as listening:
            self._bound = address_of(listening, self._bind)
            try:
                await self._server.serve(sockets=[listening])
            finally:
                await self._client.close()

    def _tell_started(self) -> None:
        print(f"http door serving {self._bound}", flush=True)


async def _main(node: str, bind: str, tls: DoorTls) -> None:
    door = HttpDoor(node=node, bind=bind, tls=tls)
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
    # Below that it tells of each stranger who does not speak HTTP, at the stranger's will.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def main() -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(prog="mirrorlog.doors.http_door", description="The HTTP door of a node.")
    parser.add_argument("--node", required=True, metavar="HOST:PORT", help="the node's client port")
    parser.add_argument("--bind", required=True, metavar="HOST:PORT", help="where to serve; port 0: any free one")
    parser.add_argument("--debug", action="store_true", help="debug logs, and tracebacks for errors")
    add_options(parser)
    arguments = parser.parse_args()
    _configure_logs(arguments.bind, debug=arguments.debug)
    try:
        uvloop.run(_main(arguments.node, arguments.bind, DoorTls.of(arguments)))
    except MirrorlogError as error:
        if arguments.debug:
            raise
        print(f"http door: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
