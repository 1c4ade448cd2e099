"""Objects as RabbitMQ writes them in JSON, and what they are here: queues, exchanges, bindings, policies, users. Pure.

Its management API and its definitions have the same rows, so the door and the command line read and write them here.
What is wrong with one is a BadRequest that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorlog.errors import BadRequest
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.topology import UserInfo
from mirrorlog.wire.names import split
from mirrorlog.wire.policies import Policy, means_nothing, wrong_apply_to
from mirrorlog.wire.routing import DIRECT, Binding, Exchange, exchange_as

Row = dict[str, Any]

API_VERSION: Final = "3.10.8"
"""Of RabbitMQ, whose management API this is as: tools look at it to know what they may ask for."""
ALTERNATE: Final = "alternate-exchange"
ADMINISTRATOR: Final = "administrator"
MAX_CONNECTIONS: Final = "max-connections"
OPERATOR_POLICY: Final = "operator_policy"
"""The component of a parameter that is an operator's policy."""
_FLAGS: Final = ("durable", "auto-delete", "exclusive")
_DESTINATIONS: Final = {"queue": False, "exchange": True}
_OPTIONAL: Final = ("apply-to", "priority")
_ALGORITHMS: Final = ("rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512")


# --- Values ---------------------------------------------------------------------------------------------------------


def flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """`rabbitmqadmin` sends texts. Raises BadRequest."""
    value = body.get(name, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise BadRequest(f"{name} should be true or false, actually was {value!r:.80}")


def text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    """Raises BadRequest for what is none."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} should be a string, actually was {value!r:.80}")
    return value


def number(body: Mapping[str, Any], name: str, default: int, *, least: int = 0) -> int:
    """A whole one, or its text. Raises BadRequest."""
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if type(value) is not int or value < least:
        raise BadRequest(f"{name} should be a whole number from {least} on, actually was {value!r:.80}")
    return value


def table(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Raises BadRequest for what is none; an empty list stands for an empty one, as some clients write it."""
    value = body.get(name)
    if value in (None, [], ""):
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} should be an object, actually was {value!r:.80}")
    return value


def require(body: Mapping[str, Any], *names: str) -> None:
    """Raises BadRequest naming all that are missing."""
    if missing := [name for name in names if name not in body]:
        raise keys_missing(missing)


def keys_missing(names: Sequence[str]) -> BadRequest:
    return BadRequest(f"[{','.join(f'{{key_missing,{name}}}' for name in names)}]")


# --- Queues ---------------------------------------------------------------------------------------------------------


def declared_row(info: QueueInfo) -> Row:
    """What it was declared with."""
    vhost, name = split(info.name)
    given = info.arguments
    return {
        "name": name,
        "vhost": vhost,
        "type": "classic",
        "durable": given.get("durable", True),
        "auto_delete": given.get("auto-delete", False),
        "exclusive": given.get("exclusive", False),
        "arguments": {key: value for key, value in given.items() if key not in _FLAGS},
    }


def queue_arguments(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """As the node takes them, and the names of those that mean nothing here. Raises BadRequest."""
    arguments = dict(table(body, "arguments"))
    ignored = sorted(filter(means_nothing, arguments))
    if not flag(body, "durable", default=True):
        arguments["durable"] = False
    if flag(body, "auto_delete"):
        arguments["auto-delete"] = True
    if flag(body, "exclusive"):
        raise BadRequest("an exclusive queue goes with its connection, and calls have none")
    return arguments, ignored


# --- Exchanges and bindings -----------------------------------------------------------------------------------------


def exchange_row(vhost: str, name: str, exchange: Exchange) -> Row:
    return {
        "name": name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": {**exchange.arguments, **({ALTERNATE: exchange.alternate} if exchange.alternate else {})},
    }


def exchange_of(body: Mapping[str, Any]) -> Exchange:
    """Raises BadRequest."""
    arguments = table(body, "arguments")
    return exchange_as(
        text(body, "type", DIRECT),
        durable=flag(body, "durable", default=True),
        auto_delete=flag(body, "auto_delete"),
        internal=flag(body, "internal"),
        alternate=text(arguments, ALTERNATE),
        arguments={key: value for key, value in arguments.items() if key != ALTERNATE},
    )


def binding_row(vhost: str, binding: Binding) -> Row:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination,
        "destination_type": "exchange" if binding.to_exchange else "queue",
        "routing_key": binding.key,
        "arguments": dict(binding.arguments),
    }


