"""Password hashes: made where a password is typed, compared where somebody logs in.

A hash is text that says its algorithm: `pbkdf2-sha256$<rounds>$<salt>$<hash>` (base64), ours; or, so that RabbitMQ's
definitions can be imported, `rabbit_password_hashing_sha256$<base64>` and `…_sha512$<base64>`, of which the first 4
bytes are the salt and the rest the hash of salt and password. Ours is slow on purpose: whoever steals the cluster's
state shall try few guesses a second. A guess at a name that does not exist takes as long, and one at a user with a hash
that is imported, or of fewer rounds, no less.

The rounds are those that OWASP recommends: 0.12 s of a core. Rejected: scrypt at its costs there (N=2^17: 0.37 s and
128 MiB each, or 2^13 and p=10: 0.17 s and 8 MiB), for all logins of a node are compared by one thread.

A hash that is worth less than one made today (`is_outdated`) is renewed by a node that has been shown the password.

Here and not with the permissions, because clients make hashes: a new password never travels.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Final

from mirrorlog.errors import BadRequest

OURS: Final = "pbkdf2-sha256"
ROUNDS: Final = 600_000
PASSWORD_CHARS_MAX: Final = 1_024

_ROUNDS_MAX: Final = 1_000_000
_SALT_BYTES: Final = 16
_RABBIT_SALT_BYTES: Final = 4
_RABBIT: Final = {"rabbit_password_hashing_sha256": hashlib.sha256, "rabbit_password_hashing_sha512": hashlib.sha512}
_NOBODY: Final = f"{OURS}${ROUNDS}${b64encode(bytes(_SALT_BYTES)).decode()}${b64encode(bytes(32)).decode()}"


def hashed(password: str) -> str:
    """A new hash of it, with a salt of its own; takes a tenth of a second. Raises BadRequest."""
    check_password(password)
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{OURS}${ROUNDS}${_text(salt)}${_text(_slow(password, salt, ROUNDS))}"


def check_password(password: str) -> None:
    """Whether it can be one. Raises BadRequest."""
    if not 0 < len(password) <= PASSWORD_CHARS_MAX:
        raise BadRequest(f"a password has 1 to {PASSWORD_CHARS_MAX} characters")


def check_hash(password_hash: str) -> None:
    """Whether it is one that `matches` can compare. Empty: nobody can log in. Raises BadRequest."""
    if password_hash and _parts(password_hash) is None:
        known = ", ".join((OURS, *_RABBIT))
        raise BadRequest(f"a password hash begins with one of {known}, and a $")


def matches(password: str, password_hash: str | None) -> bool:
    """Whether a hash is of that password; takes a tenth of a second also when there is none (None or empty)."""
    parts = _parts(password_hash or _NOBODY)
    if parts is None or len(password) > PASSWORD_CHARS_MAX:
        return False
    algorithm, rounds, salt, expected = parts
    if algorithm in _RABBIT:
        _slow(password, salt, ROUNDS)  # the time of the answer is to tell nothing of the user
        found = _RABBIT[algorithm](salt + password.encode(errors="surrogatepass")).digest()
    else:
        found = _slow(password, salt, rounds)
        if rounds < ROUNDS:
            _slow(password, salt, ROUNDS - rounds)
    return hmac.compare_digest(found, expected) and bool(password_hash)


def is_outdated(password_hash: str) -> bool:
    """Whether one made today would be dearer to guess at: of fewer rounds, or imported."""
    parts = _parts(password_hash)
    return parts is not None and (parts[0] != OURS or parts[1] < ROUNDS)


def _parts(password_hash: str) -> tuple[str, int, bytes, bytes] | None:
    """(algorithm, rounds, salt, hash); None for what is no hash."""
    algorithm, *fields = password_hash.split("$")
    try:
        if algorithm in _RABBIT and len(fields) == 1:
            both = b64decode(fields[0], validate=True)
            salt, expected = both[:_RABBIT_SALT_BYTES], both[_RABBIT_SALT_BYTES:]
            return (algorithm, 1, salt, expected) if len(expected) == _RABBIT[algorithm]().digest_size else None
        if algorithm == OURS and len(fields) == 3:
            rounds = int(fields[0])
            salt, expected = b64decode(fields[1], validate=True), b64decode(fields[2], validate=True)
            return (algorithm, rounds, salt, expected) if 0 < rounds <= _ROUNDS_MAX and len(expected) == 32 else None
    except (ValueError, NotBase64):
        pass
    return None


def _slow(password: str, salt: bytes, rounds: int) -> bytes:
    """Releases the GIL, so that a helper thread holds nobody up."""
    return hashlib.pbkdf2_hmac("sha256", password.encode(errors="surrogatepass"), salt, rounds)


def _text(data: bytes) -> str:
    return b64encode(data).decode()
