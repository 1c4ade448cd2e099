"""Passwords: out of the environment, or asked for at a terminal; never on a command line, which everybody may read."""

from __future__ import annotations

import os
import sys

import typer

from mirrorlog.errors import BadInput


def password_from(variable: str, user: str, *, twice: bool = False) -> str:
    """What the variable holds, else what is typed; `twice`: as for a new one. Raises BadInput where nobody can type."""
    given = os.environ.get(variable)
    if given is not None:
        return given
    if not _has_terminal():
        raise BadInput(f"set {variable} for user {user}: there is no terminal to ask for a password")
    return str(typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=twice, err=True))


def _has_terminal() -> bool:
    """That of the process will do: stdin may bring records."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True
