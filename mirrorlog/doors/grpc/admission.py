"""How many streams of one kind are open at once, and whether there may be another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mirrorlog.errors import NodeStopping, Overloaded


class Admission:
    """`kind`: of the streams, for people."""

    def __init__(self, kind: str, *, streams_max: int) -> None:
        self._kind = kind
        self._streams_max = streams_max
        self._open = 0
        self.stopping = False

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place for one stream while the block runs. Raises Overloaded, or NodeStopping once `stopping` is set."""
        if self.stopping:
            raise node_stopping()
        if self._open >= self._streams_max:
            raise Overloaded(f"{self._streams_max} {self._kind} streams are open", limit="streams_max")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def node_stopping() -> NodeStopping:
    """What a stream of a door that stops ends with."""
    return NodeStopping("this door is stopping; open the stream again")
