"""Names in virtual hosts: joined to one qualified name, and split again, here and nowhere else. Pure.

A queue of the default virtual host `/` is known by its name alone; one of another by `<virtual host>\\x1f<name>`. No
name may have a control character, so no two pairs make the same key, and whatever keeps queues by name goes on as it
was. Rejected: a virtual host beside every name, which each of its places would have to remember.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from mirrorlog.errors import BadRequest

DEFAULT_VIRTUAL_HOST: Final = "/"
SEPARATOR: Final = "\x1f"
NAME_CHARS_MAX: Final = 255

_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f-\x9f]{{1,{NAME_CHARS_MAX}}}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HIDDEN: Final = frozenset({"Cf", "Zl", "Zp", "Cs"})
"""Unicode's categories: format, line separator, paragraph separator, surrogate."""
_SHOWN_CHARS: Final = 64


def qualified(virtual_host: str, name: str) -> str:
    """The key of a queue. Both must be names, see `check_name`."""
    return name if virtual_host == DEFAULT_VIRTUAL_HOST else f"{virtual_host}{SEPARATOR}{name}"


def split(key: str) -> tuple[str, str]:
    """(virtual host, name) of a key that `qualified` made."""
    virtual_host, separator, name = key.partition(SEPARATOR)
    return (virtual_host, name) if separator else (DEFAULT_VIRTUAL_HOST, key)


def shown(key: str) -> str:
    """A key for people: the name, and where it is unless that is the default."""
    virtual_host, name = split(key)
    return name if virtual_host == DEFAULT_VIRTUAL_HOST else f"{name} in virtual host {virtual_host}"


def check_name(kind: str, name: str) -> None:
    """Of a queue, an exchange, a user, a virtual host; `kind` says which. Raises BadRequest."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{kind} {name[:_SHOWN_CHARS]!r}: a name has 1 to {NAME_CHARS_MAX} characters and no control characters"
        )


def check_new(kind: str, name: str) -> None:
    """Of what is made now: nothing in its name may change how the text around it reads, or cannot be seen: directions,
    line and paragraph separators, joiners and the like. What was made with such a name goes on with it, so this is
    asked of who makes something, and never of what was decided. Raises BadRequest."""
    bad = next((character for character in name if unicodedata.category(character) in _HIDDEN), None)
    if bad is not None:
        raise BadRequest(
            f"{kind} {name[:_SHOWN_CHARS]!a}: U+{ord(bad):04X} cannot be seen, or changes how other text reads; a "
            "new name has none such"
        )


def is_key(key: str) -> bool:
    """Whether `qualified` makes it of two names."""
    virtual_host, separator, name = key.partition(SEPARATOR)
    if not separator:
        return _NAME.fullmatch(key) is not None
    return _NAME.fullmatch(virtual_host) is not None and virtual_host != DEFAULT_VIRTUAL_HOST and bool(
        _NAME.fullmatch(name)
    )  # fmt: skip


def check_routing_key(key: str) -> None:
    """A routing or binding key may be empty; as long as a name, so that the default exchange leads to every queue.
    Raises BadRequest."""
    if len(key) > NAME_CHARS_MAX or _CONTROL.search(key):
        raise BadRequest(
            f"key {key[:_SHOWN_CHARS]!r}: a routing key has up to {NAME_CHARS_MAX} characters and no control characters"
        )
