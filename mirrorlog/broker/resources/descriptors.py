"""Open files: as many as the system lets the node have, and how many connections that is.

A connection that is accepted takes a descriptor which a segment, an index or a link to another node may need. So the
node takes all that it may have, keeps a part for these, and divides the rest: what the settings ask for beyond that is
not accepted, rather than accepted and paid for by the files.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import Final

from mirrorlog.config import LimitSettings, Settings
from mirrorlog.wire.listening import DROPPED_MAX

logger = logging.getLogger(__name__)

FILES_MAX: Final = 1 << 20
"""More than any node opens; where there is no limit this is one: tables of the kernel and of child processes grow with
it."""
KEPT_MAX: Final = 1024
"""For files, links that the node dials, and its doors: some 30, and 10 for each log."""
_PORTS: Final = 2


def raise_limit() -> int:
    """Have as many open files as this process may, and the doors that it starts; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox that forbids it: then it is as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else soft


def fitted(limits: LimitSettings, files: int) -> LimitSettings:
    """The limits of connections, none of them above what so many open files allow."""
    left = files - min(KEPT_MAX, files // 4)
    links = min(limits.max_links, left // 8)
    strangers = min(limits.max_strangers, left // 8)
    per_address = limits.max_strangers_per_address
    if strangers < limits.max_strangers:  # nobody may have all of them
        per_address = min(per_address, max(1, 3 * strangers // 4))
    clients = left - links - _PORTS * (strangers + DROPPED_MAX)
    return limits.model_copy(
        update={
            "max_links": max(1, links),
            "max_strangers": max(1, strangers),
            "max_strangers_per_address": per_address,
            "max_connections": max(1, min(limits.max_connections, clients)),
        }
    )


def capped(wanted: LimitSettings, fits: LimitSettings) -> dict[str, int]:
    """The numbers that hold instead of those that the settings ask for, by their names."""
    names = ("max_connections", "max_links", "max_strangers", "max_strangers_per_address")
    return {name: getattr(fits, name) for name in names if getattr(fits, name) != getattr(wanted, name)}


def fit(settings: Settings) -> tuple[Settings, dict[str, int]]:
    """The settings that this process can keep, and which of them are lower than was asked for; said in the log."""
    files = raise_limit()
    limits = fitted(settings.limits, files)
    lower = capped(settings.limits, limits)
    if lower:
        logger.warning(
            "connections_capped files=%s %s; raise the hard limit of open files (LimitNOFILE, ulimit -Hn)",
            files, " ".join(f"{name}={number}" for name, number in lower.items()),
        )  # fmt: skip
    return settings.model_copy(update={"limits": limits}), lower
