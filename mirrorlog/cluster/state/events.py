"""Events for whoever watches the cluster, made of the entries of its log. Pure: an applied entry in, events out.

An entry that was refused, or that changed nothing, is no event: nobody needs to be told that nothing happened. What a
command says and what it does may differ (a node that joins twice, a set that shrinks by less), so events are made from
the states before and after it; the command only names the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from mirrorlog.cluster.state import commands, topology_commands
from mirrorlog.cluster.state.machine import AppliedEntry
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, shown, split

OF_USERS: Final = frozenset({
    "user_set", "user_deleted", "password_renewed", "permissions_set", "permissions_cleared", "user_limits_set",
    "logins_failed", "rights_refused", "users_held", "connection_closed",
})  # fmt: skip
"""Kinds of events that tell who there is and what he may: for administrators, as the list of users is."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`kind`: a word for programs; `text`: for people; `node` and `log` (a name): whom it is about, empty for
    nobody."""

    kind: str
    text: str
    index: int = 0
    node: str = ""
    log: str = ""
    details: Mapping[str, Any] = {}


def events_of(step: AppliedEntry) -> list[Event]:
    """What an entry has changed, if it is something to tell."""
    told = _TELLERS.get(type(step.command)) if step.command is not None else None
    if told is None or step.outcome.refusal or step.after is step.before:
        return []
    found = [msgspec.structs.replace(event, index=step.entry.index) for event in told(step, step.command)]
    by = step.command.by if step.command is not None else ""
    return [_asked_for(event, by) for event in found] if by else found


LOGGED: Final = (
    *(commands.ReplicasWished, commands.ReplicaAdded, commands.ReplicaRetired, commands.Promoted),
    *(commands.LogAltered, commands.LogRemoved, commands.NodeLeaving, commands.MovingPaused),
    *(commands.QueueSyncWished, commands.RecordsCopied),
    *(topology_commands.PolicySet, topology_commands.PolicyCleared),
)
"""What each node logs besides: where copies go, and what policies say, is decided by no one of them."""


def line_of(event: Event) -> str:
    """As a log line has it: `kind key=value …`. Texts come from clients: one that could pass for more than a value, or
    for another line, is quoted."""
    facts = {"log": event.log, "node": event.node, **event.details}
    told = {name: _written(name, value) for name, value in facts.items()}
    return " ".join([event.kind, *(f"{name}={value}" for name, value in told.items() if value)])


def _written(name: str, value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if name == "queue":
        text = shown(text)
    is_plain = text.isprintable() and " " not in text and not text.startswith(("'", '"'))
    return text if is_plain else repr(text)


def _asked_for(event: Event, by: str) -> Event:
    """It says who wanted it."""
    return msgspec.structs.replace(event, text=f"{event.text}; {by} asked for it", details={**event.details, "by": by})


# --- Nodes ----------------------------------------------------------------------------------------------------------


def _joined(step: AppliedEntry, command: commands.NodeJoined) -> Iterator[Event]:
    member = step.after.nodes[command.node].member
    role = "a witness" if command.witness else "a node"
    yield Event(
        kind="node_joined",
        text=f"node {command.node} joined as {role}, member {member}",
        node=command.node,
        details={"member": member, "witness": command.witness, "address": command.addresses.replication},
    )


def _started(step: AppliedEntry, command: commands.NodeStarted) -> Iterator[Event]:
    facts = step.after.nodes[command.node]
    yield Event(
        kind="node_started",
        text=f"node {command.node} started ({facts.kind.value}) as {command.start_id}",
        node=command.node,
        details={"start_id": command.start_id, "start_kind": facts.kind.value},
    )
    for log_id, log in step.after.logs.items():
        before = step.before.logs[log_id]
        if command.node in log.marked and command.node not in before.marked:
            yield Event(
                kind="copy_marked",
                text=f"log {log.name}: the copy on {command.node} may have lost something, and is marked",
                node=command.node,
                log=log.name,
            )
        if log.recovering and not before.recovering:
            yield Event(
                kind="log_recovering",
                text=f"log {log.name} is recovering: everybody who held everything may have lost something",
                log=log.name,
                details={"marked": sorted(log.marked)},
            )


def _stopped(step: AppliedEntry, command: commands.NodeStopped) -> Iterator[Event]:
    yield Event(kind="node_stopped", text=f"node {command.node} stopped", node=command.node)


def _draining(step: AppliedEntry, command: commands.NodeDraining) -> Iterator[Event]:
    kind, does = ("node_draining", "drains") if command.draining else ("node_undrained", "drains no more")
    yield Event(kind=kind, text=f"node {command.node} {does}", node=command.node)


def _leaving(step: AppliedEntry, command: commands.NodeLeaving) -> Iterator[Event]:
    kind, does = ("node_leaving", "leaves: its copies go elsewhere") if command.leaving else ("node_stays", "stays")
    yield Event(kind=kind, text=f"node {command.node} {does}", node=command.node)


def _forgotten(step: AppliedEntry, command: commands.NodeForgotten) -> Iterator[Event]:
    member = step.before.nodes[command.node].member
    yield Event(
        kind="node_left",
        text=f"node {command.node}, member {member}, was forgotten",
        node=command.node,
        details={"member": member},
    )


def _paused(step: AppliedEntry, command: commands.MovingPaused) -> Iterator[Event]:
    kind, text = ("moving_paused", "nothing moves any more") if command.paused else ("moving_resumed", "moving goes on")
    yield Event(kind=kind, text=text)


def _raised(step: AppliedEntry, command: commands.VersionRaised) -> Iterator[Event]:
    version = step.after.cluster_version
    yield Event(
        kind="version_raised", text=f"the cluster runs at version {version}, for good", details={"version": version}
    )


# --- Queues ---------------------------------------------------------------------------------------------------------


def _move_begun(step: AppliedEntry, command: commands.MoveBegun) -> Iterator[Event]:
    yield from _moves(step, "move_begun", "moves from log {source} to log {target}", step.after)


def _queues_moved(step: AppliedEntry, command: commands.QueuesMoved) -> Iterator[Event]:
    yield from _moves(step, "queue_moved", "has moved from log {source} to log {target}", step.before)


def _move_cancelled(step: AppliedEntry, command: commands.MoveCancelled) -> Iterator[Event]:
    yield from _moves(step, *_CANCELLED, step.before)


_CANCELLED: Final = ("move_cancelled", "stays in log {source}; its move to {target} is cancelled")


def _moves(step: AppliedEntry, kind: str, does: str, state: ClusterState) -> Iterator[Event]:
    """One for each queue whose move began or ended with this."""
    before, after = step.before.placing.moves, step.after.placing.moves
    for name in sorted(before.keys() ^ after.keys()):
        move = state.placing.moves[name]
        logs = {"source": step.before.logs[move.source].name, "target": step.before.logs[move.target].name}
        details = {"queue": name, "move": move.number, **logs}
        yield Event(kind=kind, text=f"queue {shown(name)} {does.format(**logs)}", details=details)


def _span_ended(step: AppliedEntry, command: commands.SpanEnded) -> Iterator[Event]:
    name = step.before.logs[command.log_id].name
    text = f"log {name} has no record of queue {shown(command.name)} any more, which was in it before"
    yield Event(kind="span_ended", log=name, text=text, details={"queue": command.name})


def _sync_wished(step: AppliedEntry, command: commands.QueueSyncWished) -> Iterator[Event]:
    if command.wished and command.name not in step.after.placing.syncs:
        return  # there is nothing to copy; what was cancelled before may be asked for by a policy again
    queue, by = shown(command.name), ", as its policy has it" if command.automatic else ""
    kind, text = (
        ("sync_begun", f"what queue {queue} has in former logs is copied to its own{by}")
        if command.wished
        else ("sync_cancelled", f"nothing more of queue {queue} is copied from former logs")
    )
    yield Event(kind=kind, text=text, details={"queue": command.name})


def _records_copied(step: AppliedEntry, command: commands.RecordsCopied) -> Iterator[Event]:
    """Of a span that has ended with it: there may be thousands of steps up to there."""
    spans = step.after.placing.spans[command.name]
    if not any(span.log_id == command.log_id and not span.ended for span in spans[:-1]):
        name = step.before.logs[command.log_id].name
        text = f"all that queue {shown(command.name)} had in log {name} is in its own log, from {spans[-1].first} on"
        yield Event(kind="records_copied", log=name, text=text, details={"queue": command.name})
    if command.name in step.before.placing.syncs and command.name not in step.after.placing.syncs:
        text = f"queue {shown(command.name)} has nothing in former logs any more"
        yield Event(kind="sync_ended", text=text, details={"queue": command.name})


def _queues_removed(step: AppliedEntry, command: commands.QueuesRemoved) -> Iterator[Event]:
    log = _name(step.after, command.log_id)
    for key in command.names:
        virtual_host, name = split(key)
        within = "" if virtual_host == DEFAULT_VIRTUAL_HOST else f" of virtual host {virtual_host}"
        yield Event(
            kind="queue_deleted",
            text=f"queue {name}{within} was deleted from log {log}",
            log=log,
            details={"queue": name, "virtual_host": virtual_host},
        )


# --- Virtual hosts, users -------------------------------------------------------------------------------------------

# Exchanges and bindings are no events: some clients make and delete one for each answer that they wait for.


def _host_changed(
    step: AppliedEntry, command: topology_commands.VirtualHostMade | topology_commands.VirtualHostRemoved
) -> Iterator[Event]:
    does = "added" if isinstance(command, topology_commands.VirtualHostMade) else "deleted"
    text = f"virtual host {command.name} was {does}"
    yield Event(kind=f"virtual_host_{does}", text=text, details={"virtual_host": command.name})


def _policy_set(step: AppliedEntry, command: topology_commands.PolicySet) -> Iterator[Event]:
    policy, definition = command.policy, msgspec.json.encode(command.policy.definition).decode()
    what = "queues and exchanges" if policy.apply_to == "all" else policy.apply_to
    told = f"was set: {what} that fit {policy.pattern!r}, priority {policy.priority}: {definition}"
    facts = {"pattern": policy.pattern, "apply_to": policy.apply_to, "priority": policy.priority}
    yield _of_policy("policy_set", command, told, facts | {"definition": definition})


def _policy_cleared(step: AppliedEntry, command: topology_commands.PolicyCleared) -> Iterator[Event]:
    yield _of_policy("policy_cleared", command, "was cleared", {})


def _of_policy(
    kind: str, command: topology_commands.PolicySet | topology_commands.PolicyCleared, told: str, facts: dict[str, Any]
) -> Event:
    text = f"{'operator ' * command.operator}policy {command.name} of virtual host {command.virtual_host} {told}"
    details = {"policy": command.name, "virtual_host": command.virtual_host, "operator": command.operator, **facts}
    return Event(kind=kind, text=text, details=details)


def _user_set(
    step: AppliedEntry, command: topology_commands.UserSet | topology_commands.FirstUserMade
) -> Iterator[Event]:
    """What of it has changed; never the hash."""
    before, after = (state.routing.users.get(command.name) for state in (step.before, step.after))
    assert after is not None
    tags = ", ".join(after.tags) or "none"
    password = before is None or before.password_hash != after.password_hash
    text = f"user {command.name} was {'added' if before is None else 'changed'}, tags: {tags}"
    details = {"user": command.name, "tags": list(after.tags), "password": password}
    yield Event(kind="user_set", text=f"{text}{', another password' if password and before else ''}", details=details)


def _password_renewed(step: AppliedEntry, command: topology_commands.PasswordRenewed) -> Iterator[Event]:
    text = f"user {command.user} logged in, and has a new hash of that password"
    yield Event(kind="password_renewed", text=text, details={"user": command.user})


def _user_removed(step: AppliedEntry, command: topology_commands.UserRemoved) -> Iterator[Event]:
    yield Event(kind="user_deleted", text=f"user {command.name} was deleted", details={"user": command.name})


def _permissions_set(step: AppliedEntry, command: topology_commands.PermissionsSet) -> Iterator[Event]:
    rights = {"configure": command.configure, "write": command.write, "read": command.read}
    told = ", ".join(f"{right} {expression!r}" for right, expression in rights.items())
    yield Event(
        kind="permissions_set",
        text=f"user {command.user} may in virtual host {command.virtual_host}: {told}",
        details={"user": command.user, "virtual_host": command.virtual_host, **rights},
    )


def _permissions_cleared(step: AppliedEntry, command: topology_commands.PermissionsCleared) -> Iterator[Event]:
    yield Event(
        kind="permissions_cleared",
        text=f"user {command.user} may do nothing any more in virtual host {command.virtual_host}",
        details={"user": command.user, "virtual_host": command.virtual_host},
    )


def _limits_set(step: AppliedEntry, command: topology_commands.UserLimitsSet) -> Iterator[Event]:
    limits = command.limits.given
    told = ", ".join(f"{name} {value}" for name, value in limits.items()) or "none"
    text = f"user {command.user} has these limits on each node: {told}"
    yield Event(kind="user_limits_set", text=text, details={"user": command.user, **limits})


# --- Logs -----------------------------------------------------------------------------------------------------------


def _made(step: AppliedEntry, command: commands.LogMade) -> Iterator[Event]:
    nodes = ", ".join(command.replicas)
    yield Event(
        kind="log_made",
        text=f"log {command.name}, number {command.number}, was made on {nodes}",
        log=command.name,
        details={"log_id": command.log_id, "number": command.number, "replicas": list(command.replicas)},
    )


def _replica_added(step: AppliedEntry, command: commands.ReplicaAdded) -> Iterator[Event]:
    name = _name(step.after, command.log_id)
    yield Event(kind="replica_added", text=f"log {name} gets a copy on {command.node}", node=command.node, log=name)


def _replica_removed(step: AppliedEntry, command: commands.ReplicaRemoved) -> Iterator[Event]:
    name = _name(step.after, command.log_id)
    yield Event(
        kind="replica_removed", text=f"log {name} has no copy on {command.node} any more", node=command.node, log=name
    )


def _altered(step: AppliedEntry, command: commands.LogAltered) -> Iterator[Event]:
    name, rule = _name(step.after, command.log_id), command.placement
    yield Event(
        kind="log_altered",
        text=f"log {name} is by the rule {rule.words} from now on",
        log=name,
        details=msgspec.to_builtins(rule),
    )


def _removed(step: AppliedEntry, command: commands.LogRemoved) -> Iterator[Event]:
    log = step.before.logs[command.log_id]
    yield Event(
        kind="log_removed",
        text=f"log {log.name}, number {log.number}, was removed: nothing was in it",
        log=log.name,
        details={"log_id": command.log_id, "number": log.number, "replicas": list(log.replicas)},
    )


def _replicas_wished(step: AppliedEntry, command: commands.ReplicasWished) -> Iterator[Event]:
    log = step.before.logs[command.log_id]
    target = step.after.placing.place(command.log_id).target
    from_, to = ", ".join(log.replicas), ", ".join(target)
    yield Event(
        kind="replicas_wished",
        text=f"log {log.name} goes from {from_} to {to}" if target else f"log {log.name} stays on {from_}",
        log=log.name,
        details={"from": list(log.replicas), "to": list(target)},
    )


def _replica_retired(step: AppliedEntry, command: commands.ReplicaRetired) -> Iterator[Event]:
    log = step.after.logs[command.log_id]
    others = f"{len(log.in_sync)} others are" if len(log.in_sync) != 1 else "1 other is"
    yield Event(
        kind="replica_retired",
        text=f"log {log.name} has no copy on {command.node} any more; {others} in sync",
        node=command.node,
        log=log.name,
        details={
            "replicas": list(log.replicas),
            "whole": list(log.promotable),
            "staying": [node for node, facts in step.after.nodes.items() if not facts.witness and not facts.leaving],
        },
    )


def _promoted(step: AppliedEntry, command: commands.Promoted) -> Iterator[Event]:
    before, after = step.before.logs[command.log_id], step.after.logs[command.log_id]
    was = before.master.node if before.master is not None else ""
    node, epoch = command.holder.node, command.epoch
    how = "unclean" if command.unclean else "clean"
    came = f" after {was}" if was and was != node else ""
    yield Event(
        kind="promoted",
        text=f"log {after.name}: {node} is master{came}, epoch {epoch}, {how}",
        node=node,
        log=after.name,
        details={"from": was, "to": node, "epoch": epoch, "clean": not command.unclean},
    )
    if command.lost_from is not None:
        yield Event(
            kind="loss_declared",
            text=f"log {after.name}: confirmed records may be lost from log offset {command.lost_from} on",
            node=node,
            log=after.name,
            details={"epoch": epoch, "start": command.lost_from},
        )
        yield from _moves(step, *_CANCELLED, step.before)


def _wished(step: AppliedEntry, command: commands.MasterWished) -> Iterator[Event]:
    name, wished = _name(step.after, command.log_id), step.after.logs[command.log_id].wished
    text = f"log {name} shall be handed over to {wished}" if wished else f"log {name} stays where it is"
    yield Event(kind="master_wished", text=text, node=wished, log=name)


def _shrunk(step: AppliedEntry, command: commands.InSyncShrunk) -> Iterator[Event]:
    before, after = step.before.logs[command.log_id], step.after.logs[command.log_id]
    for node in before.in_sync:
        if node not in after.in_sync:
            facts = step.after.nodes.get(node)
            reason = "marked" if node in before.marked else "stopped" if facts and facts.stopped else "gone or behind"
            yield Event(
                kind="in_sync_shrunk",
                text=f"log {after.name}: {node} is not in sync any more ({reason}); {len(after.in_sync)} are",
                node=node,
                log=after.name,
                details={"reason": reason, "in_sync": sorted(after.in_sync)},
            )


def _grown(step: AppliedEntry, command: commands.InSyncGrown) -> Iterator[Event]:
    log = step.after.logs[command.log_id]
    yield Event(
        kind="in_sync_grown",
        text=f"log {log.name}: {command.holder.node} is in sync; {len(log.in_sync)} of {len(log.replicas)} are",
        node=command.holder.node,
        log=log.name,
        details={"in_sync": sorted(log.in_sync)},
    )


def _jump_confirmed(step: AppliedEntry, command: commands.OffsetJumpConfirmed) -> Iterator[Event]:
    name = _name(step.after, command.log_id)
    yield Event(kind="leap_confirmed", text=f"log {name}: the queue offsets are past what was lost", log=name)


def _loss_end_found(step: AppliedEntry, command: commands.LossEndFound) -> Iterator[Event]:
    log = step.after.logs[command.log_id]
    for loss in log.losses:
        if loss.epoch == command.epoch:
            yield Event(
                kind="loss_end_found",
                text=f"log {log.name}: lost when epoch {loss.epoch} began is {loss.start}..{loss.end} or further",
                log=log.name,
                details={"epoch": loss.epoch, "start": loss.start, "end": loss.end},
            )


def _name(state: ClusterState, log_id: str) -> str:
    return state.logs[log_id].name


_TELLERS: Final[Mapping[type[commands.Command], Callable[[AppliedEntry, Any], Iterator[Event]]]] = {
    commands.NodeJoined: _joined,
    commands.NodeStarted: _started,
    commands.NodeStopped: _stopped,
    commands.NodeDraining: _draining,
    commands.NodeLeaving: _leaving,
    commands.NodeForgotten: _forgotten,
    commands.LogMade: _made,
    commands.ReplicaAdded: _replica_added,
    commands.ReplicaRemoved: _replica_removed,
    commands.LogAltered: _altered,
    commands.LogRemoved: _removed,
    commands.ReplicasWished: _replicas_wished,
    commands.ReplicaRetired: _replica_retired,
    commands.MovingPaused: _paused,
    commands.MoveBegun: _move_begun,
    commands.QueuesMoved: _queues_moved,
    commands.MoveCancelled: _move_cancelled,
    commands.SpanEnded: _span_ended,
    commands.QueueSyncWished: _sync_wished,
    commands.RecordsCopied: _records_copied,
    commands.Promoted: _promoted,
    commands.MasterWished: _wished,
    commands.InSyncShrunk: _shrunk,
    commands.InSyncGrown: _grown,
    commands.OffsetJumpConfirmed: _jump_confirmed,
    commands.LossEndFound: _loss_end_found,
    commands.VersionRaised: _raised,
    commands.QueuesRemoved: _queues_removed,
    topology_commands.VirtualHostMade: _host_changed,
    topology_commands.VirtualHostRemoved: _host_changed,
    topology_commands.PolicySet: _policy_set,
    topology_commands.PolicyCleared: _policy_cleared,
    topology_commands.UserSet: _user_set,
    topology_commands.FirstUserMade: _user_set,
    topology_commands.PasswordRenewed: _password_renewed,
    topology_commands.UserRemoved: _user_removed,
    topology_commands.PermissionsSet: _permissions_set,
    topology_commands.PermissionsCleared: _permissions_cleared,
    topology_commands.UserLimitsSet: _limits_set,
}
