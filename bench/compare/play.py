"""Plays a scenario on a system, and writes down what is seen of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, TypeVar

from bench.compare.driver import Api, Driver, Place, Told
from bench.compare.scenarios import (
    Begin,
    Check,
    Copied,
    Declare,
    Definition,
    End,
    Fill,
    Kill,
    Look,
    Mark,
    Missed,
    Policy,
    Refusals,
    Return,
    Scenario,
    Settled,
    Step,
    filled_in,
)
from bench.peers.peer import PeerFailed

Seen = dict[str, float | str]
"""What was seen, by its name, in order."""

BODY_BYTES: Final = 1_024
RATE: Final = 200
"""Messages a second of a load."""
SETTLED_S: Final = 180.0
_LOOK_S: Final = 0.05
_POLL_S: Final = 0.25
_STEADY_S: Final = 1.0
_T = TypeVar("_T")


def body(number: int) -> bytes:
    return f"{number} ".encode() + os.urandom(BODY_BYTES)[: BODY_BYTES - len(str(number)) - 1]


class LinkBytes:
    """What goes over the links between the nodes, as the kernel counts it: of every connection to one of their ports,
    both directions. A connection that ends is counted up to the last look at it."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = set(ports)
        self._now: dict[str, int] = {}
        self._gone = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever, daemon=True)
        self._thread.start()

    def total(self) -> int:
        with self._lock:
            self._look()
            return self._gone + sum(self._now.values())

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look_for_ever(self) -> None:
        while not self._ended.wait(_POLL_S):
            with self._lock:
                self._look()

    def _look(self) -> None:
        text = subprocess.run(["ss", "-tinHO"], check=True, capture_output=True, text=True).stdout
        found = sent_of(text, self._ports)
        for key, before in self._now.items():
            if found.get(key, -1) < before:
                self._gone += before
        self._now = found


_SOCKET: Final = re.compile(r"(\S+):(\d+)\s+(\S+):(\d+)\s.*?bytes_sent:(\d+)")


def sent_of(text: str, ports: set[int]) -> dict[str, int]:
    """Bytes sent by each socket with one of the ports at either end, of `ss -tinHO`. Pure."""
    found = {}
    for line in text.splitlines():
        if (match := _SOCKET.search(line)) and {int(match[2]), int(match[4])} & ports:
            found[f"{match[1]}:{match[2]} {match[3]}:{match[4]}"] = int(match[5])
    return found


