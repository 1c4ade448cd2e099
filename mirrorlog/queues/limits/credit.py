"""Credit: how much a producer may have in one queue that is not confirmed yet, as the log's master counts it.

Whoever publishes is an *account*: a producer, on its connection, for a queue. Its batches count from their append until
the log's confirmed offset has passed them, whatever level it asked for: so every producer feels the slowest copy that
is waited for, and no level fills a log faster than its copies follow. A batch is taken while less than the grant is
unconfirmed, so an account without anything open may always send, and what it has stays within the grant and one batch.

The grant is the same for all, and shrinks when the log as a whole is far ahead of its copies: above half of
`max_unconfirmed_bytes` by as much as is missing, at all of it to nothing. So those who fill a log are held back first.
It is nothing, too, while as many batches are open as the log may have answers to wait for.

One line of open batches for a log, in the order of its offsets: a confirm costs one step per batch that it covers. Who
is held is looked at when something of it is confirmed, and all of them are when the grant has risen by an eighth of the
whole since the last look: so also behind a log that was full it is a few looks, not one for each confirm. Who was told
that nothing is granted is held, too, so that somebody tells when there is again. A connection that asks under one new
producer id after another is refused without an account from 1,024 on: nobody tells it, it tries again by itself.

Rejected: credit per connection and log (one queue's producer would stop the others of its
connection); a count of what waits for its answer (a producer at level `none` waits for nothing, and would feel nobody).

Pure: events and `now` (s) in, whom to tell out. Owners are opaque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorlog.errors import Overloaded
from mirrorlog.wire.frames import CREDIT_ENDED

BYTES: Final = "credit_bytes"
BATCHES: Final = "credit_batches"
LOG_BYTES: Final = "max_unconfirmed_bytes"
LINE: Final = "max_waiting_confirms"

_TOLD_BLOCKED_S: Final = 1.0
"""A producer at full speed is at its grant now and then; one that is for so long is told of."""
_IDLE_ACCOUNTS_MAX: Final = 64
"""Of an owner, kept though nothing of them is open: most producers send again. With more they are looked for whenever
an owner has twice as many as the last look has left."""
_ACCOUNTS_MAX: Final = 1_024
"""Of an owner, beyond which one that is refused gets none."""
_STEPS: Final = 8
"""A grant that changed by less than such a part of the whole is not worth a frame."""


class Key(NamedTuple):
    """Whose account it is. `owner`: the connection."""

    owner: object
    producer_id: int
    queue_id: int


@dataclass(slots=True, eq=False)
class Account:
    """`size`, `batches`: appended and not confirmed. `untold`, `untold_batches`: what was confirmed since its owner was
    told, and no confirm of its own has told. `blocked_by`: the limit that holds it, since `blocked_at`; `refused`:
    whether it has sent something that was not taken. `granted`: as its owner knows it."""

    key: Key
    granted: int
    size: int = 0
    batches: int = 0
    untold: int = 0
    untold_batches: int = 0
    blocked_by: str = ""
    blocked_at: float = 0.0
    refused: bool = False
    noted: bool = False
    gone: bool = False


class CreditUpdate(NamedTuple):
    """The account's batches below log offset `confirmed` count no more; `granted`: bytes it may have open now."""

    key: Key
    confirmed: int
    granted: int


@dataclass(slots=True, eq=False)
class _Owner:
    """`looked_at`: `Credits._freed` when idle ones were looked for last, though there were too many. `shrunk`: one was
    forgotten that had been told less than the whole grant, so whoever is new may be that one."""

    accounts: dict[Key, Account] = field(default_factory=dict)
    look_at: int = _IDLE_ACCOUNTS_MAX
    looked_at: int = -1
    shrunk: bool = False


_Open = tuple[int, int, Account, bool]
"""Where the batch ends, its size, whose it is, and whether its own confirm tells. A plain tuple: one for each batch."""


