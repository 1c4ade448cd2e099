"""What policies say of queues and exchanges: which definitions they take, which of several is an object's, and what
comes of it together with the object's own arguments. Pure; see decision 0054.

A key of a policy stands for an argument. Of a limit that both set the stricter one holds; of anything else the
argument does, for it was asked for this one queue. What an operator's policy says is a limit to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from mirrorlog.cluster.state.placements import ALWAYS, PROMOTE_ON_FAILURE, PROMOTE_ON_SHUTDOWN, WHEN_SYNCED
from mirrorlog.cluster.state.topology import VirtualHost
from mirrorlog.config import COPIES_MAX
from mirrorlog.errors import BadRequest
from mirrorlog.queues.access import check_expression, is_found_in
from mirrorlog.queues.arguments import (
    CHOICES,
    COPIES_ASKED_MAX,
    LOCATOR,
    MIN_IN_SYNC,
    NUMBERS,
    OF_PLACES,
    REPLACE_AFTER,
    SYNC_MODE,
    TEXT,
    TIMEOUT_MS_MAX,
    TOPOLOGY,
    fits,
    log_group_of,
)
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.wire.frames import Level
from mirrorlog.wire.names import split
from mirrorlog.wire.policies import ALTERNATE_EXCHANGE, CONFIRM, DECLARED, Policy, wrong_apply_to

_SHOWN_CHARS: Final = 80
_HA_MODE: Final = "ha-mode"
_HA_PARAMS: Final = "ha-params"
_SYNC_BATCH: Final = "ha-sync-batch-size"
_NEED_HA_MODE: Final = (_HA_PARAMS, SYNC_MODE, _SYNC_BATCH, PROMOTE_ON_SHUTDOWN, PROMOTE_ON_FAILURE)
_DELIVERY_LIMIT: Final = "delivery-limit"


class _Key(NamedTuple):
    """`argument`: for which it stands; `check`: what is wrong with a value, for people, empty if nothing is."""

    argument: str
    check: Callable[[str, Any], str]


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return ""
        *others, last = (f'"{each}"' for each in choices)
        return f"{key} must be {', '.join(others)} or {last}, got {shown(value)}{_meant(value, choices)}"

    return check


def _number(least: int, most: int) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        fitting = type(value) is int and least <= value <= most
        return "" if fitting else f"{key} takes an integer from {least} to {most}, {shown(value)} given"

    return check


def _text(key: str, value: Any) -> str:
    fitting = isinstance(value, str) and TEXT.fullmatch(value)
    return "" if fitting else f"{key} must be a text of at most 255 characters, got {shown(value)}"


def _batch_size(key: str, value: Any) -> str:
    fitting = type(value) is int and value > 0
    return "" if fitting else f"{key} takes an integer greater than 0, {shown(value)} given"


def _confirm(key: str, value: Any) -> str:
    if value in Level.NAMES if isinstance(value, str) else type(value) is int and 1 <= value < Level.MAJORITY:
        return ""
    names = ", ".join(f'"{name}"' for name in Level.NAMES)
    return (
        f"{key} must be {names} or a number of copies from 1 to 253, got {shown(value)}{_meant(value, [*Level.NAMES])}"
    )


def _topology(key: str, value: Any) -> str:
    return f'{key} "ring" is not there yet; there is "star"' if value == "ring" else _choice("star", "auto")(key, value)


def _nothing_wrong(key: str, value: Any) -> str:
    """What is wrong with it is told with its neighbours."""
    return ""


def _like(argument: str) -> _Key:
    """What the argument takes."""
    if argument in CHOICES:
        return _Key(argument, _choice(*CHOICES[argument]))
    if argument in NUMBERS:
        least, most, or_else = NUMBERS[argument]
        return _Key(argument, _number(-1 if or_else else least, most))
    return _Key(argument, _text)


_KEYS: Final[Mapping[str, _Key]] = {
    _HA_MODE: _Key("", _nothing_wrong),
    _HA_PARAMS: _Key("", _nothing_wrong),
    SYNC_MODE: _Key(SYNC_MODE, _choice("manual", "automatic")),
    _SYNC_BATCH: _Key("", _batch_size),
    PROMOTE_ON_SHUTDOWN: _Key(PROMOTE_ON_SHUTDOWN, _choice(WHEN_SYNCED, ALWAYS)),
    PROMOTE_ON_FAILURE: _Key(PROMOTE_ON_FAILURE, _choice(WHEN_SYNCED, ALWAYS)),
    LOCATOR: _like(LOCATOR),
    "message-ttl": _like("x-message-ttl"),
    "expires": _like("x-expires"),
    "max-length": _like("x-max-length"),
    "max-length-bytes": _like("x-max-length-bytes"),
    "overflow": _like("x-overflow"),
    "dead-letter-exchange": _like("x-dead-letter-exchange"),
    "dead-letter-routing-key": _like("x-dead-letter-routing-key"),
    _DELIVERY_LIMIT: _like("x-delivery-limit"),
    ALTERNATE_EXCHANGE: _Key("", _text),
    "flush": _like("flush"),
    "retention": _like("retention"),
    "min-in-sync": _like(MIN_IN_SYNC),
    REPLACE_AFTER: _Key(REPLACE_AFTER, _number(1, TIMEOUT_MS_MAX)),
    CONFIRM: _Key(CONFIRM, _confirm),
    TOPOLOGY: _Key(TOPOLOGY, _topology),
}
KEYS: Final = tuple(_KEYS)
"""Of definitions."""
CAPS: Final = (
    "message-ttl", "expires", "max-length", "max-length-bytes", _DELIVERY_LIMIT, "flush", "min-in-sync", CONFIRM,
)  # fmt: skip
"""Those that an operator's policy may have."""
_STRICTER: Final = ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-delivery-limit")
"""Arguments of which the lower one holds."""


