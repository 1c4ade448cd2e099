"""`mqtool recover-cluster`: the survivors go on when a majority of the nodes is lost for good. Offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrorlog.cluster.membership.recovering import (
    FILE_BYTES_MAX,
    Survivor,
    SurvivorPlan,
    backup_of,
    decode_survivor,
    encode_survivor,
    plan,
    read_survivor,
    recover,
)
from mirrorlog.commitlog.files import OS_FILES, disk_named, read_file, replace_file
from mirrorlog.errors import BadInput
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import print_json


def recover_cluster(
    *,
    data_dir: Annotated[
        list[Path] | None,
        typer.Option("--data-dir", help="Data directory of a stopped survivor on this machine. Repeatable."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", help="What --save wrote on the machine of another survivor. Repeatable."),
    ] = None,
    survivors: Annotated[
        str, typer.Option("--survivors", metavar="A,B", help="The nodes that go on, all of them, as a check.")
    ] = "",
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Only write what this survivor knows, for the other machines."),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it: what the lost nodes alone had confirmed is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let the survivors go on when a majority of the nodes is lost for good; says what would be done without
    --accept-loss. Never for nodes that may come back: the cluster waits for them by itself.

    Stop all survivors. On the machine of each: --data-dir with --save; carry every file to every machine; then on each
    the same command with --data-dir, every --file and --survivors, and compare the fingerprint that it prints. Then
    start them. What the nodes lost alone is reported per log; their Raft files are kept under another name. It
    may be repeated.

    Example: mqtool recover-cluster --data-dir /var/lib/n1 --file n2.survivor --survivors n1,n2 --accept-loss
    """
    directories, files = data_dir or [], file or []
    if save is not None:
        _save(directories, files, save)
        return
    own = {path: read_survivor(OS_FILES, path) for path in directories}
    everybody = _together(own, [_loaded(path) for path in files])
    _check_names(everybody, survivors)
    agreed = plan(everybody)
    done = {own[path].node: recover(OS_FILES, path, agreed) for path in directories} if accept_loss else {}
    asides = {own[path].node: str(backup_of(path, agreed.state.incarnation)) for path in directories}
    if as_json:
        print_json(_fields(agreed, done, asides))
    else:
        for line in _lines(agreed, done, asides):
            typer.echo(line)


def _save(directories: Sequence[Path], files: Sequence[Path], target: Path) -> None:
    if len(directories) != 1 or files:
        raise BadInput("--save goes with one --data-dir, and with nothing else")
    survivor = read_survivor(OS_FILES, directories[0])
    with disk_named("write", target):
        replace_file(OS_FILES, target, encode_survivor(survivor))
    typer.echo(f"{target}: node {survivor.node}, member {survivor.member}, knows entry {survivor.last[1]}")


def _loaded(path: Path) -> Survivor:
    with disk_named("read", path):
        return decode_survivor(read_file(OS_FILES, path, max_bytes=FILE_BYTES_MAX), str(path))


def _together(own: dict[Path, Survivor], others: Sequence[Survivor]) -> list[Survivor]:
    """A survivor may be given by its file too, as long as it says the same: then one list of files serves all."""
    found = {each.node: each for each in others}
    if len(found) != len(others):
        raise BadInput("the files of one node are given twice")
    for path, survivor in own.items():
        saved = found.get(survivor.node)
        if saved is not None and saved != survivor and survivor.state.incarnation == saved.state.incarnation:
            raise BadInput(f"node {survivor.node} in {path} has run since its file was saved; save it again")
        found[survivor.node] = survivor
    return list(found.values())


def _check_names(survivors: Sequence[Survivor], named: str) -> None:
    names = sorted(each.node for each in survivors)
    if not names:
        raise BadInput("give --data-dir for each survivor on this machine, --file for each on another one")
    if (wanted := sorted({name.strip() for name in named.split(",") if name.strip()})) != names:
        raise BadInput(
            f"--survivors says {', '.join(wanted) or 'nobody'}, and given are {', '.join(names)}; name exactly those "
            "that go on"
        )


# --- As text and JSON -----------------------------------------------------------------------------------------------


def _lines(agreed: SurvivorPlan, done: dict[str, bool], asides: dict[str, str]) -> Iterator[str]:
    state = agreed.state
    yield f"cluster {state.name} goes on as incarnation {state.incarnation} with {', '.join(sorted(state.nodes))}"
    if agreed.lost:
        yield f"lost for good: {', '.join(agreed.lost)}; they are refused when they come back"
    how = "decided already, as on" if agreed.decided else "as known to"
    yield f"{how} node {agreed.newest}; fingerprint {agreed.fingerprint}, the same on every survivor"
    for log in state.logs.values():
        copies = ", ".join(log.replicas)
        if copies:
            yield f"log {log.name}: recovers from {copies}; records that the lost nodes alone had are lost"
        else:
            yield f"log {log.name}: no copy is left; promote an empty one with mqtool promote"
    for node, aside in asides.items():
        if node not in done:
            yield f"node {node} would begin anew; nothing was changed: --accept-loss does it"
        elif done[node]:
            yield f"node {node} begins anew; its former Raft files are in {aside}"
        else:
            yield f"node {node} had begun anew already"


def _fields(agreed: SurvivorPlan, done: dict[str, bool], asides: dict[str, str]) -> dict[str, Any]:
    state = agreed.state
    return {
        "incarnation": state.incarnation,
        "survivors": sorted(state.nodes),
        "lost": list(agreed.lost),
        "newest": agreed.newest,
        "fingerprint": agreed.fingerprint,
        "logs": [{"name": log.name, "copies": list(log.replicas)} for log in state.logs.values()],
        "changed": [node for node, changed in done.items() if changed],
        "unchanged": [node for node, changed in done.items() if not changed],
        "aside": asides,
        "done": bool(done),
    }
