"""Nodes are started here as users' tests start them: by the command."""

import subprocess
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from mirrorlog.testing import Node


@pytest.fixture(scope="module", autouse=True)
def _by_the_command() -> Iterator[None]:
    with patch.object(Node, "popen", subprocess.Popen):
        yield
