"""A whole node follows a master that lacks what the node knows to be confirmed, because the cluster has said so."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.client import Client
from mirrorlog.commitlog.quarantine import quarantined_copies
from mirrorlog.errors import DiskFull, FileRefused
from tests.broker.derived import derived
from tests.broker.hosting import KIB, in_sync, next_epoch, node_of, running_all, settings_for, written_by
from tests.commitlog.faulty import FaultyFiles
from tests.ha.links import Declared
from tests.ha.nodes import decider_of, hosted_by, lead, mirrored_by, until
from tests.ha.replicas import content


async def lead_alone(
    log: HostedLog, epoch: int, *, lost_from: int | None = None, losses: Sequence[Declared] = ()
) -> None:
    """Only this node is in sync: it confirms by itself."""
    declared = losses[-1].start if losses else None
    in_sync = decider_of(log).promoted(log, epoch, lost_from=declared, alone=True)
    await log.lead(written_by(log, node_of(log)), epoch, in_sync, lost_from=lost_from, losses=losses)


async def test_a_copy_keeps_what_is_declared_lost_before_it_follows(tmp_path: Path) -> None:
    """Goal: nothing is cut that was not kept, the copy goes on by itself as soon as it can be kept, and it is then like
    any other. Method: a node confirms a megabyte alone, part of it sealed; another one, without it, is promoted with
    the loss declared. There are too many former copies, then a full disk: the copy waits, says why, and is whole. Then
    neither is in the way: it is told once where the loss ends, what was cut is kept, and the copies become equal, in
    what they derive too."""
    settings = settings_for(tmp_path, 2)
    limit = settings[1].log.copies_aside_max
    async with running_all(settings) as nodes:
        lacks, holds = map(hosted_by, nodes)
        await in_sync(lacks, holds)
        await lacks.step_down()
        await lead_alone(holds, next_epoch(lacks, holds))
        async with Client(settings[1].client_bind) as client:
            await client.admin.declare("lost")
            async with client.producer("lost", batch_bytes=8 * KIB) as producer:
                for number in range(256):
                    await producer.send(b"%d" % number * KIB)
        await until(lambda: holds.replica.log.next_to_seal() is None and holds.replica.log._chain.segments[0].sealed)
        await holds.step_down()
        end, whole, directory = holds.facts().end, content(holds.replica), holds.replica.log.directory
        assert holds.facts().confirmed == end

        former = [directory.with_name(f"{directory.name}.aside-{number}") for number in range(1, limit + 1)]
        for each in former:
            each.mkdir()
        full = FaultyFiles()
        full.disk.fail("create", errno.ENOSPC)
        holds.replica._files = full
        losses = [Declared(next_epoch(lacks, holds), lacks.facts().end)]
        found: list[tuple[int, int]] = []
        await lead_alone(lacks, losses[0].epoch, losses=losses)
        await holds.follow(
            written_by(holds, "n0"),
            epoch=losses[0].epoch,
            losses=losses,
            loss_end_found=lambda epoch, end: found.append((epoch, end)),
        )
        client_of = mirrored_by(nodes[1]).client
        await until(lambda: "log.copies_aside_max" in str(client_of.last_error))
        former[0].rmdir()
        await until(lambda: client_of.waits_for_space)
        assert isinstance(client_of.last_error, DiskFull)
        assert (found, quarantined_copies(directory), content(holds.replica) == whole) == ([], former[1:], True)

        full.disk.heal()
        mirrored_by(nodes[1]).space_measured(room=True)
        await in_sync(lacks, holds)
        assert found == [(losses[0].epoch, end)]
        assert nodes[1].failure is None
        assert content(holds.replica) == content(lacks.replica)
        (kept,) = set(quarantined_copies(directory)) - set(former)
        parts = [each.read_bytes() for each in sorted(kept.iterdir()) if each.name.isdigit()]
        assert len(parts) > 1
        assert b"".join(parts) == whole[losses[0].start :]
        assert derived(holds.replica)["queues"] == derived(lacks.replica)["queues"] == {}


async def test_a_tail_that_was_given_up_is_not_led_with(tmp_path: Path) -> None:
    """Goal: queue offsets that may have been given out in an epoch that is lost name nothing else. Method: a copy has
    records behind what is confirmed, and the log went on without it; then it is the best that is left, and is promoted
    with a loss from where it knows to be confirmed: it leads without them, and keeps them aside. While nothing can be
    opened it is as it was, and its node goes on."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        other, log = map(hosted_by, nodes)
        await in_sync(other, log)
        await other.step_down()
        await lead(log, written_by(log, "n1"), next_epoch(other, log))  # nothing is confirmed without the other one
        confirmed, last_epoch = log.facts().confirmed, log.facts().end
        batch = log.replica.queues.declare("given up", {})
        assert batch is not None
        log.publisher.append_change(batch, lambda error: None)
        await log.step_down()
        end = log.facts().end
        assert confirmed < last_epoch < end
        whole = content(log.replica)

        epoch = log.facts().epoch_known + 2
        opened, refused = log.replica.log, FaultyFiles()
        refused.disk.refuse()
        opened._files = refused
        with pytest.raises(FileRefused):
            await lead_alone(log, epoch - 1, lost_from=confirmed, losses=[Declared(epoch - 1, confirmed)])
        assert (log.state, log.replica.log, content(log.replica)) == (HostedState.RESTING, opened, whole)
        assert nodes[1].failure is None
        refused.disk.heal()

        await lead_alone(log, epoch, lost_from=confirmed, losses=[Declared(epoch, confirmed)])
        assert log.replica.queues.get("given up") is None
        assert content(log.replica)[:confirmed] == whole[:confirmed]
        assert log.replica.log.epochs.entries[-1].start == confirmed
        (kept,) = quarantined_copies(log.replica.log.directory)
        assert (
            b"".join(each.read_bytes() for each in sorted(kept.iterdir()) if each.name.isdigit()) == whole[confirmed:]
        )
        await other.follow(written_by(other, "n1"), epoch=epoch, losses=[Declared(epoch, confirmed)])
        await until(lambda: other.facts().end == log.facts().end)
        assert content(other.replica) == content(log.replica)
