"""Settings as TOML text: what the standard library reads (`tomllib`) and does not write.

Only what configuration files need: tables of tables, strings, numbers, booleans, paths and lists of these. A list of
tables is written inline, which TOML reads as the same thing as `[[…]]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from mirrorlog.errors import ConfigError


def dump_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """`{"section": {"key": value}}` as text; keys whose value is None are left out. Raises ConfigError."""
    return "\n".join(_table(name, table) for name, table in tables.items())


def _table(name: str, table: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value, f'{name}.{key}')}\n" for key, value in table.items() if value is not None]
    return f"[{name}]\n{''.join(lines)}"


def _value(value: Any, key: str) -> str:
    if isinstance(value, PathLike):
        return _value(fspath(value), key)
    if isinstance(value, bool | int | float | str):
        # JSON's strings, numbers and booleans are TOML's, but for the one control character that JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = (f"{name} = {_value(each, f'{key}.{name}')}" for name, each in value.items() if each is not None)
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return f"[{', '.join(_value(each, key) for each in value)}]"
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be written into a configuration file")
