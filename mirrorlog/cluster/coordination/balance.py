"""Where the copies of logs should be, and the next log that is to move there. Pure.

Wanted is, in this order: nothing on a node that leaves, nor on one that a log's placement is not for; no more copies
than are asked for; nodes that hold equally many copies, are home to equally many logs, and hold equally many bytes, as
far as these are known. The next wish is for one log; there is none while one is on its way, while moving is paused, or,
for evenness, while anything is not as it should be: who is down may be back before a copy is made. A log that no queue
is in, nor records of one, is no work: it counts for nothing, and stays where it is.

That it comes to an end: a move for evenness takes a copy or a home from who has two more than who gets it, so the sum
of their squares falls, of copies first, then of homes, then of bytes. Two kinds bring a fall nearer: a home that goes
on along the shortest way from one who has too many to one who has too few leaves the sum as it is, and the way is
shorter; a large copy that goes to who holds as many, and many bytes less, is followed by one that comes back, and of
all that could the one is taken that leaves bytes most even, so that it is not the same one. Bytes grow while it is
looked at; so less than a fifth of what a node holds is no reason to move.

A home that goes to another copy costs no bytes: that is what is looked for first, and who gets a copy gets the home
with it only where homes are as even afterwards. Rejected: the best arrangement of all, computed at once: it moves much
for little, and another one for every log that is made.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import Holder
from mirrorlog.cluster.state.log_rules import fewest, homes_for, promised
from mirrorlog.cluster.state.placements import NO_PLACES
from mirrorlog.cluster.state.state import ClusterState, LogFacts, holds_transient

MOVES_MAX: Final = 100
"""Of a plan that is shown. Each takes ten milliseconds with 256 logs on six nodes."""
BYTES_MIN: Final = 64 * 1024 * 1024
"""A difference of fewer bytes between two nodes is none."""
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CopyMove:
    """These nodes shall hold the log, the home first; without nodes its wish is taken back. `why`: for people."""

    log_id: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known besides the state. `gone`: whether a node is down for so long that what it holds of a log is made
    elsewhere; `sizes`: bytes by log id, of those that are known."""

    life: Callable[[str], Life]
    gone: Callable[[str, str], bool] = lambda node, log_id: False
    sizes: Mapping[str, int] = field(default_factory=dict)


def next_move(state: ClusterState, seen: Outlook) -> CopyMove | None:
    """The next wish; None while there is nothing to be wished, or one is on its way."""
    if state.cluster_version < versions.PLACEMENTS or state.placing.paused:
        return None
    under_way = False
    for log_id, place in state.placing.logs.items():
        if place.target and log_id in state.logs:
            if reason := _futile(log_id, place.target, state, seen):
                return CopyMove(log_id, (), reason)
            under_way = True
    if under_way:
        return None
    logs = [log_id for log_id in state.logs if not holds_transient(state, log_id)]
    shares = _Shares(state, seen, logs)
    for log_id in logs:
        if (move := _out(log_id, shares) or _excess(log_id, shares)) is not None:
            return move
    if not _calm(logs, shares):
        return None
    return shares.even_homes() or shares.even_copies() or shares.even_bytes()


def at_rest(state: ClusterState, life: Callable[[str], Life]) -> bool:
    """Whether every log is where it should be, and mastered by its home: what there is to even out is of queues."""
    if state.placing.paused or state.placing.moves or any(place.target for place in state.placing.logs.values()):
        return False
    logs = [log_id for log_id in state.logs if not holds_transient(state, log_id)]
    shares = _Shares(state, Outlook(life), logs)
    used = [state.logs[log_id] for log_id in shares.logs]
    at_home = all(log.master is not None and log.master.node == log.replicas[0] for log in used)
    return at_home and _calm(logs, shares) and next_move(state, Outlook(life)) is None


