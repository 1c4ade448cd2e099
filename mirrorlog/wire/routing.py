"""Routing: which queues a publish to an exchange lands in, by one pure table. The same at every edge.

A table is what a virtual host has at one version of its routing. It is built by whoever publishes, and asked for each
message, so every kind has a structure of its own: a dictionary for direct, a trie for topic, lists for the rest; and
what was found for (exchange, key) is kept while no headers decide. Another version is the same table after what has
changed since: built anew, one of 100,000 bindings holds its owner up for the better part of a second.

RabbitMQ's rules: a queue that several bindings lead to gets a message once; an exchange that sends a message nowhere
gives it to its alternate exchange; exchanges may be bound in cycles, each is asked once. The default exchange (the
empty name) routes by the queue's name and stands in no table.

Rejected: routing on the node (it would look into every record); one regular expression per topic pattern (100,000
bindings are 100,000 matches per message).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import asdict

from mirrorlog.errors import BadRequest, NoSuchExchange

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
KINDS: Final = (DIRECT, FANOUT, TOPIC, HEADERS)

DELAYED: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"
"""RabbitMQ's exchanges whose messages may ask for a delay, and the argument that says how one routes. Every exchange
here gives messages with a delay; so this is a name that is kept, for who looks for it."""

X_MATCH: Final = "x-match"
ALL: Final = "all"
ANY: Final = "any"
ALL_WITH_X: Final = "all-with-x"
ANY_WITH_X: Final = "any-with-x"
MATCHES: Final = (ALL, ANY, ALL_WITH_X, ANY_WITH_X)

VERSION_FIRST: Final = 1
_STAMPS: Final = 2**16

KEPT_MAX: Final = 65_536
"""Routes that are kept of one table; then all go, and come again as they are asked for."""

_SHOWN_CHARS: Final = 64
_NO_HEADERS: Final[Mapping[str, Any]] = {}


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind`: direct, fanout, topic or headers: how it routes; `internal`: only other exchanges may give it messages;
    `alternate`: the exchange that gets what this one sends nowhere, empty for none. `arguments`: since
    `versions.EXCHANGE_ARGUMENTS`, and only `x-delayed-type`, which says the same as `kind`."""

    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str = ""
    arguments: Mapping[str, Any] = {}

    @property
    def type(self) -> str:
        """As it was declared: so who reads `kind`, of whatever age, routes by it."""
        return DELAYED if DELAYED_TYPE in self.arguments else self.kind


