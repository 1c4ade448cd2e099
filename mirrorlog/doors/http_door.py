"""The HTTP door of a node: `python -m mirrorlog.doors.http_door --node HOST:PORT --bind HOST:PORT`.

A process of its own and a client of the native door, as the gRPC door is and for the same reason. It serves at once,
whether the node answers or not: that is what it is there to tell. It ends at SIGTERM, SIGINT, or when the process that
started it is gone. At SIGHUP it reads the files of TLS anew.
"""

from __future__ import annotations

import argparse
import logging
import sys
from functools import partial

from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.common.running import NO_TLS, DoorArguments, DoorTls, client_of, run_door
from mirrorlog.doors.http.answers import DEADLINE_MS, CallerSources, Failures, StatusSource, ask_node
from mirrorlog.doors.http.lists import ClusterLists
from mirrorlog.doors.http.metric_families import SERIES_MAX
from mirrorlog.doors.http.routes import make_app
from mirrorlog.doors.http.server import HttpServer, address_of, bind_socket
from mirrorlog.doors.management.api import ManagementApi
from mirrorlog.doors.management.calls import ClusterFacts
from mirrorlog.doors.management.page.app import ManagementPage
from mirrorlog.doors.management.sites import Sites
from mirrorlog.wire.renewal import Renewal


class HttpDoor:
    """One door. `run` returns when it was stopped. Raises BadRequest for a node that is no address, ConfigError for
    files of TLS that are none."""

    def __init__(
        self,
        *,
        node: str,
        bind: str,
        tls: DoorTls = NO_TLS,
        token: str = "",
        open_metrics: bool = False,
        management: bool = True,
        series_max: int = SERIES_MAX,
    ) -> None:
        """`token`: by which the node knows its doors; `open_metrics`: whoever asks gets them, as health; `management`:
        whether there are the management API and its page; `series_max`: see `metrics_text`."""
        self._bind = bind
        to_nodes, port = tls.to_nodes(), tls.port()
        self.renewal = Renewal([each for each in (to_nodes, port) if each is not None])
        self._client = client_of("http", node, to_nodes, connect_timeout_ms=DEADLINE_MS, token=token)
        # With longer for a connection: a node looks at a login slowly on purpose.
        self._callers = Callers(node, partial(client_of, "http", node, to_nodes))
        self._bound = bind
        failures = Failures()
        source = StatusSource(partial(ask_node, self._client, node), failures=failures)
        sources = source if open_metrics else CallerSources(self._callers, node, failures)
        facts = ClusterFacts()
        sites = Sites(self._callers, bind)
        api = ManagementApi(self._callers, node, facts, sites) if management else None
        page = ManagementPage(self._callers, node, facts, sites) if management else None
        app = make_app(source, sources, ClusterLists(self._callers), api, page, series_max=series_max)
        self._server = HttpServer(app, self._tell_started, tls=port)

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
                await self._callers.close()
                await self._client.close()

    def _tell_started(self) -> None:
        print(f"http door serving {self._bound}", flush=True)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open-metrics", action="store_true", help="metrics are for everybody, also where users are")
    parser.add_argument(
        "--metrics-series", type=int, default=SERIES_MAX, help="of queues that have series of their own"
    )
    parser.add_argument("--no-management", action="store_true", help="without /api and /page")


def _make(given: DoorArguments) -> HttpDoor:
    return HttpDoor(
        node=given.node,
        bind=given.bind,
        tls=given.tls,
        token=given.token,
        open_metrics=given.arguments.open_metrics,
        management=not given.arguments.no_management,
        series_max=given.arguments.metrics_series,
    )


def main() -> int:
    """Entry point; the exit code."""
    # Below that it tells of each stranger who does not speak HTTP, at the stranger's will.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    return run_door(_make, prog="mirrorlog.doors.http_door", name="HTTP", more_options=_add_options)


if __name__ == "__main__":
    sys.exit(main())
