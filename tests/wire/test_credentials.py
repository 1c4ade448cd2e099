"""What a node reads its secrets from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.wire.auth.credentials import SecretFile

OLD, NEW = b"0123456789 the old one", b"0123456789 the new one"


@pytest.mark.parametrize(
    ("content", "secrets"),
    [
        (OLD + b"\n", (OLD,)),
        (OLD + b"\n" + NEW + b"\n", (OLD, NEW)),
        (OLD + b"\r\n" + NEW + b"\r\n", (OLD, NEW)),
        (bytes(range(32)), (bytes(range(32)),)),
        (OLD + b"\n\xff" + NEW + b"\n", (OLD + b"\n\xff" + NEW,)),
    ],
)
def test_lines_of_text_are_a_secret_each_and_other_bytes_are_one(
    tmp_path: Path, content: bytes, secrets: tuple[bytes, ...]
) -> None:
    """A file of random bytes, in which any may be the end of a line, is what it was before there were two."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(content)
    assert SecretFile(file).current == secrets


def test_a_file_holds_two_secrets_at_most(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(b"\n".join((OLD, NEW, OLD)))
    with pytest.raises(ConfigError, match="3 lines"):
        SecretFile(file)
