"""Settings from their layers: defaults < TOML file < environment (`MIRRORLOG__SECTION__KEY`) < flags. Unknown keys are
errors."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from mirrorlog.config.settings import Settings, with_defaults, with_hosts
from mirrorlog.config.values import PATTERN_WORDS
from mirrorlog.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "MIRRORLOG__"
_SHOWN_CHARS: Final = 80


def load_settings(
    file: Path | None = None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings alone, as `load`."""
    return load(file, overrides, environment).settings


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each value came from. `origins`: by section and field, where a value was given last, or
    what it was derived from; a value that was given nowhere is not in it."""

    settings: Settings
    origins: Mapping[tuple[str, str], str]


def load(
    file: Path | None = None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Loaded:
    """Read the settings from `file` (TOML), the environment and `overrides` (`section.key=value`, TOML or text).

    `environment` is the process's own by default. Raises ConfigError: one line that names the key and what is wrong.
    """
    layers = (
        (str(file), _read_file(file) if file is not None else {}),
        ("environment", _parse_environment(os.environ if environment is None else environment)),
        ("command line", _parse_overrides(overrides)),
    )
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[tuple[str, str], str] = {}
    for origin, layer in layers:
        for section, values in layer.items():
            named = _by_field_name(section, values)
            merged.setdefault(section, {}).update(named)
            origins.update({(section, name): origin for name in named})
    if file is not None and origins.get(("cluster", "secret")) == str(file):
        check_private(file, "cluster.secret stands in a file that others must not read:")
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None
    settings, derived = with_hosts(settings)
    return Loaded(with_defaults(settings), origins | derived)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; give an existing file to --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _parse_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`MIRRORLOG__LOG__SEGMENT_BYTES=…` → {"log": {"SEGMENT_BYTES": …}}."""
    nested: dict[str, dict[str, Any]] = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
            if not separator or section.lower() not in Settings.model_fields:
                known = ", ".join(name.upper() for name in Settings.model_fields)
                raise ConfigError(f"environment variable {variable}: no such section; there are {known}")
            nested.setdefault(section.lower(), {})[key] = _value(section, key, text)
    return nested


def _parse_overrides(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`a.b=value` → {"a": {"b": value}}."""
    nested: dict[str, dict[str, Any]] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        section, dot, key = path.partition(".")
        if not (equals and dot and key):
            raise ConfigError(f"--set {override!r}: write section.key=value, for example node.id=n1")
        nested.setdefault(section, {})[key] = _value(section, key, text)
    return nested


def _value(section: str, key: str, text: str) -> Any:
    """A secret is what was given, even if it looks like a number."""
    return text if (section.lower(), key.lower()) == ("cluster", "secret") else _toml_value(text)


def _toml_value(text: str) -> Any:
    """What is no TOML value is taken as text, so that nobody has to quote a name."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _by_field_name(section: str, values: Any) -> dict[str, Any]:
    """Either spelling of a key, in any case, under the one that Python uses: a later layer replaces an earlier one."""
    if not isinstance(values, dict):
        raise ConfigError(f"{section}: a table of keys is expected, not {values!r}")
    field = Settings.model_fields.get(section)
    fields: dict[str, FieldInfo] = getattr(field.annotation, "model_fields", {}) if field is not None else {}
    names: dict[str, str] = {}
    for name, each in fields.items():
        names[name.lower()] = names[(each.alias or name).lower()] = name
    return {names.get(str(key).lower(), str(key)): value for key, value in values.items()}


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "settings"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{key}: no such key{_meant(first['loc'])}{more}"
    if first["type"] == "string_pattern_mismatch":
        shown = repr(first["input"][:_SHOWN_CHARS])
        return f"{key}: {shown} {PATTERN_WORDS[first['ctx']['pattern']]}{more}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}{more}"


def _meant(place: Sequence[int | str]) -> str:
    """What a key that nobody knows comes nearest to: the same one elsewhere, else one of its section, else any."""
    *section, wrong = (str(part) for part in place)
    here = {spelling: ".".join([*section, name]) for spelling, name in _spellings(section).items()}
    elsewhere = {
        spelling: f"{other}.{name}" for other in Settings.model_fields for spelling, name in _spellings([other]).items()
    }
    for fields, cutoff in ((elsewhere, 1.0), (here, 0.6), (elsewhere, 0.8)):
        if found := get_close_matches(wrong.lower(), fields, n=1, cutoff=cutoff):
            return f"; did you mean {fields[found[0]]}?"
    return ""


def _spellings(section: Sequence[str]) -> dict[str, str]:
    """The keys of a section, or the sections, each by both of its names in small letters."""
    model: Any = Settings
    for part in section:
        field = model.model_fields.get(part)
        model = getattr(field, "annotation", None)
        if not hasattr(model, "model_fields"):
            return {}
    found = {name.lower(): name for name in model.model_fields}
    return found | {(each.alias or name).lower(): each.alias or name for name, each in model.model_fields.items()}


def check_private(file: Path, what: str) -> None:
    """Whether a file with a secret keeps it: where it is this user's nobody else may read it, where it is another's
    (root's) a group may. A file that is not there is not looked at. Raises ConfigError."""
    try:
        found = file.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if found.st_uid == os.geteuid() else 0o027):
        raise ConfigError(f"{what} {file} is open to others (mode {mode:04o}): chmod 600 {file}")
