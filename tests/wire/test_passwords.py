"""Password hashes: ours and RabbitMQ's."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.wire.auth import passwords
from mirrorlog.wire.auth.passwords import check_hash, hashed, is_outdated, matches


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "ROUNDS", 10)


def test_a_hash_is_of_its_password_alone() -> None:
    """Goal: right and wrong; two hashes of one password differ. Method: each."""
    one, two = hashed("secret"), hashed("secret")
    assert one != two
    assert matches("secret", one)
    assert matches("secret", two)
    assert not matches("Secret", one)
    assert not matches("", one)
    check_hash(one)


def test_the_hash_is_the_standard_s() -> None:
    """Goal: others can make one. Method: RFC 7914's vector for PBKDF2-HMAC-SHA-256, 1 round, 64 bytes, cut to 32."""
    expected = bytes.fromhex("55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc")
    assert matches("passwd", f"pbkdf2-sha256$1${b64encode(b'salt').decode()}${b64encode(expected).decode()}")


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_rabbitmq_s_hashes_can_be_imported(algorithm: str) -> None:
    """Goal: a definitions file's users keep their passwords. Method: salt, then the hash of salt and password."""
    salt = b"\x90\x8d\xc6\x0a"
    digest = hashlib.new(algorithm, salt + b"test12").digest()
    stored = f"rabbit_password_hashing_{algorithm}${b64encode(salt + digest).decode()}"
    check_hash(stored)
    assert matches("test12", stored)
    assert not matches("test13", stored)


def test_rabbitmq_s_own_example() -> None:
    """Goal: their bytes, not only ours. Method: the example of RabbitMQ's manual on passwords: test12, 908DC60A."""
    check_hash("rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")
    assert matches("test12", "rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")


@pytest.mark.parametrize(
    "stored",
    [
        "plain", "pbkdf2-sha256$0$aa==$aa==", "pbkdf2-sha256$x$YQ==$YQ==", "pbkdf2-sha256$1$YQ==$YQ==",
        "pbkdf2-sha256$1000001$YQ==$" + "AAAA" * 10 + "AAA=", "rabbit_password_hashing_md5$YQ==",
        "rabbit_password_hashing_sha256$!",
        "rabbit_password_hashing_sha256$YQ==", "$", "pbkdf2-sha256",
    ],
)  # fmt: skip
def test_what_is_no_hash_is_refused_and_matches_nothing(stored: str) -> None:
    with pytest.raises(BadRequest, match="begins with one of"):
        check_hash(stored)
    assert not matches("", stored)
    assert not matches("plain", stored)


def test_without_a_hash_nobody_gets_in_and_it_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the time of an answer tells no names. Method: the rounds that are counted for no hash and for one."""
    rounds: list[int] = []
    slow = passwords._slow

    def counted(password: str, salt: bytes, count: int) -> bytes:
        rounds.append(count)
        return slow(password, salt, 1)

    monkeypatch.setattr(passwords, "_slow", counted)
    monkeypatch.setattr(passwords, "ROUNDS", 600_000)
    assert not matches("x", None)
    assert not matches("x", "")
    assert not matches("x", "rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")
    assert rounds == [600_000, 600_000, 600_000]
    rounds.clear()
    assert not matches("x", f"pbkdf2-sha256$210000$YQ==${b64encode(bytes(32)).decode()}")
    assert rounds == [210_000, 390_000]


def test_a_hash_of_fewer_rounds_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody is locked out by today's cost. Method: one of yesterday's, compared after the cost was raised."""
    old = hashed("secret")
    monkeypatch.setattr(passwords, "ROUNDS", 20)
    assert hashed("secret").split("$")[1] == "20"
    assert matches("secret", old)
    assert not matches("Secret", old)


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_a_password_has_a_length(password: str) -> None:
    with pytest.raises(BadRequest, match="1 to 1024"):
        hashed(password)
    assert not matches(password, hashed("x"))


def test_hashes_that_are_worth_less_than_today_s_are_told_apart() -> None:
    """Of more rounds, of as many, of fewer, imported; and what is none."""
    today, imported = hashed("x"), "rabbit_password_hashing_sha256$" + b64encode(bytes(36)).decode()
    assert not is_outdated(today)
    assert not is_outdated(today.replace("$10$", "$11$"))
    assert is_outdated(today.replace("$10$", "$9$"))
    assert is_outdated(imported)
    assert not is_outdated("")
    assert not is_outdated("x")