def binding_of(body: Mapping[str, Any]) -> Binding:
    """Raises BadRequest."""
    require(body, "source", "destination")
    kind = text(body, "destination_type", "queue")
    if kind not in _DESTINATIONS:
        raise BadRequest(f"destination_type should be queue or exchange, actually was {kind!r:.80}")
    return Binding(
        text(body, "source"),
        text(body, "destination"),
        text(body, "routing_key"),
        to_exchange=_DESTINATIONS[kind],
        arguments=table(body, "arguments"),
    )


# --- Policies -------------------------------------------------------------------------------------------------------


def policy_of(body: Mapping[str, Any]) -> Policy:
    """What a body says; whether it makes sense the node decides. Raises BadRequest."""
    require(body, "pattern", "definition")
    pattern, definition = body["pattern"], body["definition"]
    given = {name: body[name] for name in _OPTIONAL if body.get(name) is not None}
    apply_to, priority = given.get("apply-to", "all"), given.get("priority", 0)
    wrong = []
    if not isinstance(pattern, str):
        wrong.append(f"pattern should be a binary but was {pattern!r:.80}")
    if not isinstance(definition, dict):
        wrong.append(f"definition should be an object, actually was {definition!r:.80}")
    if reason := wrong_apply_to(apply_to):
        wrong.append(reason)
    if isinstance(priority, bool) or not isinstance(priority, int):
        wrong.append(f"priority should be a whole number, actually was {priority!r:.80}")
    if wrong:
        raise invalid(wrong)
    return Policy(pattern=pattern, definition=definition, apply_to=apply_to, priority=priority)


def invalid(wrong: Sequence[str]) -> BadRequest:
    """All that is wrong with a policy, as RabbitMQ tells of the first."""
    return BadRequest("Validation failed\n\n" + "\n".join(wrong) + "\n")


# --- Users ----------------------------------------------------------------------------------------------------------


def user_row(user: UserInfo) -> Row:
    """Nodes tell no hash."""
    limit = user.limits.max_connections
    return {"name": user.name, "tags": user.tags, "limits": {} if limit is None else {MAX_CONNECTIONS: limit}}


def permission_rows(users: Sequence[UserInfo]) -> list[Row]:
    return [
        {
            "user": user.name,
            "vhost": each.virtual_host,
            "configure": each.configure,
            "write": each.write,
            "read": each.read,
        }
        for user in users
        for each in user.permissions
    ]


def stored_hash(body: Mapping[str, Any]) -> str | None:
    """A hash as nodes take it, of RabbitMQ's or ours; empty: nobody can log in; None: the body says none. Raises
    BadRequest."""
    if (given := body.get("password_hash")) is None:
        return None
    words = text(body, "password_hash")
    if not given or "$" in words:
        return words
    algorithm = text(body, "hashing_algorithm", _ALGORITHMS[0])
    if algorithm not in _ALGORITHMS:
        raise BadRequest(f"hashing_algorithm {algorithm!r:.80} is not known; there are {', '.join(_ALGORITHMS)}")
    return f"{algorithm}${words}"


def tags_of(body: Mapping[str, Any]) -> list[str]:
    """A list, or a text with commas. Raises BadRequest."""
    tags = body.get("tags", [])
    found = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
        raise BadRequest(f"tags should be a list of strings, actually was {tags!r:.80}")
    return [tag.strip() for tag in found if tag.strip()]
