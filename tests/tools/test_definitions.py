"""`mqtool import-definitions` and `export-definitions`: a document of RabbitMQ's comes in, and goes out again."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.tools.main import main
from tests.tools.conftest import SEGMENT_BYTES, Outcome, Tool

pytestmark = pytest.mark.process

DOCUMENT: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "vhosts": [{"name": "moved"}],
    "policies": [
        {"vhost": "moved", "name": "two", "pattern": "^b", "apply-to": "queues", "priority": 1,
         "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"], "queue-mode": "lazy"}},
    ],
    "exchanges": [
        {"name": "orders", "vhost": "moved", "type": "topic", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "queues": [
        {"name": "bills", "vhost": "moved", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}},
    ],
    "bindings": [
        {"source": "orders", "vhost": "moved", "destination": "bills", "destination_type": "queue",
         "routing_key": "*.paid", "arguments": {}},
    ],
}  # fmt: skip
MAPPED = ("--map-node", "rabbit@a=n1", "--map-node", "rabbit@b=n2")


def test_a_document_comes_in_and_goes_out_again(mqtool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a cluster of RabbitMQ's is moved by one command, each key that is ignored is printed, and what is written
    is read by both. Method: told only, made, made once more, with an object that is refused, written, for RabbitMQ."""
    file = tmp_path / "rabbit.json"
    file.write_text(json.dumps(DOCUMENT))
    told = mqtool("import-definitions", str(file), *MAPPED, "--dry-run")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines() == [
        "virtual host moved: would be made",
        "policy two in virtual host moved: would be made",
        "exchange orders in virtual host moved: would be made",
        "queue bills in virtual host moved: would be made",
        "binding orders to bills in virtual host moved: would be made",
        "ignored: policy two in virtual host moved: key queue-mode",
        "note: policy two in virtual host moved: ha-promote-on-failure is when-synced here unless it is set; "
        "RabbitMQ's default is always",
        "5 objects: would be made; 1 ignored, 0 refused",
    ]
    assert "moved" not in mqtool("vhosts").out
    for _ in range(2):
        made = mqtool("import_definitions", str(file), *MAPPED, "--json")
        assert (made.code, made.json["refused"], len(made.json["done"])) == (0, [], 5)
    (policy,) = mqtool("list_policies", "--vhost", "moved", "--json").json
    assert policy["definition"] == {"ha-mode": "nodes", "ha-params": ["n1", "n2"]}
    other = {"queues": [{"name": "bills", "arguments": {}}, {"name": "odd", "arguments": {"x-never": 1}}]}
    file.write_text(json.dumps(other))
    refused = mqtool("import-definitions", str(file), "--vhost", "moved")
    assert (refused.code, refused.err) == (2, "mqtool: 1 objects were refused, see above\n")
    assert "ignored: queue bills in virtual host moved: it is there: " in refused.out
    assert "refused: queue odd in virtual host moved: " in refused.out
    written = mqtool("export_definitions", "--vhost", "moved").json
    assert [row["name"] for row in written["policies"]] == ["two"]
    target = tmp_path / "out.json"
    theirs = ("--vhost", "moved", "--for-rabbitmq", "--map-node", "n1=rabbit@a")
    assert mqtool("export-definitions", str(target), *theirs).out == f"4 objects are in {target}\n"
    (policy,) = json.loads(target.read_text())["policies"]
    assert policy["definition"]["ha-params"] == ["rabbit@a", "n2"]
    assert policy["definition"]["ha-promote-on-failure"] == "when-synced"


def test_what_is_no_document_is_told_in_a_line(mqtool: Tool, tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    for text, said in (
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "should be a JSON object"),
        ('{"queues": ["q"]}', "queues should be a list of objects, actually was 'q'"),
    ):
        file.write_text(text)
        found = mqtool("import-definitions", str(file))
        assert (found.code, found.out, said in found.err, found.err.count("\n")) == (2, "", True, 1)
    assert mqtool("import-definitions", str(tmp_path / "none")).code == 2
    assert mqtool("export-definitions", str(tmp_path / "no" / "where")).code == 2
    assert mqtool("export-definitions", "--map-node", "a=b").code == 2
    assert "nowhere" in mqtool("export-definitions", "--vhost", "nowhere").err


def test_users_of_rabbitmqs_log_in_after_their_document_was_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a cluster of RabbitMQ's moves here with its users, by one of its administrators. Method: a cluster without
    users; the document has a user before the administrator who reads it in; afterwards nobody else may do anything."""
    salt = b"\x01\x02\x03\x04"
    stored = b64encode(salt + hashlib.sha256(salt + b"secret").digest()).decode()
    rights = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    file = tmp_path / "users.json"
    file.write_text(
        json.dumps({
            "users": [
                {"name": "app", "password_hash": stored, "tags": [], "limits": {"max-connections": 7}},
                {"name": "root", "password_hash": stored, "tags": ["administrator"], "limits": {}},
            ],
            "permissions": [{"user": "root", **rights}, {"user": "app", **rights}],
        })
    )  # fmt: skip
    monkeypatch.setenv("MIRRORLOG_PASSWORD", "secret")

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(cluster.servers), *arguments])
        captured = capsys.readouterr()
        return Outcome(int(str(ended.value.code)), captured.out, captured.err)

    with Cluster(1, segment_bytes=SEGMENT_BYTES) as cluster:
        cluster.wait_in_sync()
        read = run("--user", "root", "import-definitions", str(file))
        assert (read.code, read.err) == (0, "")
        assert "limits of user app: is there" in read.out
        assert run("vhosts").code == 18
        assert run("--user", "app", "queues").code == 0
        (app, _) = run("--user", "root", "users", "--json").json
        assert (app["name"], app["limits"]) == ("app", {"max_connections": 7})
