"""TLS from files that are read anew while ports are open. Thin.

A server, and whoever dials, was given its context once, and asks it for nothing but a `wrap_bio` for each connection.
So `RenewableContext` stands in front of the real one, which can be another one from then on: new connections are made
with that, those that stand are not touched, and no port is ever closed.

Rejected: to load new files into the context that is there (authorities can only be added to it, and a key that does not
fit is noticed when half is loaded).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from mirrorlog.errors import ConfigError
from mirrorlog.wire.tls import check_valid_now

logger = logging.getLogger(__name__)


class Renewable(Protocol):
    """What was made of files. `current` is what new connections are made with."""

    current: Any

    def make(self) -> Any:
        """Of the files as they are now; blocking. Raises ConfigError."""


class RenewableContext(ssl.SSLContext):
    """A context in front of the newest that `source` has made. `certificate`: what it shows; one that is not valid now
    does not take the place of another one. Raises ConfigError."""

    def __new__(cls, source: Callable[[], ssl.SSLContext], certificate: Path | None = None) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)  # no connection is ever made with it

    def __init__(self, source: Callable[[], ssl.SSLContext], certificate: Path | None = None) -> None:
        self.source = source
        self.certificate = certificate
        self.current = source()

    def make(self) -> ssl.SSLContext:
        """See `Renewable`."""
        if self.certificate is not None:
            check_valid_now(self.certificate)
        return self.source()

    def wrap_bio(self, *bios: Any, **options: Any) -> ssl.SSLObject:
        """Of the newest."""
        return self.current.wrap_bio(*bios, **options)


def renew(everything: Sequence[Renewable]) -> None:
    """Read the files of all of it anew; blocking. Raises ConfigError: then all of it is as it was."""
    made = [each.make() for each in everything]
    for each, newest in zip(everything, made, strict=True):
        each.current = newest


class Renewal:
    """Reads files anew when it is asked to, beside the loop. `then`: called when they are in use."""

    def __init__(self, everything: Sequence[Renewable], then: Callable[[], None] = lambda: None) -> None:
        self._everything = everything
        self._then = then
        self._asked = False
        self._reading: asyncio.Task[None] | None = None

    def ask(self) -> asyncio.Future[None]:
        """The files are others now. On the loop; returns at once, so that a signal may call it; done when they were
        read."""
        self._asked = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
        return self._reading

    async def _read(self) -> None:
        while self._asked:  # asked again meanwhile: what was read may be half of what stands there now
            self._asked = False
            try:
                await asyncio.to_thread(renew, self._everything)
            except ConfigError as error:
                logger.error("tls_not_reloaded reason=%r; what was read before stays in use", error.message)
            else:
                logger.info("tls_reloaded contexts=%s", len(self._everything))
                self._then()
