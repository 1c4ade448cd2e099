"""What all sections of settings are made of: names, addresses and their ports."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from mirrorlog.config.addresses import CLIENT_PORT, GRPC_PORT, HTTP_PORT, REPLICATION_PORT

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_PORT: Final = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS: Final = rf"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):{_PORT}$"
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Address = Annotated[str, StringConstraints(pattern=_ADDRESS)]
Flush = Literal["memory", "disk"]
Locator = Literal["min-masters", "client-local", "random"]
PORTS: Final = ("client", "replication", "grpc", "http")
DEFAULT_PORTS: Final = {"client": CLIENT_PORT, "replication": REPLICATION_PORT, "grpc": GRPC_PORT, "http": HTTP_PORT}

PATTERN_WORDS: Final = {
    _NAME: "is no name: 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or a digit",
    _ADDRESS: "is not host:port, e.g. a.example:7402 or [2001:db8::1]:7402, the port at most 65535",
}
"""What is said of a value that does not match a pattern: nobody wants to read one."""


class SettingsSection(BaseModel):
    """A table of settings: unknown keys are errors, and what was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
