"""Suites of RabbitMQ's clients, as their authors publish them, against nodes with AMQP doors: `make outside`.

    python -m tests.outside.suites [--only amqpstorm] [--nodes 3] [--directory .build/outside]

They come from the package index by version and hash, unchanged, and run in an environment of their own. What each is
expected to fail stands below with its reason; another failure, or one of these that passes, fails the run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mirrorlog.testing import Cluster

HERE: Final = Path(__file__).parent
_MIB: Final = 1024 * 1024
_FIRST_PORT: Final = 17_401
"""With one that is asked for, AMQP's own port is taken where it is free."""
LARGE: Final = {
    "limits.max_record_bytes": 128 * _MIB,
    "limits.max_batch_bytes": 130 * _MIB,
    "limits.outgoing_bytes_max": 300 * _MIB,
}
"""As RabbitMQ 3 takes messages."""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SUMMARY: Final = re.compile(r"^=*\s*(\d+ (?:passed|failed).*?)\s*=*$", re.MULTILINE)
_OUTPUT_LINES: Final = 60


@dataclass(frozen=True)
class Suite:
    """`folder`: of its sdist; `arguments`: of pytest; `expected`: what it fails, by test, with the reason; `unsteady`:
    what it may fail, likewise."""

    folder: str
    arguments: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)
    unsteady: Mapping[str, str] = field(default_factory=dict)


_STORM: Final = "amqpstorm/tests/functional"
SUITES: Final = {
    "amqpstorm": Suite(
        "amqpstorm-3.1.4",
        (
            "amqpstorm/tests/functional",
            *("--ignore", "amqpstorm/tests/functional/ssl"),  # wants certificates of its own
            *("--ignore", "amqpstorm/tests/functional/management"),  # of the management API alone
        ),
        expected={
            f"{_STORM}/test_web_based.py::WebFunctionalTests::test_functional_alternative_virtual_host": "gives "
            "permissions to the user guest, and the cluster of this run has no users",
        },
        unsteady={
            f"{_STORM}/test_reliability.py::{each}::test_functional_publish_and_consume_until_empty": "takes a queue "
            "for empty as soon as it has read faster than a loaded machine sends"
            for each in ("Consume1kUntilEmpty", "Consume1kUntilEmptyPoll", "Consume1kUntilEmptySelect")
        },
    ),
    "kombu": Suite("kombu-5.7.0", ("t/integration/test_py_amqp.py",)),
    "amqp": Suite("amqp-5.4.2", ("t/integration", "-k", "not tls")),
}


def fetched(directory: Path) -> Path:
    """The interpreter of their environment, with the suites unpacked beside it."""
    python = directory / "venv/bin/python"
    done = directory / "fetched"
    wanted = (HERE / "requirements.txt").read_text() + (HERE / "sdists.txt").read_text()
    if done.exists() and done.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--require-hashes", "-r", HERE / "requirements.txt"], check=True)
    sources = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", HERE / "sdists.txt", "-d", directory]
    subprocess.run([*pip, "download", *sources], check=True)
    (directory / "pytest.ini").write_text("[pytest]\n")  # for one that has none: else this project's is taken
    for archive in directory.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(directory, filter="data")
    done.write_text(wanted)
    return python


def run(suite: Suite, python: Path, directory: Path, *, amqp: str, http: str) -> list[str]:
    """What is wrong with its run; empty when it went as expected."""
    host, _, port = amqp.rpartition(":")
    environment = {
        **os.environ,
        **{"AMQP_HOST": host, "AMQP_USERNAME": "guest", "AMQP_PASSWORD": "guest"},
        "AMQP_URI": f"amqp://guest:guest@{amqp}/{urllib.parse.quote('/', safe='')}",
        "AMQP_HTTP_URL": f"http://{http}",
        **{"RABBITMQ_HOST": host, "RABBITMQ_5672_TCP": port},
    }
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout", "120"]
    command = [python.absolute(), "-m", "pytest", *options, *suite.arguments]
    done = subprocess.run(
        command, cwd=directory / suite.folder, env=environment, capture_output=True, text=True, check=False
    )
    print("\n".join(_SUMMARY.findall(done.stdout)[-1:]) or done.stdout[-2_000:], flush=True)
    failed = set(_FAILED.findall(done.stdout))
    known = {*suite.expected, *suite.unsteady}
    told = [f"failed, and was not expected to: {each}" for each in sorted(failed - known)]
    told += [f"passed, and was expected to fail: {each}" for each in sorted(suite.expected.keys() - failed)]
    if not told and done.returncode not in (0, 1):
        told = [f"pytest ended with {done.returncode}"]
    return [*told, *done.stdout.splitlines()[-_OUTPUT_LINES:]] if told else []


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser("python -m tests.outside.suites", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=SUITES, action="append", help="repeatable")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(".build/outside"))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    python = fetched(options.directory)
    wrong = False
    with Cluster(
        options.nodes, amqp=True, http=True, settings=LARGE, segment_bytes=256 * _MIB, first_port=_FIRST_PORT
    ) as cluster:
        cluster.wait_in_sync()
        node = next(iter(cluster.nodes.values()))
        assert node.amqp is not None
        assert node.http is not None
        if not node.amqp.endswith(":5672"):
            parser.error("port 5672, which some suites take for granted, is in use")
        for name in options.only or SUITES:
            print(f"{name}: ", end="", flush=True)
            told = run(SUITES[name], python, options.directory, amqp=node.amqp, http=node.http)
            wrong |= bool(told)
            print("\n".join(told), end="\n" if told else "")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
