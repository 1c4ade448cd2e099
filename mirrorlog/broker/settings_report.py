"""The effective settings with where each comes from, as TOML that can be used again, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mirrorlog.config import Loaded

DEFAULT = "default"
_WIDTH = 48


def as_toml(loaded: Loaded) -> str:
    """A file that gives the same settings; what is not set is a comment, as TOML has no word for it."""
    return "\n".join(_lines(loaded))


def as_json(loaded: Loaded) -> str:
    """`{section: {key: {"value": …, "origin": …}}}`."""
    found = {
        section: {key: {"value": value, "origin": origin} for key, value, origin in rows}
        for section, rows in _sections(loaded)
    }
    return json.dumps(found, indent=2)


def _lines(loaded: Loaded) -> Iterator[str]:
    for number, (section, rows) in enumerate(_sections(loaded)):
        if number:
            yield ""
        yield f"[{section}]"
        for key, value, origin in rows:
            setting = f"# {key} =" if value is None else f"{key} = {_toml(value)}"
            yield f"{setting:<{_WIDTH}} # {origin}"


def _sections(loaded: Loaded) -> Iterator[tuple[str, list[tuple[str, Any, str]]]]:
    """Each section's keys by the names that files use, their values and origins."""
    settings = loaded.settings
    for section in type(settings).model_fields:
        model = getattr(settings, section)
        values = model.model_dump(mode="json", by_alias=True)
        fields = type(model).model_fields.items()
        yield (
            section,
            [
                (key := field.alias or name, values[key], loaded.origins.get((section, name), DEFAULT))
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
