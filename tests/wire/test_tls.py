"""TLS over real sockets of one loop: frames arrive, refusals are told to both sides, bad files are named."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
import uvloop
from cryptography.hazmat.primitives import serialization

from mirrorlog.config import Settings, TlsSettings
from mirrorlog.errors import ConfigError, ConnectionLost, MirrorlogError
from mirrorlog.wire.auth.credentials import OPEN, credentials_of
from mirrorlog.wire.dialling import dial
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.listening import PortPlace, is_loopback, listen
from mirrorlog.wire.renewal import RenewableContext, Renewal, renew
from mirrorlog.wire.tls import TOLD_AGAIN_S, Refusals, client_context, server_context

HOST = "127.0.0.1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
LOOPS = [asyncio.run, uvloop.run]


class Files:
    """An authority, and a certificate and a key that it has issued, in files."""

    def __init__(self, directory: Path, authority: trustme.CA, **options: object) -> None:
        directory.mkdir(exist_ok=True)
        issued = authority.issue_cert(HOST, **options)  # type: ignore[arg-type]
        self.certificate, self.key, self.ca = (directory / name for name in ("certificate", "key", "ca"))
        authority.cert_pem.write_to_path(self.ca)
        self.key.touch(0o600)
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.certificate)

    def port(self, *, mutual: bool = True) -> ssl.SSLContext:
        return server_context(certificate=self.certificate, key=self.key, ca=self.ca if mutual else None)

    def dialling(self, *, trusting: Path | None = None) -> ssl.SSLContext:
        return client_context(ca=trusting or self.ca, certificate=self.certificate, key=self.key)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("own"), trustme.CA())


class Handler:
    """Keeps what comes, and answers each frame with its own bytes when it is told to."""

    def __init__(self, *, echo: bool = False) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: asyncio.Future[MirrorlogError | None] = asyncio.get_running_loop().create_future()
        self._echo = echo
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()

    def frame(self, frame_: Frame) -> None:
        payload = bytes(frame_.payload)
        self.frames.put_nowait(payload)
        if self._echo:
            self.endpoint.send([frame(FrameType.PONG, payload)])

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def endpoint_of(handler: Handler) -> Endpoint:
    return Endpoint(handler, frame_bytes_max=FRAME_BYTES_MAX, outgoing_bytes_max=FRAME_BYTES_MAX)


async def with_port(tls: ssl.SSLContext | None, body: Callable[[str], Awaitable[None]]) -> None:
    """`body`, with the address of a port that answers each frame with its bytes; ten seconds for all of it."""
    places: PortPlaces[PortPlace] = PortPlaces(strangers_max=8, per_address_max=8, let_in_max=0)
    port = await listen(f"{HOST}:0", lambda _: endpoint_of(Handler(echo=True)), places, tls)
    try:
        async with asyncio.timeout(10):
            await body(f"{HOST}:{port.address[1]}")
    finally:
        port.close()


async def ending(address: str, tls: ssl.SSLContext | None) -> str:
    """What a side that dials is told in the end."""
    handler = Handler()
    try:
        await dial(address, lambda: endpoint_of(handler), tls)
        handler.endpoint.send([frame(FrameType.PING, b"x")])
        return str(await handler.ended)
    except ConnectionLost as error:
        return str(error)


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_frames_of_all_sizes_arrive_and_a_close_says_why(run: Callable[..., None], own: Files) -> None:
    """Goal: buffers, backpressure and the two steps of a close work over TLS. Method: frames from nothing to
    megabytes there and back, the large ones at once; then an error that the other side reads before the end."""

    async def body(address: str) -> None:
        handler = Handler()
        await dial(address, lambda: endpoint_of(handler), own.dialling())
        assert handler.endpoint.certificate is not None
        sizes = [0, 1, 16_383, 16_384, 16_385, 100_000, 5_000_000, 5_000_000]
        for number, size in enumerate(sizes):
            handler.endpoint.send([frame(FrameType.PING, bytes([number]) * size)])
        for number, size in enumerate(sizes):
            got = await handler.frames.get()
            same = got == bytes([number]) * size
            assert same, (number, size, len(got))
        handler.endpoint.send([b"\xff" * 64])  # no frame: answered with an ERROR, then closed
        assert b"PROTOCOL_ERROR" in await handler.frames.get()
        await handler.ended

    run(with_port(own.port(), body))


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_who_dials_is_told_why_its_certificate_is_refused(
    run: Callable[..., None],
    own: Files,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the reason reaches both sides, though the loops tell nobody. Method: dial with none
    and with a stranger's, and read the message and the lines in the log."""
    stranger = Files(tmp_path / "stranger", trustme.CA())
    monkeypatch.setattr("mirrorlog.wire.tls._refusals", Refusals())

    async def body(address: str) -> None:
        assert "certificate required" in await ending(address, client_context(ca=own.ca))
        assert "unknown ca" in await ending(address, stranger.dialling(trusting=own.ca))
        assert "self-signed certificate in certificate chain" in await ending(address, stranger.dialling())

    with caplog.at_level(logging.WARNING, "mirrorlog.wire.tls"):
        run(with_port(own.port(), body))
    told = [line for line in caplog.messages if line.startswith("tls_refused ")]
    assert any("shows no certificate" in line for line in told)
    assert any("unable to get local issuer certificate" in line for line in told)


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_a_certificate_that_has_expired_is_refused(run: Callable[..., None], tmp_path: Path) -> None:
    """Of who dials, and of the port."""
    authority = trustme.CA()
    good = Files(tmp_path / "good", authority)
    expired = Files(tmp_path / "old", authority, not_after=datetime(2020, 1, 1, tzinfo=UTC))

    async def refused_by_port(address: str) -> None:
        assert "certificate expired" in await ending(address, expired.dialling())

    async def refused_by_who_dials(address: str) -> None:
        assert "certificate has expired" in await ending(address, good.dialling())

    run(with_port(good.port(), refused_by_port))
    run(with_port(expired.port(), refused_by_who_dials))


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_one_side_without_tls_ends_the_connection_at_once(run: Callable[..., None], own: Files) -> None:
    """Plain bytes on a TLS port, and TLS on a plain one: nobody waits for the handshake's deadline."""

    async def plain(address: str) -> None:
        assert await ending(address, None) == "None"  # it ended, and no error was told

    async def tls(address: str) -> None:
        assert "does not speak TLS" in await ending(address, own.dialling())

    run(with_port(own.port(), plain))
    run(with_port(None, tls))


