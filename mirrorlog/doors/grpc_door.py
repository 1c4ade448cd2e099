"""The gRPC door of a node: `python -m mirrorlog.doors.grpc_door --node HOST:PORT --bind HOST:PORT`.

A process of its own: one busy Python thread inside the node would cost its loop 10 ms. It is a client of the native
door, for each caller with the caller's own login. When the node goes it says so (UNAVAILABLE, health NOT_SERVING) and
goes on when the node is back. It ends at SIGTERM, SIGINT, or when the process that started it is gone. At SIGHUP it
reads the files of TLS anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]  # it has no stubs

from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.config import split_address
from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.common.running import NO_TLS, DoorArguments, DoorTls, client_of, run_door
from mirrorlog.doors.grpc.admin_service import AdminService
from mirrorlog.doors.grpc.calls import CallLogins
from mirrorlog.doors.grpc.consumer_service import ConsumeLimits, ConsumerService
from mirrorlog.doors.grpc.producer_service import ProducerService, StreamLimits
from mirrorlog.doors.grpc.receiving import ReceiveInTurn, Receiving
from mirrorlog.errors import MirrorlogError, PortTaken
from mirrorlog.freed_memory import keep_freed_memory
from mirrorlog.pb.v1 import admin_pb2, admin_pb2_grpc, consumer_pb2, consumer_pb2_grpc, producer_pb2
from mirrorlog.wire.messages.handshake import NodeLimits
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from mirrorlog.wire.renewal import Renewal
from mirrorlog.wire.tls import server_context

logger = logging.getLogger(__name__)

CALLS_MAX: Final = 4096
CALLS_PER_CONNECTION_MAX: Final = 1024
# Around a batch of the largest size: the request's own fields, and records whose batch would be a little too large,
# which are better answered with the limit's name than with gRPC's RESOURCE_EXHAUSTED.
MESSAGE_SLACK_BYTES: Final = 1024 * 1024
# Of a call; nothing here needs any.
METADATA_BYTES_MAX: Final = 16 * 1024
FRAME_BYTES_MAX: Final = 1024 * 1024
KEEPALIVE_MS: Final = 30_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000
PING_INTERVAL_MS_MIN: Final = 10_000
STOP_GRACE_S: Final = 3.0
LOOK_INTERVAL_S: Final = 0.25
# A node that is paused or overloaded keeps its connections; only its silence tells.
ANSWER_TIMEOUT_MS: Final = 2_000

_T = TypeVar("_T")

_SERVICES: Final = (
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
    producer_pb2.DESCRIPTOR.services_by_name["Producer"].full_name,
    consumer_pb2.DESCRIPTOR.services_by_name["Consumer"].full_name,
)
_BATCHES: Final = f"/{producer_pb2.DESCRIPTOR.services_by_name['Producer'].full_name}/Publish"


def server_options(limits: NodeLimits) -> list[tuple[str, int]]:
    """NodeLimits and keepalive of the server. `limits`: of the node."""
    return [
        ("grpc.max_receive_message_length", limits.max_batch_bytes + MESSAGE_SLACK_BYTES),
        ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        # Else each connection's window grows, with what nobody has asked for yet, up to megabytes.
        ("grpc.http2.bdp_probe", 0),
        # HTTP/2's default is 16 KiB: a batch would come in dozens of frames.
        ("grpc.http2.max_frame_size", FRAME_BYTES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        # Two doors on one port would share its connections without a word.
        ("grpc.so_reuseport", 0),
    ]


class GrpcDoor:
    """One door. `run` returns when it was stopped."""

    def __init__(self, *, node: str, bind: str, tls: DoorTls = NO_TLS, token: str = "") -> None:
        """`token`: by which the node knows its doors. Raises ConfigError for files of TLS that are none."""
        self._bind = bind
        to_nodes, self._certificate = tls.to_nodes(), PortCertificate.of(tls)
        self.renewal = Renewal([each for each in (to_nodes, self._certificate) if each is not None])
        made = partial(client_of, "grpc", node, to_nodes)
        self._client, self._callers = made(token=token), Callers(node, made)
        logins = CallLogins(self._callers, tls=self._certificate is not None)
        self._health = health.aio.HealthServicer()
        self._watch = NodeWatch(self._client, node, self._node_changed)
        self._admin = AdminService(logins, node)
        self._producer = ProducerService(logins, StreamLimits())
        self._consumer = ConsumerService(logins, ConsumeLimits())
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask for a clean end; `run` returns soon after. Idempotent."""
        self._stopping.set()

    async def run(self) -> None:
        """Wait for the node, serve until stopped. Raises PortTaken, or ConfigError for what is no address."""
        split_address(self._bind)
        try:
            limits = await self._unless_stopping(self._watch.limits())
            if limits is not None:
                await self._serve(limits)
        finally:
            await self._callers.close()
            await self._client.close()

    async def _serve(self, limits: NodeLimits) -> None:
        server = grpc.aio.server(
            interceptors=(ReceiveInTurn(Receiving(), batches=_BATCHES),),
            options=server_options(limits),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        admin_pb2_grpc.add_AdminServicer_to_server(self._admin, server)
        self._producer.add_to(server)
        consumer_pb2_grpc.add_ConsumerServicer_to_server(self._consumer, server)
        reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            bound = _listen(server, self._bind, self._certificate)
            await self._node_changed(True)
            await server.start()
            print(f"grpc door serving {bound}", flush=True)
            await self._unless_stopping(self._watch.run())
        finally:
            # A server that was made and not stopped can keep its process from ending.
            await self._health.enter_graceful_shutdown()
            self._producer.stop()
            self._consumer.stop()
            await server.stop(STOP_GRACE_S)

    async def _node_changed(self, answers: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for service in (health.OVERALL_HEALTH, *_SERVICES):
            await self._health.set(service, statuses.SERVING if answers else statuses.NOT_SERVING)

    async def _unless_stopping(self, work: Awaitable[_T]) -> _T | None:
        """The result of `work`, or None when the stop came first; raises what it raises."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each


def _listen(server: grpc.aio.Server, bind: str, certificate: PortCertificate | None) -> str:
    """Bind and give the address, with the port that the kernel chose for 0. Raises PortTaken."""
    try:
        if certificate is None:
            port = server.add_insecure_port(bind)
        else:
            port = server.add_secure_port(bind, certificate.credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise PortTaken(f"{bind} cannot be bound; choose another address with --bind, or end what listens there")
    return f"{bind.rpartition(':')[0]}:{port}"


class NodeWatch:
    """Asks the node again and again whether it answers, so that health says SERVING only while it does.

    `changed` is awaited with whether the node answers, at the first look and at every change.
    """

    def __init__(self, client: Client, node: str, changed: Callable[[bool], Awaitable[None]]) -> None:
        self._client = client
        self._node = node
        self._changed = changed

    async def limits(self) -> NodeLimits:
        """The limits of the node, as soon as it answers."""
        while True:
            if (connection := await self._answering()) is not None:
                return connection.welcome.limits
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def run(self) -> None:
        """Look until cancelled."""
        known: bool | None = None
        while True:
            answers = await self._answering() is not None
            if answers != known:
                logger.info("node_%s node=%s", "answered" if answers else "fell_silent", self._node)
                await self._changed(answers)
                known = answers
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _answering(self) -> Connection | None:
        """The connection to the node, None when it does not answer."""
        try:
            connection = await self._client.connection_to(self._node)
            await connection.request(GetMetadata(queues=[]), Metadata, timeout_ms=ANSWER_TIMEOUT_MS)
        except MirrorlogError as error:
            logger.debug("node_silent node=%s reason=%r", self._node, str(error))
            return None
        return connection


class PortCertificate:
    """What the port shows, and whose certificates it asks for, if it does; `Renewable`. Raises ConfigError."""

    def __init__(self, tls: DoorTls) -> None:
        self._tls = tls
        self._mutual = tls.mode == "mutual"
        self.current = self._given = self.make()

    @classmethod
    def of(cls, tls: DoorTls) -> PortCertificate | None:
        """None without TLS on the port."""
        return None if tls.mode == "off" else cls(tls)

    def make(self) -> grpc.ServerCertificateConfiguration:
        """Of the files as they are now. Raises ConfigError."""
        certificate, key, ca = self._tls.files
        client_ca = self._tls.client_ca
        # Says what is wrong with the files; gRPC does not.
        server_context(certificate=certificate, key=key, ca=ca, client_ca=client_ca)
        trusted = b"\n".join(file.read_bytes() for file in (ca, client_ca) if file is not None)
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), certificate.read_bytes())], root_certificates=trusted if self._mutual else None
        )

    def credentials(self) -> grpc.ServerCredentials:
        """gRPC asks for each connection whether there is something newer."""
        return grpc.dynamic_ssl_server_credentials(
            self.current,
            self._newer,  # type: ignore[arg-type]  # None is nothing newer: the stubs do not know
            require_client_authentication=self._mutual,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """On a thread of gRPC's."""
        newest = self.current
        if newest is self._given:
            return None
        self._given = newest
        return newest


# Messages of a MiB come and go hundreds of times a second: 70,000 page faults for 256 MiB published, a tenth as many
# with these kept, which is a tenth of the door's processor time.
KEPT_BYTES: Final = 64 * 1024 * 1024


def _make(given: DoorArguments) -> GrpcDoor:
    return GrpcDoor(node=given.node, bind=given.bind, tls=given.tls, token=given.token)


def main() -> int:
    """Entry point; the exit code."""
    keep_freed_memory(KEPT_BYTES)
    return run_door(_make, prog="mirrorlog.doors.grpc_door", name="gRPC")


if __name__ == "__main__":
    sys.exit(main())
