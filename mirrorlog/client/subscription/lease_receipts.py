"""Receipts of leases as text, which their holders keep, pass on, or store beside their work. Pure.

`<queue offset>-<lease>-<check>`: the place of the record and the number of the lease, which hold on every master the
queue will ever have. The check is a CRC-32 of both with the names of queue and group, in hexadecimal: a receipt of
another queue, or one with a slip in it, would acknowledge a record that nobody has seen.

Rejected: the two numbers as opaque bytes in base64 (as short, and nobody can see in a log which record it was), the
grant's epoch in it (no receipt needs it: a lease is in the queue's log).
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from msgspec import Struct

from mirrorlog.errors import BadRequest

_TEXT: Final = re.compile(r"(0|[1-9]\d{0,19})-(0|[1-9]\d{0,19})-([0-9a-f]{8})", re.ASCII)
_NUMBER_MAX: Final = 2**63 - 1


class LeaseReceipt(Struct, frozen=True):
    """One record under one lease."""

    queue: str
    group: str
    offset: int
    lease: int

    def __str__(self) -> str:
        return f"{self.offset}-{self.lease}-{self._check:08x}"

    @classmethod
    def parse(cls, text: str, *, queue: str, group: str) -> LeaseReceipt:
        """Raises BadRequest for what is no receipt of that queue and group."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None or max(int(found[1]), int(found[2])) > _NUMBER_MAX:
            raise BadRequest(f"{text!r:.80} is no receipt; give the text of a lease's `receipt` as it was")
        receipt = cls(queue, group, int(found[1]), int(found[2]))
        if f"{receipt._check:08x}" != found[3]:
            where = f"queue {queue!r}" + (f", group {group!r}" if group else "")
            raise BadRequest(f"{text!r:.80} is a receipt of something else than {where}, or was changed")
        return receipt

    @property
    def _check(self) -> int:
        return zlib.crc32("\0".join((self.queue, self.group, str(self.offset), str(self.lease))).encode())