class Credits:
    """Of one mastership of a log. `log_bytes_max`: as `max_unconfirmed_bytes`; `line_max`: so many batches of all may
    be open, as `max_waiting_confirms`."""

    def __init__(self, *, bytes_max: int, batches_max: int, log_bytes_max: int, line_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches_max = batches_max
        self._log_bytes_max = log_bytes_max
        self._line_max = line_max
        self.open: deque[_Open] = deque()
        """Batches that are not confirmed."""
        self._accounts: dict[Key, Account] = {}
        self._owners: dict[object, _Owner] = {}
        self.held: dict[Key, Account] = {}
        """Accounts that a limit holds now."""
        # The lowest grant at which one of them came to be held, or at which all of them were looked at since.
        self._held_at = bytes_max
        self._freed = 0

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def blocked(self) -> int:
        """How many accounts are held by a limit now."""
        return len(self.held)

    def granted(self, distance: int) -> int:
        """Bytes that each account may have open while the log's end is `distance` bytes before what is confirmed."""
        if len(self.open) >= self._line_max:
            return 0
        half = self._log_bytes_max // 2
        left = self._log_bytes_max - distance
        if left >= half:
            return self._bytes_max
        return max(0, self._bytes_max * left // max(1, half))

    def check(self, key: Key, *, distance: int, now: float) -> None:
        """Before a batch is appended. Raises Overloaded, naming the limit: then it must not be."""
        account = self._accounts.get(key)
        if self._has_room(account, distance):
            return
        granted = self.granted(distance)
        limit = self._limit(account, granted)
        if not limit:
            return
        account = account or self._refused_newly(key)
        if not account.gone:
            account.refused = True
            self._block(account, limit, now, granted)
        raise Overloaded(self._refusal(account, limit, distance), limit=limit, granted=granted)

    def appended(self, key: Key, *, end: int, size: int, quiet: bool, distance: int, now: float) -> None:
        """A batch of `size` bytes that ends there was. `quiet`: its own confirm will tell that it counts no more."""
        account = self._accounts.get(key) or self._make(key)
        account.size += size
        account.batches += 1
        account.refused = False
        self.open.append((end, size, account, quiet))
        if not self._has_room(account, distance):
            granted = self.granted(distance)
            if limit := self._limit(account, granted):
                self._block(account, limit, now, granted)

    def confirmed(self, offset: int, *, distance: int, now: float) -> list[CreditUpdate]:
        """Everything below `offset` is: whom to tell."""
        touched = self._touched(offset, distance)
        if not touched and not self.held:
            return []
        granted = self.granted(distance)
        freed = self._unblock(granted, touched)
        told = [self._tell(each, offset, granted, now) for each in freed.values()]
        told += [
            self._tell(each, offset, granted, now)
            for key, each in touched.items()
            if key not in freed and self._is_worth_telling(each, granted)
        ]
        return told

    def ended(self) -> list[CreditUpdate]:
        """This mastership is over: whom to tell that nothing of its counts any more, and who publishes next is told
        where to. Nothing is counted from here on."""
        whole = self._bytes_max
        told = [
            CreditUpdate(key, CREDIT_ENDED, whole)
            for key, each in self._accounts.items()
            if each.batches or each.untold_batches or each.blocked_by or each.granted != whole
        ]
        for owner in list(self._owners):
            self.forget(owner)
        self.open.clear()
        return told

    def forget(self, owner: object) -> None:
        """Its connection is gone. What it has in the log still counts for the log."""
        if (known := self._owners.pop(owner, None)) is not None:
            for key in known.accounts:
                self._drop(key)

    def blocked_long(self, now: float) -> list[Account]:
        """Those that have been held for a second, each once until it is free again."""
        found = [each for each in self.held.values() if not each.noted and now - each.blocked_at >= _TOLD_BLOCKED_S]
        for each in found:
            each.noted = True
        return found

    def told(self) -> Iterator[Account]:
        """The accounts that have something open or are held; those that are held the longest first."""
        yield from sorted(self.held.values(), key=lambda each: each.blocked_at)
        yield from (each for key, each in self._accounts.items() if each.batches and key not in self.held)

    # --- inside ---

    def _touched(self, offset: int, distance: int) -> dict[Key, Account]:
        """Take what ends there from the line: the accounts that are to be looked at."""
        line = self.open
        whole = 2 * distance <= self._log_bytes_max
        touched: dict[Key, Account] = {}
        while line and line[0][0] <= offset:
            _, size, account, quiet = line.popleft()
            account.size -= size
            account.batches -= 1
            if quiet and whole and self._is_as_told(account):
                continue  # its confirm says all there is to be said
            if not quiet:
                account.untold += size
                account.untold_batches += 1
            if not account.gone:
                touched[account.key] = account
        return touched

    def _is_as_told(self, account: Account) -> bool:
        return account.granted == self._bytes_max and not account.untold_batches and not account.blocked_by

    def _has_room(self, account: Account | None, distance: int) -> bool:
        """For sure; the rest is for `_limit` to say. Asked of each batch."""
        if 2 * distance > self._log_bytes_max or len(self.open) >= self._line_max:
            return False
        return account is None or (account.size < self._bytes_max and account.batches < self._batches_max)

    def _limit(self, account: Account | None, granted: int) -> str:
        """Which one holds it; empty: none."""
        if not granted:
            return LINE if len(self.open) >= self._line_max else LOG_BYTES
        if account is None or not account.batches:
            return ""
        if account.size >= granted:
            return BYTES if granted == self._bytes_max else LOG_BYTES
        return BATCHES if account.batches >= self._batches_max else ""

    def _refusal(self, account: Account, limited_by: str, distance: int) -> str:
        if limited_by == LINE:
            return (
                f"{len(self.open)} batches of this log are not confirmed by its copies (limits.max_waiting_confirms "
                f"{self._line_max}); nothing was stored, send it again when they have caught up"
            )
        if limited_by == LOG_BYTES:
            return (
                f"{distance} bytes of this log are not confirmed by its copies (limits.max_unconfirmed_bytes "
                f"{self._log_bytes_max}); nothing was stored, send it again when they have caught up"
            )
        limit = self._bytes_max if limited_by == BYTES else self._batches_max
        return (
            f"this producer has {account.size} bytes in {account.batches} batches of this queue that are not confirmed "
            f"by all copies (limits.{limited_by} {limit}); nothing was stored, send it again when they are"
        )

    def _refused_newly(self, key: Key) -> Account:
        """An account to be told when there is room, or one that is `gone` already if its owner has enough of them."""
        owner = self._owners.get(key.owner)
        if owner is None or len(owner.accounts) < _ACCOUNTS_MAX:
            return self._make(key)
        if owner.looked_at != self._freed:
            owner.looked_at = self._freed
            self._forget_idle(owner)
        return self._make(key) if len(owner.accounts) < _ACCOUNTS_MAX else Account(key, self._bytes_max, gone=True)

    def _make(self, key: Key) -> Account:
        owner = self._owners.setdefault(key.owner, _Owner())
        if len(owner.accounts) >= owner.look_at:
            self._forget_idle(owner)
        granted = 0 if owner.shrunk else self._bytes_max
        account = self._accounts[key] = owner.accounts[key] = Account(key, granted)
        return account

    def _block(self, account: Account, limit: str, now: float, granted: int) -> None:
        if not account.blocked_by:
            account.blocked_at = now
            self.held[account.key] = account
        account.blocked_by = limit
        self._held_at = min(self._held_at, granted)

    def _unblock(self, granted: int, touched: dict[Key, Account]) -> dict[Key, Account]:
        """Those of the held that are no more. All are looked at when the grant has risen by much; else those of which
        something was confirmed: one that has nothing open is held by a grant of nothing alone."""
        looked = touched
        if self._has_risen(granted):
            looked, self._held_at = self.held, granted
        freed = {}
        for key, each in list(looked.items()):
            if not each.blocked_by:
                continue
            each.blocked_by = self._limit(each, granted)
            if not each.blocked_by:
                del self.held[key]
                each.noted = False
                freed[key] = each
        self._freed += bool(freed)
        return freed

    def _has_risen(self, granted: int) -> bool:
        if granted <= self._held_at:
            return False
        is_whole, was_nothing = granted == self._bytes_max, self._held_at == 0
        return is_whole or was_nothing or (granted - self._held_at) * _STEPS >= self._bytes_max

    def _is_worth_telling(self, account: Account, granted: int) -> bool:
        if account.untold_batches and (not account.batches or self._is_much(account)):
            return True
        if granted == account.granted:
            return False
        return granted == self._bytes_max or abs(granted - account.granted) * _STEPS >= self._bytes_max

    def _is_much(self, account: Account) -> bool:
        """A quarter of what it may have, so that it never comes to a stand beside credit that it was not told of."""
        return 4 * account.untold >= self._bytes_max or 4 * account.untold_batches >= self._batches_max

    def _tell(self, account: Account, offset: int, granted: int, now: float) -> CreditUpdate:
        account.untold = account.untold_batches = 0
        account.granted, account.refused = granted, False
        if not granted:
            self._block(account, self._limit(account, granted), now, granted)
        return CreditUpdate(account.key, offset, granted)

    def _forget_idle(self, owner: _Owner) -> None:
        for key, account in list(owner.accounts.items()):
            if not account.batches and not account.blocked_by:
                owner.shrunk |= account.granted != self._bytes_max
                del owner.accounts[key]
                self._drop(key)
        owner.look_at = max(_IDLE_ACCOUNTS_MAX, 2 * len(owner.accounts))

    def _drop(self, key: Key) -> None:
        self._accounts.pop(key).gone = True
        self.held.pop(key, None)