# --- What a policy may be ---------------------------------------------------------------------------------------------


def check_policy(policy: Policy, *, operator: bool) -> None:
    """Raises BadRequest that names everything that is wrong; `details` have it as a list, too."""
    wrong = [*_wrong_form(policy), *wrong_keys(policy.definition, operator=operator)]
    if wrong:
        raise BadRequest(f"Validation failed: {'; '.join(wrong)}", errors=wrong)


def _wrong_form(policy: Policy) -> list[str]:
    wrong = [reason] if (reason := wrong_apply_to(policy.apply_to)) else []
    try:
        check_expression(policy.pattern)
    except BadRequest as error:
        wrong.append(f"pattern {shown(policy.pattern)}: {error.message}")
    return wrong


def wrong_keys(definition: Mapping[str, Any], *, operator: bool = False) -> list[str]:
    """All that is wrong with a definition."""
    if not definition:
        return ["no policy provided"]
    wrong = []
    for key, value in definition.items():
        if key not in _KEYS:
            near = get_close_matches(key[:_SHOWN_CHARS], KEYS, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(KEYS)}"
            wrong.append(f"{key[:_SHOWN_CHARS]!r} is not a recognised policy setting{meant}")
        elif operator and key not in CAPS:
            wrong.append(f"{key} cannot be set by an operator policy; those that can: {', '.join(CAPS)}")
        elif reason := _KEYS[key].check(key, value):
            wrong.append(reason)
    return [*wrong, *_wrong_mirroring(definition), *_wrong_dead_letters(definition)]


def _wrong_dead_letters(definition: Mapping[str, Any]) -> list[str]:
    if "dead-letter-routing-key" in definition and "dead-letter-exchange" not in definition:
        return ["dead-letter-routing-key needs dead-letter-exchange beside it"]
    return []


def _wrong_mirroring(definition: Mapping[str, Any]) -> list[str]:
    if _HA_MODE not in definition:
        needing = [key for key in _NEED_HA_MODE if key in definition]
        return [f"{_HA_MODE} must be specified to specify {', '.join(needing)}"] if needing else []
    given = shown(definition[_HA_PARAMS]) if _HA_PARAMS in definition else "none"
    params = definition.get(_HA_PARAMS)
    mode = definition[_HA_MODE]
    if mode == "all":
        return [f'{_HA_MODE}="all" does not take parameters'] if _HA_PARAMS in definition else []
    if mode == "exactly":
        fits = type(params) is int and 1 <= params <= COPIES_ASKED_MAX
        return [] if fits else [f'{_HA_MODE}="exactly" takes an integer from 1 to {COPIES_ASKED_MAX}, {given} given']
    if mode == "nodes":
        return _wrong_nodes(params, given)
    meant = _meant(mode, ("all", "exactly", "nodes"))
    return [f'{shown(mode)} is not a valid {_HA_MODE} value; it must be "all", "exactly" or "nodes"{meant}']


def _wrong_nodes(params: Any, given: str) -> list[str]:
    if not isinstance(params, list | tuple):
        return [f'{_HA_MODE}="nodes" takes a list, {given} given']
    if not params:
        return [f'{_HA_MODE}="nodes" list must be non-empty']
    if strange := [each for each in params if not fits("nodes", [each])]:
        return [f'{_HA_MODE}="nodes" takes a list of names of nodes, {shown(strange[0])} is none']
    if not fits("nodes", params):
        return [f'{_HA_MODE}="nodes" takes up to {COPIES_MAX} nodes, each once, {given} given']
    return []


# --- Which one, and what comes of it ----------------------------------------------------------------------------------


class Effective(NamedTuple):
    """`arguments`: what holds for a queue; `policy`, `operator`: the names of the policies that are its own, empty
    without; `sources`: where each of the arguments comes from: DECLARED, or `policy NAME`, `operator policy NAME`."""

    arguments: dict[str, Any]
    policy: str
    operator: str
    sources: dict[str, str]


def _fitting(policies: Mapping[str, Policy], name: str, kind: str) -> list[str]:
    """The names of those for an object of this name, the one that counts first."""
    found = [
        each
        for each, policy in policies.items()
        if policy.apply_to in (kind, "all") and is_found_in(policy.pattern, name)
    ]
    return sorted(found, key=lambda each: (-policies[each].priority, each))


