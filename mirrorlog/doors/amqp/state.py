"""What a client may say when: a connection of AMQP 0-9-1 and its channels, as the server has them. Pure.

Bytes go in, events come out; whoever serves them answers, and says what has come of it (`tuned`, `opened`). A fault is
an event, too: `Failed`, of a channel or of the connection, with RabbitMQ's code and text, for its clients read both.
Behind it the client is heard no more there until it has said that it knows.

    header > start-ok > (login) > tune-ok > open > (virtual host) > channels > close
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from struct import error as StructError
from typing import Any, Final, NamedTuple

from pamqp import base, commands

from mirrorlog.doors.amqp.codec import (
    ACK,
    BODY,
    FRAME_MAX_MIN,
    HEADER,
    HEARTBEAT,
    METHOD,
    NACK,
    PROTOCOL_HEADER,
    PUBLISH,
    REJECT,
    AmqpFrame,
    Content,
    FrameError,
    Frames,
    PublishMethod,
    TagSettlement,
    method_of,
    read_header,
    read_publish,
    read_settlement,
)
from mirrorlog.doors.amqp.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
)

FRAME_MAX: Final = 131_072
CHANNEL_MAX: Final = 2_047
HEARTBEAT_S: Final = 60
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of bodies that are not whole, on all channels of a connection together."""


_CONNECTION: Final = 10
_CHANNEL: Final = 20
_CHANNEL_OPEN: Final = _CHANNEL << 16 | 10
_CHANNEL_CLOSE: Final = _CHANNEL << 16 | 40
_CHANNEL_CLOSE_OK: Final = _CHANNEL << 16 | 41
_CONNECTION_CLOSE: Final = _CONNECTION << 16 | 50
_CONNECTION_CLOSE_OK: Final = _CONNECTION << 16 | 51
_SETTLING: Final = (ACK, NACK, REJECT)
_TO_CLIENTS: Final = frozenset(
    {
        *(10 << 16 | each for each in (10, 20, 30, 41, 60, 61)),
        *(20 << 16 | each for each in (11,)),
        *(40 << 16 | each for each in (11, 21, 31, 51)),
        *(50 << 16 | each for each in (11, 21, 31, 41, 51)),
        *(60 << 16 | each for each in (11, 21, 50, 60, 71, 72, 111)),
        *(85 << 16 | each for each in (11,)),
        *(90 << 16 | each for each in (11, 21, 31)),
    }
)
"""Methods that a server says, and no client."""


class Started(NamedTuple):
    """The protocol's header came: say `start`."""


class OtherProtocol(NamedTuple):
    """Another protocol's header came: say which one is spoken here, and close."""


class SaidLogin(NamedTuple):
    """Who it says that it is: look whether that is so, then `tuned`."""

    mechanism: str
    response: bytes
    properties: dict[str, Any]


class Tuned(NamedTuple):
    """`heartbeat_s`: 0 for none."""

    heartbeat_s: int


class HostOpening(NamedTuple):
    """Look whether it may, then `opened`."""

    virtual_host: str


class ChannelOpened(NamedTuple):
    channel: int


class MessagePublished(NamedTuple):
    channel: int
    method: PublishMethod
    properties: bytes
    body: bytes


class MessageSettled(NamedTuple):
    """`method`: ACK, NACK or REJECT."""

    channel: int
    method: int
    settlement: TagSettlement


class Said(NamedTuple):
    """Any other method on an open channel."""

    channel: int
    method: base.Frame


class ChannelClosed(NamedTuple):
    """By the client, who waits for `close-ok`; or it has said that it knows of a failure: `answered`."""

    channel: int
    answered: bool


class ConnectionLeft(NamedTuple):
    """The client has closed the connection, and waits for `close-ok`; or it knows of a failure: `answered`."""

    answered: bool


class Failed(NamedTuple):
    """Say `close`, of the channel, or of the connection where that is 0. `method`: what failed, 0 for none."""

    channel: int
    code: int
    text: str
    method: int = 0


