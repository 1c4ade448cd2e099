"""Which log a new queue goes to, by its arguments. Pure.

A log is a placement at a home: so many copies, or these nodes, in memory or on disk (`Placement`), and the node that
is its first. A queue that asks for nothing goes to one of the logs that the cluster was founded with, or that its nodes
are home to; one that asks for something that none of these has goes to a log made for that, one for each home, when a
queue comes there first. So masters are spread over the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid5
from zlib import crc32

from mirrorlog import versions
from mirrorlog.cluster.state.commands import LogMade
from mirrorlog.cluster.state.log_rules import copies_of
from mirrorlog.cluster.state.placements import PROMOTE_ON_FAILURE, PROMOTE_ON_SHUTDOWN, PROMOTES, WHEN_SYNCED, Placement
from mirrorlog.cluster.state.state import ClusterState, holds_transient
from mirrorlog.config import COPIES_MAX, LOG_NUMBER_MAX, Locator
from mirrorlog.errors import BadRequest
from mirrorlog.queues.arguments import REPLACE_AFTER, fits, locator_of, log_group_of
from mirrorlog.wire.names import shown

_ASKED: Final = ("copies", "nodes", "flush", "min_in_sync", *PROMOTES, REPLACE_AFTER)
_NAME_MAX: Final = 100
"""Of the words of a placement in a log's name; more are told by a hash."""


@dataclass(frozen=True, slots=True)
class PlacingSettings:
    """For queues that do not say: `copies`, `flush`, `locator`. `logs_per_node_max`: to so many logs a node is home."""

    copies: int = 3
    flush: str = "memory"
    locator: Locator = "min-masters"
    logs_per_node_max: int = 64


@dataclass(frozen=True, slots=True)
class Declared:
    """A queue to be placed. `name`: qualified; `arguments`: checked (`queues.arguments`); `at`: the node that was
    asked; `log_group`: the qualified name of its `x-log-group`, if it has one."""

    name: str
    arguments: Mapping[str, Any]
    at: str = ""
    log_group: str = ""


def place_for(
    state: ClusterState, queue: Declared, settings: PlacingSettings, *, is_up: Callable[[str], bool]
) -> str | LogMade:
    """The log's id, or the log that is to be made first.

    Raises BadRequest when the cluster can have no such log, or has the group in another one.
    """
    if (log_id := state.log_groups.get(queue.log_group)) is not None:
        _check_group(queue, state, log_id)
        return log_id
    return _Search(state, queue, settings, is_up).found()


def _check_group(queue: Declared, state: ClusterState, log_id: str) -> None:
    """Whether a queue fits into the log of its group. Raises BadRequest."""
    log, rule = state.logs[log_id], state.rule(log_id)
    there = {"copies": log.copies, "nodes": list(rule.nodes), "flush": log.flush, "min_in_sync": log.min_in_sync}
    there |= {**rule.promotes, REPLACE_AFTER: rule.replace_after_ms}
    asked = place_asked(queue.arguments)
    if all(there[name] == value for name, value in asked.items()):
        return
    wants = ", ".join(f"{name} = {value!r}" for name, value in asked.items())
    raise BadRequest(
        f"log group {shown(queue.log_group)} is in log {log.name}, which has flush = {log.flush!r} and copies = "
        f"{log.copies}; the queue asks for {wants}: leave that away, or take another x-log-group",
        log=log.name,
    )


def rule_for(arguments: Mapping[str, Any], state: ClusterState, settings: PlacingSettings) -> Placement:
    """By which a queue with these arguments shall be on its nodes. Raises BadRequest."""
    return _Search(state, Declared("", arguments), settings, lambda node: True).rule(arguments)


def will_do(state: ClusterState, log_id: str, arguments: Mapping[str, Any], settings: PlacingSettings) -> bool:
    """Whether a queue with these arguments may be in that log."""
    return _Search(state, Declared("", arguments), settings, lambda node: True).fits(log_id)


