"""An HTTP door process of a node, and what a scraper sees of it. Every wait has a deadline."""

from __future__ import annotations

import http.client
import json
import selectors
import subprocess
import sys
from types import TracebackType
from typing import Any, NamedTuple, Self

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mirrorlog.config import split_address

DEADLINE_S = 30.0
HOST = "127.0.0.1"


class Page(NamedTuple):
    """What was answered; names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def error(self) -> str:
        """Of an answer that is one line of JSON with nothing but `error`."""
        assert self.headers["content-type"] == "application/json"
        assert "\n" not in self.text
        content = json.loads(self.text)
        assert content.keys() == {"error"}
        return str(content["error"])


class HttpDoor:
    """The process that `mqnode` would start, on a port of its own choice, so that it can outlive its node in a test."""

    def __init__(self, node: str, *, bind: str = f"{HOST}:0") -> None:
        command = [sys.executable, "-m", "mirrorlog.doors.http_door", "--node", node, "--bind", bind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.address = ""
        self.errors = ""

    def wait_serving(self) -> Self:
        """Until it says where it serves."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "the door printed nothing in time"
        line = self.process.stdout.readline().strip()
        assert line.startswith(f"http door serving {HOST}:"), line or self.end()
        self.address = line.split()[-1]
        return self

    def get(self, path: str, *, method: str = "GET", timeout: float = DEADLINE_S) -> Page:
        """One request on a connection of its own."""
        return get(self.address, path, method=method, timeout=timeout)

    def metrics(self) -> dict[str, Metric]:
        """One scrape; it must succeed. By the names that stand in the text."""
        page = self.get("/metrics")
        assert page.status == 200, page
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return families(page.text)

    def end(self) -> tuple[int, str]:
        """Wait until it has ended by itself: its exit code and what it wrote to standard error."""
        code = self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        self.errors += self.process.stderr.read()
        return code, self.errors

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.errors += self.process.stderr.read()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self.wait_serving()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            assert not any(word in self.errors for word in ("Traceback", "never retrieved")), self.errors


def get(address: str, path: str, *, method: str = "GET", timeout: float = DEADLINE_S) -> Page:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(*split_address(address), timeout=timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Page(
            answer.status, {name.lower(): each for name, each in answer.headers.items()}, answer.read().decode()
        )
    finally:
        connection.close()


def families(text: str) -> dict[str, Metric]:
    """A scrape's families by the names that stand in the text; none may come twice."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in found, name
        found[name] = family
    return found


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """Of the one sample with exactly these labels."""
    (sample,) = (each for each in found[name].samples if each.labels == labels)
    return float(sample.value)


def samples(found: dict[str, Metric], name: str) -> list[tuple[dict[str, Any], float]]:
    """Labels and value of each sample of a family."""
    return [(each.labels, float(each.value)) for each in found[name].samples]
