"""Policies: which queues and exchanges of a virtual host they are for, and what they say of these; see
decision 0054. Which of several is an object's, and what that comes to, is in `queues.policies`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, get_args

import msgspec

from mirrorlog.errors import BadRequest, LimitReached, PreconditionFailed

ApplyTo = Literal["queues", "exchanges", "all"]
APPLY_TO: Final = get_args(ApplyTo)
BYTES_MAX: Final = 8 * 1024
"""Of a policy."""
PATTERN_CHARS_MAX: Final = 1_000
PRIORITY_MAX: Final = 2**31 - 1
"""As far below zero, too."""
DECLARED: Final = "argument"
"""Where a key comes from that no policy has said."""
CONFIRM: Final = "confirm"
"""The level of producers that ask for none."""
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
"""The one key that is for exchanges."""

_MEANINGLESS: Final = frozenset({
    "x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-leader-locator", "x-initial-cluster-size",
    "x-dead-letter-strategy",
})  # fmt: skip
_MEANINGLESS_BEGIN: Final = ("x-ha-", "x-max-in-memory-", "x-quorum-", "x-stream-")


def means_nothing(argument: str) -> bool:
    """Whether an argument of queues is RabbitMQ's about its own ways to store one, of which there is one here. It is
    taken, kept and told, and no queue is another one for it."""
    return argument in _MEANINGLESS or argument.startswith(_MEANINGLESS_BEGIN)


def wrong_apply_to(value: object) -> str:
    """What is wrong with what a policy shall be for; empty if nothing is."""
    if value in APPLY_TO:
        return ""
    return f"apply-to '{value!s:.80}' unrecognised; should be 'queues', 'exchanges' or 'all'"


class NoSuchPolicy(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The virtual host has no policy of that name."""

    code: ClassVar[str] = "NO_SUCH_POLICY"


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """`pattern`: a regular expression, which is searched for in names; `definition`: what it says, by RabbitMQ's names
    of keys; `priority`: of several that an object's name fits, the highest counts, and of equals the first by name."""

    pattern: str
    definition: Mapping[str, Any]
    apply_to: ApplyTo = "all"
    priority: int = 0

    @property
    def value(self) -> dict[str, Any]:
        """As RabbitMQ's API and tools write it."""
        return {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }

    def check_size(self) -> None:
        """Whether it is one that every node can keep. Raises BadRequest, LimitReached."""
        if len(self.pattern) > PATTERN_CHARS_MAX or abs(self.priority) > PRIORITY_MAX or not self.definition:
            raise BadRequest(
                f"a policy has a pattern of up to {PATTERN_CHARS_MAX} characters, a priority of 32 bits, a definition"
            )
        if (size := len(msgspec.msgpack.encode(self))) > BYTES_MAX:
            raise LimitReached(f"a policy of {size} bytes is above max_policy_bytes ({BYTES_MAX})")


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in a list. `operator`: it caps what others say; `queues`: how many it is the one of, -1 if not counted;
    `reason`: why it cannot be met for all of them now, empty if it can; `ties`: others of the same priority that fit
    the same names of queues, and come behind it by name."""

    virtual_host: str
    name: str
    policy: Policy
    operator: bool = False
    queues: int = -1
    reason: str = ""
    ties: list[str] = []
