"""What a document of definitions comes to here: what is to be made, in which order, and what is passed over. Pure.

A document of RabbitMQ's is taken as far as it means something here, and each object or key that does not is named. What
is wrong with one object holds up no other. The other way round, a document from here is made into one that RabbitMQ
takes as a whole: it refuses all of it for one key of a policy that it does not know.

Policies come before queues: these are declared where their policies want them. Users come last, administrators first:
with the first one whoever has not logged in may do nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from mirrorlog.client.definitions.rows import (
    ADMINISTRATOR,
    ALTERNATE,
    MAX_CONNECTIONS,
    OPERATOR_POLICY,
    Row,
    binding_of,
    exchange_of,
    number,
    policy_of,
    queue_arguments,
    require,
    stored_hash,
    table,
    tags_of,
    text,
)
from mirrorlog.errors import BadRequest
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.queues import DeclareQueue
from mirrorlog.wire.messages.topology import (
    AddVirtualHost,
    Bind,
    DeclareExchange,
    SetPermissions,
    SetPolicy,
    SetUser,
    SetUserLimits,
)
from mirrorlog.wire.names import check_name, qualified, split
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import DELAYED, DELAYED_TYPE, KINDS, PREDEFINED

_MODE: Final = "ha-mode"
_NODES: Final = "ha-params"
PROMOTE_ON_FAILURE: Final = "ha-promote-on-failure"
WHEN_SYNCED: Final = "when-synced"
OF_RABBITMQ: Final = frozenset({
    "queue-mode", "queue-version", "queue-leader-locator", "max-in-memory-length", "max-in-memory-bytes", "max-age",
    "stream-max-segment-size-bytes", "initial-cluster-size", "dead-letter-strategy", "consumer-timeout",
    "federation-upstream", "federation-upstream-set", "federation-upstream-pattern",
})  # fmt: skip
"""Keys of policies that RabbitMQ knows, and that mean nothing here. Any other that is not known may be a slip, so the
nodes refuse it."""
OURS: Final = frozenset({"flush", "min-in-sync", "replace-after-ms", "confirm", "mirror-topology"})
"""Keys of policies that RabbitMQ does not know."""
PRODUCT: Final = "mirrorlog"

_KNOWN: Final = ("vhosts", "users", "permissions", "policies", "parameters", "exchanges", "queues", "bindings")
_ABOUT: Final = (
    "rabbit_version", "rabbitmq_version", "product_name", "product_version", "rabbitmq_definition_format",
    "original_vhost_name", "original_cluster_name", "explanation",
)  # fmt: skip
_OF_ALL: Final = ("vhosts", "users", "permissions")
"""Sections that a document of one virtual host has not."""


@dataclass(slots=True)
class Plan:
    """`steps`: what to ask the nodes for, in order of the stages; `ignored`: objects and keys that mean nothing here;
    `noted`: what is taken, and means something else; `refused`: objects that are none."""

    steps: list[list[Message]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def plan(document: Mapping[str, Any], *, vhost: str | None = None, nodes: Mapping[str, str] | None = None) -> Plan:
    """`vhost`: into which objects go that name none or that one, others are passed over; None: each names its own.
    `nodes`: what those that policies name are called here. Raises BadRequest for a document that is none."""
    return _Planning(document, vhost, nodes or {}).run()


_Part = tuple[str, Sequence[Row], Callable[[Row], list[Message]]]
"""What rows are, the rows, and how one is read."""


class _Planning:
    def __init__(self, document: Mapping[str, Any], vhost: str | None, nodes: Mapping[str, str]) -> None:
        self._document, self._vhost, self._nodes = document, vhost, nodes
        self._is_ours = document.get("product_name") == PRODUCT
        self._found = Plan()
        self._nodes_met: set[str] = set()

    def run(self) -> Plan:
        document, found = self._document, self._found
        rows = {name: _rows(document, name) for name in _KNOWN}
        for section in sorted(document.keys() - {*_KNOWN, *_ABOUT}):
            found.ignored += _unknown_section(section, document[section])
        if self._vhost is not None:
            found.ignored += [f"{section}: not of one virtual host" for section in _OF_ALL if rows.pop(section)]
        ordered = sorted(rows.get("users", []), key=lambda row: ADMINISTRATOR not in str(row.get("tags")))
        users: list[list[_Part]] = [[("user", [row], self._user)] for row in ordered]
        stages: list[list[_Part]] = [
            [("virtual host", rows.get("vhosts", []), self._virtual_host)],
            [("policy", rows["policies"], self._policy), ("parameter", rows["parameters"], self._parameter)],
            [("exchange", rows["exchanges"], self._exchange)],
            [("queue", rows["queues"], self._queue)],
            [("binding", rows["bindings"], self._binding)],
            *users,
            [("permission", rows.get("permissions", []), self._permission)],
        ]
        for stage in stages:
            self._stage(stage)
        found.ignored += _unnamed(self._nodes, self._nodes_met)
        return found

    def _stage(self, parts: Iterable[_Part]) -> None:
        steps: list[Message] = []
        for what, rows, read in parts:
            for row in rows:
                if self._vhost is not None and row.get("vhost") not in (None, self._vhost):
                    self._ignore(f"{_called(what, row)}: not of virtual host {self._vhost}")
                    continue
                try:
                    found = read(row)
                    for step in found:
                        encode(step)  # JSON has numbers and texts that messages have not
                    steps += found
                except (BadRequest, UnicodeError, RecursionError) as error:
                    self._found.refused.append(f"{_called(what, row)}: {' '.join(str(error).split())}")
        if steps:
            self._found.steps.append(steps)

    def _ignore(self, *words: str) -> None:
        self._found.ignored += words

    def _where(self, row: Row) -> str:
        if self._vhost is not None:
            return self._vhost
        require(row, "vhost")
        return text(row, "vhost")

    def _virtual_host(self, row: Row) -> list[Message]:
        require(row, "name")
        name = text(row, "name")
        self._ignore(*(f"virtual host {name}: {key}" for key in sorted(row.keys() - {"name"}) if row[key]))
        return [AddVirtualHost(name=name)]

    def _policy(self, row: Row) -> list[Message]:
        require(row, "name")
        return self._set_policy(text(row, "name"), self._where(row), policy_of(row), operator=False)

    def _parameter(self, row: Row) -> list[Message]:
        require(row, "component", "name", "value")
        name, component = text(row, "name"), text(row, "component")
        if component != OPERATOR_POLICY:
            self._ignore(f"parameter {name}: component {component} is not there")
            return []
        return self._set_policy(name, self._where(row), policy_of(table(row, "value")), operator=True)

    def _set_policy(self, name: str, vhost: str, policy: Policy, *, operator: bool) -> list[Message]:
        told = f"policy {name} in virtual host {vhost}"
        kept = {key: value for key, value in policy.definition.items() if key not in OF_RABBITMQ}
        self._ignore(*(f"{told}: key {key}" for key in sorted(policy.definition.keys() - kept.keys())))
        if policy.definition and not kept:
            self._ignore(f"{told}: nothing else is in it")
            return []
        if _MODE in kept and PROMOTE_ON_FAILURE not in kept and not self._is_ours:
            self._found.noted.append(
                f"{told}: {PROMOTE_ON_FAILURE} is {WHEN_SYNCED} here unless it is set; RabbitMQ's default is always"
            )
        self._nodes_met |= _nodes_in(kept)
        kept = _renamed(kept, self._nodes)
        return [SetPolicy(name=name, policy=replace(policy, definition=kept), virtual_host=vhost, operator=operator)]

    def _exchange(self, row: Row) -> list[Message]:
        require(row, "name", "type")
        name, vhost, kind = text(row, "name"), self._where(row), text(row, "type")
        told = f"exchange {name} in virtual host {vhost}"
        if not name or name in PREDEFINED:
            return []
        if kind not in (*KINDS, DELAYED):
            self._ignore(f"{told}: type {kind!r} is not there")
            return []
        arguments = table(row, "arguments")
        known = {ALTERNATE, DELAYED_TYPE} if kind == DELAYED else {ALTERNATE}
        self._ignore(*(f"{told}: argument {unknown}" for unknown in sorted(arguments.keys() - known)))
        kept = {key: value for key, value in arguments.items() if key in known}
        return [DeclareExchange(name=name, exchange=exchange_of({**row, "arguments": kept}), virtual_host=vhost)]

    def _queue(self, row: Row) -> list[Message]:
        require(row, "name")
        name, vhost = text(row, "name"), self._where(row)
        check_name("queue", name)  # without one the node would make one; with a separator, in another virtual host
        arguments, ignored = queue_arguments(row)
        self._ignore(*(f"queue {name} in virtual host {vhost}: argument {each}" for each in ignored))
        return [DeclareQueue(name=qualified(vhost, name), arguments=arguments)]

    def _binding(self, row: Row) -> list[Message]:
        """Those of the default exchange are every queue's own."""
        binding = binding_of(row)
        return [Bind(bindings=[binding], virtual_host=self._where(row))] if binding.source else []

    def _user(self, row: Row) -> list[Message]:
        require(row, "name")
        name = text(row, "name")
        steps: list[Message] = [SetUser(name=name, password_hash=stored_hash(row), tags=tags_of(row))]
        limits = table(row, "limits")
        self._ignore(*(f"user {name}: limit {each}" for each in sorted(limits.keys() - {MAX_CONNECTIONS})))
        if MAX_CONNECTIONS in limits:
            most = number(limits, MAX_CONNECTIONS, 0)
            steps.append(SetUserLimits(user=name, limits=UserLimits(max_connections=most)))
        return steps

    def _permission(self, row: Row) -> list[Message]:
        require(row, "user", "vhost", "configure", "write", "read")
        return [
            SetPermissions(
                user=text(row, "user"),
                configure=text(row, "configure"),
                write=text(row, "write"),
                read=text(row, "read"),
                virtual_host=text(row, "vhost"),
            )
        ]


