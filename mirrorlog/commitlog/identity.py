"""Identity files: small JSON files that say whose a directory is, so that no node ever writes into another's.

`log.json` names a log, `node.json` a node. They are written once, when the directory is made, and only compared after.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.errors import ForeignDirectory

FORMAT_VERSION: Final = 1
NUMBER: Final = "number"
"""Of a log in its cluster. It came later: a file without it means 0."""

_BYTES_MAX: Final = 64 * 1024


def write_identity(files: Files, path: Path, identity: Mapping[str, str | int]) -> None:
    """Raises OSError."""
    replace_file(files, path, (json.dumps(dict(identity), indent=2) + "\n").encode())


def check_identity(files: Files, path: Path, identity: Mapping[str, str | int]) -> None:
    """Every field must be there and equal; others are ignored, so that fields can be added.

    Raises ForeignDirectory naming what was found and what was expected, and OSError.
    """
    try:
        found = json.loads(read_file(files, path, max_bytes=_BYTES_MAX))
    except ValueError as error:
        raise ForeignDirectory(f"{path} is not JSON ({error}); it does not name a directory of mirrorlog") from None
    if not isinstance(found, dict):
        raise ForeignDirectory(f"{path} is no JSON object; it does not name a directory of mirrorlog")
    for key, expected in identity.items():
        if key == NUMBER:
            _check_number(path, found, int(expected))
        elif found.get(key) != expected:
            raise ForeignDirectory(
                f"{path.parent} belongs to {key} {found.get(key)!r}, this is {key} {expected!r}; "
                "give each node a data directory of its own",
                found=str(found.get(key)),
                expected=str(expected),
            )


def _check_number(path: Path, found: Mapping[str, object], expected: int) -> None:
    """All queue ids of the log carry its number."""
    number = found.get(NUMBER, 0)
    if number != expected:
        raise ForeignDirectory(
            f"log {found.get('name')!r} has number {number!r} in {path}, and {expected} by the cluster: this directory "
            "is another log's, or another cluster's; put back the one that belongs here",
            found=str(number),
            expected=str(expected),
        )
