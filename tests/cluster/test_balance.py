"""Where copies should be: the plan says what moves next and why, and comes to an end from wherever it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.coordination.balance import BYTES_MIN, CopyMove, Outlook, at_rest, next_move, plan
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import Addresses, Holder, ReplicasWished
from mirrorlog.cluster.state.log_rules import homes_for, promised
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.placements import LogPlace, LogPlaces, Placement, Span
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts


def state_of(logs: Mapping[str, str], nodes: str, *, homes: bool = False, **copies: int) -> ClusterState:
    """Logs by name on nodes, the home first, each node a letter; all are there and in sync, and each has a queue.
    `copies`: that are asked for, by log, by default as many as there are."""
    known = {
        node: NodeFacts(member=number, addresses=Addresses(), start_id=f"{node}1") for number, node in enumerate(nodes)
    }
    facts = {
        name: LogFacts(
            number=number,
            name=name,
            flush="memory",
            replicas=tuple(held),
            copies=copies.get(name, len(held)),
            copies_wanted=1,
            master=Holder(held[0], f"{held[0]}1"),
            epoch=1,
            in_sync={node: f"{node}1" for node in held},
        )
        for number, (name, held) in enumerate(logs.items())
    }
    queues = {f"queue of {name}": name for name in facts}
    return ClusterState(
        "id", "c", homes=homes, nodes=known, logs=facts, queues=queues, cluster_version=versions.PLACEMENTS
    )


def up(state: ClusterState, *, down: str = "", gone: str = "", sizes: Mapping[str, int] | None = None) -> Outlook:
    return Outlook(
        lambda node: Life.DOWN if node in down + gone else Life.UP, lambda node, _: node in gone, sizes or {}
    )


def held(state: ClusterState) -> dict[str, str]:
    """By log, as in `state_of`."""
    return {name: "".join(log.replicas) for name, log in state.logs.items()}


def come_about(state: ClusterState, move: CopyMove) -> ClusterState:
    """The wish is taken by the cluster's rules, and has come about."""
    log = state.logs[move.log_id]
    wished = ReplicasWished(log_id=move.log_id, seen=log.seen, nodes=move.nodes)
    changed, outcome = applied(state, state.version + 1, wished)
    assert not outcome.refusal, (move, outcome.refusal)
    assert changed != state, move
    runs = {node: state.nodes[node].start_id for node in move.nodes}
    master = Holder(move.nodes[0], runs[move.nodes[0]])
    done = replace(changed.logs[move.log_id], replicas=move.nodes, in_sync=runs, master=master)
    places = replace(changed.placing, logs={**changed.placing.logs, move.log_id: changed.placing.place(move.log_id)})
    place = replace(places.place(move.log_id), target=())
    places = replace(places, logs={**places.logs, move.log_id: place})
    return replace(changed, logs={**changed.logs, move.log_id: done}, places=places)


def settled(state: ClusterState, seen: Outlook | None = None) -> tuple[ClusterState, list[CopyMove]]:
    """Until nothing is to be moved."""
    moves: list[CopyMove] = []
    seen = seen or up(state)
    while (move := next_move(state, seen)) is not None:
        moves.append(move)
        state = come_about(state, move)
        assert len(moves) <= 200, moves[-6:]
    return state, moves


def spread(state: ClusterState, *, homes: bool = False) -> int:
    """How many more copies (or logs that it is home to) the one with most has than the one with least."""
    counted = Counter(node for log in state.logs.values() for node in log.replicas[: 1 if homes else None])
    of_all = [counted[node] for node, facts in state.nodes.items() if facts.stays]
    return max(of_all) - min(of_all)


def test_what_is_even_stays() -> None:
    """A difference of one is none; by clusters that nothing can make more even."""
    for logs, nodes in (({"x": "ab"}, "abc"), ({"x": "ab", "y": "bc", "z": "ca"}, "abc"), ({"x": "abc"}, "abc")):
        state = state_of(logs, nodes)
        assert next_move(state, up(state)) is None


def test_a_home_goes_to_another_copy_before_any_byte_moves() -> None:
    """By three logs of which one node is home, with copies everywhere."""
    state = state_of({"x": "abc", "y": "abc", "z": "abc"}, "abc")
    after, moves = settled(state)
    assert {tuple(sorted(move.nodes)) for move in moves} == {("a", "b", "c")}
    assert spread(after, homes=True) == 0
    assert moves[0].why == "a is home to 3 logs, b to 0"


