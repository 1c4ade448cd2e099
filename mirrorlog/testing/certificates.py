"""Certificates of a test cluster's own, so that TLS needs nobody's authority."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from mirrorlog.errors import MissingDependency
from mirrorlog.testing.ports import HOST
from mirrorlog.wire.tls import client_context

MODES: Final = ("server", "mutual")


class Certificates:
    """In `directory`: an authority, and one certificate of it that all nodes show, and clients where they are asked.

    Files that are there already are used again: a cluster that goes on is trusted by who trusted it.
    """

    def __init__(self, directory: Path) -> None:
        self.ca = directory / "ca.pem"
        self.certificate = directory / "certificate.pem"
        self.key = directory / "key.pem"

    def make(self) -> None:
        """Raises MissingDependency."""
        if self.key.exists():
            return
        try:
            import trustme
        except ImportError:
            raise MissingDependency("a test cluster makes its certificates with trustme: pip install trustme") from None
        authority = trustme.CA()
        issued = authority.issue_cert(HOST, "localhost")
        self.ca.parent.mkdir(parents=True, exist_ok=True)
        authority.cert_pem.write_to_path(self.ca)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        self.key.touch(0o600)
        issued.private_key_pem.write_to_path(self.key)

    def context(self) -> ssl.SSLContext:
        """For clients. Raises ConfigError before `make`."""
        return client_context(ca=self.ca, certificate=self.certificate, key=self.key)

    def settings(self, mode: str) -> dict[str, str]:
        """Of a node whose client port, gRPC and AMQP doors speak TLS. `mode`: server or mutual."""
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        paths = {f"tls.{name}": str(path.absolute()) for name, path in files.items()}
        return {**paths, "tls.client": mode, "tls.grpc": mode, "tls.amqp": mode}
