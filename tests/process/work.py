"""A work queue in use: whoever takes from it settles what it gets, in every way there is, and holds the nodes to what
they promise about it (`given`).

Its takers, each a client of its own: one that acknowledges record by record, without waiting for one before the next;
one that takes batches; one that leases; one that moves records to a second queue, each time some of them in one
transaction; and a reader of that queue and one of the dead letters. Some records are returned, at once or with a delay,
some rejected, some leases left to end. What fails with an outcome that may change is tried again, as a good program
would. All of it runs in a thread of its own, so that what is done to the nodes may block.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from mirrorlog.client import Client, Subscription
from mirrorlog.client.subscription.delivered import Delivered, DeliveredBatch
from mirrorlog.client.subscription.leases import Leased
from mirrorlog.client.transaction.transaction import Transaction
from mirrorlog.errors import MirrorlogError, NotGranted, OutcomeUnknown, ReceiptStale
from mirrorlog.queues.delivery.group import EPOCH_BITS
from tests.process.clusters import declare, eventually
from tests.process.given import ACK, MOVE, NEWEST, OVER, REJECT, WRONG, Book, Move, check_ends
from tests.process.traffic import Traffic, number_of

QUEUE: Final = "work"
MOVED: Final = "moved"
DEAD: Final = "dead"
_PREFETCH: Final = 50
_MOVED_AT_ONCE: Final = 5
_LEASED_AT_ONCE: Final = 20
_LEASE_MS: Final = 3_000
_WAIT_MS: Final = 500
_DELAY_MS: Final = 200
_COMMIT_MS: Final = 10_000
# Of what is given out: rejected, and returned, up to these shares; of leases, those that are left to end; of commits,
# those behind a transaction that is rolled back.
_REJECTED: Final = 0.03
_RETURNED: Final = 0.10
_FORGOTTEN: Final = 0.03
_ROLLED_BACK: Final = 0.05
_PAUSE_S: Final = 0.1
_END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Given:
    """What was given to `taker` at once, in `epoch`, and is settled by one call. `as_of`: the epoch by which it is
    judged."""

    taker: str
    queue: str
    numbers: list[int]
    epoch: int
    it: Delivered | DeliveredBatch | Leased
    as_of: int


class Work:
    """Takers of what `traffic` publishes to `QUEUE`, from `with` on. `books`: by queue; `interruptions`: errors of
    taking, by taker and code; `outcomes`: errors of settling, by code."""

    def __init__(self, servers: Sequence[str], traffic: Traffic, *, seed: int) -> None:
        self.books = {queue: Book(queue) for queue in (QUEUE, MOVED, DEAD)}
        self.moves: dict[int, Move] = {}
        self.interruptions: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._servers = list(servers)
        self._traffic = traffic
        self._random = random.Random(seed)
        # When the newest record was published (s) that a taker has been given and could settle.
        self._newest = dict.fromkeys(("each", "batches", "leases", "mover", "moved", "dead"), 0.0)
        self._subscriptions: list[Subscription] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="work", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(_END_S)

    def wait_progress(self, since: float, *, timeout: float) -> None:
        """Until every taker has settled, confirmed, something that was published after `since` (s). Raises
        RequestTimeout naming those that have not, or what went wrong."""
        try:
            eventually(lambda: self._well() and not self._late(since), "delivery goes on", timeout=timeout)
        except MirrorlogError as error:
            raise AssertionError(f"{error}: nothing newer came to {', '.join(self._late(since))}") from None

    def finish(self) -> None:
        """Behind the end of publishing: wait until all is settled. Raises what went wrong."""
        self._ending.set()
        self._thread.join(2 * _END_S)
        assert not self._thread.is_alive(), "the takers hang"
        self._well()

    def check(self, *, moved: Sequence[bytes], dead: Sequence[bytes]) -> dict[str, int]:
        """What is wrong with what was given out, and with what stands in the other two queues."""
        return check_ends(
            self.books[QUEUE],
            published=[each.number for each in self._traffic.confirms],
            moves=self.moves,
            moved=[(number_of(value), int(value.split()[1])) for value in moved],
            dead=[number_of(value) for value in dead],
            given=self.books,
        )

    def counts(self) -> dict[str, int]:
        """What was done."""
        fates = [fate for book in self.books.values() for fate in book.fates.values()]
        return {
            "given": sum(fate.given for fate in fates),
            "given_again": sum(fate.given - 1 for fate in fates),
            "acked": sum(ACK in fate.confirmed for fate in fates),
            "moved": sum(MOVE in fate.confirmed for fate in fates),
            "rejected": sum(REJECT in fate.confirmed for fate in fates),
            "moves_unknown": sum(each.outcome == "unknown" for each in self.moves.values()),
            **{name: sum(book.counts[name] for book in self.books.values()) for name in (*WRONG, "stale")},
        }

    def stale(self) -> list[str]:
        """What came as from the past, told from the beginning."""
        return [book.story(number) for book in self.books.values() for number in book.stale]

    def _late(self, since: float) -> list[str]:
        return [taker for taker, sent_at in self._newest.items() if sent_at <= since]

    def _well(self) -> bool:
        """Raises what went wrong so far."""
        if self.error is not None:
            raise self.error
        for book in self.books.values():
            assert not book.wrong, "\n".join(book.wrong[:5])
        return True

    # --- the thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseExceptionGroup as group:
            self.error = group.exceptions[0]
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            takers = [
                group.create_task(self._with_client(take, group))
                for take in (self._each, self._batches, self._leases, self._mover, self._moved, self._dead)
            ]
            while not self._ending.is_set():  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)
            await self._wait_settled()
            for task in takers:
                task.cancel()

    async def _with_client(self, take: Callable[[Client, asyncio.TaskGroup], Awaitable[None]],
                           group: asyncio.TaskGroup) -> None:  # fmt: skip
        async with Client(*self._servers) as client:
            await take(client, group)

    async def _wait_settled(self) -> None:
        """Until nothing of the three queues is anybody's to do."""
        async with Client(*self._servers) as client:
            give_up_at = time.monotonic() + _END_S
            while (left := await self._left(client)) and time.monotonic() < give_up_at:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)
            assert not left, f"not settled {_END_S:g} s behind the last publish: {left}"

    async def _left(self, client: Client) -> list[str]:
        left = []
        # In the order in which records go.
        for queue in (QUEUE, MOVED, DEAD):
            try:
                groups = (await client.admin.groups(queue)).groups
            except MirrorlogError as error:
                left.append(f"{queue}: {error}")
                continue
            left += [f"{queue}: {each}" for each in groups if each.kind != "stream" and each.unsettled]
        return left

    # --- takers ---

    async def _each(self, client: Client, group: asyncio.TaskGroup) -> None:
        async def handle(subscription: Subscription) -> None:
            group.create_task(self._decide(self._got("each", QUEUE, await anext(subscription))))

        await self._subscribed(client, "each", QUEUE, handle)

    async def _batches(self, client: Client, group: asyncio.TaskGroup) -> None:
        async def handle(subscription: Subscription) -> None:
            group.create_task(self._decide(self._got_batch("batches", QUEUE, await subscription.next_batch())))

        await self._subscribed(client, "batches", QUEUE, handle)

    async def _leases(self, client: Client, group: asyncio.TaskGroup) -> None:
        while True:
            asked_at = time.monotonic()
            try:
                leased = await client.lease(
                    QUEUE, max_records=_LEASED_AT_ONCE, lease_ms=_LEASE_MS, wait_ms=_WAIT_MS, holder="leases"
                )
            except MirrorlogError as error:
                self.books[QUEUE].unordered_below(len(self._traffic.sent_at))
                await self._interrupted("leases", error)
                continue
            # The answer, or the records, may have come when the lease was over: others may have had them.
            in_time = time.monotonic() < asked_at + _LEASE_MS / 1000
            for given in [self._got_leased("leases", QUEUE, record, in_time=in_time) for record in leased]:
                if self._random.random() > _FORGOTTEN:
                    group.create_task(self._decide(given))

    async def _mover(self, client: Client, group: asyncio.TaskGroup) -> None:
        async def handle(subscription: Subscription) -> None:
            taken = await subscription.receive(_MOVED_AT_ONCE, timeout_ms=_WAIT_MS)
            if taken:
                await self._move(client, [self._got("mover", QUEUE, record) for record in taken])

        await self._subscribed(client, "mover", QUEUE, handle)

    async def _moved(self, client: Client, group: asyncio.TaskGroup) -> None:
        await self._read(client, group, MOVED)

    async def _dead(self, client: Client, group: asyncio.TaskGroup) -> None:
        await self._read(client, group, DEAD)

    async def _read(self, client: Client, group: asyncio.TaskGroup, queue: str) -> None:
        async def handle(subscription: Subscription) -> None:
            given = self._got(queue, queue, await anext(subscription))
            group.create_task(self._settle(given, ACK, given.it.ack))

        await self._subscribed(client, queue, queue, handle)

    async def _subscribed(
        self, client: Client, taker: str, queue: str, handle: Callable[[Subscription], Awaitable[None]]
    ) -> None:
        """It goes on by itself: what ends it is an error."""
        async with client.subscribe(queue, prefetch=_PREFETCH, name=taker) as subscription:
            self._subscriptions.append(subscription)
            while True:
                try:
                    await handle(subscription)
                except MirrorlogError as error:
                    await self._interrupted(taker, error)

    async def _interrupted(self, taker: str, error: MirrorlogError) -> None:
        if not error.retriable:
            raise error
        self.interruptions[f"{taker} {error.code}"] += 1
        await asyncio.sleep(_PAUSE_S)

    # --- what they get ---

    def _got(self, taker: str, queue: str, record: Delivered) -> _Given:
        epoch = record.grant[1].epoch
        return self._note(_Given(taker, queue, [_number(record)], epoch, record, epoch))

    def _got_batch(self, taker: str, queue: str, batch: DeliveredBatch) -> _Given:
        numbers = [number_of(value or b"") for value in batch.values.tolist()]
        epoch = batch.grant[1].epoch
        return self._note(_Given(taker, queue, numbers, epoch, batch, epoch))

    def _got_leased(self, taker: str, queue: str, leased: Leased, *, in_time: bool) -> _Given:
        """The number of a lease begins with its epoch."""
        epoch = int(leased.receipt.split("-")[1]) >> EPOCH_BITS
        return self._note(_Given(taker, queue, [_number(leased)], epoch, leased, NEWEST if in_time else OVER))

    def _note(self, given: _Given) -> _Given:
        for offset, number in enumerate(given.numbers, given.it.offset):
            self.books[given.queue].gave(
                given.taker,
                offset,
                number,
                redelivered=given.it.redelivered,
                epoch=given.as_of,
                numbered=given.epoch,
                when=time.monotonic(),
            )
        return given

    # --- what becomes of it ---

    async def _decide(self, given: _Given) -> None:
        drawn = self._random.random()
        if drawn < _REJECTED:
            await self._settle(given, REJECT, given.it.reject)
        elif drawn < _RETURNED:
            await self._settle(given, "return", partial(given.it.nack, delay_ms=self._random.choice([0, _DELAY_MS])))
        else:
            await self._settle(given, ACK, given.it.ack)

    async def _settle(self, given: _Given, how: str, call: Callable[[], Awaitable[None]]) -> None:
        """Until it is confirmed, or somebody else has it."""
        book = self.books[given.queue]
        book.tries(given.taker, given.numbers, how, time.monotonic())
        while True:
            try:
                await call()
            except MirrorlogError as error:
                book.ended(given.taker, given.numbers, how, error.code, time.monotonic())
                self.outcomes[error.code] += 1
                if isinstance(error, (NotGranted, ReceiptStale)):
                    return
                if not error.retriable:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                break
        self._confirmed(given, how)

    def _confirmed(self, given: _Given, how: str) -> None:
        """In the epoch of the session that has answered; for a lease, which has none, in the newest of all."""
        subscriptions = self._subscriptions if isinstance(given.it, Leased) else [given.it.grant[0]]
        sessions = [each.session for each in subscriptions if isinstance(each, Subscription)]
        epoch = max([given.epoch, *(each.epoch for each in sessions if each is not None)])
        self.books[given.queue].confirmed(given.taker, given.numbers, how, epoch=epoch, when=time.monotonic())
        sent_at = max(self._traffic.sent_at[number] for number in given.numbers)
        self._newest[given.taker] = max(self._newest[given.taker], sent_at)

    async def _move(self, client: Client, taken: Sequence[_Given]) -> None:
        """In one transaction, and in others until one is confirmed; one by one those of which somebody else has
        some."""
        while (move := await self._try_move(client, taken)).outcome != "confirmed":
            if move.not_granted:
                break
            await asyncio.sleep(_PAUSE_S)
        else:
            for given in taken:
                self._confirmed(given, MOVE)
            return
        if len(taken) > 1:
            for given in taken:
                await self._move(client, [given])

    async def _try_move(self, client: Client, taken: Sequence[_Given]) -> Move:
        number, numbers = len(self.moves), [given.numbers[0] for given in taken]
        move = self.moves[number] = Move(numbers)
        book = self.books[QUEUE]
        book.tries("mover", numbers, MOVE, time.monotonic())
        try:
            await self._commit(client, number, taken)
        except MirrorlogError as error:
            move.outcome = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            move.not_granted = isinstance(error, NotGranted)
            book.ended("mover", numbers, MOVE, f"{error.code} as {number}", time.monotonic())
            self.outcomes[f"move {error.code}"] += 1
            if not move.not_granted and not error.retriable:
                raise
        else:
            move.outcome = "confirmed"
        return move

    async def _commit(self, client: Client, number: int, taken: Sequence[_Given]) -> None:
        """Some are rolled back first: nothing of those counts."""
        if self._random.random() < _ROLLED_BACK:
            _fill(dropped := client.transaction(), number, taken)
            await dropped.rollback()
        _fill(tx := client.transaction(timeout_ms=_COMMIT_MS), number, taken)
        await tx.commit()


def _fill(tx: Transaction, number: int, taken: Sequence[_Given]) -> None:
    for given in taken:
        assert isinstance(given.it, Delivered)
        tx.send(MOVED, b"%d %d" % (given.numbers[0], number))
        tx.ack(given.it)


def _number(record: Delivered | Leased) -> int:
    return number_of(record.value or b"")


def declare_work(address: str) -> dict[str, int]:
    """The three queues, in one log; their ids."""
    together = {"x-log-group": "work"}
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    return {
        queue: declare(address, queue, **together, **arguments).queue_id
        for queue, arguments in ((DEAD, {}), (MOVED, {}), (QUEUE, letters))
    }
