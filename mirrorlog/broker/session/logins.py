"""Logins: who somebody is, by name and password or by the token of one of the node's doors.

What a password proves is remembered for the node's run by a keyed hash, so that a thousand connections that return at
once cost one slow comparison per user and not one each. Whose comes next, `LoginTurns` says. Whoever was let in by a
hash that is worth less than today's gets a new one, behind his login: by a command that says which one it replaces, so
that a change of the password at the same moment stands.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

from mirrorlog import versions
from mirrorlog.broker.session.refused_access import RefusedAccess
from mirrorlog.cluster.state.topology import User
from mirrorlog.cluster.state.topology_commands import PasswordRenewed
from mirrorlog.errors import BadRequest, ConfigError, Overloaded
from mirrorlog.wire.auth.login_turns import LoginFailures, LoginTurns
from mirrorlog.wire.auth.passwords import PASSWORD_CHARS_MAX, hashed, is_outdated, matches
from mirrorlog.wire.fairness.places import source_of
from mirrorlog.wire.locations import check_place
from mirrorlog.wire.names import NAME_CHARS_MAX
from mirrorlog.wire.tls import Refusals

LOGINS_MAX: Final = 1_024
"""Passwords that wait to be compared, on one node."""
FAILED_S: Final = 10.0
"""How long a wrong password is known as such: a thousand clients with last week's cost one slow comparison."""
_REMEMBERED_MAX: Final = 10_000
RENEW_S: Final = 60.0
"""Between two attempts to give a user a new hash."""

Users = Mapping[str, User]

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Comparison:
    """One password, for all that wait for it; see `login_turns.Attempt`. `done`: whether it is the user's."""

    user: str
    address: str
    failures: int
    password: str
    proof: bytes
    password_hash: str
    done: asyncio.Future[bool]
    waiting: int = 0