def test_homes_even_out_over_nodes_that_hold_copies_of_each_others_logs() -> None:
    """No log of a is on c; by handing one on from b, and one to b."""
    state = state_of({"v": "ab", "w": "ab", "x": "bc", "y": "ab"}, "abc")
    after, moves = settled(state)
    assert spread(after, homes=True) <= 1
    assert spread(after) <= 1
    assert moves[0].nodes[0] in "bc"


def test_a_node_that_joined_gets_its_share() -> None:
    """Of copies and of homes; by a fourth node beside six logs with two copies each."""
    state = state_of({"t": "ab", "u": "bc", "v": "ca", "w": "ab", "x": "bc", "y": "ca"}, "abcd")
    after, moves = settled(state)
    assert (spread(after), spread(after, homes=True)) == (0, 1)
    assert len([move for move in moves if "holds" in move.why]) == 3, "no more than it has to get"


def test_a_log_that_no_queue_is_in_counts_for_nothing_and_stays() -> None:
    """Nor do others move because of it; by the log that a cluster begins with, beside one that a node is home to. Where
    a queue has left records in it, it counts."""
    state = state_of({"main": "ab", "x": "ab"}, "ab")
    unused = replace(state, queues={"of x": "x"})
    assert next_move(unused, up(unused)) is None
    left = replace(unused, places=LogPlaces(spans={"of x": (Span("main", 0), Span("x", 9))}))
    move = next_move(left, up(left))
    assert move is not None
    assert (move.log_id, move.nodes) == ("main", ("b", "a"))


def test_a_node_that_leaves_is_emptied_and_gets_nothing() -> None:
    """Before anything else, its logs one after the other, and its homes too; by a node that is home to one."""
    state = state_of({"x": "abc", "y": "bca", "z": "cab"}, "abcd")
    state = replace(state, nodes={**state.nodes, "a": replace(state.nodes["a"], leaving=True)})
    after, moves = settled(state)
    assert all("a" not in replicas for replicas in held(after).values())
    assert [move.why for move in moves[:3]] == ["a leaves"] * 3
    assert all(len(replicas) == 3 for replicas in held(after).values())
    assert moves[0].nodes[0] in "bc", "a copy that is in sync takes over, not the one that has to be filled"


def test_a_cluster_with_fewer_nodes_than_copies_is_left_all_the_same() -> None:
    """Two copies are what is promised by two nodes; by three with three copies, of which one leaves."""
    state = state_of({"x": "abc"}, "abc")
    state = replace(state, nodes={**state.nodes, "a": replace(state.nodes["a"], leaving=True)})
    after, _ = settled(state)
    assert sorted(held(after)["x"]) == ["b", "c"]


def test_a_leaving_node_waits_for_somebody_who_can_take_its_copies() -> None:
    """By one that leaves while the only other one without a copy is down."""
    state = state_of({"x": "abc"}, "abcd")
    state = replace(state, nodes={**state.nodes, "a": replace(state.nodes["a"], leaving=True)})
    assert next_move(state, up(state, down="d")) is None


def test_a_log_goes_where_its_placement_wants_it() -> None:
    """By a rule that names nodes, of which one holds it."""
    state = state_of({"x": "ab"}, "abcd")
    state = replace(state, places=LogPlaces(logs={"x": LogPlace(rule=Placement(nodes=("d", "b")))}))
    after, moves = settled(state)
    assert set(held(after)["x"]) == {"b", "d"}
    assert moves[0].why == "its placement is for d, b"


def test_copies_beyond_those_that_are_asked_for_go() -> None:
    """The home stays, and of the others who holds least; by a log of three that shall have two."""
    state = state_of({"x": "abc", "y": "cd"}, "abcd", x=2)
    move = next_move(state, up(state))
    assert move == CopyMove("x", ("a", "b"), "2 copies are asked for")


