"""What a run came through, by what its nodes log: counts of events, and of the branches that hardly ever happen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from sim.trace import Note

_FACT: Final = re.compile(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S+)")

BRANCHES: Final[Mapping[str, str]] = {
    "a log is handed over": "handed_over",
    "a log is recovering": "log_recovering",
    "a copy is gone": "copy_gone",
    "a copy begins anew": "copy_began_anew",
    "a history is cut": "log_truncated",
    "a torn tail is cut": "torn_tail_cut",
    "a log is refused": "log_unavailable",
    "a copy lost something": "log_lossy",
    "a wish of unknown outcome": "in_sync_unknown",
    "an election is asked for": "election_asked",
    "a fence fails": "fence_failed",
    "a disk was set back": "disk_set_back",
    "a disk failed": "disk_failed",
    "a duty waits": "duty_waits",
    "a segment is sealed": "segment_sealed",
    "a node is let in": "let_in",
    "a log goes to other nodes": "replicas_wished",
    "a copy retires": "replica_retired",
    "a mirror waits for space": "mirror_waits_for_space",
}
"""By the first word of a log line."""
OWN: Final = (
    "the coordinator is hit while a log has no master",
    "a set grows",
    "a set shrinks",
    "a set is not changed as wished",
    "a start that lost something",
    "queue offsets leap",
    "a loss is declared",
    "a copy is promoted by a rule",
    "a retry is answered as a duplicate",
    "a reader is sent over a gap",
    "a record is refused",
    "a record of unknown outcome",
)
"""Counted by who sees them: `Observer`, `cluster_run`."""


class Observer:
    """Watches a trace. `opened`: by (log, epoch), which runs opened it; `opened_at`: when the first did, in s of the
    run; `master`: by log, the node that opened the last epoch; `coordinator`: the node that coordinated last;
    `coordinators`: all that did, and since when; `registered`: by node, the last run that the cluster knew;
    `counts`: log lines by their first word, and rare branches; `retired`: copies that were taken away: log, node, how
    many whole ones stayed, and how many nodes that do not leave; `recopied`: logs in which batches that are alive were
    appended once more, for their segments to be freed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.opened: dict[tuple[str, int], set[str]] = {}
        self.opened_at: dict[tuple[str, int], float] = {}
        self.coordinators: list[tuple[float, str]] = []
        self.registered: dict[str, int] = {}
        self.master: dict[str, str] = {}
        self.coordinator = ""
        self.without_master: set[str] = set()
        self.retired: set[tuple[str, str, int, int]] = set()
        self.recopied: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._term = 0

    def __call__(self, note: Note) -> None:
        at, who, what, facts = note
        if what != "%s":
            return
        text = str(facts[0])
        word = text.partition(" ")[0]
        self.counts[word] += 1
        if (look := getattr(self, f"_{word}", None)) is not None:
            look(at, who, dict(_FACT.findall(text)))

    def forget(self, log: str) -> None:
        """That log is no more; another one may get its name."""
        self.opened = {place: runs for place, runs in self.opened.items() if place[0] != log}
        for place in [each for each in self.opened_at if each[0] == log]:
            del self.opened_at[place]
        self.without_master.discard(log)
        self._epochs.pop(log, None)
        self.master.pop(log, None)

    def coordinated_between(self, since: float, until: float) -> set[str]:
        """The nodes that did at some moment of that time."""
        before = [node for at, node in self.coordinators if at < since]
        return {*before[-1:], *(node for at, node in self.coordinators if since <= at <= until)}

    def branches(self) -> Counter[str]:
        """Every rare branch, those that were not come through with 0."""
        found = {branch: self.counts[word] for branch, word in BRANCHES.items()}
        return Counter({**found, **{branch: self.counts[branch] for branch in OWN}})

    def _epoch_opened(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        log, epoch = facts["log"], int(facts["epoch"])
        self.opened.setdefault((log, epoch), set()).add(who)
        self.opened_at.setdefault((log, epoch), at)
        self.without_master.discard(log)
        if epoch > self._epochs.get(log, 0):
            self._epochs[log], self.master[log] = epoch, who.partition("#")[0]

    def _fenced(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        self.without_master.add(facts["log"])

    def _replica_retired(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        whole, staying = (len(facts[name].split(",")) for name in ("whole", "staying"))
        self.retired.add((facts["log"], facts["node"], whole, staying))

    def _live_batches_copied(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        self.recopied.add(facts["log"])

    def _coordinating(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        self.coordinators.append((at, facts["node"]))
        if (term := int(facts["term"])) > self._term:
            self._term, self.coordinator = term, facts["node"]

    def _in_sync_asked(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        if facts["refusal"] != "''":
            self.counts["a set is not changed as wished"] += 1
        else:
            self.counts["a set grows" if facts["wish"].startswith("Grow") else "a set shrinks"] += 1

    def _registered(self, at: float, who: str, facts: Mapping[str, str]) -> None:
        node, _, run = who.partition("#")
        self.registered[node] = int(run)
        if facts["kind"] == "lossy":
            self.counts["a start that lost something"] += 1
