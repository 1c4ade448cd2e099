"""Finding seeds by multicast: who looks sends a probe, members answer where they are and in which cluster.

It finds addresses, and decides nothing: what an answer says is dialled, and believed only once it has greeted. A
datagram may come from anybody. So each is small, checked, and answered by one that is no longer than the probe, at most
`ANSWERS_PER_S` in a second: nobody is made to flood a third.

    datagram   "MLMC", version 1, then a `Probe` or `Here` in msgpack; a probe is filled up to `PROBE_BYTES`
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from mirrorlog.config import SEEDS_MAX, ClusterSettings, split_address
from mirrorlog.errors import ConfigError, ProtocolError

logger = logging.getLogger(__name__)

PROBE_BYTES: Final = 512
ANSWERS_PER_S: Final = 50

_HEAD: Final = b"MLMC\x01"
_HOPS: Final = 1


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Is anybody there? `cluster_id`: in this one; empty: in any."""

    cluster_id: str = ""
    filling: bytes = b""


class Here(msgspec.Struct, frozen=True, tag=True):
    """A member's answer. `address`: its replication address."""

    cluster_id: str
    address: str


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Probe | Here] = msgspec.msgpack.Decoder(Probe | Here)


def encode_probe(cluster_id: UUID | None) -> bytes:
    """Of `PROBE_BYTES`."""
    bare = Probe("" if cluster_id is None else str(cluster_id))
    room = PROBE_BYTES - len(_HEAD) - len(_encode(bare)) - 1  # the length of what is filled takes one more
    return _HEAD + _encode(msgspec.structs.replace(bare, filling=bytes(room)))


def encode_here(cluster_id: UUID, address: str) -> bytes:
    """Shorter than a probe. Raises ConfigError for an address that is too long."""
    datagram = _HEAD + _encode(Here(str(cluster_id), address))
    if len(datagram) > PROBE_BYTES - 64:
        raise ConfigError(f"the address {address[:50]}… is too long to be told by multicast")
    return datagram


def decode_datagram(data: bytes) -> Probe | Here:
    """Raises ProtocolError for what is none."""
    if len(data) > PROBE_BYTES or not data.startswith(_HEAD):
        raise ProtocolError(f"{len(data)} bytes that are no probe and no answer")
    try:
        found = _decoder.decode(data[len(_HEAD) :])
        if found.cluster_id or isinstance(found, Here):
            UUID(found.cluster_id)
        if isinstance(found, Here):
            split_address(found.address)
    except (msgspec.MsgspecError, ValueError, UnicodeError, RecursionError, ConfigError) as error:
        raise ProtocolError(f"a datagram does not fit: {error}") from None
    return found


class Responder(asyncio.DatagramProtocol):
    """Of a member: answers probes. `start` may fail; then nobody finds it by multicast, and it serves all the same."""

    def __init__(self, cluster_id: UUID, address: str) -> None:
        self._cluster_id = str(cluster_id)
        self._answer = encode_here(cluster_id, address)
        self._transport: asyncio.DatagramTransport | None = None
        self._second = 0
        self._answered = 0

    async def start(self, settings: ClusterSettings) -> None:
        """Listen on the group. A failure is logged."""
        loop = asyncio.get_running_loop()
        try:
            listening = _listening(settings)
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=listening)
        except OSError as error:
            logger.warning("multicast_not_answered group=%s reason=%r", settings.multicast_group, str(error))

    def stop(self) -> None:
        """Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Anything may come: what is no probe, not for this cluster, or one too many in this second, is dropped."""
        with suppress(ProtocolError):
            probe = decode_datagram(data)
            asked = isinstance(probe, Probe) and probe.cluster_id in ("", self._cluster_id)
            if asked and len(data) >= len(self._answer) and self._may_answer() and self._transport is not None:
                self._transport.sendto(self._answer, addr)

    def _may_answer(self) -> bool:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._answered = second, 0
        self._answered += 1
        return self._answered <= ANSWERS_PER_S


class Prober(asyncio.DatagramProtocol):
    """Of a node that looks. `found`: addresses that were answered, newest first, a few at most."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.found: list[str] = []
        self._settings = settings
        self._probe = encode_probe(settings.id)
        self._transport: asyncio.DatagramTransport | None = None
        self._told = ""

    async def probe(self) -> None:
        """Ask once more; who is there answers within some milliseconds. A failure is logged, once."""
        settings = self._settings
        try:
            if self._transport is None:
                sending = _sending(settings)
                loop = asyncio.get_running_loop()
                self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sending)
            self._transport.sendto(self._probe, (settings.multicast_group, settings.multicast_port))
        except OSError as error:
            self.error_received(error)

    def stop(self) -> None:
        """Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """What is no answer is dropped."""
        with suppress(ProtocolError):
            here = decode_datagram(data)
            if isinstance(here, Here):
                others = [address for address in self.found if address != here.address]
                self.found = [here.address, *others][:SEEDS_MAX]

    def error_received(self, exc: Exception) -> None:
        if str(exc) != self._told:
            logger.warning("multicast_not_sent group=%s reason=%r", self._settings.multicast_group, str(exc))
        self._told = str(exc)


def _listening(settings: ClusterSettings) -> socket.socket:
    """Bound to the group, so that nothing but what is sent there comes. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # several nodes on one machine
        made.bind((settings.multicast_group, settings.multicast_port))
        group, interface = map(socket.inet_aton, (settings.multicast_group, settings.multicast_interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", group, interface))
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _sending(settings: ClusterSettings) -> socket.socket:
    """To this network alone. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(settings.multicast_interface))
        made.bind((settings.multicast_interface, 0))
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
