"""The gRPC port shows and asks for what its files say now, not what they said at its start."""

from __future__ import annotations

import argparse
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme

from mirrorlog.broker.door_process import tls_flags
from mirrorlog.config import TlsSettings
from mirrorlog.doors.common.running import DoorTls, add_options
from mirrorlog.doors.grpc_door import PortCertificate
from mirrorlog.errors import ConfigError
from mirrorlog.wire.renewal import renew

HOST = "127.0.0.1"


def write(directory: Path) -> DoorTls:
    """A new authority, and a certificate of it, into the same files as before."""
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    certificate, key, ca = (directory / name for name in ("certificate", "key", "ca"))
    authority.cert_pem.write_to_path(ca)
    key.touch(0o600)
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    return DoorTls(mode="mutual", certificate=certificate, key=key, ca=ca)


@contextmanager
def serving(certificate: PortCertificate) -> Iterator[int]:
    """A server without services; its port."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port(f"{HOST}:0", certificate.credentials())
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def client(tls: DoorTls) -> ssl.SSLContext:
    certificate, key, ca = tls.files
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


def greeted(port: int, context: ssl.SSLContext) -> bool:
    """Whether HTTP/2 begins after the handshake: the port has shown what is trusted, and taken what it was shown."""
    try:
        with (
            socket.create_connection((HOST, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as connection,
        ):
            return connection.recv(1) != b""
    except (ssl.SSLError, ConnectionResetError):
        return False


def test_certificate_and_authority_are_replaced_on_an_open_port(tmp_path: Path) -> None:
    """Goal: no restart for new files. Method: who is of the first authority gets in, until the second one's files are
    read; then only who is of that, again and again."""
    tls = write(tmp_path / "files")
    first = client(tls)
    certificate = PortCertificate(tls)
    with serving(certificate) as port:
        assert greeted(port, first)
        second = client(write(tmp_path / "files"))
        assert not greeted(port, second)
        renew([certificate])
        assert [greeted(port, second), greeted(port, first), greeted(port, second)] == [True, False, True]


def test_callers_of_their_own_authority_get_in_beside_nodes(tmp_path: Path) -> None:
    """Goal: `tls.client_ca` reaches a door. Method: the flags that a node gives its door, parsed as the door does;
    a caller of that authority, one of the nodes', and one of neither."""
    node, caller, other = (write(tmp_path / name) for name in ("node", "caller", "other"))
    certificate, key, ca = node.files
    settings = TlsSettings(certificate=certificate, key=key, ca=ca, client_ca=caller.ca, grpc="mutual")
    parser = argparse.ArgumentParser()
    add_options(parser)
    tls = DoorTls.of(parser.parse_args(tls_flags(settings, settings.grpc)))
    with serving(PortCertificate(tls)) as port:
        told = [greeted(port, client(replace(each, ca=ca))) for each in (caller, node, other)]
    assert told == [True, True, False]


def test_files_that_do_not_fit_leave_the_port_as_it_is(tmp_path: Path) -> None:
    """Goal: a mistake is no outage. Method: the key of another certificate; whoever got in gets in."""
    tls = write(tmp_path / "files")
    known = client(tls)
    certificate = PortCertificate(tls)
    with serving(certificate) as port:
        tls.files[1].write_bytes(write(tmp_path / "other").files[1].read_bytes())
        with pytest.raises(ConfigError, match="plain key"):
            renew([certificate])
        assert greeted(port, known)


def test_a_port_without_tls_has_no_certificate() -> None:
    """There is nothing to read."""
    assert PortCertificate.of(DoorTls()) is None
