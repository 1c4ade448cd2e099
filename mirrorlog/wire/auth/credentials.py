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
from mirrorlog.wire.auth.proof import (
    NONCE_BYTES,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    AcceptedGreeting,
    DialledGreeting,
    check_certificate,
)
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.renewal import RenewableContext
from mirrorlog.wire.tls import check_valid_now, client_context, expiry_s, server_context

SECRETS_MAX: Final = 2
"""In a file: the one that is used, and another one that is taken too."""
_PRINTABLE: Final = frozenset((*range(0x20, 0x7F), *b"\r\n"))


class SecretFile:
    """The secrets in a file, one in each line: the first is proven to others, each is taken from them. So nodes change
    theirs one after the other: old and new on all, then new and old, then the new one alone. Lines are those of
    printable ASCII; other bytes, any of which may be that of a line's end, are one secret. Raises ConfigError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.current = self.make()

    def make(self) -> tuple[bytes, ...]:
        """See `Renewable`."""
        content = _read(self._file)
        found = content.splitlines() if _PRINTABLE.issuperset(content) else [content]
        what = f"cluster.secret_file {self._file}"
        if len(found) > SECRETS_MAX:
            raise ConfigError(f"{what}: {len(found)} lines; one secret, or while it is changed {SECRETS_MAX}")
        return tuple(_checked(each, what) for each in found or [b""])


class CertificateFile:
    """`current`: until when the certificate that is in use is valid, in s since 1970; that of the doors, too, who read
    it when the node has. Raises ConfigError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.current = expiry_s(file)

    def make(self) -> int:
        """See `Renewable`; one that is not valid now is not put in the place of another one."""
        check_valid_now(self._file)
        return expiry_s(self._file)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of one node. `accepting` and `dialling` are for replication ports, `client` for its own client port; None: no
    TLS there. `certificate`: None without TLS on any port."""

    secret: bytes | SecretFile | None = field(default=None, repr=False)
    accepting: ssl.SSLContext | None = None
    dialling: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None
    certificate: CertificateFile | None = None

    @property
    def certificate_expires_s(self) -> int:
        """In s since 1970, of the one in use; 0 without TLS."""
        return self.certificate.current if self.certificate is not None else 0

    @property
    def trusts_everybody(self) -> bool:
        """Whether whoever reaches the replication port may say that it is a node of the cluster."""
        return self.secret is None and self.accepting is None

    @property
    def renewable(self) -> list[RenewableContext | SecretFile | CertificateFile]:
        """Those whose files can be read anew."""
        everything = (self.accepting, self.dialling, self.client, self.secret, self.certificate)
        return [each for each in everything if isinstance(each, RenewableContext | SecretFile | CertificateFile)]

    def dialled(self, hello: Hello, endpoint: Endpoint) -> DialledGreeting:
        """For one connection that this node has made. Its `hello` is sent first."""
        return DialledGreeting(
            hello,
            secret=self._secret,
            nonce=self._nonce(),
            certificate=endpoint.certificate,
            check_frames=endpoint.check_frames,
        )

    def accepted(self, hello: Hello, endpoint: Endpoint) -> AcceptedGreeting:
        """For one connection that this node has accepted, once it was greeted. Raises NotProven or ProtocolError."""
        check_certificate(endpoint.certificate, hello.node_id or "")
        also = self.secret.current[1:] if isinstance(self.secret, SecretFile) else ()
        return AcceptedGreeting(hello, secret=self._secret, also=also, nonce=self._nonce())

    @property
    def _secret(self) -> bytes | None:
        return self.secret.current[0] if isinstance(self.secret, SecretFile) else self.secret

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
        client=port_context(tls, tls.client, client_ca=tls.client_ca),
        certificate=CertificateFile(tls.files[0]) if tls.is_used else None,
    )


def port_context(tls: TlsSettings, mode: str, *, client_ca: Path | None = None) -> RenewableContext | None:
    """Of a port of this node; None when it has no TLS. `client_ca`: trusted there beside the nodes' own authority, for
    doors show their nodes' certificates. Raises ConfigError."""
    if mode == "off":
        return None
    certificate, key, ca = tls.files
    trusted = ca if mode == "mutual" else None
    source = partial(server_context, certificate=certificate, key=key, ca=trusted, client_ca=client_ca)
    return RenewableContext(source, certificate)


def own_context(tls: TlsSettings) -> RenewableContext:
    """Of connections to nodes of the cluster, which are trusted by their authority, not by names of hosts. Raises
    ConfigError."""
    certificate, key, ca = tls.files
    source = partial(client_context, ca=ca, certificate=certificate, key=key, check_hostname=False)
    return RenewableContext(source, certificate)


def _secret_of(settings: Settings) -> bytes | SecretFile | None:
    """Raises ConfigError, which does not tell it."""
    cluster = settings.cluster
    if cluster.secret_file is not None:
        return SecretFile(cluster.secret_file)
    if cluster.secret is not None:
        return _checked(cluster.secret.get_secret_value().encode(), "cluster.secret")
    return None


def _checked(secret: bytes, what: str) -> bytes:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{what}: {len(secret)} bytes; {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are taken, for example those of: "
            "openssl rand -hex 32"
        )
    return secret


def _read(file: Path) -> bytes:
    """Without the end of its last line."""
    check_private(file, "cluster.secret_file")
    try:
        with file.open("rb") as opened:
            return opened.read(SECRETS_MAX * (SECRET_BYTES_MAX + 2) + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"cluster.secret_file {file}: {error.strerror}") from None