def test_bytes_even_out_where_copies_are_as_even_afterwards() -> None:
    """Not for a few; by two nodes of which one has the large logs and one copy more."""
    state = state_of({"x": "a", "y": "a", "z": "b"}, "ab")
    assert next_move(state, up(state, sizes=dict.fromkeys("xyz", BYTES_MIN // 4))) is None
    large = {"x": 4 * BYTES_MIN, "y": 2 * BYTES_MIN, "z": BYTES_MIN}
    assert next_move(state, up(state, sizes={"x": 4 * BYTES_MIN})) is None, "not all are known"
    after, moves = settled(state, up(state, sizes=large))
    assert [move.log_id for move in moves] == ["y"]
    assert moves[0].why.startswith("a holds 384 MiB, b 64")
    assert held(after) == {"x": "a", "y": "b", "z": "b"}


def test_a_large_log_goes_and_a_small_one_comes_back() -> None:
    """Copies are as even afterwards; by two mirrors of which one has the large logs and the other the small ones."""
    state = state_of({"u": "ab", "v": "ab", "w": "ac", "x": "ac", "y": "bc", "z": "cb"}, "abc")
    sizes = {"u": 8, "v": 8, "w": 1, "x": 1, "y": 1, "z": 1}
    after, moves = settled(state, up(state, sizes={name: size * BYTES_MIN for name, size in sizes.items()}))
    assert [move.log_id for move in moves[-2:]] == ["u", "y"], "the large one first"
    assert "MiB" in moves[-2].why
    held_bytes = Counter(
        {node: sum(sizes[name] for name, log in after.logs.items() if node in log.replicas) for node in "abc"}
    )
    assert max(held_bytes.values()) - min(held_bytes.values()) < 18 - 4
    assert (spread(after), spread(after, homes=True)) == (0, 0)


def test_nothing_moves_for_evenness_while_somebody_is_away() -> None:
    """He may be back before a copy is made; unless he is gone for long. By four nodes, of which one is down, drains, or
    is gone."""
    state = state_of({"x": "ab", "y": "ab"}, "abcd")
    assert next_move(state, up(state)) is not None
    assert next_move(state, up(state, down="d")) is None
    assert next_move(state, up(state, gone="d")) is not None
    drains = replace(state, nodes={**state.nodes, "d": replace(state.nodes["d"], draining=True)})
    assert next_move(drains, up(drains)) is None
    behind = replace(state, logs={**state.logs, "x": replace(state.logs["x"], in_sync={"a": "a1"})})
    assert next_move(behind, up(behind)) is None


def test_one_log_moves_after_the_other_and_none_while_it_is_paused() -> None:
    """By a wish that is on its way, a pause, and a cluster of the version before."""
    state = state_of({"x": "ab", "y": "ab"}, "abcd")
    move = next_move(state, up(state))
    assert move is not None
    wished = ReplicasWished(log_id=move.log_id, seen=state.logs[move.log_id].seen, nodes=move.nodes)
    moving = applied(state, 1, wished)[0]
    assert next_move(moving, up(moving)) is None
    assert next(each.why for each in plan(moving, up(moving))) == "under way"
    paused = replace(state, places=LogPlaces(paused=True))
    assert next_move(paused, up(paused)) is None
    assert list(plan(paused, up(paused))) == list(plan(state, up(state))) != []
    assert next_move(replace(state, cluster_version=versions.PLACEMENTS - 1), up(state)) is None


def test_a_wish_that_does_not_come_about_is_taken_back() -> None:
    """Because the node leaves, is gone for long, drains, or is too few; by a wish for d."""
    state = state_of({"x": "ab"}, "abcd")
    state = applied(state, 1, ReplicasWished(log_id="x", seen=state.logs["x"].seen, nodes=("d", "b")))[0]
    assert next_move(state, up(state, down="d")) is None, "it may be back"
    assert next_move(state, up(state, gone="d")) == CopyMove("x", (), "d is down")
    leaves, drains = (
        replace(state, nodes={**state.nodes, "d": replace(state.nodes["d"], leaving=leaving, draining=not leaving)})
        for leaving in (True, False)
    )
    assert next_move(leaves, up(leaves)) == CopyMove("x", (), "d leaves, or is not for it")
    assert next_move(drains, up(drains)) == CopyMove("x", (), "d is draining")
    more = replace(state, logs={"x": replace(state.logs["x"], copies=3)})
    assert next_move(more, up(more)) == CopyMove("x", (), "too few for 3 copies")


def test_every_node_keeps_a_home_where_each_has_one() -> None:
    """Else another log were made for it; by a fourth node that is home to its own log, and holds little."""
    state = state_of({"a": "abc", "b": "bca", "c": "cab", "d": "dab"}, "abcd", homes=True)
    after, _ = settled(state)
    assert {log.replicas[0] for log in after.logs.values()} == set("abcd")
    assert (spread(after), spread(after, homes=True)) == (0, 0)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[ClusterState, Outlook]:
    """Any logs on any nodes, by any rules; some nodes leave, some are down."""
    nodes = "abcdef"[: draw(st.integers(1, 6))]
    names = [f"l{number}" for number in range(draw(st.integers(0, 7)))]
    holders = st.lists(st.sampled_from(nodes), min_size=1, max_size=4, unique=True)
    state = state_of({name: "".join(draw(holders)) for name in names}, nodes, homes=False)
    logs, places = dict(state.logs), {}
    for name in names:
        rule = Placement(
            copies=draw(st.integers(0, 4)),
            nodes=tuple(draw(st.lists(st.sampled_from([*nodes, "later"]), max_size=3, unique=True))),
        )
        if draw(st.booleans()):
            places[name] = LogPlace(rule=rule)
        logs[name] = replace(logs[name], copies=rule.copies or 16)
    leaving = draw(st.sets(st.sampled_from(nodes), max_size=len(nodes) - 1))
    known = {node: replace(facts, leaving=node in leaving) for node, facts in state.nodes.items()}
    state = replace(state, nodes=known, logs=logs, places=LogPlaces(logs=places))
    gone = "".join(draw(st.sets(st.sampled_from(nodes), max_size=1)))
    sizes = {name: draw(st.integers(0, 40)) * BYTES_MIN for name in names}
    return state, up(state, gone=gone if draw(st.booleans()) else "", sizes=sizes)


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_from_anywhere_it_comes_to_an_end(drawn: tuple[ClusterState, Outlook]) -> None:
    """Every wish is one that the rules take and that changes something; in the end nothing is where it must not be,
    nobody could give anything to somebody who has two less, and the plan is what happened. Hypothesis prints the
    cluster that fails."""
    state, seen = drawn
    # What is missing is made by the coordinator, without a wish; here it is made at once.
    state = replace(state, logs={log_id: _filled(log_id, log, state, seen) for log_id, log in state.logs.items()})
    foreseen = list(plan(state, seen))
    after, moves = settled(state, seen)
    assert moves == foreseen
    copies = Counter(node for log in after.logs.values() for node in log.replicas)
    there = [node for node, facts in after.nodes.items() if facts.stays and seen.life(node) is Life.UP]
    for log_id, log in after.logs.items():
        able = homes_for(after, log_id)
        if all(node in there for node in after.nodes if not after.nodes[node].leaving):
            assert set(log.replicas) <= set(able), log
            assert len(log.replicas) >= promised(after, log_id)
        if next_move(after, seen) is None and all(seen.life(node) is Life.UP for node in after.nodes):
            for source in log.replicas:
                for target in set(there) & set(able) - set(log.replicas):
                    assert source not in there or copies[source] - copies[target] < 2, (log, source, target)


def _filled(log_id: str, log: LogFacts, state: ClusterState, seen: Outlook) -> LogFacts:
    able = [node for node in homes_for(state, log_id) if seen.life(node) is Life.UP and node not in log.replicas]
    staying = [node for node in log.replicas if node in homes_for(state, log_id)]
    missing = max(0, promised(state, log_id) - len(staying))
    replicas = (*log.replicas, *able[:missing]) if len(log.replicas) < promised(state, log_id) else log.replicas
    return replace(log, replicas=replicas, in_sync={node: f"{node}1" for node in replicas})


def test_the_cluster_is_at_rest_when_no_log_is_to_go_anywhere() -> None:
    """Not while one is under way or should be, a node is away, a copy is behind, or a master is not at home."""
    state = state_of({"x": "ab", "y": "bc", "z": "ca"}, "abc")
    seen = up(state).life
    assert at_rest(state, seen)
    assert not at_rest(state, up(state, down="c").life)
    assert not at_rest(replace(state, places=LogPlaces(paused=True)), seen)
    assert not at_rest(replace(state, places=LogPlaces(logs={"x": LogPlace(target=("a", "c"))})), seen)
    behind = replace(state.logs["x"], in_sync={"a": "a1"})
    assert not at_rest(replace(state, logs={**state.logs, "x": behind}), seen)
    away = replace(state.logs["x"], master=Holder("b", "b1"))
    assert not at_rest(replace(state, logs={**state.logs, "x": away}), seen)
    assert not at_rest(state_of({"x": "ab", "y": "ab"}, "ab"), seen)
    homes = state_of({"x": "ab", "y": "bc", "z": "ca"}, "abc", homes=True)
    assert at_rest(replace(homes, queues={"of x": "x"}), seen), "a home without queues is a home"
