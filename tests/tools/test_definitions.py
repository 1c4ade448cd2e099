"""`mqtool import-definitions` and `export-definitions`: a document of RabbitMQ's comes in, and goes out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import Tool

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
    for text, said in (("{", "cannot be read as JSON"), ("[]", "should be a JSON object")):
        file.write_text(text)
        found = mqtool("import-definitions", str(file))
        assert (found.code, found.out, said in found.err) == (2, "", True)
    assert mqtool("import-definitions", str(tmp_path / "none")).code == 2
    assert mqtool("export-definitions", str(tmp_path / "no" / "where")).code == 2
    assert mqtool("export-definitions", "--map-node", "a=b").code == 2
    assert "nowhere" in mqtool("export-definitions", "--vhost", "nowhere").err
