"""Who calls a door: each with a login of his own, or none; and a client of the native door for each of them.

What a caller may do the nodes decide, call by call, for his calls go over connections that have his login. Such a
client is kept for a while after its last call. Before each call, at most every ten seconds, his password is shown to
the node again: one that was changed must not go on working because somebody was let in by it before. A login that
failed fails again for some seconds without the node being asked, and only a few strangers are asked about at once: when
all places are taken one of the address that has most has to go, and of its users one of who has most, as where a node
compares passwords (`wire.login_turns`). So who guesses drives out himself. Who was let in before waits for none of
them, for the node remembers him.

Rejected: one client with the rights of all callers, and the door to decide who may what: two places that must agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import LoginFailed, Overloaded
from mirrorlog.wire.auth.login_turns import LoginTurns
from mirrorlog.wire.fairness.places import source_of
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.topology import Login

CALLERS_MAX: Final = 256
"""Logins for which a door has a client at once."""
STRANGERS_MAX: Final = 16
"""Of which the node is asked for the first time at once: it answers guesses late."""
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


def is_here(address: str) -> bool:
    """Whether a caller's address is on this machine. IPv4 may stand within IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


@dataclass(slots=True, eq=False)
class _Caller:
    """One login, with its client of the cluster. `calls`: that are under way."""

    client: Client
    calls: int = 0
    proven_at: float = -inf
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Stranger:
    """The node is asked about him; see `login_turns.Attempt`. `over`: ends that."""

    user: str
    address: str
    over: asyncio.Timeout
    failures: int = 0


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
        self._strangers: LoginTurns[_Stranger] = LoginTurns(STRANGERS_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @contextlib.asynccontextmanager
    async def client(self, login: Login | None, address: str = "") -> AsyncIterator[Client]:
        """For one call. `address`: where it comes from. Raises LoginFailed, Overloaded, ConnectionLost."""
        if login is None:
            yield self._nobody
            return
        proof = self._proof(login)
        caller = self._caller(proof, login)
        caller.calls += 1
        try:
            await self._prove(proof, caller, login, address)
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
            raise LoginFailed(f"no user {login.user[:64]!r} with that password")  # as the node said a moment ago
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

    async def _prove(self, proof: bytes, caller: _Caller, login: Login, address: str) -> None:
        async with caller.proving:
            if self._loop.time() - caller.proven_at <= PROVEN_S:
                return
            place = contextlib.nullcontext() if caller.proven_at > -inf else self._place(login.user, address)
            try:
                async with place:
                    connection = await caller.client.connection_to(self._node)
                    await connection.request(login, Done, timeout_ms=_LOGIN_TIMEOUT_MS)
            except LoginFailed:
                self._refuse(proof, caller)
                raise
            caller.proven_at = self._loop.time()

    @contextlib.asynccontextmanager
    async def _place(self, user: str, address: str) -> AsyncIterator[None]:
        """For a stranger, while the node is asked about him. Raises Overloaded, also when another takes it."""
        try:
            async with asyncio.timeout(None) as over:
                stranger = _Stranger(user, source_of(address), over)
                if (evicted := self._strangers.add(stranger)) is not None:
                    evicted.over.reschedule(-inf)
                try:
                    yield
                finally:
                    self._strangers.remove(stranger)
        except TimeoutError:
            raise Overloaded(
                f"{STRANGERS_MAX} logins are being looked at, most of them from your address (max_logins); try again",
                limit="max_logins",
            ) from None

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