def plan(state: ClusterState, seen: Outlook) -> Iterator[CopyMove]:
    """All moves, one after the other, if each came about and nothing else happened; up to `MOVES_MAX`. What is on its
    way comes first. Also of a cluster in which moving is paused."""
    state = replace(state, places=replace(state.placing, paused=False))
    for log_id, place in state.placing.logs.items():
        if place.target and log_id in state.logs and not _futile(log_id, place.target, state, seen):
            yield CopyMove(log_id, place.target, "under way")
            state = _done(state, log_id, place.target)
    for _ in range(MOVES_MAX):
        move = next_move(state, seen)
        if move is None:
            return
        if move.nodes:
            yield move
        state = _done(state, move.log_id, move.nodes or state.logs[move.log_id].replicas)


def _done(state: ClusterState, log_id: str, nodes: tuple[str, ...]) -> ClusterState:
    """As it is when the log has come to these nodes."""
    runs = {node: state.nodes[node].start_id for node in nodes if node in state.nodes}
    log = replace(
        state.logs[log_id],
        replicas=nodes,
        in_sync=runs,
        marked=frozenset(),
        master=Holder(nodes[0], runs.get(nodes[0], "")),
    )
    places = state.places or NO_PLACES
    place = replace(places.place(log_id), target=())
    places = replace(places, logs={**places.logs, log_id: place})
    return replace(state, logs={**state.logs, log_id: log}, places=places)


def _futile(log_id: str, target: tuple[str, ...], state: ClusterState, seen: Outlook) -> str:
    """Why a wish does not come about; empty when it may."""
    log, able = state.logs[log_id], homes_for(state, log_id)
    for node in target:
        facts = state.nodes.get(node)
        if facts is None or node not in able:
            return f"{node} leaves, or is not for it"
        if seen.gone(node, log_id) and node not in log.promotable:
            return f"{node} is down"
        if facts.draining and (node not in log.replicas or node == target[0]):
            return f"{node} is draining"
    return f"too few for {fewest(state, log_id)} copies" if len(target) < fewest(state, log_id) else ""


def _calm(logs: list[str], shares: _Shares) -> bool:
    """Whether all is there that should be: every node, and every copy in sync; and nobody is on its way in or out."""
    state, seen = shares.state, shares.seen
    if state.homes:
        homes = {state.logs[log_id].replicas[0] for log_id in logs if state.logs[log_id].replicas}
        if any(node not in homes for node in shares.nodes):
            return False
    for node, facts in state.nodes.items():
        lost = logs and all(seen.gone(node, log_id) for log_id in logs)
        if not facts.witness and (facts.draining or seen.life(node) is not Life.UP) and not lost:
            return False
    return all(_is_whole(log := state.logs[log_id]) and len(log.replicas) >= promised(state, log_id) for log_id in logs)


def _is_whole(log: LogFacts) -> bool:
    """Every copy of it is in sync, and nothing is being handed over."""
    return log.master is not None and not log.marked and not log.wished and set(log.in_sync) == set(log.replicas)


def _out(log_id: str, shares: _Shares) -> CopyMove | None:
    """From nodes that shall not hold the log, for good: others take their places, at once."""
    state = shares.state
    log, able = state.logs[log_id], homes_for(state, log_id)
    out = [node for node in log.replicas if node not in able]
    if not out or log.master is None or log.recovering:
        return None
    staying = [node for node in log.replicas if node in able]
    missing = max(0, fewest(state, log_id) - len(staying))
    others = shares.least_used(log_id, able)[:missing]
    if len(others) < missing:
        return None
    nodes = [*staying, *others]
    if log.replicas[0] in out:
        nodes = _home_first(nodes, min(staying or others, key=shares.by_homes))
    leaving = [node for node in out if node in state.nodes and state.nodes[node].leaving]
    why = f"{', '.join(leaving)} leaves" if leaving else f"its placement is for {', '.join(able)}"
    return CopyMove(log_id, tuple(nodes), why)


