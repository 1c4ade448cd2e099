"""What a node proves and asks for on its ports: the cluster's secret, and TLS. Thin: reads the files, makes nonces."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from mirrorlog.config import Settings, TlsSettings, check_private
from mirrorlog.errors import ConfigError
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.messages import Hello
from mirrorlog.wire.proof import (
    NONCE_BYTES,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    AcceptedGreeting,
    DialledGreeting,
    check_certificate,
)
from mirrorlog.wire.renewal import RenewableContext
from mirrorlog.wire.tls import client_context, server_context


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of one node. `accepting` and `dialling` are for replication ports, `client` for its own client port; None: no
    TLS there."""

    secret: bytes | None = field(default=None, repr=False)
    accepting: ssl.SSLContext | None = None
    dialling: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    @property
    def trusts_everybody(self) -> bool:
        """Whether whoever reaches the replication port may say that it is a node of the cluster."""
        return self.secret is None and self.accepting is None

    @property
    def renewable(self) -> list[RenewableContext]:
        """Those whose files can be read anew."""
        contexts = (self.accepting, self.dialling, self.client)
        return [context for context in contexts if isinstance(context, RenewableContext)]

    def dialled(self, hello: Hello, endpoint: Endpoint) -> DialledGreeting:
        """For one connection that this node has made. Its `hello` is sent first."""
        return DialledGreeting(hello, secret=self.secret, nonce=self._nonce(), certificate=endpoint.certificate)

    def accepted(self, hello: Hello, endpoint: Endpoint) -> AcceptedGreeting:
        """For one connection that this node has accepted, once it was greeted. Raises NotProven."""
        check_certificate(endpoint.certificate, hello.node_id or "")
        return AcceptedGreeting(hello, secret=self.secret, nonce=self._nonce())

    def _nonce(self) -> bytes:
        return b"" if self.secret is None else secrets.token_bytes(NONCE_BYTES)


OPEN: Final = Credentials()
"""Nothing is proven or asked for."""


def credentials_of(settings: Settings) -> Credentials:
    """As the settings say. Raises ConfigError naming the file or the key."""
    tls = settings.tls
    secret = _secret_of(settings)
    replication = tls.replication == "mutual"
    return Credentials(
        secret=secret,
        accepting=port_context(tls, "mutual") if replication else None,
        dialling=own_context(tls) if replication else None,
        client=port_context(tls, tls.client),
    )


def port_context(tls: TlsSettings, mode: str) -> RenewableContext | None:
    """Of a port of this node; None when it has no TLS. Raises ConfigError."""
    if mode == "off":
        return None
    certificate, key, ca = tls.files
    trusted = ca if mode == "mutual" else None
    return RenewableContext(partial(server_context, certificate=certificate, key=key, ca=trusted))


def own_context(tls: TlsSettings) -> RenewableContext:
    """Of connections to nodes of the cluster, which are trusted by their authority, not by names of hosts. Raises
    ConfigError."""
    certificate, key, ca = tls.files
    return RenewableContext(partial(client_context, ca=ca, certificate=certificate, key=key, check_hostname=False))


def _secret_of(settings: Settings) -> bytes | None:
    """Raises ConfigError, which does not tell it."""
    cluster = settings.cluster
    if cluster.secret_file is not None:
        secret, key = _read(cluster.secret_file), f"cluster.secret_file {cluster.secret_file}"
    elif cluster.secret is not None:
        secret, key = cluster.secret.get_secret_value().encode(), "cluster.secret"
    else:
        return None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{key}: {len(secret)} bytes; {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are taken, for example those of: "
            "openssl rand -hex 32"
        )
    return secret


def _read(file: Path) -> bytes:
    """Without the end of its last line."""
    check_private(file, "cluster.secret_file")
    try:
        with file.open("rb") as opened:
            return opened.read(SECRET_BYTES_MAX + 3).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"cluster.secret_file {file}: {error.strerror}") from None
