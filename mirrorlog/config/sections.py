"""The sections of a node's settings: names, defaults, limits, and what makes sense together within one.

Names are ours in Python and RocketMQ's in files where they mean the same (`[ha] haSendHeartbeatInterval`), with
RocketMQ's defaults; where a default differs, its description says why. Both spellings are accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from mirrorlog.config.addresses import RECORD_BYTES_MAX
from mirrorlog.config.values import PORTS, Address, Name, SettingsSection

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB
_TLS_PORTS: Final = (*PORTS, "amqp")


class NodeSettings(SettingsSection):
    """This node."""

    id: Name = Field("n1", description="its name in the cluster")
    data_dir: Path = Field(
        Path("mirrorlog-data"), description="where its logs lie; its disk is the one that is measured"
    )
    witness: bool = Field(False, description="true: it votes and holds no messages")
    insecure: bool = Field(
        False,
        description="true: other machines may reach it although it trusts whoever says that he is a node, and it "
        "serves whoever comes while there are no users",
    )
    first_admin: Name | None = Field(
        None, description="the administrator whom a cluster without users gets from this node"
    )
    first_admin_file: Path | None = Field(None, description="a file that holds his password and nothing else")
    log_format: Literal["text", "json"] = Field(
        "text",
        description="json: what the node and its doors say of themselves on stderr is one JSON object a line: "
        "`ts`, `level`, `logger`, `node`, `message`, and of most `event` and `fields`",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.first_admin is None) != (self.first_admin_file is None):
            raise ValueError("first_admin and first_admin_file are needed together")
        return self


class ListenSettings(SettingsSection):
    """Where a port is bound, and where others reach it: each stands for the other. Absent both: as in
    [[cluster.members]]; without that table on the host of the replication port, and without that on 127.0.0.1."""

    bind: Address | None = Field(
        None,
        description="where the port is bound; absent: at the address that others use, and no door where "
        "`[[cluster.members]]` has none for it",
    )
    advertise: Address | None = Field(
        None,
        description="where others reach it; absent: as in `[[cluster.members]]`, else where it is bound; needed "
        "when `bind` is any address",
    )


class GrpcSettings(ListenSettings):
    """The gRPC door of the node."""

    enabled: bool = Field(True, description="false: this node runs no gRPC door")


class AmqpSettings(SettingsSection):
    """The AMQP door of the node, for programs of RabbitMQ's."""

    bind: Address | None = Field(None, description="absent: no such door; RabbitMQ's port is 5672, with TLS 5671")
    plain_passwords: bool = Field(
        False, description="true: logins of other machines are taken without TLS, where others may read them"
    )


class HttpSettings(ListenSettings):
    """The HTTP door of the node: health, metrics, lists, and the management API."""

    enabled: bool = Field(True, description="false: this node runs no HTTP door")
    management: bool = Field(True, description="false: this door is without RabbitMQ's management API under `/api`")
    metrics: Literal["login", "open"] = Field(
        "login",
        description="who may read `/metrics` where the cluster has users: login: users with a tag that may look "
        "(`monitoring`), who log in by Basic; open: everybody",
    )
    metrics_series: int = Field(
        1_000,
        ge=0,
        description="so many queues, groups and landings, of each kind, have series of their own at `/metrics`; "
        "what is beyond is one sum per log, under empty names",
    )


TlsMode = Literal["off", "server", "mutual"]


