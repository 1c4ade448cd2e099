"""`python -m bench.compare`: RabbitMQ's mirrored queues and mirrorlog, put through the same stories.

Starts four nodes of each on loopback, one system after the other, with data in a temporary directory that is removed,
and ends what it has started. Needs RabbitMQ (Debian's rabbitmq-server, or `python -m bench.peers.install rabbitmq`),
pika and ss. Never part of CI.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.compare.driver import Api, Driver
from bench.compare.mirrorlog import Mirrorlog
from bench.compare.play import LinkBytes, Seen, answer_text, play
from bench.compare.rabbitmq import RabbitMq
from bench.compare.scenarios import SCENARIOS, Scenario
from bench.compare.table import fields_of, markdown_of, table_of
from bench.peers.peer import PeerFailed, Skipped
from bench.peers.servers import Servers
from mirrorlog.testing import Cluster

NODES: Final = ("a", "b", "c", "d")
ROUNDS: Final = 3
DEFINITIONS: Final = "definitions"
SYSTEMS: Final = ("RabbitMQ", "mirrorlog")

Results = list[tuple[str, dict[str, list[Seen]]]]


@contextmanager
def _rabbitmq() -> Iterator[Driver]:
    with Servers("rabbitmq") as servers:
        yield RabbitMq(servers, NODES)


@contextmanager
def _mirrorlog() -> Iterator[Driver]:
    with Cluster(len(NODES), http=True, logs=()) as cluster:
        yield Mirrorlog(cluster)


_DRIVERS: Final = {"RabbitMQ": _rabbitmq, "mirrorlog": _mirrorlog}


def measure(
    chosen: Sequence[Scenario], systems: Sequence[str], rounds: int, tell: Callable[[str], None]
) -> tuple[Results, dict[str, str]]:
    """What was seen, and the versions. A scenario that cannot be played says so in its place."""
    seen: dict[str, dict[str, list[Seen]]] = {each.key: {} for each in chosen}
    versions = {}
    for system in systems:
        tell(f"{system} starts")
        with _DRIVERS[system]() as driver:
            versions[system] = driver.version
            links = LinkBytes(driver.link_ports())
            try:
                for scenario in chosen:
                    for number in range(1 if scenario.once else rounds):
                        tell(f"{system}: {scenario.key}, round {number + 1}")
                        found = seen[scenario.key].setdefault(system, [])
                        try:
                            found.append(play(scenario, driver, links, f"{scenario.key}-{number}"))
                        except PeerFailed as error:
                            tell(str(error))
                            found.append({"failed": str(error)})
            finally:
                links.close()
    return [(each.title, seen[each.key]) for each in chosen], versions


def exchanged(tell: Callable[[str], None]) -> dict[str, list[Seen]]:
    """Definitions of RabbitMQ's into mirrorlog, and from there back into it."""
    with _rabbitmq() as rabbit, _mirrorlog() as ours:
        tell("definitions there and back")
        theirs, here = Api(rabbit), Api(ours)
        policy = {"pattern": "^bills", "apply-to": "queues", "priority": 1}
        mirrored = {"ha-mode": "nodes", "ha-params": list(rabbit.nodes[:2]), "queue-mode": "lazy"}
        theirs.must("PUT", "policies/%2f/two", {**policy, "definition": mirrored})
        capped = {**policy, "definition": {"max-length": 5}}
        theirs.must("PUT", "operator-policies/%2f/cap", capped)
        theirs.must("PUT", "exchanges/%2f/orders", {"type": "topic", "durable": True})
        arguments = {"x-queue-mode": "lazy", "x-max-length": 9}
        theirs.must("PUT", "queues/%2f/bills", {"durable": True, "arguments": arguments})
        theirs.must("POST", "bindings/%2f/e/orders/q/bills", {"routing_key": "*.paid"})
        document = theirs.must("GET", "definitions")
        names = zip(rabbit.nodes, ours.nodes, strict=True)
        told = here.call(
            "POST", f"definitions?map-node={','.join(f'{before}={after}' for before, after in names)}", document
        )
        ignored = told.body if isinstance(told.body, dict) else {}
        here.must("PUT", "policies/%2f/ours", {**policy, "pattern": "^ours", "definition": {"flush": "disk"}})
        query = f"for=rabbitmq&map-node={_mapped(ours.nodes, rabbit.nodes)}"
        whole, written = here.must("GET", "definitions"), here.must("GET", f"definitions?{query}")
        back = theirs.call("POST", "definitions", written)
        kept = theirs.must("GET", "policies/%2f/two")["definition"]
        # Last: it takes users without a hash for such that cannot log in.
        refused = theirs.call("POST", "definitions", whole)
        return {
            "RabbitMQ": [
                {
                    "takes the other's export": answer_text(refused),
                    "its own administrator logs in afterwards": str(theirs.call("GET", "whoami").status),
                    "takes the other's export, made for it": answer_text(back),
                    "its policy after the way there and back": json.dumps(kept, sort_keys=True),
                }
            ],
            "mirrorlog": [
                {
                    "takes the other's export": answer_text(told) if told.status >= 400 else str(told.status),
                    "ignores": "; ".join(ignored.get("ignored", [])),
                    "notes": "; ".join(ignored.get("noted", [])),
                }
            ],
        }


def _mapped(before: Sequence[str], after: Sequence[str]) -> str:
    return ",".join(f"{one}={other}" for one, other in zip(before, after, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """0, also where a scenario could not be played; 1 when a system is not there; 2 for bad options."""
    keys = [*(each.key for each in SCENARIOS), DEFINITIONS]
    parser = argparse.ArgumentParser("python -m bench.compare", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", action="append", choices=keys, help="may be repeated")
    parser.add_argument("--system", choices=SYSTEMS, help="only this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document")
    parser.add_argument("--out", type=Path, help="write the JSON there, too")
    given = parser.parse_args(arguments)
    chosen = [each for each in SCENARIOS if given.only is None or each.key in given.only]

    systems = [given.system] if given.system else list(SYSTEMS)

    def tell(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    began, load = datetime.now(UTC), os.getloadavg()[0]
    try:
        results, versions = measure(chosen, systems, given.rounds, tell) if chosen else ([], {})
        if given.system is None and (given.only is None or DEFINITIONS in given.only):
            try:
                results.append(("definitions there and back", exchanged(tell)))
            except PeerFailed as error:
                results.append(("definitions there and back", {"RabbitMQ": [{"failed": str(error)}]}))
    except (Skipped, PeerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document: dict[str, Any] = {
        "began": began.isoformat(timespec="seconds"),
        "versions": {**versions, "python": platform.python_version()},
        "load_average": [load, os.getloadavg()[0]],
        "cores": os.cpu_count(),
        "rounds": given.rounds,
        "results": fields_of(results),
    }
    text = json.dumps(document, indent=2)
    if given.out is not None:
        given.out.write_text(text + "\n")
    if given.json:
        print(text)
    elif given.markdown:
        print(markdown_of(results, SYSTEMS))
    else:
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table_of(results, SYSTEMS))
        print(
            f"\nload average {load:.1f} to {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, rounds: {given.rounds}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
