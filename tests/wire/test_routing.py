"""Which queues a publish lands in, by RabbitMQ's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorlog.errors import NoSuchExchange
from mirrorlog.wire import routing
from mirrorlog.wire.routing import Binding, Exchange, RoutingTable, is_stale, next_version, stamp


def table(bindings: Iterable[Binding], **exchanges: Exchange) -> RoutingTable:
    return RoutingTable(exchanges, bindings)


def to(source: str, destination: str, key: str = "", **arguments: Any) -> Binding:
    return Binding(source, destination, key, arguments=arguments)


def onward(source: str, destination: str, key: str = "") -> Binding:
    return Binding(source, destination, key, to_exchange=True)


# --- Kinds ----------------------------------------------------------------------------------------------------------


def test_the_default_exchange_routes_by_the_queue_s_name() -> None:
    assert table([]).route("", "orders") == ("orders",)


def test_a_direct_exchange_compares_the_whole_key() -> None:
    """Goal: equal keys and no others; several queues by one key. Method: by example."""
    routes = table([to("amq.direct", "a", "k"), to("amq.direct", "b", "k"), to("amq.direct", "c", "k.x")])
    assert routes.route("amq.direct", "k") == ("a", "b")
    assert routes.route("amq.direct", "k.x") == ("c",)
    assert routes.route("amq.direct", "#") == ()


def test_a_fanout_exchange_takes_every_key() -> None:
    routes = table([to("amq.fanout", "a", "k"), to("amq.fanout", "b")])
    assert routes.route("amq.fanout", "whatever") == ("a", "b")


def test_a_queue_bound_twice_gets_a_message_once() -> None:
    """Goal: once, whichever way. Method: two patterns that match, and a second way over another exchange."""
    bindings = [
        to("amq.topic", "a", "#"),
        to("amq.topic", "a", "k.*"),
        onward("amq.topic", "amq.fanout", "k.#"),
        to("amq.fanout", "a"),
    ]
    assert table(bindings).route("amq.topic", "k.x") == ("a",)


@pytest.mark.parametrize(
    ("match", "headers", "expected"),
    [
        ("all", {"format": b"pdf", "type": b"report"}, True),
        ("all", {"format": b"pdf"}, False),
        ("all", {"format": b"pdf", "type": b"report", "more": b"1"}, True),
        ("all", {"format": b"pdf", "type": b"log"}, False),
        ("any", {"type": b"report"}, True),
        ("any", {"type": b"log"}, False),
        ("any", {}, False),
        ("any", {"x-source": b"s"}, False),
        ("any-with-x", {"x-source": b"s"}, True),
        ("all-with-x", {"format": b"pdf", "type": b"report"}, False),
        ("all-with-x", {"format": b"pdf", "type": b"report", "x-source": b"s"}, True),
    ],
)
def test_a_headers_exchange_asks_for_all_or_any_and_for_x_only_when_told(
    match: str, headers: Mapping[str, Any], expected: bool
) -> None:
    """Goal: the four ways of `x-match`. Method: one binding with two plain headers and one `x-`."""
    arguments = {"x-match": match, "format": "pdf", "type": "report", "x-source": "s"}
    routes = table([Binding("amq.headers", "q", arguments=arguments)])
    assert routes.route("amq.headers", "", headers) == (("q",) if expected else ())


def test_a_headers_binding_matches_all_of_nothing_and_none_of_nothing() -> None:
    """Goal: RabbitMQ's edge: without headers `all` takes everything, `any` takes nothing. Method: both, empty."""
    routes = table([to("amq.match", "all"), Binding("amq.match", "any", arguments={"x-match": "any"})])
    assert routes.route("amq.match", "k", {"h": b"1"}) == ("all",)


def test_header_values_are_compared_as_they_are_written_and_none_asks_for_the_header_alone() -> None:
    """Goal: numbers and flags in a binding meet the bytes of a record; typed headers keep their types. Method: each."""
    arguments = {"count": 7, "flag": True, "there": None}
    routes = table([Binding("amq.headers", "q", arguments=arguments)])
    assert routes.route("amq.headers", "", {"count": b"7", "flag": b"true", "there": b"whatever"}) == ("q",)
    assert routes.route("amq.headers", "", {"count": 7, "flag": True, "there": 0}) == ("q",)
    assert routes.route("amq.headers", "", {"count": 7, "flag": 1, "there": 0}) == ()
    assert routes.route("amq.headers", "", {"count": "7", "flag": True, "there": 0}) == ()


def test_what_headers_decide_is_not_kept_by_the_key() -> None:
    """Goal: two messages with one key and other headers go two ways, also behind another exchange. Method: twice."""
    bindings = [onward("amq.direct", "amq.headers", "k"), to("amq.headers", "q", h="1")]
    routes = table(bindings)
    assert routes.route("amq.direct", "k", {"h": b"1"}) == ("q",)
    assert routes.route("amq.direct", "k", {"h": b"2"}) == ()
    assert routes.route("amq.direct", "k", {"h": b"1"}) == ("q",)


# --- Between exchanges ----------------------------------------------------------------------------------------------


def test_exchanges_in_a_cycle_are_asked_once_each() -> None:
    """Goal: it ends. Method: three fanouts in a ring, and one bound to itself."""
    ring = {name: Exchange("fanout") for name in "abc"}
    bindings = [onward("a", "b"), onward("b", "c"), onward("c", "a"), onward("a", "a"), to("c", "q")]
    assert table(bindings, **ring).route("a", "k") == ("q",)


