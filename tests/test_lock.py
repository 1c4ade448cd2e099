"""requirements.lock says which files of which versions an environment for work on the project is made of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)$")


def pins() -> dict[str, str]:
    """Versions by name; every line that is no pin with at least one hash fails."""
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    found = [_PIN.match(entry.strip()) for entry in entries if not entry.startswith("#")]
    assert all(found), [entry[:80] for entry, match in zip(entries[1:], found, strict=True) if match is None]
    return {match["name"]: match["version"] for match in found if match is not None}


def needed() -> list[Requirement]:
    """What pyproject.toml names for work on the project, and for building it."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = told["project"]["optional-dependencies"]
    named = [*told["build-system"]["requires"], *told["project"]["dependencies"]]
    named += [each for extra in ("node", "spark", "analysis", "dev") for each in extras[extra]]
    return [each for each in map(Requirement, named) if each.name != "mirrorlog"]


def test_every_dependency_is_pinned_by_hash_to_a_version_that_is_asked_for() -> None:
    """Goal: what is installed is what was looked at. Compare pyproject.toml with the pins: `make lock` was run after
    the last change of it."""
    pinned = pins()
    for each in needed():
        assert each.specifier.contains(pinned[re.sub(r"[-_.]+", "-", each.name).lower()]), each


def test_the_lock_names_no_place_of_one_machine() -> None:
    """No index, no URL, no path: those are the reader's own."""
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"^-|/", text.replace("--hash", ""), re.MULTILINE)
