"""How a door does TLS: what its command line says, for its own port and for its connections to nodes. The files are
those of the node that the door belongs to; at SIGHUP they are read anew."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mirrorlog.errors import ConfigError
from mirrorlog.wire.renewal import RenewableContext
from mirrorlog.wire.tls import client_context, server_context


@dataclass(frozen=True, slots=True)
class DoorTls:
    """The TLS options of a door. `mode`: of its own port, off, server or mutual; `node`: whether nodes' client ports
    speak TLS. The files are there when either is so: those of the node that the door belongs to; `client_ca`: of
    callers alone."""

    mode: str = "off"
    node: bool = False
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> DoorTls:
        """As parsed. Raises ConfigError when a file is missing."""
        found = cls(
            arguments.tls,
            arguments.node_tls,
            arguments.tls_certificate,
            arguments.tls_key,
            arguments.tls_ca,
            arguments.tls_client_ca,
        )
        if (found.mode != "off" or found.node) and None in (found.certificate, found.key, found.ca):
            raise ConfigError("--tls and --node-tls need --tls-certificate, --tls-key and --tls-ca")
        return found

    def to_nodes(self) -> RenewableContext | None:
        """Nodes are trusted by their authority, not by names of hosts, as by each other. Raises ConfigError."""
        if not self.node:
            return None
        certificate, key, ca = self.files
        return RenewableContext(partial(client_context, ca=ca, certificate=certificate, key=key, check_hostname=False))

    def port(self) -> RenewableContext | None:
        """Of the door's own port. Raises ConfigError."""
        if self.mode == "off":
            return None
        certificate, key, ca = self.files
        trusted = ca if self.mode == "mutual" else None
        return RenewableContext(
            partial(server_context, certificate=certificate, key=key, ca=trusted, client_ca=self.client_ca)
        )

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key and authorities; only when there is TLS."""
        assert self.certificate is not None
        assert self.key is not None
        assert self.ca is not None
        return self.certificate, self.key, self.ca


NO_TLS = DoorTls()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `DoorTls.of` reads."""
    parser.add_argument("--tls", choices=("off", "server", "mutual"), default="off", help="of the door's own port")
    parser.add_argument("--node-tls", action="store_true", help="nodes' client ports speak TLS")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="to show, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="of the certificate, PEM, not encrypted")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="whose certificates are trusted, PEM")
    parser.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="and whose callers', on the own port, PEM")
