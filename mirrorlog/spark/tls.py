"""How jobs speak TLS with nodes: by files, for a context cannot travel from the driver to its workers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from mirrorlog.wire.tls import client_context


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths that the driver and every worker can read. `ca`: whose certificates are trusted, by default the system's
    authorities; `certificate` and `key`: to show, where nodes ask for one."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """None when nothing is given: then nodes do not speak TLS. Raises ConfigError naming the file."""
        if self == NO_TLS:
            return None
        ca, certificate, key = (None if each is None else Path(each) for each in (self.ca, self.certificate, self.key))
        return client_context(ca=ca, certificate=certificate, key=key)

    def options(self) -> dict[str, str]:
        """As options of the data source."""
        given = {"tls_ca": self.ca, "tls_cert": self.certificate, "tls_key": self.key}
        return {name: path for name, path in given.items() if path is not None}


NO_TLS = TlsFiles()