class Load:
    """A thread that publishes one message after the other at one node, and times their confirms."""

    def __init__(
        self, driver: Driver, queue: str, number: int, first: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: s."""
        self.confirmed: list[int] = []
        self.unconfirmed: list[int] = []
        self.longest_s = 0.0
        self._driver, self._queue, self._node, self._next = driver, queue, number, first
        self._clock, self._confirmed_at = clock, clock()
        self._ended = threading.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._began.wait(60):
            raise PeerFailed(f"{driver.name}: no message was confirmed within 60 s")

    def end(self) -> None:
        self._ended.set()
        self._thread.join(120)

    def _run(self) -> None:
        while not self._ended.is_set():
            # Whatever a connection fails with: the next one goes on.
            with suppress(Exception), self._driver.sender(self._queue, self._node) as sender:
                self._publish(sender.send)

    def _publish(self, send: Callable[[bytes], None]) -> None:
        while not self._ended.is_set():
            number, self._next = self._next, self._next + 1
            try:
                send(body(number))
            except Exception:
                self.unconfirmed.append(number)
                raise
            now = self._clock()
            self.confirmed.append(number)
            if self._began.is_set():
                self.longest_s = max(self.longest_s, now - self._confirmed_at)
            self._began.set()
            self._confirmed_at = now
            time.sleep(1 / RATE)


def play(scenario: Scenario, driver: Driver, links: LinkBytes, queue: str) -> Seen:
    """Raises PeerFailed. What it has made is gone afterwards, and all nodes run."""
    playing = _Playing(driver, links, queue)
    try:
        for step in scenario.steps:
            playing.do(step)
    finally:
        playing.clean_up()
    return playing.seen


class _Playing:
    def __init__(self, driver: Driver, links: LinkBytes, queue: str) -> None:
        self.seen: Seen = {}
        self._driver, self._api, self._links, self._queue = driver, Api(driver), links, queue
        self._numbers = range(len(driver.nodes))
        self._load: Load | None = None
        self._origin = ""
        self._next = 0
        self._confirmed: list[int] = []
        self._marked, self._marked_bytes = 0.0, 0

    def do(self, step: Step) -> None:  # noqa: C901, PLR0912  (one line per kind)
        match step:
            case Refusals():
                self._refusals(step.definitions)
            case Declare():
                self._declare(step)
            case Policy():
                self._set_policy(step.definition, step.own)
            case Fill():
                self._fill(step.count)
            case Begin():
                self._load = Load(self._driver, self._queue, self._not_at(step.spare), self._next)
            case End():
                self._end()
            case Mark():
                self._marked, self._marked_bytes = time.monotonic(), self._links.total()
            case Settled():
                self._settled(step)
            case Copied():
                self.seen[step.told] = (self._links.total() - self._marked_bytes) / 1e6
            case Kill():
                number = self._at(step.role)
                self._driver.kill(number)
                self._api.down.add(number)
            case Missed():
                self._once(self._missed, "a copy is missed")
            case Return():
                self._return()
            case Look():
                time.sleep(step.after_s)
                self.seen[step.told] = self._looked()
            case Check():
                self._check()

    def clean_up(self) -> None:
        if self._load is not None:
            self._load.end()
        self._return()
        self._api.call("DELETE", f"policies/%2f/{self._queue}")
        self._api.call("DELETE", f"queues/%2f/{self._queue}")

    # --- steps ---

    def _refusals(self, definitions: Sequence[object]) -> None:
        for definition in definitions:
            path = f"policies/%2f/{self._queue}"
            told = self._api.call("PUT", path, {"pattern": "^never$", "definition": definition})
            self.seen[json.dumps(definition)] = answer_text(told)

    def _declare(self, step: Declare) -> None:
        self._set_policy(step.definition, step.own)
        # RabbitMQ places it at the node that is named, mirrorlog by its policy.
        self._api.must("PUT", f"queues/%2f/{self._queue}", {"durable": True, "node": self._driver.nodes[0]})
        self._origin = self._once(lambda: self._api.place(self._queue).master, "it has a master")

    def _set_policy(self, definition: Definition, own: Definition) -> None:
        said = {**definition, **(own if self._driver.name == "mirrorlog" else {})}
        policy = {"pattern": f"^{self._queue}$", "apply-to": "queues", "priority": 1}
        named = filled_in(said, self._driver.nodes)
        self._api.must("PUT", f"policies/%2f/{self._queue}", {**policy, "definition": named})

    def _fill(self, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._driver.fill(self._queue, [body(number) for number in numbers], self._not_at(""))
        self._confirmed += numbers
        self._next += count

    def _end(self) -> None:
        load = self._load
        assert load is not None
        load.end()
        self._load = None
        self._confirmed += load.confirmed
        self._next = max([*load.confirmed, *load.unconfirmed], default=self._next - 1) + 1
        self.seen["longest pause of confirms, ms"] = 1_000 * load.longest_s
        self.seen["messages not confirmed"] = float(len(load.unconfirmed))

    def _settled(self, step: Settled) -> None:
        wanted = {self._driver.nodes[number] for number in step.nodes}

        def reached() -> bool:
            place = self._api.place(self._queue)
            copies = {place.master, *place.mirrors}
            fits = copies == wanted if wanted else len(copies) == step.copies
            there = bool(place.master) and not copies & {self._driver.nodes[number] for number in self._api.down}
            return fits and there and (place.whole or not step.whole)

        since: list[float] = []

        def stays() -> bool:
            # What a queue on its way lacks nobody can tell for a moment, and then it looks whole.
            if not reached():
                since.clear()
            elif not since:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] >= _STEADY_S

        self._once(stays, "the copies are where they should be, and in sync")
        if step.told:
            self.seen[step.told] = since[0] - self._marked

    def _missed(self) -> bool:
        place = self._api.place(self._queue)
        return not {self._driver.nodes[number] for number in self._api.down} & {place.master, *place.synced}

    def _return(self) -> None:
        for number in sorted(self._api.down):
            self._driver.start(number)
        self._api.down.clear()

    def _looked(self) -> str:
        told = self._api.call("GET", f"queues/%2f/{self._queue}")
        row = told.body if isinstance(told.body, dict) else {}
        place = self._api.place(self._queue)
        if not place.master:
            return f"nobody masters it{': ' * bool(row.get('reason'))}{row.get('reason', '')}"
        elsewhere = f", {place.behind} of them elsewhere" if place.behind else ""
        return f"{place.master} masters it, {row.get('messages', '?')} messages{elsewhere}"

    def _check(self) -> None:
        self._once(lambda: self._api.place(self._queue).master, "it has a master")
        found = [int(each.split(b" ", 1)[0]) for each in self._driver.drain(self._queue, self._not_at(""))]
        self.seen.update(verdict(self._confirmed, found))

    # --- inside ---

    def _at(self, role: str) -> int:
        place = self._api.place(self._queue)
        node = {"master": place.master, "mirror": next(iter(place.mirrors), ""), "origin": self._origin}[role]
        if node not in self._driver.nodes:
            raise PeerFailed(f"{self._driver.name}: queue {self._queue} has no {role}: {place}")
        return list(self._driver.nodes).index(node)

    def _not_at(self, role: str) -> int:
        spared = {*self._api.down, *([self._at(role)] if role else [])}
        return next(number for number in self._numbers if number not in spared)

    def _once(self, reached: Callable[[], _T], what: str) -> _T:
        until = time.monotonic() + SETTLED_S
        while not (found := reached()):
            if time.monotonic() > until:
                place: Place = self._api.place(self._queue)
                raise PeerFailed(f"{self._driver.name}: not within {SETTLED_S:g} s: {what}; {place}")
            time.sleep(_LOOK_S)
        return found


def answer_text(told: Told) -> str:
    """Status and reason. Pure."""
    if not told.body:
        return f"{told.status}{', empty body' if told.status >= 400 else ''}"
    reason = told.body.get("reason", "") if isinstance(told.body, dict) else told.body
    return f"{told.status}: {' '.join(str(reason).split())}"


def verdict(confirmed: Sequence[int], found: Sequence[int]) -> Seen:
    """Of all that was confirmed, and all that was read, in its order. What comes again is out of no order. Pure."""
    once = list(dict.fromkeys(found))
    missing = len(set(confirmed) - set(found))
    return {
        "confirmed messages that are missing": float(missing),
        "messages that come twice": float(len(found) - len(once)),
        "messages out of order": float(sum(after < before for before, after in pairwise(once))),
    }
