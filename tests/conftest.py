"""What holds for all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from mirrorlog.testing import Node
from tests.forked_nodes import Parent

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

Node.popen = Parent().popen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tens of thousands of objects come and stay: neither now nor later are they looked through for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # extensions tell of what is left of theirs at the end


@pytest.hookimpl(tryfirst=True)  # `-m` looks at marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`long_after(count)`: the first cases of a test are its short form, the others are `long`."""
    seen: dict[str, int] = {}
    for item in items:
        if (marker := item.get_closest_marker("long_after")) is None:
            continue
        name = item.nodeid.partition("[")[0]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > marker.args[0]:
            item.add_marker(pytest.mark.long)
