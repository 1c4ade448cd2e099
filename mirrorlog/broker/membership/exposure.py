"""What a node that other machines can reach does while nobody has to prove who he is. It decides; nothing is asked.

On loopback a node needs no configuration: whoever is on the machine is trusted. A replication port that others reach
asks them for a secret or a certificate, or the node does not start. A port for clients is another matter: whether there
are users the cluster knows, and a node that has not heard it yet does not. So a node always starts with these ports
shut for other machines, and they are open to whoever logs in, or to all who show a certificate where that is asked for
(`mutual`). What comes through a door that others reach comes from them, although the door is on this machine.

Rejected: to ask at the start whether there are users (a joining node cannot know, and the last one may go later); a
password of the installation's own that everybody gets in by at first (it is the one that stays).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from mirrorlog.config import Settings
from mirrorlog.errors import ConfigError
from mirrorlog.wire.auth.credentials import Credentials
from mirrorlog.wire.listening import is_loopback

DOOR: Final = "door"
"""The role that a node's doors have in their greetings."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """`native`: whether the client port serves other machines that have no user; `doors`: whether what comes through
    the doors counts as this machine's; `doors_open`: whether it is served without a user all the same."""

    native: bool = True
    doors: bool = True
    doors_open: bool = True

    @classmethod
    def of(cls, settings: Settings) -> Self:
        tls = settings.tls
        doors = settings.door_binds.values()
        insecure = settings.node.insecure
        return cls(
            native=insecure or tls.client == "mutual",
            doors=all(is_loopback(bind) for bind, _ in doors),
            doors_open=insecure or all(is_loopback(bind) or mode == "mutual" for bind, mode in doors),
        )

    def seen(self, *, here: bool, role: str) -> tuple[bool, bool]:
        """(whether who asks is on this machine, whether he is served while there are no users). `here`: whether the
        other end of the connection is; `role`: as its greeting says."""
        if not here:
            return False, self.native
        if role == DOOR:
            return self.doors, self.doors_open
        return True, True


def check_replication(settings: Settings, credentials: Credentials) -> None:
    """Raises ConfigError for a port where whoever reaches it could say that he is a node."""
    address = settings.replication_bind
    if credentials.trusts_everybody and not (is_loopback(address) or settings.node.insecure):
        raise ConfigError(
            f"other machines reach the replication port {address}, and whoever does so could say that he is a node: "
            "give all nodes a secret (cluster.secret_file; openssl rand -hex 32) or certificates "
            "(tls.replication = mutual), or say that it may be so (--insecure)"
        )
