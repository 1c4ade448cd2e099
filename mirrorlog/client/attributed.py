"""What follows for a record from its batch's attributes and append time. Pure."""

from __future__ import annotations

from mirrorlog.commitlog.attributes import Attributes


class Attributed:
    """A record that a group gave out. It knows `attributes`, what its producer asked for, and `append_time_us`, both of
    its batch."""

    __slots__ = ()

    attributes: Attributes
    append_time_us: int

    @property
    def priority(self) -> int:
        """The higher the more urgent, from 0 to 255."""
        return self.attributes.priority

    @property
    def expires_at_us(self) -> int | None:
        """From when on it is given to nobody any more, µs UTC; None: never."""
        return self.attributes.expires_at_us(self.append_time_us)

    @property
    def not_before_us(self) -> int:
        """From when on it could be given out, µs UTC."""
        return self.attributes.not_before_us(self.append_time_us)
