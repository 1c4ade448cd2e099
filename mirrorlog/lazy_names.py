"""Names that a package gives out, each loaded when it is asked for: who needs one does not load them all."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loaded_late(
    package: str, homes: Mapping[str, str], *, prefix: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. `homes`: by file, what it has for others, there with `prefix` before
    its name."""
    files = {name: file for file, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{files[name]}"), prefix + name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: list(files)
