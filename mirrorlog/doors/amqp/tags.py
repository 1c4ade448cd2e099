"""Numbers of a channel: of what was delivered on it, and of what was published on it to be confirmed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from operator import ge, itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

PENDING: Final = 0
DONE: Final = 1
REFUSED: Final = 2


class UnknownTag(Exception):
    """Of a delivery that was not made, or was settled."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")


class DeliveryTags(Generic[T]):
    """What is unacknowledged on a channel, by delivery tag, in its order."""

    __slots__ = ("_held", "last")

    def __init__(self) -> None:
        self.last = 0
        self._held: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._held)

    def next(self) -> int:
        """A tag for what nobody has to acknowledge."""
        self.last += 1
        return self.last

    def add(self, delivery: T) -> int:
        """A tag for what is to be acknowledged."""
        self.last += 1
        self._held[self.last] = delivery
        return self.last

    def settle(self, tag: int, multiple: bool) -> list[T]:
        """What is settled by that, the oldest first. 0 with `multiple`: all there is. Raises UnknownTag."""
        if not multiple:
            try:
                return [self._held.pop(tag)]
            except KeyError:
                raise UnknownTag(tag) from None
        return [each for _, each in self.take(tag, multiple)]

    def take(self, tag: int, multiple: bool) -> list[tuple[int, T]]:
        """The same, with tags."""
        held = self._held
        if tag not in held and (tag or not multiple):
            raise UnknownTag(tag)
        found = [tag]
        if multiple:
            found = list(held) if not tag else list(takewhile(partial(ge, tag), held))
        return [(each, held.pop(each)) for each in found]

    def restore(self, deliveries: Iterable[tuple[int, T]]) -> None:
        """What was taken is unacknowledged after all."""
        self._held = dict(sorted([*self._held.items(), *deliveries], key=itemgetter(0)))

    def take_all(self) -> list[T]:
        """All there is; nothing of it is known any more."""
        found, self._held = list(self._held.values()), {}
        return found

    def __iter__(self) -> Iterator[T]:
        return iter(self._held.values())


class ConfirmAnswer(NamedTuple):
    """An ack, or a nack, for the publisher."""

    tag: int
    multiple: bool
    is_ack: bool


class Confirms:
    """Publishes on a channel that confirms, each until it has ended; what is told of them is told in as few answers as
    can be: a run of acks that begins with the oldest one is one."""

    __slots__ = ("_ended", "_first", "last")

    def __init__(self) -> None:
        self.last = 0
        self._first = 1
        # From `_first` on.
        self._ended = bytearray()

    @property
    def outstanding(self) -> int:
        """How many have not been answered."""
        return sum(1 for each in self._ended if each != _TOLD)

    def publish(self) -> int:
        """The number of one more."""
        self.last += 1
        self._ended.append(PENDING)
        return self.last

    def end(self, tag: int, *, well: bool) -> None:
        """What has become of it."""
        self._ended[tag - self._first] = DONE if well else REFUSED

    def take(self) -> list[ConfirmAnswer]:
        """What there is to tell now."""
        ended, first = self._ended, self._first
        answers: list[ConfirmAnswer] = []
        run = 0  # so many at the beginning have ended
        acked = 0  # the newest of these that is acknowledged and not told
        for each in ended:
            if each == PENDING:
                break
            tag = first + run
            run += 1
            if each == REFUSED:
                if acked:
                    answers.append(ConfirmAnswer(acked, True, True))
                    acked = 0
                answers.append(ConfirmAnswer(tag, False, False))
            elif each == DONE:
                acked = tag
        if acked:
            answers.append(ConfirmAnswer(acked, True, True))
        if run:
            del ended[:run]
            self._first = first = first + run
        for at, each in enumerate(ended):
            if each in (DONE, REFUSED):
                answers.append(ConfirmAnswer(first + at, False, each == DONE))
                ended[at] = _TOLD
        return answers


_TOLD: Final = 3
