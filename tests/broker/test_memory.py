"""How much memory a node's copy of a large log takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MIB = 1024 * 1024
QUEUES = 10_000
LOG_BYTES = 100 * 1024 * MIB


def test_a_hundred_gigabytes_of_ten_thousand_queues_take_little_memory(tmp_path: Path) -> None:
    """Goal: under 300 MB of private memory. Method: 25 sparse segments of 4 GiB with real tables of 10,000 queues,
    and a checkpoint of their state; a process of its own opens the copy, looks up 200 records all over it and says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.broker.large_log", str(tmp_path / "log"), str(QUEUES), str(LOG_BYTES)],
        capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["queues"] == QUEUES
    assert told["bytes"] >= LOG_BYTES
    assert told["looked_up"] == 200
    assert told["private_bytes"] < 300 * MIB
