"""The cluster as a node's settings know it: its members, its logs, and how it is found."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, Literal, Self
from uuid import UUID, uuid5

from pydantic import Field, SecretStr, ValidationInfo, field_serializer, field_validator, model_validator

from mirrorlog.config.addresses import CLIENT_PORT, COPIES_MAX, REPLICATION_PORT
from mirrorlog.config.values import Address, Flush, Locator, Name, SettingsSection
from mirrorlog.errors import ConfigError

MULTICAST_PORT: Final = 7405
MULTICAST_GROUP: Final = "239.255.74.1"
SEEDS_MAX: Final = 64
LOG_NUMBER_MAX: Final = 255

_NAMESPACE: Final = UUID("6d697272-6f72-6c6f-672e-636c75737465")  # "mirrorlog.cluste" in ASCII


class Member(SettingsSection):
    """A node of the cluster with the addresses that others use to reach it (advertised)."""

    id: Name = Field(description="a name")
    client: Address = Field(f"127.0.0.1:{CLIENT_PORT}", description="where clients reach it")
    replication: Address = Field(f"127.0.0.1:{REPLICATION_PORT}", description="where mirrors reach it")
    grpc: Address | None = Field(None, description="where gRPC clients reach it; absent: it runs no gRPC door")
    http: Address | None = Field(None, description="where HTTP clients reach it; absent: it runs no HTTP door")


class LogAssignment(SettingsSection):
    """A log and the nodes that hold it. `min_in_sync` defaults to 1 with one or two copies, else to the majority.

    `number` is the high byte of its queues' ids, so that an id tells the log. It is kept with the log's data: by
    default the place in [[cluster.logs]], from 0, and to be written there before the list is put in another order.
    `copies`: how many there shall be as nodes come; by default as many as are named here.
    """

    name: Name = Field("main", description="unique in the cluster; the log's id is made from it")
    number: int | None = Field(
        None,
        ge=0,
        le=LOG_NUMBER_MAX,
        description="0 to 255, the high byte of its queues' ids; absent: its place in the list",
    )
    master: Name = Field(description="the node that writes it first, its home")
    mirrors: tuple[Name, ...] = Field((), description="the nodes that copy it first")
    flush: Flush = Field("memory", description="`memory` or `disk`: what a confirm waits for on every copy")
    copies: int | None = Field(
        None, ge=1, le=COPIES_MAX, description="how many there shall be as nodes come; absent: as many as are named"
    )
    min_in_sync: int | None = Field(
        None,
        ge=1,
        description="copies that must be there for a publish to be taken; absent: 1 with one or two copies, else "
        "the majority",
    )

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.master, *self.mirrors)

    @property
    def log_number(self) -> int:
        """`number`; 0 for an assignment that is in no list."""
        return self.number or 0

    @property
    def copies_wanted(self) -> int:
        """`min_in_sync`, with its default filled in."""
        if self.min_in_sync is not None:
            return self.min_in_sync
        copies = len(self.nodes)
        return 1 if copies <= 2 else copies // 2 + 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError(f"log {self.name!r} names a node twice: {', '.join(self.nodes)}")
        if self.copies_wanted > len(self.nodes):
            raise ValueError(f"log {self.name!r}: min_in_sync {self.min_in_sync} is above its {len(self.nodes)} copies")
        return self


class ClusterSettings(SettingsSection):
    """Which cluster the node is in, or looks for. `members` and `logs`, the same on every node, found a cluster and are
    not looked at again: from then on it decides itself. With `join` or multicast a node looks for one; with nothing it
    founds a cluster of one."""

    name: Name = Field(
        "mirrorlog", description="of the cluster; one that is given must be that of the cluster that is joined"
    )
    id: UUID | None = Field(
        None,
        description="of the cluster; absent: made from the name, and by chance for one that is founded by "
        "`--bootstrap` or by nodes that join, unless a name is given",
    )
    members: tuple[Member, ...] = Field(
        (), description="the nodes that found the cluster, a `[[cluster.members]]` table each; absent: this node alone"
    )
    logs: tuple[LogAssignment, ...] = Field(
        (),
        description="the logs that it begins with, a `[[cluster.logs]]` table each; absent: `main` on all "
        "members, which the first is home to, and a home log for every other node",
    )
    join: tuple[Address, ...] = Field(
        (),
        max_length=SEEDS_MAX,
        description="replication addresses of some nodes, as `--join`; not together with members",
    )
    discovery: Literal["seeds", "multicast"] = Field(
        "seeds", description="`multicast`: members are found, and answer, by multicast too"
    )
    multicast_group: str = Field(MULTICAST_GROUP, description="an IPv4 multicast address")
    multicast_port: int = Field(MULTICAST_PORT, ge=1, le=65535, description="of UDP")
    multicast_interface: str = Field(
        "0.0.0.0", description="an IPv4 address of this machine; 0.0.0.0: the system chooses"
    )
    copies: int = Field(3, ge=1, le=COPIES_MAX, description="of each log, or as many as there are nodes")
    queue_master_locator: Locator = Field(
        "min-masters",
        description="who masters a new queue that does not say (`queue-master-locator`): `min-masters`, the node "
        "with the fewest queues; `client-local`, the one that the client asked; `random`",
    )
    logs_per_node_max: int = Field(
        64,
        ge=1,
        le=LOG_NUMBER_MAX + 1,
        description="so many logs a node may be home to; then a queue goes to another home, or to a log that is there",
    )
    node_timeout_ms: int = Field(
        3_000, ge=100, description="a node that is silent for so long is down; one whose process is gone is so at once"
    )
    promote_wait_ms: int = Field(
        2_000, ge=0, description="how long a promotion waits for copies that are silent, once one has answered"
    )
    promote_always_after_ms: int = Field(
        15_000,
        ge=0,
        description="how long those who have everything may be gone, before a copy is promoted that lacks "
        "something; only where a policy says always (ha-promote-on-shutdown, ha-promote-on-failure)",
    )
    mirror_lag_time_ms: int = Field(
        4_000,
        ge=100,
        description="a mirror that has not caught up for so long leaves the in-sync set; below syncFlushTimeout, so "
        "that publishes are confirmed without it",
    )
    replace_after_ms: int = Field(
        600_000, ge=1_000, description="a copy whose node is gone for so long is made on another one"
    )
    move_bytes_per_s: int = Field(
        100 * 1024 * 1024,
        ge=0,
        description="that a node sends to copies that are made because a log moves, and gives and takes of what "
        "queues have left behind (`mqtool sync-queue`), all together; 0: no limit. Above what is "
        "published to such a log, or its new copy never catches up",
    )
    former_keep_ms: int = Field(
        86_400_000,
        ge=0,
        description="a copy that its node is not named for any more (replaced, retired, of a log that was "
        "removed) is freed after so long; 0: only by `mqtool free-former`",
    )
    homes: bool = Field(
        False, description="every node is home to a log of its own; always so when no `[[cluster.logs]]` are given"
    )
    secret: SecretStr | None = Field(
        None, description="proven by nodes to each other on replication ports, the same on all; it is never shown"
    )
    secret_file: Path | None = Field(
        None, description="a file that holds the secret, or while it is changed two, a line each"
    )

    @field_serializer("secret")
    def _hidden(self, secret: SecretStr | None) -> None:
        """Nobody sees it, and nobody uses stars for it by mistake."""

    @field_validator("multicast_group", "multicast_interface")
    @classmethod
    def _ipv4(cls, text: str, info: ValidationInfo) -> str:
        try:
            address = IPv4Address(text)
        except ValueError:
            raise ValueError(f"{text!r} is no IPv4 address") from None
        if address.is_multicast != (info.field_name == "multicast_group"):
            raise ValueError(f"{text} is {'an' if address.is_multicast else 'no'} IPv4 multicast address")
        return text

    @field_validator("logs")
    @classmethod
    def _number(cls, logs: tuple[LogAssignment, ...]) -> tuple[LogAssignment, ...]:
        """A log without a number has that of its place."""
        return tuple(
            log if log.number is not None else log.model_copy(update={"number": place})
            for place, log in enumerate(logs)
        )

    @property
    def cluster_id(self) -> UUID:
        return self.id or uuid5(_NAMESPACE, self.name)

    @property
    def looks(self) -> bool:
        """Whether a node that is in no cluster looks for one."""
        return bool(self.join) or self.discovery == "multicast"

    @property
    def named(self) -> bool:
        """Whether somebody has said which cluster it is, by its id or its name."""
        return self.id is not None or "name" in self.model_fields_set

    def is_this(self, cluster_id: UUID, name: str) -> bool:
        """Whether a cluster may be the one that is meant: nothing that was said of it is wrong."""
        if self.id is not None:
            return self.id == cluster_id
        return not self.named or name == self.name

    def known_as(self, cluster_id: UUID, name: str) -> Self:
        """The same, of the cluster that the node has turned out to be in."""
        return self.model_copy(update={"id": cluster_id, "name": name})

    def log_id(self, log: LogAssignment) -> UUID:
        return uuid5(self.cluster_id, log.name)

    def member(self, node_id: str) -> Member:
        """Raises ConfigError for a node that is not one."""
        for member in self.members:
            if member.id == node_id:
                return member
        raise ConfigError(f"node {node_id!r} is not in [[cluster.members]]; add it there or set node.id to one of them")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("give the secret, or the secret_file, not both")
        if self.members and self.looks:
            raise ValueError("members found a cluster, join and multicast look for one; give only one of them")
        ids = [member.id for member in self.members]
        if len(set(ids)) != len(ids):
            raise ValueError(f"[[cluster.members]] names a node twice: {', '.join(ids)}")
        names = [log.name for log in self.logs]
        if len(set(names)) != len(names):
            raise ValueError(f"[[cluster.logs]] names a log twice: {', '.join(names)}")
        numbers = [log.log_number for log in self.logs]
        if len(set(numbers)) != len(numbers):
            given = ", ".join(f"{log.name} {log.log_number}" for log in self.logs)
            raise ValueError(
                f"[[cluster.logs]] gives a number twice ({given}); write `number` for every log or for none"
            )
        for log in self.logs:
            if unknown := set(log.nodes) - set(ids):
                raise ValueError(
                    f"log {log.name!r} is assigned to {', '.join(sorted(unknown))}, not in [[cluster.members]]"
                )
        return self
