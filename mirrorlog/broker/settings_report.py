"""The effective settings with what each means and where it comes from, as TOML that can be used again, or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from mirrorlog.config import Loaded

DEFAULT = "default"
_WIDTH = 48
_COMMENT_WIDTH = 100


class _Row(NamedTuple):
    """`key`: as files spell it. `origin`: the layer that gave the value last. `description`: "" where there is none."""

    key: str
    value: Any
    origin: str
    description: str


def as_toml(loaded: Loaded) -> str:
    """A file that gives the same settings; what is not set is a comment, as TOML has no word for it."""
    return "\n".join(_lines(loaded))


def as_json(loaded: Loaded) -> str:
    """`{section: {key: {"value": …, "origin": …}}}`."""
    found = {
        section: {row.key: {"value": row.value, "origin": row.origin} for row in rows}
        for section, rows in _sections(loaded)
    }
    return json.dumps(found, indent=2)


def _lines(loaded: Loaded) -> Iterator[str]:
    for number, (section, rows) in enumerate(_sections(loaded)):
        if number:
            yield ""
        yield f"[{section}]"
        for row in rows:
            yield from textwrap.wrap(
                row.description, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
            )
            setting = f"# {row.key} =" if row.value is None else f"{row.key} = {_toml(row.value)}"
            yield f"{setting:<{_WIDTH}} # {row.origin}"


def _sections(loaded: Loaded) -> Iterator[tuple[str, list[_Row]]]:
    """Each section with what it has."""
    settings = loaded.settings
    for section in type(settings).model_fields:
        model = getattr(settings, section)
        values = model.model_dump(mode="json", by_alias=True)
        fields = type(model).model_fields.items()
        yield (
            section,
            [
                _Row(
                    key := field.alias or name,
                    values[key],
                    loaded.origins.get((section, name), DEFAULT),
                    field.description or "",
                )
                for name, field in fields
            ],
        )


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items() if each is not None)} }}"
    # What JSON writes of strings, numbers and booleans is TOML, too.
    return json.dumps(value)
