"""Who calls a door: each with a login of his own, or none; and a client of the native door for each of them.

What a caller may do the nodes decide, call by call, for his calls go over connections that have his login. Such a
client is kept for a while after its last call. Before each call, at most every ten seconds, his password is shown to
the node again: one that was changed must not go on working because somebody was let in by it before. A login that
failed fails again for some seconds without the node being asked, and only a few strangers are asked about at once; who
was let in before waits for none of them, for the node remembers him.

Rejected: one client with the rights of all callers, and the door to decide who may what: two places that must agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import LoginFailed, Overloaded
from mirrorlog.wire.messages import Done, Login

CALLERS_MAX: Final = 256
"""Logins for which a door has a client at once."""
STRANGERS_MAX: Final = 16
"""Of which the node is asked for the first time at once."""
USER_STRANGERS_MAX: Final = 4
"""And for one user: the node answers guesses late (`login_turns`), and those at one name leave the others room."""
IDLE_S: Final = 60.0
PROVEN_S: Final = 10.0
REFUSED_S: Final = 5.0
_REFUSED_MAX: Final = 1_000
_LOGIN_TIMEOUT_MS: Final = 10_000
_HEADER_CHARS_MAX: Final = 4_096

MakeClient = Callable[[Login | None], Client]


def read_basic(header: str, *, private: bool) -> Login:
    """The login of an `Authorization` header as of RFC 7617. `private`: nobody else can have read it. Raises
    LoginFailed."""
    if not private:
        raise LoginFailed(
            "a password is taken over TLS or from this machine only; set tls.grpc or tls.http on the node"
        )
    scheme, _, encoded = header[:_HEADER_CHARS_MAX].partition(" ")
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:  # of base64 and of UTF-8
        user = colon = password = ""
    if scheme.lower() != "basic" or not colon or not user:
        raise LoginFailed("authorization is Basic and, in base64, <user>:<password>")
    return Login(user=user, password=password)


@dataclass(slots=True, eq=False)
class _Caller:
    """`calls`: that are under way."""

    client: Client
    calls: int = 0
    proven_at: float = -inf
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: asyncio.TimerHandle | None = None


class Callers:
    """Made on the door's loop. `node`: where logins are shown; `make`: a client that has a login, or none."""

    def __init__(self, node: str, make: MakeClient, *, callers_max: int = CALLERS_MAX) -> None:
        self._node = node
        self._make = make
        self._callers_max = callers_max
        self._nobody = make(None)
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, _Caller] = {}
        self._refused: dict[bytes, float] = {}
        self._strangers: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @contextlib.asynccontextmanager
    async def client(self, login: Login | None) -> AsyncIterator[Client]:
        """For one call. Raises LoginFailed, Overloaded, ConnectionLost."""
        if login is None:
            yield self._nobody
            return
        proof = self._proof(login)
        caller = self._caller(proof, login)
        caller.calls += 1
        try:
            await self._prove(proof, caller, login)
            yield caller.client
        finally:
            caller.calls -= 1
            self._rest(proof, caller)

    async def close(self) -> None:
        """Idempotent."""
        known, self._known = self._known, {}
        for caller in known.values():
            if caller.idle is not None:
                caller.idle.cancel()
        await asyncio.gather(self._nobody.close(), *(caller.client.close() for caller in known.values()))
        await asyncio.gather(*self._closing)

    # --- inside ---

    def _proof(self, login: Login) -> bytes:
        """Not the password itself: looking it up must not tell by its time how much of it was right."""
        words = f"{len(login.user)}:{login.user}{login.password}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, words, "sha256")

    def _caller(self, proof: bytes, login: Login) -> _Caller:
        if self._refused.get(proof, -inf) > self._loop.time() - REFUSED_S:
            raise _refusal(login)
        caller = self._known.get(proof)
        if caller is None:
            self._make_room()
            caller = self._known[proof] = _Caller(self._make(login))
        if caller.idle is not None:
            caller.idle.cancel()
            caller.idle = None
        return caller

    def _make_room(self) -> None:
        """Of those that nobody uses the first goes. Raises Overloaded."""
        if len(self._known) < self._callers_max:
            return
        for proof, caller in self._known.items():
            if not caller.calls:
                self._drop(proof, caller)
                return
        raise Overloaded(f"{self._callers_max} users call this door at once", limit="callers_max")

    async def _prove(self, proof: bytes, caller: _Caller, login: Login) -> None:
        async with caller.proving:
            if self._loop.time() - caller.proven_at <= PROVEN_S:
                return
            stranger = caller.proven_at == -inf
            if stranger:
                self._check_room(login.user)
                self._strangers[login.user] += 1
            try:
                connection = await caller.client.connection_to(self._node)
                await connection.request(login, Done, timeout_ms=_LOGIN_TIMEOUT_MS)
            except LoginFailed:
                self._refuse(proof, caller)
                raise
            finally:
                if stranger:
                    self._strangers -= Counter((login.user,))  # what is 0 goes
            caller.proven_at = self._loop.time()

    def _check_room(self, user: str) -> None:
        """Raises Overloaded."""
        if self._strangers.total() >= STRANGERS_MAX or self._strangers[user] >= USER_STRANGERS_MAX:
            raise Overloaded(
                f"{STRANGERS_MAX} logins, or {USER_STRANGERS_MAX} of this user, are being looked at (max_logins); try "
                "again",
                limit="max_logins",
            )

    def _refuse(self, proof: bytes, caller: _Caller) -> None:
        if len(self._refused) >= _REFUSED_MAX:
            self._refused.clear()
        self._refused[proof] = self._loop.time()
        caller.proven_at = -inf

    def _rest(self, proof: bytes, caller: _Caller) -> None:
        """A client without calls stays for those that come soon; one that was not let in does not."""
        if caller.calls or self._known.get(proof) is not caller:
            return
        if caller.proven_at == -inf:
            self._drop(proof, caller)
        else:
            caller.idle = self._loop.call_later(IDLE_S, self._drop, proof, caller)

    def _drop(self, proof: bytes, caller: _Caller) -> None:
        if self._known.get(proof) is caller:
            del self._known[proof]
        if caller.idle is not None:
            caller.idle.cancel()
        closing = asyncio.ensure_future(caller.client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _refusal(login: Login) -> LoginFailed:
    """What the node said a moment ago."""
    return LoginFailed(f"no user {login.user[:64]!r} with that password")
