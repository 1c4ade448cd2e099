"""Members are found by multicast, and nothing that a datagram says does harm."""

from __future__ import annotations

import asyncio
import random
import socket
from uuid import UUID

import pytest

from mirrorlog.cluster.membership.multicast import (
    ANSWERS_PER_S,
    PROBE_BYTES,
    Here,
    Probe,
    Prober,
    Responder,
    decode_datagram,
    encode_here,
    encode_probe,
)
from mirrorlog.config import ClusterSettings
from mirrorlog.errors import ConfigError, ProtocolError
from tests.cluster.ports import until

ONE, OTHER = UUID(int=1), UUID(int=2)


def settings(port: int, **more: object) -> ClusterSettings:
    return ClusterSettings.model_validate(
        {"discovery": "multicast", "multicast_port": port, "multicast_interface": "127.0.0.1", **more}
    )


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_an_answer_is_shorter_than_what_asked_for_it() -> None:
    """Goal: nobody is flooded by answers to probes in his name. Method: the longest answer, and one too long."""
    assert len(encode_probe(None)) == len(encode_probe(ONE)) == PROBE_BYTES
    assert len(encode_here(ONE, f"{'h' * 253}:65535")) < PROBE_BYTES
    with pytest.raises(ConfigError, match="too long"):
        encode_here(ONE, f"{'h' * 500}:1")


def test_datagrams_are_read_again() -> None:
    """By one of each."""
    probe = decode_datagram(encode_probe(ONE))
    assert isinstance(probe, Probe)
    assert probe.cluster_id == str(ONE)
    assert decode_datagram(encode_here(ONE, "h:1")) == Here(str(ONE), "h:1")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_no_datagram_of_ours_is_refused(seed: int) -> None:
    """By noise, by ours with some bytes changed or cut, and by what is too long."""
    chance = random.Random(seed)
    for good in (encode_probe(ONE), encode_here(ONE, "h:1")):
        for _ in range(200):
            bad = bytearray(good[: chance.randint(0, len(good))])
            for _ in range(chance.randint(0, 4)):
                if bad:
                    bad[chance.randrange(len(bad))] = chance.randrange(256)
            try:
                found = decode_datagram(bytes(bad))
            except ProtocolError:
                continue
            assert isinstance(found, Probe | Here), f"seed {seed}"
    for bad in (b"", b"MLMC", chance.randbytes(100), encode_probe(ONE) + b"x", encode_here(ONE, "nowhere")):
        with pytest.raises(ProtocolError):
            decode_datagram(bytes(bad))


def test_a_member_is_found_by_its_cluster_and_by_any() -> None:
    """By a probe without a cluster, with its cluster, and with another one, which nobody answers."""

    async def run() -> None:
        port = free_udp_port()
        member = Responder(ONE, "10.0.0.1:7402")
        await member.start(settings(port))
        probers = [Prober(settings(port)), Prober(settings(port, id=ONE)), Prober(settings(port, id=OTHER))]
        try:
            for prober in probers:
                await prober.probe()
            await until(lambda: all(prober.found == ["10.0.0.1:7402"] for prober in probers[:2]))
            await probers[2].probe()
            await probers[0].probe()  # answered behind it
            probers[0].found.clear()
            await probers[0].probe()
            await until(lambda: probers[0].found)
            assert not probers[2].found
        finally:
            member.stop()
            for prober in probers:
                prober.stop()

    asyncio.run(run())


def test_a_member_answers_a_flood_only_so_often() -> None:
    """By more probes than it answers in a second."""

    class Transport(asyncio.DatagramTransport):
        sent = 0

        def sendto(self, data: object, addr: object = None) -> None:
            Transport.sent += 1

    async def run() -> None:
        member = Responder(ONE, "h:1")
        member._transport = Transport()
        for _ in range(10 * ANSWERS_PER_S):
            member.datagram_received(encode_probe(None), ("127.0.0.1", 1))
        member.datagram_received(encode_probe(None)[:100], ("127.0.0.1", 1))
        assert ANSWERS_PER_S <= Transport.sent <= 2 * ANSWERS_PER_S

    asyncio.run(run())
