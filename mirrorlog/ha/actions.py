"""What the pure machines of this package ask their drivers to do, in the order in which it must be done."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.errors import MirrorlogError


@dataclass(frozen=True, slots=True)
class Send:
    """Write the parts one after the other. Views of the log among them are not copied."""

    parts: tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the link. `error` is told to the other side first, None for an ordinary end."""

    error: MirrorlogError | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link to the master; answer with `connected` or `disconnected`."""


@dataclass(frozen=True, slots=True)
class Align:
    """Cut the log at `log_offset` if it reaches beyond, take over `epochs`, both on disk; answer with `aligned`.

    `anew`: set the copy aside, and begin an empty one there. `loss`: the epoch for which the cluster has declared that
    what is cut may have been confirmed, and is lost: it is set aside before. 0 for none.
    """

    log_offset: int
    epochs: tuple[Epoch, ...]
    anew: bool = False
    loss: int = 0


@dataclass(frozen=True, slots=True)
class ReadCold:
    """Run `job` on a helper thread; answer with `cold_read`."""

    job: ColdRead


@dataclass(frozen=True, slots=True)
class FlushSoon:
    """Bring what the log holds now to disk soon; answer with `flushed`."""


Action = Send | Close | Connect | Align | ReadCold | FlushSoon
