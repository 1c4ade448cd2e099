"""The tests whose file says so in its name start real nodes and a real door."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them `process`."""
    for item in items:
        if item.path.name.startswith(("test_grpc_", "test_amqp_")):
            item.add_marker(pytest.mark.process)