class Gatekeeper:
    """Of one node. `users`: as it knows them; another object after each change. `key_of`: a queue's key by its id;
    raises as the queue's log does. `helper`: where passwords are compared, one at a time and behind everything else:
    guesses must not take the node's cores. `has_heard`: whether this run has heard its cluster. `tier_locations`: see
    the setting `log.tier_locations`; `node`: its id; `renew`: asks for it and does not wait; `cluster_version`:
    what may be decided. Raises ConfigError."""

    def __init__(
        self,
        users: Callable[[], Users],
        key_of: Callable[[int], str],
        helper: Executor | None = None,
        has_heard: Callable[[], bool] = lambda: True,
        *,
        tier_locations: Sequence[str] | None = None,
        node: str = "",
        renew: Callable[[PasswordRenewed], None] = lambda command: None,
        cluster_version: Callable[[], int] = lambda: versions.OWN,
    ) -> None:
        self.users = users
        self.refused = RefusedAccess(node)
        self.has_heard = has_heard
        self.key_of = key_of
        self.tier_locations = None if tier_locations is None else [_place(each) for each in tier_locations]
        self.door_token = secrets.token_urlsafe(32)
        """What this node's doors log in with, in this run."""
        self._secret = secrets.token_bytes(32)
        self._failures_told = Refusals()
        self._rights_told = Refusals()
        self._helper = helper
        self._proven: dict[bytes, str] = {}
        self._failed: dict[bytes, tuple[str, float]] = {}
        self._turns: LoginTurns[_Comparison] = LoginTurns(LOGINS_MAX)
        self._compared: dict[tuple[bytes, str], _Comparison] = {}
        self._comparing: asyncio.Task[None] | None = None
        self._failures = LoginFailures()
        self._renew = renew
        self._cluster_version = cluster_version
        self._renewed_at: dict[str, float] = {}
        self._renewing: set[asyncio.Task[None]] = set()

    def login_failed(self, reason: str, name: str, peer: str) -> None:
        """Counted; and a line, once a minute for each name and address. A name that nobody has is not in it: it may be
        a password that was typed in the wrong place."""
        known = name if name in self.users() else ""
        self.refused.login_failed(reason, known, peer)
        told = known or "nobody's"
        if self._failures_told.is_news(f"{told} {peer}"):
            logger.warning("login_failed user=%r address=%s", told, peer or "-")

    def right_refused(self, right: str, user: str, what: str, peer: str) -> None:
        """Counted; and a line, once a minute for each user and right. `what`: of what it is; the first of a minute
        stands for the others, for whoever tries all names shall not fill the file."""
        self.refused.right_refused(right, user, peer)
        if user and self._rights_told.is_news(f"{user} {right}"):
            logger.warning("right_refused user=%r right=%s object=%r address=%s", user, right, what[:256], peer or "-")

    async def found(self, name: str, password: str, peer: str = "", failures: int = 0) -> User | None:
        """The user of that name, if it is his password. As slow for a name that does not exist. `peer`: the address
        that it comes from, empty for none; `failures`: of its connection. Raises Overloaded."""
        if len(name) > NAME_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
            return None  # nobody's; and not worth a pass over it
        user = self.users().get(name)
        password_hash = user.password_hash if user is not None else ""
        if not await self._knows(name, password, password_hash, peer, failures):
            return None
        now = self.users().get(name)
        # He may have got another password, or have gone, while the old one was compared.
        same = now is not None and user is not None and (now.born, now.password_hash) == (user.born, user.password_hash)
        if not same or now is None:
            return None
        if password and is_outdated(password_hash):
            self._renew_soon(name, password, password_hash)
        return now

    def _renew_soon(self, name: str, password: str, seen: str) -> None:
        """Once in a while for each: whoever logs in later asks for it again."""
        if not self.has_heard() or self._cluster_version() < versions.RENEWED_HASHES:
            return
        now = time.monotonic()
        if now - self._renewed_at.get(name, -inf) < RENEW_S:
            return
        if len(self._renewed_at) >= _REMEMBERED_MAX:
            self._renewed_at.clear()
        self._renewed_at[name] = now

        async def renew() -> None:
            try:
                password_hash = await asyncio.get_running_loop().run_in_executor(self._helper, hashed, password)
            except RuntimeError:
                return  # the helper has ended, and the node with it
            self._renew(PasswordRenewed(user=name, seen=seen, password_hash=password_hash))

        task = asyncio.ensure_future(renew())
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    def failed(self, name: str, peer: str) -> float:
        """That login was wrong; for how long whoever tried is not told so, in s."""
        return self._failures.failed(name, source_of(peer), time.monotonic())

    async def _knows(self, name: str, password: str, password_hash: str, peer: str, failures: int) -> bool:
        words = f"{len(name)}:{name}{password}".encode(errors="surrogatepass")
        proof = hmac.digest(self._secret, words, "sha256")
        if password_hash and self._proven.get(proof) == password_hash:
            return True
        failed = self._failed.get(proof)
        if failed is not None and failed[0] == password_hash and time.monotonic() - failed[1] < FAILED_S:
            return False
        comparison = self._compared.get((proof, password_hash))
        if comparison is None:
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            comparison = self._line_up(
                _Comparison(name, source_of(peer), failures, password, proof, password_hash, done)
            )
        comparison.waiting += 1
        try:
            return await asyncio.shield(comparison.done)
        finally:
            comparison.waiting -= 1
            if not comparison.waiting and not comparison.done.done():
                self._turns.remove(comparison)  # all who wanted to know are gone
                self._end(comparison)

    def _line_up(self, comparison: _Comparison) -> _Comparison:
        self._compared[comparison.proof, comparison.password_hash] = comparison
        if (evicted := self._turns.add(comparison)) is not None:
            self._end(evicted)
            evicted.done.set_exception(
                Overloaded(f"{LOGINS_MAX} logins wait to be looked at (max_logins); try again", limit="max_logins")
            )
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.ensure_future(self._compare_all())
        return comparison

    def _end(self, comparison: _Comparison) -> None:
        self._compared.pop((comparison.proof, comparison.password_hash), None)

    async def _compare_all(self) -> None:
        loop = asyncio.get_running_loop()
        while (each := self._turns.next()) is not None:
            try:
                compare = partial(matches, each.password, each.password_hash)
                known = await loop.run_in_executor(self._helper, compare)
            except Exception as error:
                each.done.set_exception(error)
                continue
            finally:
                self._end(each)
            self._remember(each.proof, each.password_hash, known=known)
            each.done.set_result(known)

    def _remember(self, proof: bytes, password_hash: str, *, known: bool) -> None:
        of: dict[bytes, Any] = self._proven if known else self._failed
        if len(of) >= _REMEMBERED_MAX:
            of.clear()
        of[proof] = password_hash if known else (password_hash, time.monotonic())


def _place(text: str) -> str:
    try:
        return check_place(text)
    except BadRequest as error:
        raise ConfigError(f"log.tier_locations: {error}") from None
