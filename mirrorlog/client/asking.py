"""Asking several nodes the same: one that hangs delays nobody. Thin.

Either all at once, or each a head start before the next (as RFC 8305 has it for addresses): then one that answers is
the only one that is asked, and one that is silent costs its head start instead of its deadline. How long to wait for
the others, once there is an answer, is for whoever asks to say: only he knows what it is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, TypeVar

from mirrorlog.errors import ConnectionLost, MirrorlogError, RequestTimeout

HEAD_START_S: Final = 0.25

_T = TypeVar("_T")
Ask = Callable[[], Coroutine[Any, Any, _T]]


@dataclass(slots=True)
class Heard(Generic[_T]):
    """`answers`: in the order in which they came; `failures`: by the number of the one who was asked."""

    answers: list[_T] = field(default_factory=list)
    failures: dict[int, MirrorlogError] = field(default_factory=dict)

    def no_answer(self) -> MirrorlogError:
        """What to raise when every node failed: the first that did answer, with its reason, tells most."""
        failures = [self.failures[number] for number in sorted(self.failures)]
        for failure in failures:
            if not isinstance(failure, ConnectionLost | RequestTimeout):
                return failure
        return ConnectionLost(f"no node answers: {'; '.join(map(str, failures))}")


async def ask_nodes(
    asks: Sequence[Ask[_T]], patience_s: Callable[[list[_T]], float], *, head_start_s: float = 0.0
) -> Heard[_T]:
    """What they answer. `patience_s(answers)`: how much longer to wait for others, given these; 0 when they will do.

    The next one is asked `head_start_s` after the one before, or when that one has failed; and all of them once there
    is an answer that will not do. Without any answer it lasts until all have failed: each has its own deadline.
    """
    loop = asyncio.get_running_loop()
    heard: Heard[_T] = Heard()
    pending: dict[asyncio.Task[_T], int] = {}
    waiting = list(enumerate(asks))[::-1]
    next_at, end_at = loop.time(), inf
    try:
        while True:
            now = loop.time()
            while waiting and (now >= next_at or not pending):
                number, ask = waiting.pop()
                pending[asyncio.ensure_future(ask())] = number
                next_at = now + head_start_s
            if not pending or now >= end_at:
                return heard
            wake_at = min(end_at, next_at if waiting else inf)
            done, _ = await asyncio.wait(
                pending, timeout=None if wake_at == inf else wake_at - now, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                continue
            for task in done:
                _note(task, pending.pop(task), heard)
            next_at = loop.time()
            if heard.answers:
                more_s = patience_s(heard.answers)
                if more_s <= 0:
                    return heard
                end_at = min(end_at, next_at + more_s)
                head_start_s = 0.0
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _note(task: asyncio.Task[_T], number: int, heard: Heard[_T]) -> None:
    try:
        heard.answers.append(task.result())
    except MirrorlogError as error:
        heard.failures[number] = error
