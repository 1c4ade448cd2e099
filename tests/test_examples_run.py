"""What stands in `examples/` runs as it stands there, on a real node, and prints what it promises."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.testing.ports import free_ports

EXAMPLES = Path(__file__).parent.parent / "examples"
PRINTED = {
    "order_pipeline": ["order 3: attempt 2 failed", "dead: order 3, delivery_limit", "4 invoices"],
    "topic_fan_out": ["europe.brest.storm: in 3 queues", "storms: asia.osaka.storm 40 m/s"],
    "event_stream": ["first run: 3", "second run: after 0 after 1", "third run: 0", "again: after 0 after 1"],
    "consume_process_produce": ["2: the worker stumbles: nothing of this transaction counts", "squares: 0 1 4 9 16"],
    "threads": ["200 pages, each 1 time by 4 workers"],
}
"""Lines of each, in this order."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(1) as cluster:
        yield ",".join(cluster.servers)


def test_every_example_is_tried() -> None:
    """One that is added stands in a test below, too."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "fastapi_orders"}
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["notebook.ipynb"]


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(servers: str, name: str) -> None:
    """Run it as a reader would."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), servers]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    lines = iter(run.stdout.splitlines())
    assert [line for line in PRINTED[name] if line not in lines] == [], run.stdout


def test_the_web_service_takes_orders_and_counts_them(servers: str) -> None:
    """Goal: an order is answered when it is safe. Post two and ask how many wait, over a real port."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "examples.fastapi_orders:app", "--port", str(port)]
    environment = os.environ | {"MIRRORLOG_SERVERS": servers}
    url = f"http://127.0.0.1:{port}/orders"

    def asked(body: bytes | None = None) -> dict[str, int]:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def first_answer() -> dict[str, int] | None:
        try:
            return asked()
        except OSError:
            return None

    with subprocess.Popen(command, cwd=EXAMPLES.parent, env=environment) as service:
        try:
            assert wait_for(first_answer, timeout=60, what=lambda: "the service answers") == {"waiting": 0}
            assert asked(b'{"article": "tea"}') == {"order": 0}
            assert asked(b'{"article": "milk"}') == {"order": 1}
            assert asked() == {"waiting": 2}
        finally:
            service.terminate()


def test_the_cells_of_the_notebook_run_one_after_the_other(
    servers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook: all cells share names and one loop, which runs already, and `await` may stand outside of
    functions."""
    monkeypatch.setenv("MIRRORLOG_SERVERS", servers)
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}

    async def run() -> None:
        for cell in cells:
            if cell["cell_type"] == "code":
                code = compile("".join(cell["source"]), cell["id"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                found = eval(code, names)
                if inspect.isawaitable(found):
                    await found

    asyncio.run(run())
    assert "1000 measurements, mean 0.500" in capsys.readouterr().out
