"""TLS contexts from files. Thin.

A handshake that fails is told to neither program by asyncio, and to the peer by nobody: the alert stays in a buffer.
`_Accepting` lets it leave before the connection ends, and says on this side, in a line, what was wrong.
"""

from __future__ import annotations

import logging
import ssl
import time
from typing import TYPE_CHECKING, Final

from mirrorlog.errors import ConfigError

if TYPE_CHECKING:  # a program that connects without files of certificates needs none
    from pathlib import Path

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""How long one may take."""
TOLD_AGAIN_S: Final = 60.0
"""A peer that is refused comes back many times a second; it is told of once in so long."""

_TOLD_MAX: Final = 64
# TLS 1.2 has been safe with the ciphers that OpenSSL 3 leaves; many clients of other languages speak nothing newer.
_VERSION_MIN: Final = ssl.TLSVersion.TLSv1_2


def server_context(
    *, certificate: Path, key: Path, ca: Path | None = None, client_ca: Path | None = None
) -> ssl.SSLContext:
    """For a port. With `ca` whoever connects needs a certificate of that authority, or of `client_ca`. Raises
    ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSION_MIN
    _load_own(context, certificate, key)
    if ca is not None:
        for authority in (ca, client_ca):
            if authority is not None:
                _load_authority(context, authority)
        context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = _Accepting
    return context


def client_context(
    *, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None, check_hostname: bool = True
) -> ssl.SSLContext:
    """For connections to a port. `ca`: whose certificates are trusted, by default the system's authorities;
    `certificate` and `key`: to show, where the port asks for one. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSION_MIN
    context.check_hostname = check_hostname
    if ca is not None:
        _load_authority(context, ca)
    else:
        context.load_default_certs()
    if (certificate is None) != (key is None):
        raise ConfigError("TLS: a certificate and its key are needed together")
    if certificate is not None and key is not None:
        _load_own(context, certificate, key)
    return context


class Refusals:
    """Which lines about peers that are refused are written: each once in `TOLD_AGAIN_S`, and not too many."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def is_news(self, reason: str) -> bool:
        now = time.monotonic()
        if now - self._told.get(reason, -TOLD_AGAIN_S) < TOLD_AGAIN_S:
            return False
        if len(self._told) >= _TOLD_MAX:
            self._told = {each: at for each, at in self._told.items() if now - at < TOLD_AGAIN_S}
        if len(self._told) >= _TOLD_MAX:  # somebody makes up reasons
            return False
        self._told[reason] = now
        return True


_refusals = Refusals()


class _Accepting(ssl.SSLObject):
    """The accepting side of a handshake."""

    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = why(error)
            if _refusals.is_news(reason):
                logger.warning("tls_refused reason=%r", reason)
            if not _of_certificate(error):
                raise
            # As if more were needed: then what there is to send is sent, the alert with the reason. The next bytes,
            # the other side's end or the handshake's deadline end it.
            self._failed = error
            raise ssl.SSLWantReadError from None


def why(error: ssl.SSLError) -> str:
    """In words, for both sides' lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other side is refused: {error.verify_message}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the other side shows no certificate, and one is asked for"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return f"the other side does not speak TLS ({reason})"
    if "alert" in reason:
        return f"the other side refuses this side's certificate, or TLS as such ({reason})"
    return reason


def _of_certificate(error: ssl.SSLError) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for file in (certificate, key):
        _check_readable(file)
    from mirrorlog.config import check_private  # late: who needs no TLS needs no settings either

    check_private(key, "TLS: the key")
    try:
        # A key that is encrypted would ask for its password at the terminal, and wait for ever.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"TLS: {certificate} and {key} are no certificate and its plain key: {error}") from None


def check_valid_now(certificate: Path) -> None:
    """Whether the first certificate in a file has begun and not expired. Raises ConfigError."""
    found = _facts(certificate)
    begins, ends = (ssl.cert_time_to_seconds(found[key]) for key in ("notBefore", "notAfter"))
    now = time.time()
    if not begins <= now < ends:
        raise ConfigError(f"TLS: {certificate} is valid from {found['notBefore']} to {found['notAfter']}, and not now")


def expiry_s(certificate: Path) -> int:
    """Until when the first certificate in a file is valid, in s since 1970, UTC. Raises ConfigError."""
    return ssl.cert_time_to_seconds(_facts(certificate)["notAfter"])


def _facts(certificate: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = ssl._ssl._test_decode_cert(  # type: ignore[attr-defined]  # nothing public reads one
            str(certificate)
        )
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"TLS: {certificate}: {error}") from None
    return found


def _load_authority(context: ssl.SSLContext, ca: Path) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"TLS: {ca} holds no certificates of authorities: {error}") from None


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"TLS: {file}: {error.strerror}") from None