def _rows(document: Mapping[str, Any], section: str) -> list[Row]:
    rows = document.get(section)
    rows = [] if rows is None else rows
    if odd := [row for row in rows if not isinstance(row, dict)] if isinstance(rows, list) else [rows]:
        raise BadRequest(f"{section} should be a list of objects, actually was {odd[0]!r:.80}")
    return rows


def _called(what: str, row: Row) -> str:
    """For people, whatever is wrong with it."""
    name = row.get("name") or row.get("user") or row.get("source", "")
    to = f" to {_word(row['destination'])}" if what == "binding" and "destination" in row else ""
    where = f" in virtual host {_word(row['vhost'])}" if "vhost" in row else ""
    return f"{what} {_word(name)}{to}{where}"


def _word(value: object) -> str:
    text_ = f"{value!s:.80}"
    return text_ if text_.isprintable() else repr(text_)


def _unknown_section(section: str, content: Any) -> list[str]:
    if isinstance(content, list) and all(isinstance(each, dict) for each in content):
        return [f"{section}: {each.get('name') or each.get('user', '')!s:.80}" for each in content]
    return [f"{section}"]


def named(step: Message) -> str:  # noqa: PLR0911  (one line per kind)
    """What a step is about, for people."""
    match step:
        case AddVirtualHost():
            return f"virtual host {step.name}"
        case SetPolicy():
            kind = "operator policy" if step.operator else "policy"
            return f"{kind} {step.name} in virtual host {step.virtual_host}"
        case DeclareExchange():
            return f"exchange {step.name} in virtual host {step.virtual_host}"
        case DeclareQueue():
            vhost, name = split(step.name)
            return f"queue {name} in virtual host {vhost}"
        case Bind(bindings=[binding, *_]):
            return f"binding {binding.source} to {binding.destination} in virtual host {step.virtual_host}"
        case SetUser():
            return f"user {step.name}"
        case SetUserLimits():
            return f"limits of user {step.user}"
        case SetPermissions():
            return f"permission {step.user} in virtual host {step.virtual_host}"
    raise AssertionError(step)


