"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


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
