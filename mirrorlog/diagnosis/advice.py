"""What a diagnosis is, and what is to be done about each that there is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

STOPS: Final = "stops"
NOTED: Final = "noted"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps something from making progress. `what`: node, log, queue or group, with its `name`.
    `reason`: a word that stays as it is. `weight`: stops or noted. `text`: what is the matter; `advice`: what to do."""

    what: str
    name: str
    reason: str
    weight: str
    text: str
    advice: str


_CONSUMERS: Final = "start more consumers"
_LOST: Final = "if it is lost for good: mqtool promote, which says what is lost"
_ADVICE: Final[Mapping[tuple[str, str], str]] = {
    ("node", "node-unreachable"): "start it, or look at its log file and the network; mqtool nodes tells what the "
    "others know",
    ("node", "no-coordinator"): "start the nodes that are down; for a majority that is lost for good: mqtool "
    "recover-cluster",
    ("node", "disk"): "free space on it, shorten retention_ms or retention_bytes, or end holds that keep records "
    "(mqtool landings)",
    ("node", "draining"): "mqtool drain {} --undo ends it, and mqtool rebalance brings its logs back",
    ("node", "emptying"): "mqtool rebalance --dry-run --watch shows it; mqtool drain {} --undo ends it",
    (
        "node",
        "emptying-waits",
    ): "start a node that may take it, mqtool rebalance --resume where moving is paused; or mqtool drain {} --undo",
    ("node", "memory-high"): "look who takes it: connections that do not read, many queues or unsettled records; give "
    "the node more (limits.memory_bytes), or end what else runs on its machine",
    ("node", "connections-capped"): "raise the hard limit of open files of its process (LimitNOFILE=65536, or ulimit "
    "-Hn) and start it again, or lower these settings",
    ("node", "certificate"): "put a new one in its place (tls.certificate, tls.key) and send the node a SIGHUP",
    ("node", "former-copies"): "they go by themselves after cluster.former_keep_ms; mqtool free-former frees them now",
    ("log", "no-master"): "start {}; " + _LOST,
    ("log", "not-reached"): "start {}; " + _LOST,
    ("log", "recovering"): "bring that node back; mqtool promote decides without it",
    ("log", "corrupt"): "it is repaired from another copy when there is one; mqtool verify says what is bad",
    ("log", "below-min-in-sync"): "start the missing nodes, or wait until they have caught up (mqtool offsets)",
    ("log", "mirror-away"): "start {}; it goes on from its own end",
    ("log", "mirror-behind"): "look at its disk and network; it leaves the in-sync set by itself when it stays behind",
    ("log", "producer-blocked"): "see the ones that are named",
    ("queue", "producer-blocked"): "a copy in sync is slow: see the log's mirrors; it goes on by itself when they have "
    "caught up",
    ("queue", "retention-held"): "run the landing, or end its hold if nobody will: mqtool landing-end",
    ("queue", "space-pinned"): "settle or purge what it has, or free it; it goes by itself once it is a little "
    "beside the rest (log.retention_copy_percent)",
    ("queue", "acked-kept"): 'mqtool set-policy work {} \'{"retention": "work"}\' --apply-to queues frees them; '
    "queues that are declared from cluster version 8 on do so by themselves",
    ("queue", "records-left"): "mqtool sync-queue {} copies them to its own log, or retention frees them",
    ("queue", "sync"): "it goes on by itself when that is over: mqtool sync-queue {} --watch",
    ("queue", "nodes-down"): "start node {}",
    ("queue", "nodes-missing"): "start a node of that name, or name others: mqtool alter-queue {} --arg nodes=…, or "
    "--arg copies=…",
    ("queue", "place-unmet"): "start what is down, or ask for less; it comes about by itself then",
    (
        "queue",
        "move-waits",
    ): "mend what is named, it is tried again: mqtool rebalance --dry-run; or let it stay where it "
    "is: mqtool alter-queue {} --cancel",
    ("queue", "not-answered"): "see its log and its nodes; ask again",
    ("queue", "never-read"): "start a consumer, or take it out of the bindings if nobody wants it (mqtool bindings)",
    ("queue", "full"): _CONSUMERS + ", or mqtool purge; with x-overflow drop-head the oldest would go instead",
    ("queue", "consumer-timeout"): "settle sooner, extend, take a smaller prefetch, or declare a longer "
    "x-consumer-timeout",
    ("group", "closing"): "they come back when those connections end",
    ("group", "waiting-for-time"): "settle the leases, or wait: they come back by themselves",
    ("group", "one-active"): "this is as asked for (exclusive, or x-single-active-consumer); end that subscriber to "
    "pass it on",
    ("group", "departures-wait"): "mend what is named; all but those that are held leave by themselves then, each once",
    ("group", "no-subscriber"): "start a consumer; mqtool receive takes some by hand, mqtool purge throws them away",
    ("group", "holder-idle"): "have it settle what it has, or end it, then another one may go on",
    ("group", "no-credit"): "have them settle what they have in hand, give them a larger prefetch, or start more of "
    "them",
    ("group", "expired-unread"): 'declare the queue with retention="work" if each is to be settled, or give it longer '
    "limits",
    ("group", "retention-held"): "start its consumers, or delete the group: mqtool group-delete",
    ("group", "above-length"): "the oldest go; " + _CONSUMERS,
}
"""What to do, by what it is and its reason, or what its reason begins with. `{}`: who is to be started."""


def say(what: str, name: str, reason: str, text: str, *, stops: bool = False, start: str = "") -> Diagnosis:
    advice = _ADVICE.get((what, reason)) or _ADVICE[what, reason.partition("-")[0]]
    weight = STOPS if stops else NOTED
    return Diagnosis(what=what, name=name, reason=reason, weight=weight, text=text, advice=advice.replace("{}", start))


def reasons(found: Iterable[Diagnosis]) -> set[str]:
    """The words of some findings."""
    return {each.reason for each in found}