def chosen(policies: Mapping[str, Policy], name: str, kind: str) -> str:
    """The name of the policy for the queue or exchange (`kind`: queues, exchanges) of this name within its virtual
    host; empty without one."""
    return next(iter(_fitting(policies, name, kind)), "")


def effective(host: VirtualHost | None, name: str, arguments: Mapping[str, Any]) -> Effective:
    """What holds for a queue with these arguments, by its qualified name, by the policies of its virtual host."""
    own = Effective(dict(arguments), "", "", dict.fromkeys(arguments, DECLARED))
    if host is None or not (host.policies or host.operator_policies):
        return own
    within = split(name)[1]
    policy, operator = (chosen(each, within, "queues") for each in (host.policies, host.operator_policies))
    if policy:
        _apply(own, host.policies[policy].definition, f"policy {policy}", caps=False)
    if operator:
        _apply(own, host.operator_policies[operator].definition, f"operator policy {operator}", caps=True)
    return own._replace(policy=policy, operator=operator)


def _apply(own: Effective, definition: Mapping[str, Any], source: str, *, caps: bool) -> None:
    """`caps`: whatever is stricter than what is there holds, and not of limits alone."""
    elsewhere = _is_placed_otherwise(own)
    counted = bool(own.arguments.keys() & {"copies", "nodes"})
    for argument, value in _as_arguments(definition).items():
        if (elsewhere and argument in OF_PLACES) or (counted and argument in ("copies", "nodes")):
            continue
        _set(own, argument, value, source, stricter=caps or argument in _STRICTER)


def _set(own: Effective, argument: str, value: Any, source: str, *, stricter: bool) -> None:
    there = own.arguments.get(argument)
    if argument in own.arguments and not (stricter and _is_stricter(argument, value, there)):
        return
    own.arguments[argument] = value
    own.sources[argument] = source


def _is_stricter(argument: str, value: Any, there: Any) -> bool:
    if argument == "flush":
        return bool(value == "disk" != there)
    if argument == CONFIRM:
        return Level.said(value) > Level.said(there)
    if type(there) is not int:
        return True
    if argument == MIN_IN_SYNC:
        return bool(value > there)
    return bool(value >= 0 and (there < 0 or value < there))  # -1: without a limit


def _as_arguments(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What a definition says, by the names of the arguments that it stands for."""
    found = {_KEYS[key].argument: value for key, value in definition.items() if key in _KEYS and _KEYS[key].argument}
    mode = definition.get(_HA_MODE)
    if mode == "nodes":
        found["nodes"] = list(definition.get(_HA_PARAMS, ()))
    elif mode is not None:
        found["copies"] = definition.get(_HA_PARAMS, 1) if mode == "exactly" else COPIES_ASKED_MAX
    if mode is not None:
        found.setdefault(SYNC_MODE, "automatic")
    return found


def _is_placed_otherwise(own: Effective) -> bool:
    """A queue that goes with its node is there alone, and one of an `x-log-group` is where its others are: what a
    policy says of a place is nothing to them."""
    return is_transient(own.arguments) or bool(log_group_of(own.arguments))


def ties(policies: Mapping[str, Policy], names: Iterable[str]) -> dict[str, list[str]]:
    """By the name of a policy those that fit one of these names of queues too, at the same priority, and come behind
    it."""
    found: dict[str, set[str]] = {}
    for name in names:
        fitting = _fitting(policies, name, "queues")
        if tied := [each for each in fitting[1:] if policies[each].priority == policies[fitting[0]].priority]:
            found.setdefault(fitting[0], set()).update(tied)
    return {name: sorted(each) for name, each in found.items()}


def governed(host: VirtualHost) -> VirtualHost:
    """As publishers route by it: exchanges that were declared without an alternate exchange have that of their policy.
    The same object where no policy says anything of it."""
    if not any(ALTERNATE_EXCHANGE in policy.definition for policy in host.policies.values()):
        return host
    exchanges = {
        name: exchange if exchange.alternate else replace(exchange, alternate=_alternate_of(host, name))
        for name, exchange in host.exchanges.items()
    }
    return replace(host, exchanges=exchanges)


def _alternate_of(host: VirtualHost, exchange: str) -> str:
    name = chosen(host.policies, exchange, "exchanges")
    alternate = host.policies[name].definition.get(ALTERNATE_EXCHANGE) if name else None
    return alternate if isinstance(alternate, str) else ""


def _meant(value: Any, choices: Sequence[str]) -> str:
    """What somebody may have meant, for people; empty when nothing is near."""
    near = get_close_matches(value[:_SHOWN_CHARS], choices, n=1) if isinstance(value, str) else []
    return f'; did you mean "{near[0]}"?' if near else ""


def shown(value: object) -> str:
    """A value that somebody chose, in an error: as JSON has it, and not all of a long one."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
