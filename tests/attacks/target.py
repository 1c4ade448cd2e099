"""What every attack is given. An attack is a module of this folder with a function

    def attack(target: Target, seconds: float, random: Random) -> int

that goes on for so long, bounded in what it opens and holds, cleans up behind itself, and gives how many inputs it
sent. To be refused, closed or left waiting is what it expects, and no error. It runs in a process of its own.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster's ports, by node, and what a stranger or a user without any permission knows of it.

    `ca`: the path of the authority's PEM where ports speak TLS. `user`, `password`: of somebody who may do nothing,
    `reader`: of somebody who may read all queues; empty in a cluster without users. `queues`: some that exist.
    """

    client: tuple[str, ...]
    replication: tuple[str, ...]
    grpc: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    ca: str | None = None
    user: str = ""
    password: str = ""
    reader: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From what `text` gave: attacks and bystanders are processes of their own."""
        told = json.loads(text)
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()})

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    def context(self) -> ssl.SSLContext | None:
        """For a connection to any port; None where they speak plainly."""
        if self.ca is None:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False
        return context