Event = (
    Started | OtherProtocol | SaidLogin | Tuned | HostOpening | ChannelOpened | MessagePublished | MessageSettled | Said
    | ChannelClosed | ConnectionLeft | Failed
)  # fmt: skip


class _Phase(Enum):
    HEADER = auto()
    START = auto()
    LOGIN = auto()
    TUNE = auto()
    OPEN = auto()
    HOST = auto()
    RUNNING = auto()
    CLOSING = auto()
    """It was told that it failed; only that it knows is heard."""
    CLOSED = auto()


class _Channel:
    """`publishing`: a publish whose content comes; `closing`: it was told that it failed."""

    __slots__ = ("closing", "content", "publishing")

    def __init__(self) -> None:
        self.publishing: PublishMethod | None = None
        self.content: Content | None = None
        self.closing = False


class ConnectionState:
    """Of one connection. `body_bytes_max`: of one message; `frame_max`, once it is tuned: of both directions."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self.frame_max = FRAME_MAX
        self._body_bytes_max = body_bytes_max
        self._frames = Frames(FRAME_MAX)
        self._phase = _Phase.HEADER
        self._header = b""
        self._channels: dict[int, _Channel] = {}
        self._channel_max = CHANNEL_MAX
        self._begun_bytes = 0

    # --- what has come of it ---

    def tuned(self) -> None:
        """Who it says that it is, it is, and `tune` was said."""
        if self._phase is _Phase.LOGIN:
            self._phase = _Phase.TUNE

    def opened(self) -> None:
        """It is in its virtual host, and `open-ok` was said."""
        if self._phase is _Phase.HOST:
            self._phase = _Phase.RUNNING

    def failed(self, failure: Failed) -> bool:
        """It is told so, by whoever serves it; whether that is to be said: it was not, nor is it over."""
        if self._phase in (_Phase.CLOSING, _Phase.CLOSED):
            return False
        if not failure.channel:
            self._phase = _Phase.CLOSING
            return True
        channel = self._channels.get(failure.channel)
        if channel is None or channel.closing:
            return False
        self._drop_content(channel)
        channel.closing = True
        return True

    @property
    def running(self) -> bool:
        """Whether its channels are served."""
        return self._phase is _Phase.RUNNING

    # --- what it says ---

    def receive(self, data: bytes) -> Iterator[Event]:
        """What these bytes say; run to its end before the next ones, or dropped with the connection."""
        if self._phase is _Phase.HEADER:
            data, event = self._after_header(data)
            if event is None:
                return
            yield event
        try:
            for frame in self._frames.feed(data):
                if self._phase is _Phase.CLOSED:
                    return
                if (said := self._said(frame)) is not None:
                    if type(said) is Failed:
                        self.failed(said)
                    yield said
        except FrameError as error:
            failure = Failed(0, error.code, error.text, error.method)
            if self.failed(failure):
                yield failure

    # --- inside ---

    def _after_header(self, data: bytes) -> tuple[bytes, Event | None]:
        """What follows the protocol's header, and what that says, once it is there."""
        self._header += data
        found = self._header[: len(PROTOCOL_HEADER)]
        if found == PROTOCOL_HEADER:
            self._phase = _Phase.START
            return self._header[len(found) :], Started()
        if PROTOCOL_HEADER.startswith(found):
            return b"", None
        self._phase = _Phase.CLOSED
        return b"", OtherProtocol()

    def _said(self, frame: AmqpFrame) -> Event | None:
        if frame.kind == HEARTBEAT:
            return None
        if self._phase is _Phase.RUNNING:
            return self._in_channel(frame) if frame.channel else self._in_connection(frame)
        return self._in_closing_connection(frame) if self._phase is _Phase.CLOSING else self._in_handshake(frame)

    def _in_closing_connection(self, frame: AmqpFrame) -> Event | None:
        if frame.kind != METHOD or frame.channel:
            return None
        method = method_of(frame)
        if method not in (_CONNECTION_CLOSE, _CONNECTION_CLOSE_OK):
            return None
        self._phase = _Phase.CLOSED
        return ConnectionLeft(answered=method == _CONNECTION_CLOSE_OK)

    def _in_handshake(self, frame: AmqpFrame) -> Event:
        if frame.kind != METHOD or frame.channel:
            raise FrameError(UNEXPECTED_FRAME, "expected a method of the connection")
        said = _opened(frame)
        if isinstance(said, commands.Connection.Close):
            self._phase = _Phase.CLOSED
            return ConnectionLeft(answered=False)
        if self._phase is _Phase.START and isinstance(said, commands.Connection.StartOk):
            self._phase = _Phase.LOGIN
            response = said.response.encode() if isinstance(said.response, str) else bytes(said.response or b"")
            return SaidLogin(said.mechanism, response, dict(said.client_properties or {}))
        if self._phase is _Phase.TUNE and isinstance(said, commands.Connection.TuneOk):
            return self._tune(said)
        if self._phase is _Phase.OPEN and isinstance(said, commands.Connection.Open):
            self._phase = _Phase.HOST
            return HostOpening(said.virtual_host)
        raise FrameError(COMMAND_INVALID, f"unexpected method {said.name} in the handshake", said.index)

    def _tune(self, said: commands.Connection.TuneOk) -> Event:
        frame_max, channel_max = said.frame_max or FRAME_MAX, said.channel_max or CHANNEL_MAX
        if not FRAME_MAX_MIN <= frame_max <= FRAME_MAX:
            text = f"negotiated frame_max = {frame_max} is not within {FRAME_MAX_MIN} and {FRAME_MAX}"
            return Failed(0, NOT_ALLOWED, text, said.index)
        if channel_max > CHANNEL_MAX:
            text = f"negotiated channel_max = {channel_max} is higher than the maximum allowed value ({CHANNEL_MAX})"
            return Failed(0, NOT_ALLOWED, text, said.index)
        self.frame_max = self._frames.frame_max = frame_max
        self._channel_max = channel_max
        self._phase = _Phase.OPEN
        return Tuned(said.heartbeat)

    def _in_connection(self, frame: AmqpFrame) -> Event:
        if frame.kind != METHOD:
            raise FrameError(UNEXPECTED_FRAME, "content on channel 0")
        said = _opened(frame)
        if isinstance(said, commands.Connection.Close):
            self._phase = _Phase.CLOSED
            return ConnectionLeft(answered=False)
        if isinstance(said, commands.Connection.UpdateSecret):
            raise FrameError(NOT_IMPLEMENTED, "update-secret: a login holds as long as its connection", said.index)
        raise FrameError(COMMAND_INVALID, f"unexpected method {said.name} on channel 0", said.index)

    def _in_channel(self, frame: AmqpFrame) -> Event | None:
        channel = self._channels.get(frame.channel)
        if channel is None:
            return self._open(frame)
        if channel.closing:
            return self._in_closing(frame)
        if frame.kind == BODY:
            return self._take_body(frame, channel)
        if frame.kind == HEADER:
            return self._take_header(frame, channel)
        return self._take_method(frame, channel)

    def _take_method(self, frame: AmqpFrame, channel: _Channel) -> Event | None:
        if frame.kind != METHOD:
            raise FrameError(UNEXPECTED_FRAME, f"a frame of kind {frame.kind} on channel {frame.channel}")
        if channel.publishing is not None:
            what = "content header" if channel.content is None else "content body"
            text = f"expected {what} for class 60, got method frame instead"
            raise FrameError(UNEXPECTED_FRAME, text, PUBLISH)
        method = method_of(frame)
        if method == PUBLISH:
            channel.publishing = read_publish(frame)
            return None
        if method in _SETTLING:
            return MessageSettled(frame.channel, method, read_settlement(frame, method))
        return self._other(frame, method)

    def _open(self, frame: AmqpFrame) -> Event | None:
        method = method_of(frame) if frame.kind == METHOD else 0
        if method == _CHANNEL_CLOSE_OK:
            return None  # of a channel that is closed already
        if method != _CHANNEL_OPEN:
            raise FrameError(CHANNEL_ERROR, "expected 'channel.open'", method)
        if frame.channel > self._channel_max:
            text = f"number of channels opened ({frame.channel}) has reached the negotiated channel_max"
            raise FrameError(NOT_ALLOWED, f"{text} ({self._channel_max})", method)
        self._channels[frame.channel] = _Channel()
        return ChannelOpened(frame.channel)

    def _in_closing(self, frame: AmqpFrame) -> Event | None:
        """Only the end is heard. Both may have said `close`: then each is answered."""
        method = method_of(frame) if frame.kind == METHOD else 0
        if method == _CHANNEL_CLOSE_OK:
            del self._channels[frame.channel]
            return ChannelClosed(frame.channel, answered=True)
        if method == _CHANNEL_CLOSE:
            return ChannelClosed(frame.channel, answered=False)
        return None

    def _other(self, frame: AmqpFrame, method: int) -> Event:
        said = _opened(frame)
        if method == _CHANNEL_CLOSE:
            del self._channels[frame.channel]
            return ChannelClosed(frame.channel, answered=False)
        if method == _CHANNEL_OPEN:
            raise FrameError(CHANNEL_ERROR, "second 'channel.open' seen", method)
        if method in _TO_CLIENTS or said.index >> 16 == _CONNECTION:
            raise FrameError(COMMAND_INVALID, f"unexpected method {said.name}", method)
        return Said(frame.channel, said)

    def _take_header(self, frame: AmqpFrame, channel: _Channel) -> Event | None:
        if channel.publishing is None or channel.content is not None:
            raise FrameError(UNEXPECTED_FRAME, "a content header without a publish")
        header = read_header(frame)
        if header.body_size > self._body_bytes_max:
            text = f"message size {header.body_size} is larger than configured max size {self._body_bytes_max}"
            return Failed(frame.channel, PRECONDITION_FAILED, text, PUBLISH)
        content = Content(header)
        if not content.missing:
            return self._whole(frame.channel, channel, content)
        if self._begun_bytes + content.size > BODIES_BYTES_MAX:
            raise FrameError(RESOURCE_ERROR, f"more than {BODIES_BYTES_MAX} bytes of messages are begun", PUBLISH)
        self._begun_bytes += content.size
        channel.content = content
        return None

    def _take_body(self, frame: AmqpFrame, channel: _Channel) -> Event | None:
        content = channel.content
        if content is None:
            raise FrameError(UNEXPECTED_FRAME, "a content body without a content header")
        content.add(frame)
        if content.missing:
            return None
        self._begun_bytes -= content.size
        return self._whole(frame.channel, channel, content)

    def _whole(self, number: int, channel: _Channel, content: Content) -> Event:
        method, channel.publishing, channel.content = channel.publishing, None, None
        assert method is not None
        return MessagePublished(number, method, content.properties, content.body())

    def _drop_content(self, channel: _Channel) -> None:
        if channel.content is not None:
            self._begun_bytes -= channel.content.size
        channel.publishing = channel.content = None


def _opened(frame: AmqpFrame) -> base.Frame:
    """Raises FrameError for what is no method."""
    index = method_of(frame)
    kind = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise FrameError(NOT_IMPLEMENTED, f"method {index >> 16}.{index & 0xFFFF} is not known here", index)
    method: base.Frame = kind()
    try:
        method.unmarshal(frame.data[frame.start + 4 : frame.end])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, StructError):
        raise FrameError(502, f"arguments of {method.name} are not to be read", index) from None
    return method