def evening(
    state: ClusterState, queue: Declared, log_id: str, settings: PlacingSettings, *, is_up: Callable[[str], bool]
) -> int:
    """How many queues of that log may go where this one would be if it were declared now, without making that home the
    fuller one: half of what it masters less. A fifth of what its own one masters is nothing: queues come and go. None
    of those that were placed by anything but the fewest masters: they are where they were wanted."""
    search = _Search(state, queue, settings, is_up)
    if search.locator != "min-masters":
        return 0
    found = search.found()
    home = found.replicas[0] if isinstance(found, LogMade) else search.home(found)
    here = search.queues_at(search.home(log_id))
    more = here - search.queues_at(home)
    if more < max(2, here // 5):
        return 0
    # No more than what is above the average, for others give too.
    return max(1, min(more // 2, here - search.average()))


def unlike(
    arguments: Mapping[str, Any], rule: Placement, *, made: bool, default: PlacingSettings | None = None
) -> dict[str, Any]:
    """Where a queue asks for another place than that of its log, which has this rule: by the argument's name, what the
    log has instead, None where it has nothing of that. Empty: it is where it belongs. What `place_for` finds, or has
    made, is never unlike. `made`: the log was made for such queues, so one that names no nodes does not belong in one
    that does.

    `default`: of a queue that policies have sent to a log made for it, and that says no more how many copies it has, or
    where they are flushed: it asks for that which holds without them.

    A queue of an `x-log-group` is where the others are: what it does not name counts for nothing."""
    of_group, arguments = bool(log_group_of(arguments)), place_asked(arguments)
    there = {"nodes": list(rule.nodes) or None, "flush": rule.flush, "min_in_sync": rule.min_in_sync}
    there["copies"] = (copies_of(rule) if of_group else None) if rule.nodes else rule.copies or None
    there |= {**rule.promotes, REPLACE_AFTER: rule.replace_after_ms}
    asked = [name for name in _ASKED if name in arguments and not (name == "copies" and "nodes" in arguments)]
    found: dict[str, Any] = {name: there[name] for name in asked if there[name] != arguments[name]}
    if made and not of_group:
        found |= {
            name: there[name]
            for name in ("nodes", "min_in_sync", REPLACE_AFTER)
            if there[name] is not None and name not in arguments
        }
        if default is not None and "copies" not in arguments and "nodes" not in arguments:
            found |= {"copies": there["copies"]} if there["copies"] != default.copies else {}
        if default is not None and "flush" not in arguments and rule.flush != default.flush:
            found["flush"] = rule.flush
        found |= {name: there[name] for name in PROMOTES if there[name] != WHEN_SYNCED and name not in arguments}
    return found


def place_asked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for of a place. What an older version took in another shape asks for nothing; more copies than
    there can be are all."""
    asked = {name: arguments[name] for name in _ASKED if name in arguments and fits(name, arguments[name])}
    return asked | ({"copies": min(asked["copies"], COPIES_MAX)} if "copies" in asked else {})


class _Search:
    def __init__(
        self, state: ClusterState, queue: Declared, settings: PlacingSettings, is_up: Callable[[str], bool]
    ) -> None:
        self._state = state
        self._queue = queue
        self._settings = settings
        self._is_up = is_up
        self.locator = locator_of(queue.arguments) or settings.locator
        self._logs = {log_id: log for log_id, log in state.logs.items() if not holds_transient(state, log_id)}

    # Of all queues and logs, counted when a log is chosen: a rule alone needs none of it, and is asked for often.

    @cached_property
    def _held(self) -> Counter[str]:
        """How many queues are in each log."""
        return Counter(self._state.queues.values())

    @cached_property
    def _homed(self) -> Counter[str]:
        """To how many logs each node is home."""
        return Counter(log.replicas[0] for log in self._logs.values() if log.replicas)

    @cached_property
    def _mastered(self) -> Counter[str]:
        """How many queues each node masters."""
        found = Counter[str]()
        for log_id in self._logs:
            found[self.home(log_id)] += self._held[log_id]
        return found

    def found(self) -> str | LogMade:
        state, arguments = self._state, self._queue.arguments
        if not state.logs:
            raise BadRequest("this cluster has no log yet; ask again")
        if founded := self._founded(arguments):
            return self._best(founded)
        rule = self.rule(arguments)
        fitting = [log_id for log_id in self._logs if state.placing.place(log_id).rule == rule]
        if state.cluster_version < versions.PLACEMENTS:
            # Software of before makes one log for each number of copies, whoever is home.
            fitting = [each for each in self._logs if self._logs[each].name == _name_before(rule)]
            return self._best(fitting) if fitting else self._made(rule, self._homes(rule)[0])
        return self._spread(rule, fitting)

    def _founded(self, arguments: Mapping[str, Any]) -> list[str]:
        """Those of the logs without a rule of their own that are as the queue asks: of these there are as many as the
        operator wants, or one for each node."""
        arguments = place_asked(arguments)
        flush, copies = arguments.get("flush"), arguments.get("copies")
        logs = {log_id: log for log_id, log in self._logs.items() if not self._state.placing.place(log_id).rule}
        always = any(arguments.get(name, WHEN_SYNCED) != WHEN_SYNCED for name in PROMOTES)
        if always or "nodes" in arguments or REPLACE_AFTER in arguments:
            return []
        if "min_in_sync" in arguments:
            logs = {each: log for each, log in logs.items() if log.min_in_sync == arguments["min_in_sync"]}
        wanted = copies or min(self._settings.copies, max((log.copies for log in logs.values()), default=0))
        by_flush = [log_id for log_id, log in logs.items() if flush in (None, log.flush)]
        fitting = [log_id for log_id in by_flush if logs[log_id].copies == wanted]
        return fitting or (by_flush if copies is None else [])

    def fits(self, log_id: str) -> bool:
        founded = self._founded(self._queue.arguments)
        return log_id in founded or (
            not founded and self._state.placing.place(log_id).rule == self.rule(self._queue.arguments)
        )

    def rule(self, arguments: Mapping[str, Any]) -> Placement:
        arguments = place_asked(arguments)
        nodes = tuple(arguments.get("nodes", ()))
        rule = Placement(
            copies=0 if nodes else arguments.get("copies", self._settings.copies),
            nodes=nodes,
            flush=arguments.get("flush", self._settings.flush),
            min_in_sync=arguments.get("min_in_sync"),
            promote_on_shutdown=arguments.get(PROMOTE_ON_SHUTDOWN, WHEN_SYNCED),
            promote_on_failure=arguments.get(PROMOTE_ON_FAILURE, WHEN_SYNCED),
            replace_after_ms=arguments.get(REPLACE_AFTER),
        )
        copies = copies_of(rule)
        if rule.min_in_sync is not None and rule.min_in_sync > copies:
            raise BadRequest(
                f"argument 'min_in_sync' is {rule.min_in_sync}, and the queue shall have {copies} copies; ask for more "
                "copies, or for fewer in sync"
            )
        return rule

    # --- which of several ---

    def queues_at(self, node: str) -> int:
        """In logs that it masters, or is home to while nobody does."""
        return self._mastered[node]

    def average(self) -> int:
        """Of the nodes that may be home to the queue, rounded up."""
        homes = self._homes(self.rule(self._queue.arguments))
        return -(-sum(map(self.queues_at, homes)) // len(homes))

    def home(self, log_id: str) -> str:
        """Who masters a log, or is home to it while nobody does."""
        log = self._logs[log_id]
        return log.master.node if log.master is not None else next(iter(log.replicas), "")

    def _best(self, fitting: Sequence[str]) -> str:
        """A log that has a master, if any has one."""
        logs = self._logs
        with_master = [log_id for log_id in fitting if logs[log_id].master is not None] or list(fitting)
        if self.locator == "random":
            return self._any(sorted(with_master, key=lambda each: logs[each].number))
        if self.locator == "client-local":
            with_master = [each for each in with_master if self.home(each) == self._queue.at] or with_master
        return min(with_master, key=lambda each: (self._mastered[self.home(each)], self._held[each], logs[each].number))

    def _any(self, of: Sequence[str]) -> str:
        """The same for whoever asks again."""
        return of[crc32(self._queue.name.encode()) % len(of)]

    def _homes(self, rule: Placement) -> list[str]:
        """Nodes that may be home to a log by this rule, the best first: by the nodes that it names, if any of them is
        there; when none is, the node that was asked takes it."""
        nodes = self._state.nodes
        able = [node for node, facts in nodes.items() if facts.stays] or [
            node for node, facts in nodes.items() if not facts.witness
        ]
        if rule.nodes:
            named = [node for node in rule.nodes if node in able]
            able = named or [node for node in able if node == self._queue.at] or able
        able = [node for node in able if self._is_up(node)] or able
        held = Counter(node for log in self._logs.values() for node in log.replicas)
        best = sorted(able, key=lambda node: (self._mastered[node], self._homed[node], held[node], node))
        first = ""
        if self.locator == "random":
            first = self._any(sorted(able))
        elif self.locator == "client-local":
            first = self._queue.at
        return sorted(best, key=lambda node: node != first)

    # --- one for each home ---

    def _spread(self, rule: Placement, fitting: Sequence[str]) -> str | LogMade:
        """The log at the best home; it is made there, if that node may be home to one more."""
        by_home = {self.home(log_id): log_id for log_id in reversed(fitting)}
        numbers = self._state.free_number(LOG_NUMBER_MAX) is not None
        for home in self._homes(rule):
            if home in by_home:
                return by_home[home]
            if numbers and self._homed[home] < self._settings.logs_per_node_max:
                return self._made(rule, home)
        if fitting:
            return self._best(fitting)
        if not numbers:
            raise self._full()
        raise BadRequest(
            f"every node is home to {self._settings.logs_per_node_max} logs (cluster.logs_per_node_max), and none is "
            f"by the rule {rule.words}; ask for what one of them has, or raise that"
        )

    def _made(self, rule: Placement, home: str) -> LogMade:
        state = self._state
        number = state.free_number(LOG_NUMBER_MAX)
        if number is None:
            raise BadRequest(
                f"the cluster has {len(state.logs)} logs, and can have no more; ask for what one of them has"
            )
        before = state.cluster_version < versions.PLACEMENTS
        name = _name_before(rule) if before else self._name(rule, home)
        removed = state.placing.logs_removed
        return LogMade(
            log_id=str(uuid5(UUID(state.cluster_id), f"{name}#{removed}" if removed else name)),
            number=number,
            name=name,
            flush=rule.flush,
            replicas=(home,) if before else (home, *self._others(rule, home)),
            copies=copies_of(rule),
            min_in_sync=rule.min_in_sync,
            placement=None if before else rule,
        )

    def _full(self) -> BadRequest:
        return BadRequest(
            f"the cluster has {len(self._state.logs)} logs, and can have no more; ask for what one of them has"
        )

    def _others(self, rule: Placement, home: str) -> Iterable[str]:
        """Who has the other copies: the nodes of the rule, or those that hold the fewest; of these who follows the home
        by name, so that copies of logs that are made one for each home are spread as evenly as these."""
        nodes = self._state.nodes
        there = [node for node, facts in nodes.items() if facts.stays and node != home and self._is_up(node)]
        if rule.nodes:
            return [node for node in rule.nodes if node in there]
        held = Counter(node for log in self._logs.values() for node in log.replicas)
        return sorted(there, key=lambda node: (held[node], node < home, node))[: copies_of(rule) - 1]

    def _name(self, rule: Placement, home: str) -> str:
        """Two rules may have the same words, and what a node was home to may have another home by now."""
        words = rule.words
        if len(words) > _NAME_MAX:
            words = f"on-{len(rule.nodes)}-nodes-{sha256(words.encode()).hexdigest()[:8]}"
        taken = {log.name for log in self._state.logs.values()}
        first = f"{words}-{home}"[:120]
        return next(name for name in (first, *(f"{first}-{count}" for count in range(2, 1000))) if name not in taken)


def _name_before(rule: Placement) -> str:
    """As software names the log before `versions.PLACEMENTS`."""
    return f"{rule.copies}-copies-{rule.flush}"