def test_what_goes_nowhere_goes_to_the_alternate_exchange() -> None:
    """Goal: only what has no match; a chain of them; one that is not there is passed over. Method: each."""
    exchanges = {
        "first": Exchange("direct", alternate="second"),
        "second": Exchange("direct", alternate="last"),
        "last": Exchange("fanout"),
        "dangling": Exchange("direct", alternate="gone"),
    }
    routes = table([to("first", "a", "k"), to("second", "b", "l"), to("last", "c")], **exchanges)
    assert routes.route("first", "k") == ("a",)
    assert routes.route("first", "l") == ("b",)
    assert routes.route("first", "x") == ("c",)
    assert routes.route("dangling", "x") == ()


def test_of_several_keys_each_queue_gets_it_once() -> None:
    """Goal: as RabbitMQ's CC: the alternate exchange gets only what no key leads anywhere. Method: keys that meet, one
    that leads nowhere, all that do; the default exchange; what is kept of one key is not that of several."""
    exchanges = {"e": Exchange("topic", alternate="spare"), "spare": Exchange("direct")}
    bindings = [to("e", "a", "x.#"), to("e", "b", "y"), to("e", "a", "y"), to("spare", "c", "z")]
    routes = table(bindings, **exchanges)
    assert routes.route("e", "x", also=("y", "x.1", "z")) == ("a", "b")
    assert routes.route("e", "x") == ("a",)
    assert routes.route("e", "n", also=("z",)) == ("c",)
    assert routes.route("e", "n", also=("m",)) == ()
    assert routes.route("", "q", also=("r", "q")) == ("q", "r")


def test_a_match_that_leads_to_no_queue_is_a_match() -> None:
    """Goal: as RabbitMQ: the alternate exchange is for what no binding matches. Method: a bound exchange without
    bindings of its own."""
    exchanges = {"e": Exchange("fanout", alternate="spare"), "empty": Exchange("direct"), "spare": Exchange("fanout")}
    assert table([onward("e", "empty"), to("spare", "q")], **exchanges).route("e", "k") == ()


def test_alternate_exchanges_in_a_cycle_end() -> None:
    exchanges = {"a": Exchange("direct", alternate="b"), "b": Exchange("direct", alternate="a")}
    assert table([], **exchanges).route("a", "k") == ()


def test_an_unknown_exchange_is_named() -> None:
    with pytest.raises(NoSuchExchange, match="'orders'"):
        table([]).route("orders", "k")


def test_a_binding_of_an_exchange_that_is_gone_counts_for_nothing() -> None:
    assert table([to("gone", "q"), onward("amq.fanout", "gone")]).route("amq.fanout", "k") == ()


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded memory under keys that never come again. Method: more keys than are kept, each right."""
    monkeypatch.setattr(routing, "KEPT_MAX", 4)
    routes = table([to("amq.topic", "q", "k.#")])
    for number in range(20):
        assert routes.route("amq.topic", f"k.{number}") == ("q",)
        assert len(routes._kept) <= 4


# --- Topic ----------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
PATTERNS = st.lists(WORDS, min_size=1, max_size=6).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), min_size=1, max_size=6).map(".".join)


def matches(pattern: str, key: str) -> bool:
    """By the words of RabbitMQ's manual: `*` is exactly one word, `#` any number of them."""
    words, asked = key.split(".") if key else [], pattern.split(".") if pattern else []

    @cache
    def from_(at: int, word: int) -> bool:
        if at == len(asked):
            return word == len(words)
        if asked[at] == "#":
            return any(from_(at + 1, later) for later in range(word, len(words) + 1))
        return word < len(words) and asked[at] in ("*", words[word]) and from_(at + 1, word + 1)

    return from_(0, 0)


@example(["#.#", "#.*", "*.#", "#"], "a")
@example(["", "*", "#"], "")
@example(["a.#.b", "a.#.#.b", "#.a.#.b.#"], "a.a.b.b")
@given(st.lists(PATTERNS, max_size=12, unique=True), KEYS)
def test_the_trie_finds_what_the_words_of_the_manual_say(patterns: list[str], key: str) -> None:
    """Goal: `*` and `#` in any place. Method: small alphabets against a naive oracle, a queue per pattern."""
    routes = table([to("amq.topic", pattern or "(empty)", pattern) for pattern in patterns])
    expected = {pattern or "(empty)" for pattern in patterns if matches(pattern, key)}
    assert set(routes.route("amq.topic", key)) == expected
    assert set(routes.route("amq.topic", key)) == expected, "as it is kept"


def test_many_hashes_cost_no_more_than_their_places() -> None:
    """Goal: no pattern makes a message expensive. Method: a pattern that a backtracking matcher never ends with; the
    places that are looked at are counted."""
    pattern = ".".join(["#", "a"] * 30)
    key = ".".join(["a"] * 29 + ["b"] * 200)
    topic = routing._Topic()
    topic.add(to("amq.topic", "q", pattern), (False, "q"))
    looked = 0
    places = routing._opened([topic._root])
    for word in key.split("."):
        places = routing._opened(routing._behind(places, word))
        looked += len(places)
    assert looked <= 229 * 61
    assert topic.targets(key, {}) == []


# --- Versions -------------------------------------------------------------------------------------------------------


def test_a_stamp_is_never_the_one_of_what_was_not_routed() -> None:
    """Goal: 0 stays free, and every version is newer than the one before, round the 16 bits. Method: go round."""
    version, versions = routing.VERSION_FIRST, []
    for _ in range(70_000):
        versions.append(version)
        version = next_version(version)
    assert all(stamp(each) for each in versions)
    for before, after in pairwise(versions):
        assert is_stale(stamp(before), after)
        assert not is_stale(stamp(after), before)
    assert not is_stale(stamp(5), 5)
