"""How jobs get in where nodes speak TLS or have users: by files and a login, for a context cannot travel from the
driver to its workers.

The password comes from the environment of whoever reads the options, or from an option, which Spark shows as redacted.
It travels in what the driver sends to its tasks, and stands in no text of ours: neither in a `repr`, nor in the options
that one part of a job hands to the next, nor in a landing's definition.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

from mirrorlog.errors import BadInput
from mirrorlog.wire.tls import client_context

USER_VARIABLE: Final = "MIRRORLOG_USER"
PASSWORD_VARIABLE: Final = "MIRRORLOG_PASSWORD"


class ClientOptions(TypedDict):
    """Of `mirrorlog.client.Client`."""

    tls: ssl.SSLContext | None
    user: str | None
    password: str
    tiers: bool | None


@dataclass(frozen=True, slots=True)
class Access:
    """Paths that the driver and every worker can read. `ca`: whose certificates are trusted, by default the system's
    authorities; `certificate` and `key`: to show, where nodes ask for one. `user`, `password`: where nodes have users;
    sent over TLS, or within a machine."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    user: str | None = None
    password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext | None:
        """None when nothing is given: then nodes do not speak TLS. Raises ConfigError naming the file."""
        if self.ca is None and self.certificate is None and self.key is None:
            return None
        ca, certificate, key = (None if each is None else Path(each) for each in (self.ca, self.certificate, self.key))
        return client_context(ca=ca, certificate=certificate, key=key)

    def client_options(self) -> ClientOptions:
        """For a client of the nodes. Where there are users it reads logs alone: a table that others name is not opened
        with the job's rights, and Spark reads tables better by itself. Raises ConfigError naming a file of TLS."""
        tiers = None if self.user is None else False
        return ClientOptions(tls=self.context(), user=self.user, password=self.password, tiers=tiers)

    def options(self) -> dict[str, str]:
        """As options of the data source, without the password."""
        given = {"tls_ca": self.ca, "tls_cert": self.certificate, "tls_key": self.key, "user": self.user}
        return {name: value for name, value in given.items() if value is not None}


NO_ACCESS = Access()


def login_of(user: str | None, password: str | None, what: str) -> tuple[str | None, str]:
    """(user, password): given, or else of the environment. `what`: how the place calls its names, for errors. Raises
    BadInput."""
    user = user or os.environ.get(USER_VARIABLE) or None
    if user is None:
        if password is not None:
            raise BadInput(f"{what} 'password' is given without {what} 'user'")
        return None, ""
    found = password if password is not None else os.environ.get(PASSWORD_VARIABLE)
    if found is None:
        raise BadInput(f"no password of user {user!r:.64}; set the variable {PASSWORD_VARIABLE}")
    return user, found