def exchange_as(
    type_: str,
    *,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    alternate: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Exchange:
    """As it is declared. Raises BadRequest for a delayed one that does not say how it routes."""
    given = dict(arguments or {})
    kind = given.get(DELAYED_TYPE) if type_ == DELAYED else type_
    if not isinstance(kind, str) or (type_ != DELAYED and DELAYED_TYPE in given):
        raise BadRequest(f"argument {DELAYED_TYPE!r} goes with exchanges of type {DELAYED}, and says how they route")
    return Exchange(kind, durable, auto_delete, internal, alternate, given)


def check_exchange(name: str, exchange: Exchange) -> None:
    """Raises BadRequest for a kind that there is not, or an argument."""
    if exchange.kind not in KINDS:
        raise BadRequest(
            f"exchange {name!r}: a kind is one of {', '.join(KINDS)}, not {exchange.kind[:_SHOWN_CHARS]!r}"
        )
    if exchange.arguments and dict(exchange.arguments) != {DELAYED_TYPE: exchange.kind}:
        raise BadRequest(
            f"exchange {name!r}: there are the arguments alternate-exchange and, of type {DELAYED}, {DELAYED_TYPE}; "
            f"not {str(dict(exchange.arguments))[:_SHOWN_CHARS]}"
        )


def differences(known: Exchange, wanted: Exchange) -> list[str]:
    """In what an exchange is not as somebody declares it, for people; none when both are the same."""
    there, asked = ({**asdict(each), "kind": each.type} for each in (known, wanted))
    return [f"{name} is {there[name]!r}, not {asked[name]!r}" for name in there if there[name] != asked[name]]


class Binding(msgspec.Struct, frozen=True, omit_defaults=True):
    """From exchange `source` to a queue, or to another exchange. Names are those within the virtual host."""

    source: str
    destination: str
    key: str = ""
    to_exchange: bool = False
    arguments: Mapping[str, Any] = {}


PREDEFINED: Final[Mapping[str, Exchange]] = {
    "amq.direct": Exchange(DIRECT),
    "amq.fanout": Exchange(FANOUT),
    "amq.topic": Exchange(TOPIC),
    "amq.headers": Exchange(HEADERS),
    "amq.match": Exchange(HEADERS),
}
"""In every virtual host, and stored nowhere."""


# --- Versions -------------------------------------------------------------------------------------------------------


def next_version(version: int) -> int:
    """The routing version behind this one: never one whose stamp is 0, which stands for what was not routed."""
    return version + 1 if (version + 1) % _STAMPS else version + 2


def stamp(version: int) -> int:
    """What a PRODUCE frame says of the version that its batch was routed by: 16 bits, not 0."""
    return version % _STAMPS


def is_stale(stamped: int, version: int) -> bool:
    """Whether a batch was routed by a version before `version`: compared as serial numbers (RFC 1982), so that the 16
    bits may come round."""
    return 0 < (stamp(version) - stamped) % _STAMPS < _STAMPS // 2


# --- The table ------------------------------------------------------------------------------------------------------


class RoutingTable:
    """One virtual host's exchanges and bindings at `version`."""

    def __init__(self, exchanges: Mapping[str, Exchange], bindings: Iterable[Binding], *, version: int = 0) -> None:
        """`exchanges`: without the predefined ones. Bindings of exchanges that are not there count for nothing."""
        self.version = version
        self.exchanges: Mapping[str, Exchange] = {**PREDEFINED, **exchanges}
        self._matchers = {name: _MATCHERS[exchange.kind]() for name, exchange in self.exchanges.items()}
        self._kept: dict[tuple[str, str], tuple[str, ...]] = {}
        self._bind(bindings)

    def change(
        self,
        version: int,
        *,
        exchanges: Mapping[str, Exchange],
        deleted: Iterable[str],
        bindings: Iterable[Binding],
        unbound: Iterable[Binding],
    ) -> None:
        """To `version`, by what is new and what is gone since. An exchange that was made again has none of its bindings
        but those that are named."""
        for binding in unbound:
            if (matcher := self._matchers.get(binding.source)) is not None:
                matcher.remove(binding, _target(binding))
        gone = {*deleted, *(name for name in exchanges if name in self.exchanges)} - PREDEFINED.keys()
        left = {name: exchange for name, exchange in self.exchanges.items() if name not in gone}
        self.exchanges = {**left, **exchanges}
        for name in gone:
            self._matchers.pop(name, None)
        for name, exchange in exchanges.items():
            self._matchers.setdefault(name, _MATCHERS[exchange.kind]())
        self._bind(bindings)
        self._kept.clear()
        self.version = version

    def _bind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            if (matcher := self._matchers.get(binding.source)) is not None:
                matcher.add(binding, _target(binding))

    def route(
        self, exchange: str, key: str, headers: Mapping[str, Any] = _NO_HEADERS, *, also: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The queues, each once, in the order in which they were found; none when it is unroutable. `also`: further
        keys: a queue that any of them leads to has it once, and an alternate exchange gets what none leads anywhere.

        Raises NoSuchExchange.
        """
        if not exchange:
            return tuple(dict.fromkeys((key, *also))) if also else (key,)
        found = None if also else self._kept.get((exchange, key))
        if found is not None:
            return found
        if exchange not in self.exchanges:
            raise no_such_exchange(exchange)
        queues, keeps = self._walk(exchange, (key, *also), headers)
        if keeps and not also:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[exchange, key] = queues
        return queues

    def _walk(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
        """(queues, whether the keys alone decided)."""
        queues: dict[str, None] = {}
        asked, waiting, keeps = {exchange}, [exchange], True
        while waiting:
            name = waiting.pop()
            facts = self.exchanges[name]
            keeps = keeps and facts.kind != HEADERS
            matcher = self._matchers[name]
            targets = [target for key in keys for target in matcher.targets(key, headers)]
            # Whether anything matched here decides, not whether a queue was found behind it.
            further = [] if targets or not facts.alternate else [facts.alternate]
            for to_exchange, destination in targets:
                if to_exchange:
                    further.append(destination)
                else:
                    queues[destination] = None
            for each in further:
                if each not in asked and each in self.exchanges:
                    asked.add(each)
                    waiting.append(each)
        return tuple(queues), keeps


def no_such_exchange(name: str) -> NoSuchExchange:
    """A new one each time, as every error that is raised."""
    return NoSuchExchange(f"there is no exchange {name[:_SHOWN_CHARS]!r}; declare it first")


# --- One matcher per kind -------------------------------------------------------------------------------------------


_Target = tuple[bool, str]
"""(whether it is an exchange, its name)."""


def _target(binding: Binding) -> _Target:
    return binding.to_exchange, binding.destination


class _Matcher(Protocol):
    """The bindings of one exchange."""

    def add(self, binding: Binding, target: _Target) -> None: ...

    def remove(self, binding: Binding, target: _Target) -> None:
        """One that was added."""

    def targets(self, key: str, headers: Mapping[str, Any]) -> Collection[_Target]:
        """Where a message goes from here; perhaps one of them twice."""


class _Direct:
    def __init__(self) -> None:
        self._by_key: dict[str, list[_Target]] = {}

    def add(self, binding: Binding, target: _Target) -> None:
        self._by_key.setdefault(binding.key, []).append(target)

    def remove(self, binding: Binding, target: _Target) -> None:
        targets = self._by_key[binding.key]
        targets.remove(target)
        if not targets:
            del self._by_key[binding.key]

    def targets(self, key: str, headers: Mapping[str, Any]) -> Collection[_Target]:
        return self._by_key.get(key, ())


class _Fanout:
    def __init__(self) -> None:
        self._all: dict[_Target, int] = {}  # how many bindings lead there

    def add(self, binding: Binding, target: _Target) -> None:
        self._all[target] = self._all.get(target, 0) + 1

    def remove(self, binding: Binding, target: _Target) -> None:
        self._all[target] -= 1
        if not self._all[target]:
            del self._all[target]

    def targets(self, key: str, headers: Mapping[str, Any]) -> Collection[_Target]:
        return self._all


class _Word:
    """A place in the trie: what begins with the words before it. `any_words`: this is the place behind a `#`."""

    __slots__ = ("any_words", "next", "targets")

    def __init__(self, *, any_words: bool = False) -> None:
        self.next: dict[str, _Word] = {}
        self.targets: list[_Target] = []
        self.any_words = any_words


class _Topic:
    """A trie of words, walked with all the places at once where a key may stand: at most as many as patterns share its
    beginning, and never the tree of all ways that several `#` open."""

    def __init__(self) -> None:
        self._root = _Word()

    def add(self, binding: Binding, target: _Target) -> None:
        place = self._root
        for word in _words(binding.key):
            following = place.next.get(word)
            if following is None:
                following = place.next[word] = _Word(any_words=word == "#")
            place = following
        place.targets.append(target)

    def remove(self, binding: Binding, target: _Target) -> None:
        """With the places that lead nowhere any more."""
        words = _words(binding.key)
        way = [self._root]
        for word in words:
            way.append(way[-1].next[word])
        way[-1].targets.remove(target)
        for before, word, place in zip(way[-2::-1], words[::-1], way[:0:-1], strict=True):
            if place.targets or place.next:
                break
            del before.next[word]

    def targets(self, key: str, headers: Mapping[str, Any]) -> Collection[_Target]:
        # By identity, each once: dictionaries keep the order, so equal tables find queues in the same one.
        places = _opened([self._root])
        for word in _words(key):
            places = _opened(_behind(places, word))
        return [target for place in places for target in place.targets]


def _words(key: str) -> list[str]:
    """An empty key has none, as RabbitMQ has it; one that ends with a point ends with an empty word."""
    return key.split(".") if key else []


def _behind(places: list[_Word], word: str) -> list[_Word]:
    """Where the key may stand after one more word."""
    found = []
    for place in places:
        if place.any_words:
            found.append(place)
        for step in (word, "*") if word != "#" else ("*",):
            following = place.next.get(step)
            if following is not None:
                found.append(following)
    return found


def _opened(places: list[_Word]) -> list[_Word]:
    """With those behind a `#`, which may stand for no word. Each once."""
    found: dict[_Word, None] = {}
    waiting = places[::-1]
    while waiting:
        place = waiting.pop()
        if place not in found:
            found[place] = None
            if (following := place.next.get("#")) is not None:
                waiting.append(following)
    return list(found)


class _Headers:
    """Each binding is compared: what several may ask of headers has no common order to look them up by."""

    def __init__(self) -> None:
        self._bindings: list[tuple[bool, list[tuple[str, Any]], _Target]] = []

    def add(self, binding: Binding, target: _Target) -> None:
        self._bindings.append(self._compared(binding, target))

    def remove(self, binding: Binding, target: _Target) -> None:
        # By how it is written: 1, 1.0 and True are equal, and other bindings.
        wanted = repr(self._compared(binding, target))
        at = next(at for at, each in enumerate(self._bindings) if repr(each) == wanted)
        del self._bindings[at]

    @staticmethod
    def _compared(binding: Binding, target: _Target) -> tuple[bool, list[tuple[str, Any]], _Target]:
        match = binding.arguments.get(X_MATCH, ALL)
        with_x = match in (ALL_WITH_X, ANY_WITH_X)
        wanted = [
            (name, value)
            for name, value in binding.arguments.items()
            if name != X_MATCH and (with_x or not name.startswith("x-"))
        ]
        return match in (ALL, ALL_WITH_X), sorted(wanted, key=_name_of), target

    def targets(self, key: str, headers: Mapping[str, Any]) -> Collection[_Target]:
        return [target for every, wanted, target in self._bindings if _matches(every, wanted, headers)]


def _name_of(argument: tuple[str, Any]) -> str:
    return argument[0]


def _matches(every: bool, wanted: Iterable[tuple[str, Any]], headers: Mapping[str, Any]) -> bool:
    found = (name in headers and _same(headers[name], value) for name, value in wanted)
    return all(found) if every else any(found)


def _same(value: Any, wanted: Any) -> bool:
    """None asks for the header alone. Headers of records are bytes: these are compared with how the wanted value is
    written; others with a value of their own type, a flag being no number."""
    if wanted is None:
        return True
    if isinstance(value, bytes):
        return value == as_bytes(wanted)
    return type(value) is type(wanted) and bool(value == wanted)


def as_bytes(value: Any) -> bytes:
    """A binding's value as a header has it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode(errors="surrogatepass")


_MATCHERS: Final[Mapping[str, Callable[[], _Matcher]]] = {
    DIRECT: _Direct,
    FANOUT: _Fanout,
    TOPIC: _Topic,
    HEADERS: _Headers,
}
