"""What stands in packaging/ fits the program: metrics that alerts and pictures name, settings, addresses, commands.

What has tools of its own (units, rules, manifests, images) is checked by `make kit`; here is what those do not know.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http_statuses import CLUSTER, COUNTS, DISK, EVERYTHING, MEMORY, scraped

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
RULES = PACKAGING / "prometheus" / "rules.yaml"
DASHBOARD = PACKAGING / "grafana" / "dashboard.json"

SCRAPER = {"up": {"job"}}
"""What Prometheus says itself; `instance` and `job` are on every series."""


def told() -> dict[str, set[str]]:
    """The labels of each series that a node serves, by its name."""
    families = scraped(EVERYTHING, disk=DISK, memory=MEMORY, cluster=CLUSTER, counted=COUNTS)
    found: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found | SCRAPER


def unknown(expression: str, known: dict[str, set[str]]) -> list[str]:
    """Metrics, and labels of theirs that are asked for, that nobody serves."""
    wrong = []
    named = re.findall(r"\b(mirrorlog_\w+|up)\b(?:\{([^}]*)\})?", expression)
    for name, selectors in named:
        if name not in known:
            wrong.append(name)
            continue
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors)) - {"instance", "job"}
        wrong += [f"{name}{{{label}}}" for label in sorted(labels - known[name])]
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")}
    served = {label for name, _ in named for label in known.get(name, ())}
    return wrong + sorted(grouped - served - {"instance", "job"})


def rules() -> dict[str, str]:
    """The expression of each alert; each is on one line."""
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", RULES.read_text()))


def pictured() -> dict[str, str]:
    """The expressions of each panel."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return {panel["title"]: " ; ".join(target["expr"] for target in panel.get("targets", ())) for panel in panels}


def test_alerts_ask_for_what_nodes_serve() -> None:
    known = told()
    assert len(rules()) == RULES.read_text().count("- alert:") > 10
    assert {alert: wrong for alert, expression in rules().items() if (wrong := unknown(expression, known))} == {}


def test_the_dashboard_asks_for_what_nodes_serve() -> None:
    known = told()
    assert sum(map(bool, pictured().values())) > 20
    assert {title: wrong for title, expression in pictured().items() if (wrong := unknown(expression, known))} == {}
    assert "log" in known["mirrorlog_log_info"]  # of which its choice is made


def test_a_name_or_a_label_that_nobody_serves_is_noticed() -> None:
    known = told()
    assert unknown("rate(mirrorlog_log_wishes_total[5m])", known) == ["mirrorlog_log_wishes_total"]
    assert unknown('mirrorlog_log_state{state="x", node="n"} == 1', known) == ["mirrorlog_log_state{node}"]
    assert unknown("max by (log, moon) (mirrorlog_log_epoch)", known) == ["moon"]


def test_every_state_that_an_alert_waits_for_is_one_that_nodes_tell() -> None:
    values: dict[tuple[str, str], set[str]] = {}
    for family in scraped(EVERYTHING, disk=DISK, memory=MEMORY, cluster=CLUSTER, counted=COUNTS).values():
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault((sample.name, label), set()).add(value)
    asked = re.findall(r'(mirrorlog_\w+_state)\{state=~?"([^"]*)"', RULES.read_text())
    assert asked
    for name, states in asked:
        assert set(states.split("|")) <= values[name, "state"], name


@pytest.mark.parametrize(
    ("file", "environment"),
    [("deb/node.toml", {}), *(("kubernetes/node.toml", {"MIRRORLOG__NODE__ID": f"mirrorlog-{n}"}) for n in range(3))],
)
def test_settings_are_such_and_name_ports_that_are_there(file: str, environment: dict[str, str]) -> None:
    """Method: the node itself says what it makes of them."""
    command = [
        sys.executable,
        "-m",
        "mirrorlog.broker.main",
        "--config",
        str(PACKAGING / file),
        "--print-config",
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)
    assert settings["node"]["log_format"]["value"] == "json"
    if environment:
        assert settings["client"]["bind"]["value"] == "0.0.0.0:7401"
        services = (PACKAGING / "kubernetes" / "services.yaml").read_text()
        pods = (PACKAGING / "kubernetes" / "statefulset.yaml").read_text()
        for port in ("7401", "7402", "7403", "7404"):
            assert f"port: {port}" in services
            assert f"containerPort: {port}" in pods
        for mounted in ("/etc/mirrorlog/node.toml", "/etc/mirrorlog/secrets", "/etc/mirrorlog/tls"):
            assert f"mountPath: {mounted}," in pods


@pytest.mark.parametrize("script", ["deb/build", "container/build", "kubernetes/make-secrets", "check"])
def test_scripts_can_be_read_by_the_shell(script: str) -> None:
    assert os.access(PACKAGING / script, os.X_OK)
    subprocess.run(["bash", "-n", str(PACKAGING / script)], check=True, timeout=30)


def test_the_unit_is_one_to_systemd(tmp_path: Path) -> None:
    """Method: systemd's own look, where it is installed; and of what a node needs of its unit."""
    unit = (PACKAGING / "systemd" / "mirrorlog.service").read_text()
    for needed in ("Type=notify", "WatchdogSec=30", "StateDirectory=mirrorlog", "LimitNOFILE=65536"):
        assert f"\n{needed}\n" in unit
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / "mirrorlog.service"
    file.write_text(unit.replace("ExecStart=/usr/bin/mqnode", "ExecStart=/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
