"""The recipe of docs/operate/secure.md, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.testing import Node
from mirrorlog.testing.guard import Guard
from tests.process.clusters import eventually, log_lines

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "secure.md"


def blocks(kind: str) -> list[str]:
    section = PAGE.read_text().split("## Three machines, from nothing")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


def shell(script: str, directory: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRRORLOG")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", script], cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_three_machines_with_users_a_secret_and_tls(tmp_path: Path) -> None:
    """Goal: the commands work. Method: run them, with addresses of loopback in place of the machines' and a directory
    in place of /etc; a queue is declared by the administrator whom the first node has made, and none without him."""
    network, keys = f"127.{8 + os.getpid() % 200}.{os.getpid() // 200 % 250}.", tmp_path / "mirrorlog-keys"

    def here(text: str) -> str:
        text = text.replace("10.0.0.", network).replace("/etc/mirrorlog", str(keys))
        return text.replace("/var/lib/mirrorlog", f"{tmp_path}/data-n1")

    make, use = (here(block) for block in blocks("sh"))
    (file,) = (here(block) for block in blocks("toml"))
    shell(make, tmp_path)
    guard = Guard()
    nodes = [node_of(f"n{number}", f"{network}{number}", keys, guard) for number in (1, 2, 3)]
    try:
        for number, node in enumerate(nodes, 1):
            text = file if node.id == "n1" else re.sub(r"first_admin.*\n", "", file)
            text = text.replace(f'bind = "{network}1:', f'bind = "{network}{number}:')
            node.config_file.write_text(re.sub(r"\bn1\b", node.id, text))
            node.launch()
        for node in nodes:
            node.wait_serving()
        eventually(lambda: log_lines(nodes[0], "first_admin_made"), "the administrator is there")
        assert "flights" in shell(f"{use}\nmqtool queues\n", keys)
        assert "Traceback" not in refused(f"{use}\nunset MIRRORLOG_USER\nmqtool declare other\n", keys)
    finally:
        for node in nodes:
            node.kill()
        guard.close()


def node_of(name: str, host: str, directory: Path, guard: Guard) -> Node:
    addresses = {port: f"{host}:{number}" for number, port in enumerate(("client", "replication"), 7401)}
    return Node(name, **addresses, directory=directory, on_start=guard.watch)


def refused(script: str, directory: Path) -> str:
    with pytest.raises(AssertionError, match="log in") as raised:
        shell(script, directory)
    return str(raised.value)