def _excess(log_id: str, shares: _Shares) -> CopyMove | None:
    """Fewer copies are asked for than there are. Those whose nodes are gone go by themselves. First goes who is not in
    sync, then who holds most; the home stays."""
    state, seen = shares.state, shares.seen
    log, asked = state.logs[log_id], fewest(state, log_id)
    lasting = [node for node in log.replicas if not seen.gone(node, log_id)]
    named, able = state.rule(log_id).nodes, homes_for(state, log_id)
    if log.master is None or (named and not set(named) & set(able)) or not set(lasting) <= set(able):
        return None
    if len(lasting) <= asked or any(facts.draining for facts in state.nodes.values()):
        return None
    spare = sorted(lasting[1:], key=lambda node: (node in log.promotable, -shares.copies[node], node))
    gone = set(spare[: len(lasting) - asked])
    if len([node for node in log.promotable if node not in gone]) < asked:
        return None  # who stays is being filled, or waited for
    kept = tuple(node for node in lasting if node not in gone)
    return CopyMove(log_id, kept, f"{asked} {'copy is' if asked == 1 else 'copies are'} asked for")


class _Shares:
    """What each node has, of logs that are used. `nodes`: those that may be given something, and are there."""

    def __init__(self, state: ClusterState, seen: Outlook, logs: list[str]) -> None:
        self.state = state
        self.seen = seen
        used = {*state.queues.values(), *(each.log_id for spans in state.placing.spans.values() for each in spans)}
        self.logs = [log_id for log_id in logs if log_id in used]
        self.nodes = sorted(node for node, facts in state.nodes.items() if facts.stays and seen.life(node) is Life.UP)
        self.copies: Counter[str] = Counter()
        self.homes: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._homes_of_all = Counter(home for log_id in logs for home in state.logs[log_id].replicas[:1])
        for log_id in self.logs:
            replicas = state.logs[log_id].replicas
            self.copies.update(replicas)
            self.homes.update(replicas[:1])
            for node in replicas:
                self.bytes[node] += seen.sizes.get(log_id, 0)
        self.movable = [log_id for log_id in self.logs if self._is_movable(log_id)]

    def _is_movable(self, log_id: str) -> bool:
        """For evenness. What is where it should not be waits for somebody who can take it."""
        replicas = self.state.logs[log_id].replicas
        return len(replicas) >= fewest(self.state, log_id) and set(replicas) <= set(homes_for(self.state, log_id))

    def by_homes(self, node: str) -> tuple[int, int, str]:
        return self.homes[node], self.copies[node], node

    def least_used(self, log_id: str, able: list[str]) -> list[str]:
        """Who may get a copy of a log, the best first."""
        replicas = self.state.logs[log_id].replicas
        free = [node for node in self.nodes if node in able and node not in replicas]
        return sorted(free, key=lambda node: (self.copies[node], self.homes[node], self.bytes[node], node))

    # --- homes ---

    def even_homes(self) -> CopyMove | None:
        """The last step of the shortest way from a node that is home to two logs more than another to that one, over
        nodes that hold copies of each other's logs: all between have one more than the last, and stay as they are."""
        ways = [way for node in self.nodes if (way := self._way_to(node))]
        for way in sorted(ways, key=lambda way: (len(way), way)):
            source, target, first = way[-2], way[-1], way[0]
            log_id = self._movable_home(source, target)
            assert log_id is not None
            why = f"{first} is home to {_logs(self.homes[first])}, {target} to {self.homes[target]}"
            return CopyMove(log_id, tuple(_home_first(self.state.logs[log_id].replicas, target)), why)
        return None

    def _way_to(self, target: str) -> tuple[str, ...]:
        """Empty when there is none."""
        after: dict[str, str] = {target: ""}
        waiting = deque([target])
        while waiting:
            node = waiting.popleft()
            if self.homes[node] >= self.homes[target] + 2:
                way = [node]
                while after[way[-1]]:
                    way.append(after[way[-1]])
                return tuple(way)
            for other in self.nodes:
                if other not in after and self._movable_home(other, node) is not None:
                    after[other] = node
                    waiting.append(other)
        return ()

    def _movable_home(self, source: str, target: str) -> str | None:
        """A log that `source` is home to, and `target` holds; the smallest number first."""
        logs = self.state.logs
        found = [
            each for each in self.movable if logs[each].replicas[:1] == (source,) and target in logs[each].replicas
        ]
        return min(found, key=lambda each: logs[each].number, default=None)

    # --- copies ---

    def even_copies(self) -> CopyMove | None:
        """A copy from who holds most to who holds least, of those between whom two make a difference; of all such the
        one after which homes are most even, then bytes."""
        pairs = [
            (self.copies[source] - self.copies[target], source, target)
            for source in self.nodes
            for target in self.nodes
            if self.copies[source] - self.copies[target] >= 2
        ]
        for difference in sorted({pair[0] for pair in pairs}, reverse=True):
            found = [
                (*self._unevenness(log_id, nodes), log_id, nodes, source, target)
                for each, source, target in pairs
                if each == difference
                for log_id, nodes in self._copy_moves(source, target)
            ]
            if found:
                *_, log_id, nodes, source, target = min(found)
                why = f"{source} holds {_copies(self.copies[source])}, {target} {self.copies[target]}"
                return CopyMove(log_id, nodes, why)
        return None

    def even_bytes(self) -> CopyMove | None:
        """A copy to who holds many fewer bytes. Copies are as even afterwards, for he had one less; or are so again
        after the next move, by which a smaller one comes back. Homes are as even as before."""
        if any(log_id not in self.seen.sizes for log_id in self.logs):
            return None
        homes = sum(count * count for count in self.homes.values())
        found: list[tuple[int, str, tuple[str, ...], str]] = []
        for source in self.nodes:
            for target in self.nodes:
                difference = self.bytes[source] - self.bytes[target]
                least = max(BYTES_MIN, self.bytes[source] // 5)
                more = self.copies[source] - self.copies[target]
                if difference < least or more not in (1, 0, -1):
                    continue
                why = f"{source} holds {self.bytes[source] // _MIB} MiB, {target} {self.bytes[target] // _MIB}"
                back = [0] if more == 1 else self._sizes_back(target, source)
                for log_id, nodes in self._copy_moves(source, target):
                    size = self.seen.sizes[log_id]
                    after = min((abs(difference - 2 * (size - small)) for small in back), default=difference)
                    stays = nodes[0] == self.state.logs[log_id].replicas[0]
                    even = self._unevenness(log_id, nodes)[0] <= homes if more == 1 else stays
                    if difference - after >= least and even:
                        found.append((after, log_id, nodes, why))
        if not found:
            return None
        _, log_id, nodes, why = min(found)
        return CopyMove(log_id, nodes, why)

    def _sizes_back(self, source: str, target: str) -> list[int]:
        """Of logs of which a copy can go there, and whose home stays where it is."""
        logs = self.state.logs
        moves = self._copy_moves(source, target)
        return [self.seen.sizes[log_id] for log_id, nodes in moves if nodes[0] == logs[log_id].replicas[0]]

    def _copy_moves(self, source: str, target: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Of which logs a copy can go there; where the home goes with it, or would, each way that this can be done."""
        for log_id in self.movable:
            replicas = self.state.logs[log_id].replicas
            if replicas[:1] == (source,) and self.state.homes and self._homes_of_all[source] == 1:
                continue  # every node is home to a log: another one were made
            if source in replicas and target not in replicas and target in homes_for(self.state, log_id):
                nodes = [target if node == source else node for node in replicas]
                for home in nodes if replicas[0] == source else nodes[:1]:
                    yield log_id, tuple(_home_first(nodes, home))

    def _unevenness(self, log_id: str, nodes: tuple[str, ...]) -> tuple[int, int, int]:
        """Of homes and of bytes when the log was there, and what has to be copied for it."""
        before, size = self.state.logs[log_id].replicas, self.seen.sizes.get(log_id, 0)
        homes, held = Counter(self.homes), Counter(self.bytes)
        homes.subtract(before[:1])
        homes.update(nodes[:1])
        for node in before:
            held[node] -= size
        for node in nodes:
            held[node] += size
        return sum(each * each for each in homes.values()), sum(each * each for each in held.values()), size


def _home_first(nodes: list[str] | tuple[str, ...], home: str) -> list[str]:
    return [home, *(node for node in nodes if node != home)]


def _logs(count: int) -> str:
    return f"{count} log{'s' if count != 1 else ''}"


def _copies(count: int) -> str:
    return f"{count} {'copies' if count != 1 else 'copy'}"