# --- Names of nodes, and the way back -------------------------------------------------------------------------------


def renamed_nodes(pairs: Sequence[str]) -> dict[str, str]:
    """`rabbit@a=n1`: what nodes that policies name are called where the document goes. Raises BadRequest."""
    found = [pair.rpartition("=") for pair in pairs if pair]
    if not all(before and after for before, _, after in found):
        raise BadRequest(f"map-node {','.join(pairs)[:80]!r} should be pairs of names, rabbit@a=n1,rabbit@b=n2")
    return {before: after for before, _, after in found}


def _renamed(definition: Mapping[str, Any], nodes: Mapping[str, str]) -> dict[str, Any]:
    params = definition.get(_NODES)
    if not isinstance(params, list):
        return dict(definition)
    return {**definition, _NODES: [nodes.get(each, each) if isinstance(each, str) else each for each in params]}


def _nodes_in(definition: Mapping[str, Any]) -> set[str]:
    params = definition.get(_NODES)
    return {each for each in params if isinstance(each, str)} if isinstance(params, list) else set()


def _unnamed(nodes: Mapping[str, str], met: Set[str]) -> list[str]:
    return [f"map-node {name}: no policy names that node" for name in nodes if name not in met]


def for_rabbitmq(document: Mapping[str, Any], *, nodes: Mapping[str, str] | None = None) -> tuple[Row, list[str]]:
    """One from here as RabbitMQ takes it, and what is left out. Policies say how a mirror is promoted, for its default
    is another one; users are left out, for it takes their password away where there is no hash, and so are their
    permissions."""
    told: list[str] = []
    met: set[str] = set()
    policies, parameters = [], []
    for row in document.get("policies", ()):
        met |= _nodes_in(row["definition"])
        if definition := _theirs(f"policy {row['name']}", row["definition"], nodes or {}, told):
            policies.append({**row, "definition": definition})
    for row in document.get("parameters", ()):
        met |= _nodes_in(row["value"]["definition"])
        kept = _theirs(f"operator policy {row['name']}", row["value"]["definition"], nodes or {}, told)
        if kept:
            parameters.append({**row, "value": {**row["value"], "definition": kept}})
    queues = []
    for row in document.get("queues", ()):
        arguments = {key: value for key, value in row["arguments"].items() if key.startswith("x-")}
        told += [f"queue {row['name']}: argument {key}" for key in sorted(row["arguments"].keys() - arguments.keys())]
        queues.append({**row, "arguments": arguments})
    told += [f"user {row['name']}: there is no hash of the password" for row in document.get("users", ())]
    told += _unnamed(nodes or {}, met)
    left = {"policies": policies, "parameters": parameters, "queues": queues}
    gone: Row = {section: [] for section in ("users", "permissions") if section in document}
    return {**document, **left, **gone}, told


def _theirs(what: str, definition: Mapping[str, Any], nodes: Mapping[str, str], told: list[str]) -> Row:
    kept = {key: value for key, value in definition.items() if key not in OURS}
    told += [f"{what}: key {key}" for key in sorted(definition.keys() - kept.keys())]
    if _MODE in kept:
        kept.setdefault(PROMOTE_ON_FAILURE, WHEN_SYNCED)
    return _renamed(kept, nodes)
