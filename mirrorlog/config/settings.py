"""All settings of a node, and what is made of those that are absent: addresses, members, logs."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from mirrorlog.config.addresses import split_address
from mirrorlog.config.cluster import ClusterSettings, LogAssignment, Member
from mirrorlog.config.sections import (
    AmqpSettings,
    GrpcSettings,
    HaSettings,
    HttpSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    NodeSettings,
    TlsSettings,
)
from mirrorlog.config.values import DEFAULT_PORTS, PORTS, SettingsSection
from mirrorlog.errors import ConfigError


class Settings(SettingsSection):
    """All settings of one node."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    client: ListenSettings = ListenSettings()
    replication: ListenSettings = ListenSettings()
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    amqp: AmqpSettings = AmqpSettings()
    tls: TlsSettings = TlsSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    ha: HaSettings = HaSettings()

    @property
    def member(self) -> Member:
        """This node, with the addresses that others use. Raises ConfigError when it is not in [[cluster.members]]."""
        return _advertised(self.cluster.member(self.node.id), self)

    @property
    def client_bind(self) -> str:
        return self.client.bind or self.member.client

    @property
    def replication_bind(self) -> str:
        return self.replication.bind or self.member.replication

    @property
    def grpc_bind(self) -> str | None:
        """None when the node runs no gRPC door."""
        if not self.grpc.enabled:
            return None
        return self.grpc.bind or self.member.grpc

    @property
    def http_bind(self) -> str | None:
        """None when the node runs no HTTP door."""
        if not self.http.enabled:
            return None
        return self.http.bind or self.member.http

    @property
    def door_binds(self) -> dict[str, tuple[str, str]]:
        """Of each door that the node runs: where, and the mode of its TLS."""
        binds = {"grpc": self.grpc_bind, "http": self.http_bind, "amqp": self.amqp.bind}
        return {kind: (bind, getattr(self.tls, kind)) for kind, bind in binds.items() if bind is not None}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.log.segment_bytes < self.limits.max_batch_bytes:
            raise ValueError("log.segment_bytes must hold at least one batch of limits.max_batch_bytes")
        if self.ha.housekeeping_interval_ms <= self.ha.send_heartbeat_interval_ms:
            raise ValueError(
                "ha.haHousekeepingInterval must be above ha.haSendHeartbeatInterval, or idle links would flap"
            )
        if self.limits.outgoing_bytes_max < 2 * self.limits.max_batch_bytes:
            raise ValueError("limits.outgoing_bytes_max must hold two batches of limits.max_batch_bytes")
        if self.limits.max_batch_bytes < self.limits.max_record_bytes:
            raise ValueError("limits.max_batch_bytes must hold at least one record of limits.max_record_bytes")
        return self


def with_hosts(settings: Settings) -> tuple[Settings, dict[tuple[str, str], str]]:
    """Ports of which nothing is said are where the port is by which other nodes reach this one; with their origins.

    Who reaches the one shall reach the others: what is bound on loopback alone is in every view, and of no use there.
    """
    source = None if settings.cluster.members else _host_source(settings)
    if source is None:
        return settings, {}
    model: ListenSettings = getattr(settings, source)
    sections: dict[str, ListenSettings] = {}
    origins: dict[tuple[str, str], str] = {}
    for name in PORTS:
        section: ListenSettings = getattr(settings, name)
        if _is_set(section) or not getattr(section, "enabled", True):
            continue
        told = {
            key: f"{given.rpartition(':')[0]}:{DEFAULT_PORTS[name]}"
            for key in ("bind", "advertise")
            if (given := getattr(model, key)) is not None
        }
        sections[name] = section.model_copy(update=told)
        origins.update({(name, key): f"derived from {source}" for key in told})
    return settings.model_copy(update=sections), origins


def _host_source(settings: Settings) -> str | None:
    """The section whose host stands for those that are absent. None: loopback does.

    Only replication, for it is to be reached by other machines: a node that shows them its metrics does not open its
    other ports by that. One that looks for a cluster has to be reached, so there it is the first one that is set.
    """
    candidates = ("replication", *PORTS) if settings.cluster.looks else ("replication",)
    for name in candidates:
        section: ListenSettings = getattr(settings, name)
        if _is_set(section) and getattr(section, "enabled", True):
            # What nobody can dial is refused under its own name.
            return None if _is_anywhere(section.advertise or section.bind or "") else name
    return None


def _is_set(section: ListenSettings) -> bool:
    return section.bind is not None or section.advertise is not None


def with_defaults(settings: Settings) -> Settings:
    """A node without members knows itself alone, and a cluster without logs has one log on all its nodes."""
    cluster = settings.cluster
    if not cluster.members:
        own = Member(
            id=settings.node.id,
            **{name: getattr(settings, name).bind or f"127.0.0.1:{port}" for name, port in DEFAULT_PORTS.items()},
        )
        cluster = cluster.model_copy(update={"members": (_advertised(own, settings),)})
    if settings.node.witness and len(cluster.members) == 1:
        cluster = cluster.model_copy(update={"logs": (), "homes": True})
    elif not cluster.logs:
        first, *others = (member.id for member in cluster.members)
        log = LogAssignment(number=0, master=first, mirrors=tuple(others), copies=cluster.copies)
        cluster = cluster.model_copy(update={"logs": (log,), "homes": True})
    changed = settings.model_copy(update={"cluster": cluster})
    _check_reachable(changed)
    _check_seeds(changed)
    return changed


def _advertised(member: Member, settings: Settings) -> Member:
    """A node's own entry, with what its sections say. The table itself stays the same on every node."""
    told: dict[str, str | None] = {}
    for name in PORTS:
        section: ListenSettings = getattr(settings, name)
        if not getattr(section, "enabled", True):
            told[name] = None
        elif section.advertise is not None:
            told[name] = section.advertise
    return member.model_copy(update=told)


def _check_reachable(settings: Settings) -> None:
    """Raises ConfigError for an address that nobody can dial, or a node that is no member."""
    for name in PORTS:
        address = getattr(settings.member, name)
        if address is not None and _is_anywhere(address):
            raise ConfigError(
                f"{name}.bind: nobody can reach a node at {address}; set {name}.advertise to the address that "
                "others use"
            )


def _check_seeds(settings: Settings) -> None:
    """Raises ConfigError for a node that tells others, on other machines, to reach it on theirs."""
    if all(map(_is_loopback, settings.cluster.join)):
        return
    for name in ("replication", *PORTS):  # that one first: the others may follow from it
        own = getattr(settings.member, name)
        if own is not None and _is_loopback(own):
            off = f", or {name}.enabled=false" if name in ("grpc", "http") else ""
            raise ConfigError(
                f"{name}: those on other machines cannot reach this node at {own}; set {name}.advertise, or "
                f"{name}.bind, to an address that they can use{off}"
            )


def _is_anywhere(address: str) -> bool:
    """Whether its host means every address of the machine, in any spelling: `0.0.0.0`, `0`, `[::]`, `[::0]`."""
    return not split_address(address)[0].strip("0.:")


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0]
    return host in ("localhost", "::1") or host.startswith("127.")
