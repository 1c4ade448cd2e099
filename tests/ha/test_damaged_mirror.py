"""A mirror whose bytes went bad: what it says, what it cuts and for whom, and what it holds then."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.commitlog.quarantine import quarantined_copies
from mirrorlog.errors import LogCorrupt, LogRecovering
from mirrorlog.ha.actions import Align
from mirrorlog.wire.frames import FrameType
from mirrorlog.wire.messages.codec import decode
from mirrorlog.wire.messages.replication import FollowRequest, Pull
from tests.commitlog.logs import patch
from tests.ha.links import (
    Declared,
    Pair,
    client_of,
    history,
    lead_to_asking,
    lead_to_transfer,
    only,
    refusal,
    sends,
    transfer,
    welcome,
)
from tests.ha.replicas import append, content, flush, frames_in, open_replica, start_epoch


def filled(pair: Pair, batches: int = 8) -> list[int]:
    """Master and mirror hold so many batches, all confirmed and flushed; where each begins."""
    places = [append(pair.master, 500, number).log_offset for number in range(batches)]
    client = client_of(pair.mirror, pair.mirror_settings)
    lead_to_transfer(client, pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    pair.mirror.set_confirmed(pair.mirror.log.end)
    return places


def damaged(pair: Pair, place: int) -> Path:
    """The mirror stops, a bit of the batch at `place` flips, it starts; its directory."""
    directory = pair.mirror.log.directory
    flush(pair.mirror)
    pair.mirror.close()
    file = directory / ("0" * 20)
    patch(file, place + 200, bytes([file.read_bytes()[place + 200] ^ 1]))
    pair.mirror = open_replica(directory, pair.mirror_settings)
    return directory


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file with its bytes, without the index, which is derived."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_it_says_what_it_can_show_and_serves_nothing(pair: Pair) -> None:
    """Goal: nothing behind the bad bytes is spoken for, and nobody reads. Its greeting ends where they begin; every
    other use of its log is refused by what is wrong, with the range."""
    place = filled(pair)[3]
    end = pair.mirror.log.end
    damaged(pair, place)
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    client.connected(0.0)
    (said,) = frames_in(sends(client.received(welcome(pair.settings), 0.0)))
    follow = decode(said.payload)
    assert isinstance(follow, FollowRequest)
    assert (follow.end, follow.confirmed) == (place, place)
    assert pair.mirror.claim == (end, end)
    assert pair.mirror.lossy
    assert not pair.mirror.usable
    for use in (
        lambda: pair.mirror.log.read(0, 1, until=1),
        lambda: pair.mirror.append_run(memoryview(b""), log_offset=0),
    ):
        error = refusal(use)
        assert isinstance(error, LogCorrupt)
        assert error.details["first"] == place


def test_a_master_that_has_it_all_repairs_it(pair: Pair) -> None:
    """Goal: equal copies, and every byte that was there is somewhere. The histories agree beyond the bad bytes: what
    stands from there on is set aside, the request begins there, and what comes makes the copies equal."""
    place = filled(pair)[3]
    end = pair.mirror.log.end
    directory = damaged(pair, place)
    client = client_of(pair.mirror, pair.mirror_settings)
    lead_to_asking(client, pair.mirror_settings)
    align = only(Align, client.received(history(pair.master), 0.0))
    assert (align.log_offset, align.anew, align.loss) == (place, False, 0)
    pair.mirror.begin_anew()
    pair.mirror.align(align.log_offset, align.epochs)
    pair.mirror.aligned()
    assert pair.mirror.usable
    assert not pair.mirror.lossy
    pull, ack = frames_in(sends(client.aligned(0.0)))
    assert decode(pull.payload) == Pull(log_offset=place)
    assert ack.type == FrameType.ACK
    client.received(transfer(pair.master, place, pair.master.log.end), 0.0)
    equal = content(pair.mirror) == content(pair.master)
    assert equal
    assert pair.mirror.repairing is not None
    flush(pair.mirror)
    pair.mirror.note_repaired()
    assert pair.mirror.repairing is None
    (aside,) = quarantined_copies(directory)
    kept = (aside / f"{place:020d}").read_bytes()
    assert len(kept) == end - place
    assert kept[:200] == content(pair.master)[place : place + 200]


@pytest.mark.parametrize("declared", [False, True])
def test_a_master_that_lacks_what_was_confirmed_needs_a_declared_loss(pair: Pair, declared: bool) -> None:
    """Goal: a bad byte is no leave to forget what stands behind it. The mirror knows more to be confirmed than its next
    master has, and is bad below that: without a word of the cluster's the link is refused and no file changes; with it
    the loss is named, and the cut is where the bad bytes begin."""
    place = filled(pair)[3]
    common = pair.mirror.log.end
    pair.mirror.log.open_epoch(2)
    append(pair.mirror, 500)
    pair.mirror.set_confirmed(pair.mirror.log.end)
    end = pair.mirror.log.end
    start_epoch(pair.master, "n0", 3)
    directory = damaged(pair, place)
    before = snapshot(directory)
    client = client_of(pair.mirror, pair.mirror_settings, losses=[Declared(3, common)] if declared else [])
    lead_to_asking(client, pair.mirror_settings)
    if declared:
        align = only(Align, client.received(history(pair.master), 0.0))
        assert (align.log_offset, align.loss) == (place, 3)
    else:
        error = refusal(lambda: client.received(history(pair.master), 0.0))
        assert isinstance(error, LogRecovering)
        assert error.details == {"first": common, "last": end}
    assert snapshot(directory) == before


def test_a_repair_that_cannot_be_done_is_tried_again(pair: Pair) -> None:
    """Goal: a limit keeps the copy as it is, and says so. There are as many former copies as may be: the copy stays
    damaged, is refused by what is wrong, and is repaired once one of them is gone."""
    place = filled(pair)[3]
    directory = damaged(pair, place)
    former = [directory.with_name(f"{directory.name}.aside-{number}") for number in range(1, 5)]
    for each in former:
        each.mkdir()
        (each / "log.json").touch()
    before = snapshot(directory)
    for repaired in (False, True):
        pair.mirror.begin_anew()
        error = refusal(lambda: pair.mirror.align(place, pair.master.log.epochs.entries))
        if repaired:
            assert error is None
            pair.mirror.aligned()
        else:
            assert error is not None
            assert "log.copies_aside_max" in str(error)
            pair.mirror.align_failed(error)
            assert snapshot(directory) == before
            assert (pair.mirror.damage is not None, pair.mirror.log.end) == (True, place)
            (former[0] / "log.json").unlink()
            former[0].rmdir()
    assert (pair.mirror.usable, pair.mirror.log.end) == (True, place)
