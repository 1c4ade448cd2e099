"""Every test in this folder starts real nodes."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent

pytest.register_assert_rewrite("tests.process.matrix")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them `process`."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.process)