async def test_a_peer_that_begins_no_handshake_is_cut_off(own: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect and say nothing, with the deadline shortened."""
    monkeypatch.setattr("mirrorlog.wire.handshakes.HANDSHAKE_S", 0.2)

    async def body(address: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, int(address.rpartition(":")[2]))
        assert await reader.read() == b""
        writer.close()

    await with_port(own.port(), body)


# --- Files that change ------------------------------------------------------------------------------------------------


async def dialled(address: str, tls: ssl.SSLContext) -> Handler:
    """A connection that stands: a frame went there and back."""
    handler = Handler()
    await dial(address, lambda: endpoint_of(handler), tls)
    await echoed(handler)
    return handler


async def echoed(handler: Handler) -> None:
    handler.endpoint.send([frame(FrameType.PING, b"x")])
    assert await handler.frames.get() == b"x"


def serial(handler: Handler) -> str:
    """Of the certificate that the port has shown."""
    shown = handler.endpoint.certificate
    assert shown is not None
    return str(shown["serialNumber"])


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_files_that_are_read_anew_count_for_new_connections_only(run: Callable[..., None], tmp_path: Path) -> None:
    """Goal: a certificate is replaced without an outage. Method: two dials around a renewal on both sides; the first
    connection goes on, the second is shown another certificate."""
    authority = trustme.CA()
    files = Files(tmp_path / "files", authority)
    port, dialling = RenewableContext(files.port), RenewableContext(files.dialling)

    async def body(address: str) -> None:
        first = await dialled(address, dialling)
        Files(tmp_path / "files", authority)
        renew([port, dialling])
        second = await dialled(address, dialling)
        assert serial(second) != serial(first)
        await echoed(first)

    run(with_port(port, body))


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_an_authority_is_replaced_too(run: Callable[..., None], tmp_path: Path) -> None:
    """Goal: who has left is let in no more. Method: a port goes to another authority; certificates of the former one
    are refused from then on, those of the new one count."""
    files = Files(tmp_path / "files", trustme.CA())
    port, former = RenewableContext(files.port), files.dialling()

    async def body(address: str) -> None:
        await dialled(address, former)
        newer = Files(tmp_path / "files", trustme.CA())
        renew([port])
        await dialled(address, newer.dialling())
        former.check_hostname, former.verify_mode = False, ssl.CERT_NONE  # it is the port that shall refuse
        assert "unknown ca" in await ending(address, former)

    run(with_port(port, body))


def test_a_file_that_is_none_leaves_all_as_it_was(own: Files, tmp_path: Path) -> None:
    """Goal: no half of a renewal. Method: of two contexts the second one's key does not fit: both stay."""
    files = Files(tmp_path / "files", trustme.CA())
    contexts = [RenewableContext(own.port), RenewableContext(files.port)]
    before = [each.current for each in contexts]
    files.key.touch(0o600)
    files.key.write_bytes(own.key.read_bytes())
    with pytest.raises(ConfigError, match="plain key"):
        renew(contexts)
    assert [each.current for each in contexts] == before


def test_every_context_of_a_node_is_read_anew(own: Files) -> None:
    """Goal: none is forgotten. Method: a node that speaks TLS wherever it can, and one that does nowhere."""
    files = {"certificate": own.certificate, "key": own.key, "ca": own.ca}
    settings = Settings(tls=TlsSettings(**files, replication="mutual", client="server"))
    credentials = credentials_of(settings)
    contexts = credentials.renewable
    assert contexts == [credentials.accepting, credentials.dialling, credentials.client, credentials.certificate]
    contexts.pop()  # a time, and the same one
    before = [each.current for each in contexts]
    renew(contexts)
    assert not set(before) & {each.current for each in contexts}
    assert credentials_of(Settings()).renewable == OPEN.renewable == []


async def test_a_renewal_tells_in_a_line_how_it_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ask with a file that is missing, then with all of them, then three times at once."""
    files = Files(tmp_path / "files", trustme.CA())
    context = RenewableContext(files.port)
    used: list[ssl.SSLContext] = []
    renewal = Renewal([context], lambda: used.append(context.current))
    before, content = context.current, files.key.read_bytes()
    with caplog.at_level(logging.INFO, "mirrorlog.wire.renewal"):
        files.key.unlink()
        await renewal.ask()
        assert context.current is before
        assert used == []
        files.key.touch(0o600)
        files.key.write_bytes(content)
        await renewal.ask()
        assert used == [context.current]
        assert context.current is not before
        await asyncio.gather(*(renewal.ask() for _ in range(3)))
    assert "No such file" in caplog.messages[0]
    assert caplog.messages[0].endswith("what was read before stays in use")
    assert caplog.messages[1:] == ["tls_reloaded contexts=1"] * 2


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_key_with_a_password_is_refused_and_asks_nobody(own: Files, tmp_path: Path) -> None:
    """OpenSSL would ask at the terminal, and wait."""
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    encrypted = tmp_path / "key"
    encrypted.touch(0o600)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ConfigError, match="plain key"):
        server_context(certificate=own.certificate, key=encrypted)


def test_files_that_are_none_are_named(own: Files, tmp_path: Path) -> None:
    """A file that is missing, one that is no PEM, a key of another certificate, and half of a pair."""
    noise = tmp_path / "noise"
    noise.write_bytes(b"\xff" * 100)
    other = Files(tmp_path / "other", trustme.CA())
    for make, match in (
        (lambda: server_context(certificate=own.certificate, key=tmp_path / "gone"), "gone: No such file"),
        (lambda: server_context(certificate=noise, key=own.key), "noise and"),
        (lambda: server_context(certificate=own.certificate, key=other.key), "plain key"),
        (lambda: client_context(ca=noise), "noise holds no certificates"),
        (lambda: client_context(ca=own.ca, certificate=own.certificate), "together"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()


# --- What is told -----------------------------------------------------------------------------------------------------


def test_a_reason_is_told_once_and_made_up_ones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a stranger does not fill the log. Method: one reason twice, many others, and the same after a while."""
    now = 1000.0
    monkeypatch.setattr("mirrorlog.wire.tls.time.monotonic", lambda: now)
    refusals = Refusals()
    assert refusals.is_news("a")
    assert not refusals.is_news("a")
    assert sum(refusals.is_news(str(number)) for number in range(1000)) < 100
    now += TOLD_AGAIN_S
    assert refusals.is_news("a")
    assert refusals.is_news("b")


@pytest.mark.parametrize(
    ("address", "only_here"),
    [("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False),
     ("[::]:1", False), ("10.0.0.1:1", False), ("localhost.example:1", False)],
)  # fmt: skip
def test_loopback_is_known_by_its_address(address: str, only_here: bool) -> None:
    """Addresses that only this machine reaches, and others."""
    assert is_loopback(address) is only_here


def test_an_expired_certificate_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    """Goal: a mistake with the files does not cut a node off. Method: what is in use is replaced by an expired one."""
    authority = trustme.CA()
    good = Files(tmp_path / "good", authority)
    context = RenewableContext(good.port, good.certificate)
    before = context.current
    expired = Files(tmp_path / "expired", authority, not_after=datetime(2020, 1, 1, tzinfo=UTC))
    for mine, theirs in ((good.certificate, expired.certificate), (good.key, expired.key)):
        mine.write_bytes(theirs.read_bytes())
    with pytest.raises(ConfigError, match="and not now"):
        renew([context])
    assert context.current is before


def test_the_expiry_that_is_told_is_that_of_the_certificate_in_use(tmp_path: Path) -> None:
    """Goal: an operator sees whether the new file is in use. Method: a node whose doors alone speak TLS; another
    certificate is put in the place of its own, with and without reading it, and then an expired one."""
    authority = trustme.CA()
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2090, 2091, 2020)]
    own, other, expired = (Files(tmp_path / str(end.year), authority, not_after=end) for end in ends)
    files = {"certificate": own.certificate, "key": own.key, "ca": own.ca}
    credentials = credentials_of(Settings(tls=TlsSettings(**files, http="server")))
    assert credentials.certificate_expires_s == ends[0].timestamp()
    own.certificate.write_bytes(other.certificate.read_bytes())
    assert credentials.certificate_expires_s == ends[0].timestamp()
    renew(credentials.renewable)
    assert credentials.certificate_expires_s == ends[1].timestamp()
    own.certificate.write_bytes(expired.certificate.read_bytes())
    with pytest.raises(ConfigError, match="and not now"):
        renew(credentials.renewable)
    assert credentials.certificate_expires_s == ends[1].timestamp()
    assert OPEN.certificate_expires_s == 0


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_a_client_s_authority_is_trusted_on_client_ports_and_not_between_nodes(
    run: Callable[..., None], tmp_path: Path
) -> None:
    """Goal: a client's certificate does not join as a node. Method: one of another authority, and a node's, on the
    client port and on the replication port of one node."""
    node, client = Files(tmp_path / "node", trustme.CA()), Files(tmp_path / "client", trustme.CA())
    files = {"certificate": node.certificate, "key": node.key, "ca": node.ca, "client_ca": client.ca}
    credentials = credentials_of(Settings(tls=TlsSettings(**files, replication="mutual", client="mutual")))

    async def is_welcome(address: str) -> None:
        for files in (client, node):
            await dialled(address, files.dialling(trusting=node.ca))

    async def is_refused(address: str) -> None:
        assert "unknown ca" in await ending(address, client.dialling(trusting=node.ca))
        await dialled(address, node.dialling())

    run(with_port(credentials.client, is_welcome))
    run(with_port(credentials.accepting, is_refused))


def test_an_authority_of_clients_that_nobody_asks_is_a_mistake(own: Files) -> None:
    files = {"certificate": own.certificate, "key": own.key, "ca": own.ca, "client_ca": own.ca}
    with pytest.raises(ValueError, match="client_ca is for ports"):
        TlsSettings(**files, replication="mutual", client="server")
