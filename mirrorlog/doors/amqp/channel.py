"""A channel: what is said on it, one after the other, done by the cluster's client. Thin.

What can be done at once is (a publish whose queues are known, an ack); what has to be waited for holds up what follows
on the same channel, and no other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from pamqp import base, commands

from mirrorlog.doors.amqp import codec
from mirrorlog.doors.amqp.codec import ACK, PUBLISH
from mirrorlog.doors.amqp.consuming import Consuming, ConsumingSide
from mirrorlog.doors.amqp.errors import (
    ACCESS_REFUSED,
    NO_ROUTE,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
    as_amqp,
)
from mirrorlog.doors.amqp.message import AmqpMessage, incoming, queue_named, with_reply
from mirrorlog.doors.amqp.publishing import AmqpPublication, Publishing
from mirrorlog.doors.amqp.state import ChannelClosed, Failed, MessagePublished, MessageSettled, Said
from mirrorlog.doors.amqp.tags import Confirms
from mirrorlog.doors.amqp.transactions import ChannelTransaction
from mirrorlog.errors import (
    BadInput,
    MirrorlogError,
    OutcomeUnknown,
)
from mirrorlog.wire.frames import How

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 10.0

Event = MessagePublished | MessageSettled | Said | ChannelClosed


class ChannelSide(ConsumingSide, Protocol):
    """The connection of a channel."""

    user: str

    @property
    def publishing(self) -> Publishing: ...

    def say(self, channel: int, method: base.Frame) -> None:
        """A method."""

    def loaded(self, count: int, size: int = 0) -> None:
        """So much more is under way, or less."""

    def fail(self, failure: Failed) -> None:
        """Tell the client what has failed."""

    def channel_closed(self, channel: Channel, *, answered: bool) -> None:
        """All of it is done."""


class Channel:
    """Of one connection. `number`: of it there."""

    def __init__(self, connection: ChannelSide, number: int) -> None:
        self.number = number
        self._connection = connection
        self._waiting: deque[Event] = deque()
        self._working: asyncio.Task[None] | None = None
        self._gone = False
        self._consuming = Consuming(connection, number)
        self._confirms: Confirms | None = None
        self._transaction: ChannelTransaction | None = None
        self._telling = False
        self._outstanding = 0
        self._drained: asyncio.Future[None] | None = None
        self._last_queue = ""

    # --- in their order ---

    def take(self, event: Event) -> None:
        """Do what is said, behind what was said before."""
        if self._working is not None:
            self._waiting.append(event)
            self._connection.loaded(1)
            return
        work = self._begun(event)
        if work is not None:
            self._working = asyncio.ensure_future(self._work(work, event))

    def fail(self) -> None:
        """It was told that it failed: nothing more of it is done."""
        self._gone = True
        self._drop_waiting()
        self._connection.spawn(self._consuming.release())

    async def close(self) -> None:
        """The connection is over."""
        self._gone = True
        self._drop_waiting()
        if self._working is not None:
            self._working.cancel()
        await self._consuming.release()

    def extend(self) -> None:
        """Whoever has deliveries of it keeps them."""
        self._consuming.extend()

    # --- inside: in their order ---

    def _begun(self, event: Event) -> Coroutine[Any, Any, None] | None:
        """Done, or what is left of it to wait for."""
        try:
            if type(event) is MessagePublished:
                return self._publish(event)
            if type(event) is MessageSettled:
                self._settle(event)
                return None
            if type(event) is ChannelClosed:
                return self._close(event)
            assert type(event) is Said
            return self._said(event.method)
        except (AmqpError, MirrorlogError) as error:
            self._failed(error, _method_of(event))
            return None

    async def _work(self, work: Coroutine[Any, Any, None], event: Event) -> None:
        try:
            while True:
                try:
                    await work
                except (AmqpError, MirrorlogError) as error:
                    self._failed(error, _method_of(event))
                following: Coroutine[Any, Any, None] | None = None
                while self._waiting and following is None:
                    event = self._waiting.popleft()
                    self._connection.loaded(-1)
                    following = self._begun(event)
                if following is None:
                    return
                work = following
        finally:
            self._working = None

    def _failed(self, error: AmqpError | MirrorlogError, method: int) -> None:
        known = error if isinstance(error, AmqpError) else as_amqp(error)
        self._connection.fail(Failed(self.number, known.code, known.text, method))

    def _drop_waiting(self) -> None:
        """But for its end, which is answered."""
        if self._transaction is not None:
            self._unload(self._transaction.take())
        kept = [each for each in self._waiting if type(each) is ChannelClosed]
        self._connection.loaded(len(kept) - len(self._waiting))
        self._waiting = deque(kept)

    # --- inside: publishing ---

    def _publish(self, event: MessagePublished) -> Coroutine[Any, Any, None] | None:
        if self._gone:
            return None
        _, method, properties, body = event
        if method.immediate:
            raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
        message = incoming(method, properties, body, self._connection.user)
        if message.scan.reply_to[1]:
            message = with_reply(message, self._consuming.replies)
        if self._transaction is not None:
            self._transaction.publish(message)
            self._connection.loaded(1, len(body))
            return None
        confirms = self._confirms
        publication = AmqpPublication(message, 0 if confirms is None else confirms.publish(), self._ended)
        self._outstanding += 1
        self._connection.loaded(1, len(body))
        try:
            if self._connection.publishing.publish_nowait(publication):
                return None
        except BaseException:
            self._forget(publication)
            raise
        return self._publish_later(publication)

    async def _publish_later(self, publication: AmqpPublication) -> None:
        try:
            await self._connection.publishing.publish(publication)
        except BaseException:
            self._forget(publication)
            raise

    def _forget(self, publication: AmqpPublication) -> None:
        self._outstanding -= 1
        self._connection.loaded(-1, -len(publication.message.body))
        if not self._outstanding and self._drained is not None:
            drained, self._drained = self._drained, None
            drained.set_result(None)

    def _ended(self, publication: AmqpPublication) -> None:
        self._forget(publication)
        if self._gone:
            return
        error, message = publication.error, publication.message
        if error is None and not publication.routed and message.mandatory:
            self._return(message)
        if isinstance(error, OutcomeUnknown):
            logger.warning(
                "publish_unknown exchange=%r key=%r queues=%s reason=%r",
                message.exchange, message.key, error.details.get("queue", ""), error.message,
            )  # fmt: skip
        if isinstance(error, BadInput):
            self._failed(error, PUBLISH)  # it may never be done: that is no nack
        elif self._confirms is not None:
            self._confirms.end(publication.tag, well=error is None)
            if not self._telling:
                self._telling = True
                asyncio.get_running_loop().call_soon(self._tell)
        elif error is not None:
            # Silence, as RabbitMQ has it, would lose a message without a word.
            self._failed(error, PUBLISH)

    def _return(self, message: AmqpMessage) -> None:
        frames = codec.returned(
            self.number, NO_ROUTE, b"NO_ROUTE", route=message.route, properties=message.properties, body=message.body,
            frame_max=self._connection.frame_max,
        )  # fmt: skip
        self._connection.write(frames)

    def _tell(self) -> None:
        self._telling = False
        if self._confirms is None or self._gone:
            return
        for tag, multiple, is_ack in self._confirms.take():
            say = codec.ack if is_ack else codec.nack
            self._connection.write(say(self.number, tag, multiple=multiple))

    async def _all_ended(self) -> None:
        """What was published and settled here before is seen by what follows."""
        while self._outstanding:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
        await self._consuming.flush()

    # --- inside: everything else ---

    def _settle(self, event: MessageSettled) -> None:
        if not self._gone:
            tag, multiple, requeue = event.settlement
            how = How.ACK if event.method == ACK else How.RETURN if requeue else How.DEAD
            settle = self._consuming.settle if self._transaction is None else self._transaction.settle
            settle(tag, how, multiple=multiple)

    def _said(self, method: base.Frame) -> Coroutine[Any, Any, None] | None:
        if self._gone:
            return None
        do = _METHODS.get(method.index)
        if do is None:
            raise AmqpError(NOT_IMPLEMENTED, f"{method.name} is not done here")
        found: Coroutine[Any, Any, None] | None = do(self, method)
        return found

    def _answer(self, method: base.Frame, answer: base.Frame | bytes) -> None:
        """Unless it is not waited for."""
        if not getattr(method, "nowait", False) and not self._gone:
            if isinstance(answer, bytes):
                self._connection.write(answer)
            else:
                self._connection.say(self.number, answer)

    async def _close(self, event: ChannelClosed) -> None:
        self._gone = True
        self._drop_waiting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._all_ended()
                await self._consuming.release()
        self._connection.channel_closed(self, answered=event.answered)

    def _flow(self, method: commands.Channel.Flow) -> None:
        if not method.active:
            raise AmqpError(NOT_IMPLEMENTED, "active=false: a prefetch says how much is sent")
        self._answer(method, commands.Channel.FlowOk(active=True))

    def _queue_name(self, name: str) -> str:
        """The last one that was declared here, for an empty one."""
        if name or not self._last_queue:
            if not name:
                raise AmqpError(NOT_FOUND, "no previously declared queue")
            return name
        return self._last_queue

    # --- exchanges and queues ---

    async def _declare_exchange(self, method: commands.Exchange.Declare) -> None:
        topology = self._connection.topology
        name = method.exchange
        if not name:
            raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
        if method.passive:
            await topology.check_exchange(name)
        else:
            await topology.declare_exchange(
                name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=_table(method.arguments),
            )
            await self._connection.publishing.changed()
        self._answer(method, commands.Exchange.DeclareOk())

    async def _delete_exchange(self, method: commands.Exchange.Delete) -> None:
        await self._all_ended()
        await self._connection.topology.delete_exchange(method.exchange, if_unused=method.if_unused)
        await self._connection.publishing.changed()
        self._answer(method, commands.Exchange.DeleteOk())

    async def _bind_exchange(self, method: commands.Exchange.Bind | commands.Exchange.Unbind) -> None:
        binds = isinstance(method, commands.Exchange.Bind)
        topology = self._connection.topology
        change = topology.bind if binds else topology.unbind
        await change(method.source, method.destination, method.routing_key, _table(method.arguments), to_exchange=True)
        await self._connection.publishing.changed()
        self._answer(method, commands.Exchange.BindOk() if binds else commands.Exchange.UnbindOk())

    async def _bind_queue(self, method: commands.Queue.Bind | commands.Queue.Unbind) -> None:
        binds = isinstance(method, commands.Queue.Bind)
        topology = self._connection.topology
        queue, key = self._queue_name(method.queue), method.routing_key
        if not method.queue and not key:
            key = queue
        change = topology.bind if binds else topology.unbind
        await change(method.exchange, queue, key, _table(method.arguments), to_exchange=False)
        await self._connection.publishing.changed()
        self._answer(method, commands.Queue.BindOk() if binds else commands.Queue.UnbindOk())

    async def _declare_queue(self, method: commands.Queue.Declare) -> None:
        await self._all_ended()
        topology = self._connection.topology
        if method.passive:
            found = await topology.check_queue(queue_named(self._queue_name(method.queue)))
        else:
            found = await topology.declare_queue(
                method.queue,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=_table(method.arguments),
            )
        self._last_queue = found.name
        self._answer(method, codec.declare_ok(self.number, found.name.encode(), found.messages, found.consumers))

    async def _delete_queue(self, method: commands.Queue.Delete) -> None:
        await self._all_ended()
        queue = self._queue_name(method.queue)
        cancels = b""
        if not (method.if_unused or method.if_empty):
            cancels = await self._consuming.queue_goes(queue)
        messages = await self._connection.topology.delete_queue(
            queue, if_unused=method.if_unused, if_empty=method.if_empty
        )
        self._answer(method, commands.Queue.DeleteOk(message_count=messages))
        self._connection.write(cancels)

    async def _purge_queue(self, method: commands.Queue.Purge) -> None:
        await self._all_ended()
        messages = await self._connection.topology.purge_queue(self._queue_name(method.queue))
        self._answer(method, commands.Queue.PurgeOk(message_count=messages))

    # --- consuming ---

    async def _qos(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        await self._consuming.qos(method.prefetch_count, shared=method.global_)
        self._answer(method, commands.Basic.QosOk())

    async def _consume(self, method: commands.Basic.Consume) -> None:
        queue = self._queue_name(method.queue)
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        await self._consuming.consume(
            queue, tag, no_ack=method.no_ack, exclusive=method.exclusive, arguments=_table(method.arguments)
        )
        await self._consuming.begin(tag, b"" if method.nowait else codec.consume_ok(self.number, tag.encode()))

    async def _cancel(self, method: commands.Basic.Cancel) -> None:
        tag = method.consumer_tag or ""
        await self._consuming.cancel(tag)
        self._answer(method, codec.cancel_ok(self.number, tag.encode()))

    async def _get(self, method: commands.Basic.Get) -> None:
        await self._all_ended()
        found = await self._consuming.get(self._queue_name(method.queue), no_ack=method.no_ack)
        self._answer(method, commands.Basic.GetEmpty() if found is None else found)

    def _recover(self, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
        self._consuming.recover()
        if isinstance(method, commands.Basic.Recover):
            self._answer(method, commands.Basic.RecoverOk())

    # --- confirms ---

    def _select_confirms(self, method: commands.Confirm.Select) -> None:
        if self._transaction is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self._confirms = self._confirms or Confirms()
        self._answer(method, commands.Confirm.SelectOk())

    # --- transactions ---

    def _select_transactions(self, method: commands.Tx.Select) -> None:
        if self._confirms is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        connection = self._connection
        self._transaction = self._transaction or ChannelTransaction(
            connection, connection.publishing, self._consuming, returned=self._return
        )
        self._answer(method, commands.Tx.SelectOk())

    async def _commit(self, method: commands.Tx.Commit) -> None:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")
        self._unload(await self._transaction.commit())
        await self._consuming.flush()
        self._answer(method, commands.Tx.CommitOk())

    def _roll_back(self, method: commands.Tx.Rollback) -> None:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")
        self._unload(self._transaction.take())
        self._answer(method, commands.Tx.RollbackOk())

    def _unload(self, messages: list[AmqpMessage]) -> None:
        self._connection.loaded(-len(messages), -sum(len(each.body) for each in messages))


_Do = Callable[[Channel, Any], Coroutine[Any, Any, None] | None]

_METHODS: Final[dict[int, _Do]] = {
    commands.Channel.Flow.index: Channel._flow,
    commands.Exchange.Declare.index: Channel._declare_exchange,
    commands.Exchange.Delete.index: Channel._delete_exchange,
    commands.Exchange.Bind.index: Channel._bind_exchange,
    commands.Exchange.Unbind.index: Channel._bind_exchange,
    commands.Queue.Declare.index: Channel._declare_queue,
    commands.Queue.Bind.index: Channel._bind_queue,
    commands.Queue.Unbind.index: Channel._bind_queue,
    commands.Queue.Delete.index: Channel._delete_queue,
    commands.Queue.Purge.index: Channel._purge_queue,
    commands.Basic.Qos.index: Channel._qos,
    commands.Basic.Consume.index: Channel._consume,
    commands.Basic.Cancel.index: Channel._cancel,
    commands.Basic.Get.index: Channel._get,
    commands.Basic.Recover.index: Channel._recover,
    commands.Basic.RecoverAsync.index: Channel._recover,
    commands.Confirm.Select.index: Channel._select_confirms,
    commands.Tx.Select.index: Channel._select_transactions,
    commands.Tx.Commit.index: Channel._commit,
    commands.Tx.Rollback.index: Channel._roll_back,
}


def _table(arguments: object) -> dict[str, Any]:
    return dict(arguments) if isinstance(arguments, dict) else {}


def _method_of(event: Event) -> int:
    if type(event) is MessagePublished:
        return PUBLISH
    if type(event) is MessageSettled:
        return event.method
    return event.method.index if type(event) is Said else 0