class TlsSettings(SettingsSection):
    """Which ports speak TLS. server: whoever connects sees the node's certificate; mutual: and shows one itself."""

    certificate: Path | None = Field(None, description="of this node, PEM; with those between it and the authority")
    key: Path | None = Field(None, description="of the certificate, PEM, not encrypted")
    ca: Path | None = Field(
        None, description="certificates of the authorities whose word is taken for nodes, and for clients where mutual"
    )
    client_ca: Path | None = Field(
        None,
        description="certificates of other authorities, whose word is taken for clients alone: on `mutual` "
        "client, gRPC, HTTP and AMQP ports beside `tls.ca`, never on replication ports",
    )
    replication: Literal["off", "mutual"] = Field(
        "off", description="`mutual`: nodes show each other certificates; the same on all nodes"
    )
    client: TlsMode = Field(
        "off",
        description="`server`: the client port speaks TLS; `mutual`: and asks for a certificate; the same on all nodes",
    )
    grpc: TlsMode = Field("off", description="likewise, of the gRPC door")
    http: TlsMode = Field("off", description="likewise, of the HTTP door")
    amqp: TlsMode = Field("off", description="likewise, of the AMQP door")

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key and authorities. Only when a port speaks TLS."""
        assert self.certificate is not None
        assert self.key is not None
        assert self.ca is not None
        return self.certificate, self.key, self.ca

    @property
    def is_used(self) -> bool:
        """Whether any port speaks TLS."""
        return any(getattr(self, port) != "off" for port in _TLS_PORTS)

    @model_validator(mode="after")
    def _check(self) -> Self:
        used = [port for port in _TLS_PORTS if getattr(self, port) != "off"]
        missing = [name for name in ("certificate", "key", "ca") if getattr(self, name) is None]
        if used and missing:
            raise ValueError(f"{used[0]} needs {', '.join(missing)}")
        if self.client_ca is not None and "mutual" not in (self.client, self.grpc, self.http, self.amqp):
            raise ValueError(
                "client_ca is for ports that ask clients for certificates: client, grpc, http or amqp = mutual"
            )
        return self


class LimitSettings(SettingsSection):
    """Named limits; what is above one is answered with its name."""

    max_record_bytes: int = Field(
        4 * _MIB,
        ge=1,
        le=RECORD_BYTES_MAX,
        alias="maxMessageSize",
        description="largest record, value, key and headers",
    )
    max_batch_bytes: int = Field(
        8 * _MIB,
        ge=64 * _KIB,
        le=256 * _MIB,
        description="largest batch, as it stands in the log; a segment holds one at least",
    )
    max_connections: int = Field(
        4096, ge=1, description="of clients that are let in; less where the limit of open files is too low for so many"
    )
    max_links: int = Field(
        512, ge=16, description="of nodes that are let in on the replication port: members, mirrors, those that join"
    )
    max_strangers: int = Field(
        1024,
        ge=8,
        description="connections that have not greeted, or not logged in where there are users, on each port; for"
        " one more the oldest of the address that has most goes",
    )
    max_strangers_per_address: int = Field(
        256, ge=4, description="and of one address (of IPv6: one /64); for one more its oldest goes"
    )
    unpacking_bytes: int = Field(
        128 * _MIB,
        ge=_MIB,
        description="compressed batches that wait to be opened before they are stored; what is above a "
        "connection's share is refused",
    )
    max_queues: int = Field(100_000, ge=1, description="in one log")
    max_groups_per_queue: int = Field(10_000, ge=1, description="groups that have a position in a queue")
    max_holds_per_queue: int = Field(
        64, ge=1, le=1000, description="holds of landings on a queue, ended ones among them"
    )
    max_producers: int = Field(100_000, ge=1, description="remembered per log, with a queue each; the longest idle go")
    producer_expiry_ms: int = Field(
        24 * 3600 * 1000,
        ge=60_000,
        description="idle for longer, by the append times of its log, a producer is forgotten",
    )
    max_waiting_fetches: int = Field(
        10_000,
        ge=1,
        description="fetches of one log that wait for new records, and as many for the disk; one more is refused",
    )
    max_waiting_confirms: int = Field(
        100_000,
        ge=1,
        description="publishes of one log that wait for their confirm; one more is refused before it is appended."
        " Also so many batches of one log that are not confirmed by all copies in sync, whatever "
        "their level",
    )
    credit_bytes: int = Field(
        64 * _MIB,
        ge=1,
        description="what one producer may have in one queue that is not confirmed by all copies in sync, and one"
        " batch more; what it sends beyond that is refused until they have caught up",
    )
    credit_batches: int = Field(4096, ge=1, description="and in so many batches")
    max_unconfirmed_bytes: int = Field(
        1024 * _MIB,
        ge=64 * _KIB,
        description="the same of a whole log: from half of it on producers are granted less, at all of it nothing",
    )
    max_subscriptions: int = Field(
        100_000, ge=1, description="subscriptions of all connections of a node; one more is refused"
    )
    max_unsettled_records: int = Field(
        1_000_000,
        ge=1,
        description="given to one subscriber and not settled by it; a subscriber that asks for a smaller prefetch"
        " has that one",
    )
    attribute_runs_max: int = Field(
        1_000_000,
        ge=1,
        description="stretches of unsettled records with a priority, a time to live or a delay, per log; some 50 "
        "bytes of memory each. Above it publishes of such records are refused; one queue has at most "
        "as many as are left",
    )
    max_unsettled_bytes: int = Field(256 * _MIB, ge=1024, description="and of so many bytes")
    max_ranges_per_settle: int = Field(
        16_384,
        ge=1,
        le=1_000_000,
        description="ranges in one settlement; one with more is refused, and sent as several",
    )
    subscriber_return_ms: int = Field(
        30_000,
        ge=0,
        description="a new master waits so long for the subscribers of queues with `auto-delete` before their "
        "absence counts",
    )
    hello_timeout_ms: int = Field(
        5_000, ge=1, description="a connection that has not greeted by then, or not logged in, is closed"
    )
    frame_timeout_ms: int = Field(30_000, ge=1, description="a frame once begun must be complete within this time")
    idle_timeout_ms: int = Field(120_000, ge=1, description="a client that sends nothing, not even PING, is closed")
    outgoing_bytes_max: int = Field(
        64 * _MIB,
        ge=_MIB,
        description="per connection, queued to a slow reader; above half of it no request is taken from it, above"
        " it the connection is closed",
    )
    outgoing_bytes_total: int = Field(
        512 * _MIB,
        ge=_MIB,
        description="of all connections together, read from disk and not taken; above half of it nothing more is "
        "read for who has not taken what it has, at all of it the connection that holds most is "
        "closed when another one waits",
    )
    incoming_bytes_total: int = Field(
        512 * _MIB,
        ge=_MIB,
        description="of all connections together, of frames that were begun and are not complete; above it the "
        "connection that has held most for longest is closed",
    )
    memory_bytes: int | None = Field(
        None,
        ge=_MIB,
        description="what the node and its doors may have; absent: all that the machine, or the container, has",
    )
    memory_high_percent: float = Field(
        70, ge=0, le=100, description="with more of that in use data is refused; 0: never, and it is not measured"
    )
    memory_low_percent: float = Field(60, ge=0, le=100, description="below it data is taken again")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.memory_high_percent < self.memory_low_percent:
            raise ValueError("memory_low_percent cannot be above memory_high_percent")
        return self


class LogSettings(SettingsSection):
    """How logs lie on this node's disk."""

    segment_bytes: int = Field(
        1024 * _MIB, ge=256 * _KIB, alias="mappedFileSizeCommitLog", description="of one file of a log"
    )
    populate_bytes: int = Field(8 * _MIB, ge=0, description="writable pages ahead of the tail; a memory log only")
    prepare_bytes: int = Field(
        2048 * _MIB,
        ge=0,
        description="how far ahead of the tail pages are brought into the page cache in spare time, at most: four"
        " times what the log has taken of late",
    )
    prepare_at_rest_bytes: int = Field(
        8 * _MIB, ge=0, description="and how far in any case, all logs of a node together"
    )
    kept_mapped_bytes: int = Field(
        256 * _MIB,
        ge=0,
        description="what is further behind the end is let go from memory and read from disk; its queues are then"
        " found by tables",
    )
    flush_interval_ms: int = Field(
        500, ge=1, alias="flushIntervalCommitLog", description="how often a log is flushed that nobody waits for"
    )
    flush_bytes: int = Field(
        256 * _MIB,
        ge=_MIB,
        description="so much at most is appended before it is flushed earlier: with the interval, what a power "
        "loss takes from a memory log",
    )
    retention_ms: int | None = Field(
        None, ge=1000, description="segments whose last batch is older are freed; absent: kept for ever"
    )
    retention_bytes: int | None = Field(
        None, ge=_MIB, description="the oldest segments are freed while the log is larger; absent: no limit"
    )
    retention_on_low_disk: bool = Field(
        False, description="while the master's disk is low the oldest segment is freed, one a second"
    )
    retention_copy_percent: float = Field(
        12.5,
        ge=0,
        le=50,
        description="live batches are appended once more where they are at most so much of what becomes free",
    )
    retention_copy_bytes: int = Field(32 * _MIB, ge=64 * _KIB, description="and at most so much of them a second")
    hold_bytes: int = Field(
        -1,
        ge=-1,
        description="a landing's hold that keeps more of the log, from its record to the log's end, is ended; -1:"
        " no limit",
    )
    tier_locations: tuple[str, ...] | None = Field(
        None,
        description="where tables of tiered landings may be, each a path or URL; absent: anywhere in a cluster "
        "without users, nowhere in one with",
    )
    disk_low_percent: float = Field(10, ge=0, le=99, description="of the disk; with less free it is warned")
    disk_low_bytes: int = Field(32 * _GIB, ge=0, description="never more than this must be free")
    disk_full_percent: float = Field(2, ge=0, le=99, description="of the disk; with less free data is refused")
    disk_full_bytes: int = Field(4 * _GIB, ge=0, description="never more than this must be free")
    reserve_bytes: int = Field(
        8 * _MIB,
        ge=0,
        description="left in a segment for acks and control when no next one can be made; at most 1/8 of it",
    )
    copies_aside_max: int = Field(
        4, ge=1, description="former copies of a log that a mirror keeps; with so many it does not begin anew again"
    )
    send_at_once_bytes: int = Field(
        2 * _MIB,
        ge=4 * _KIB,
        description="largest answer to one fetch, unless one batch is larger; a fetch may ask for less",
    )

    @property
    def reserve(self) -> int:
        """`reserve_bytes`, but at most an eighth of a segment."""
        return min(self.reserve_bytes, self.segment_bytes // 8)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.disk_full_percent > self.disk_low_percent or self.disk_full_bytes > self.disk_low_bytes:
            raise ValueError(
                "disk_full_percent and disk_full_bytes cannot be above disk_low_percent and disk_low_bytes"
            )
        return self


class HaSettings(SettingsSection):
    """Replication. Names and defaults are RocketMQ's where they mean the same."""

    send_heartbeat_interval_ms: int = Field(
        5_000,
        ge=1,
        alias="haSendHeartbeatInterval",
        description="so long without a write a link is silent before a heartbeat goes out, in both directions",
    )
    housekeeping_interval_ms: int = Field(
        20_000,
        ge=1,
        alias="haHousekeepingInterval",
        description="a link on which nothing was read for so long is closed",
    )
    transfer_batch_bytes: int = Field(
        _MIB,
        ge=1024,
        alias="haTransferBatchSize",
        description="largest frame to a mirror, unless one batch is larger; RocketMQ's 32 KiB would cut whole batches",
    )
    sync_flush_timeout_ms: int = Field(
        5_000,
        ge=1,
        alias="syncFlushTimeout",
        description="so long a publish waits for its copies, or less if its producer says so",
    )
    start: Literal["begin", "last-segment"] = Field(
        "begin",
        description="where an empty mirror begins: `begin` or `last-segment`; in the second case it is in sync "
        "only once older records are gone",
    )
    reconnect_interval_ms: int = Field(
        500,
        ge=1,
        description="the longest wait between two attempts of a mirror to reach its master; the first is 20 ms. "
        "RocketMQ always waits 5 s",
    )
    in_flight_bytes_max: int = Field(32 * _MIB, ge=_KIB, description="sent to one mirror and not yet acked")
    slave_fall_behind_bytes_max: int = Field(
        256 * _MIB,
        ge=1,
        alias="haMaxGapNotInSync",
        description="a mirror further behind is shown as not caught up; nothing else follows",
    )
