"""The leap of queue offsets as the log says it: its bytes, and what a checkpoint carries on of it."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.index.gaps import GAPS_MAX, Gaps
from mirrorlog.errors import BadBatch
from mirrorlog.queues.changes import OffsetsJumped, decode_changes, encode_change
from mirrorlog.queues.checkpoint import GAPS_PER_STATE, CheckpointWriter
from mirrorlog.queues.checkpoint_states import GapsState, decode_checkpoint, encode_checkpoint, encode_state
from tests.queues.statelog import Master


def gap_states(gaps: dict[int, Gaps]) -> list[GapsState]:
    """Those in a checkpoint of a log that has these gaps."""
    derived = Master().derived
    writer = CheckpointWriter(derived.registry, derived.producers, derived.next_queue_offset, gaps=gaps.items)
    found: list[GapsState] = []
    at = 0
    while (batch := writer.next_batch(at)) is not None:
        at += len(batch)
        found += [state for state in decode_checkpoint(batch) if isinstance(state, GapsState)]
    return found


def said(states: list[GapsState]) -> dict[int, Gaps]:
    """Which gaps of which queues they say, in order."""
    found: dict[int, Gaps] = {}
    for state in states:
        for queue_id, gap in state.each():
            found[queue_id] = (*found.get(queue_id, ()), gap)
    return found


def test_the_bytes_of_a_leap() -> None:
    """Goal: the bytes are part of the format. Encode one of each by hand, and read it back."""
    jump = OffsetsJumped(epoch=5, lost_from=4096, go_on_at=1 << 32)
    batch = encode_change(jump)
    text = b"\x84\xa4type\xacOffsetsLeapt\xa5epoch\x05\xa9lost_from\xcd\x10\x00\xa8go_on_at\xcf\0\0\0\x01\0\0\0\0"
    assert text in batch
    assert decode_changes(batch) == [jump]
    newest = b"\xa1G\x81\x01\x92\x02\xcd\x01\x2c"
    assert encode_state(GapsState(gaps={1: (2, 300)})) == b"\x93" + newest + b"\x80"
    several = GapsState(gaps={1: (2, 300)}, former={1: [(0, 1)]})
    assert encode_state(several) == b"\x93" + newest + b"\x81\x01\x91\x92\x00\x01"


def test_gaps_of_software_before_and_behind_are_read() -> None:
    """Goal: a checkpoint on a disk from before says the newest gap of each queue alone; a later one may say more."""
    newest = b"\xa1G\x81\x01\x92\x02\x03"
    for value, former in ((b"\x92" + newest, {}), (b"\x94" + newest + b"\x81\x01\x91\x92\x00\x01\xc0", {1: [(0, 1)]})):
        (state,) = decode_checkpoint(encode_checkpoint([value]))
        assert isinstance(state, GapsState)
        assert (state.gaps, state.former) == ({1: (2, 3)}, former)
        assert list(state.each()) == [(1, gap) for gap in (*former.get(1, []), (2, 3))]


@pytest.mark.parametrize(
    "value",
    [
        *(b"\x91\xa1G", b"\x92\xa1G\x01", b"\x92\xa1G\x81\x01\x91\x02"),
        *(b"\x93\xa1G\x80\x01", b"\x93\xa1G\x80\x81\x01\x92\x02\x03"),
    ],
)
def test_gaps_that_do_not_fit_are_a_bad_batch(value: bytes) -> None:
    """Decode gaps that are missing, are no map, or have no end."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_checkpoint(encode_checkpoint([value]))


def test_a_checkpoint_carries_all_gaps_on() -> None:
    """Goal: nothing is left out where they are many. One more than fit in a state come in two."""
    gaps = {1 + number: ((number, 1 << 40),) for number in range(GAPS_PER_STATE + 1)}
    states = gap_states(gaps)
    assert [len(state.gaps) for state in states] == [GAPS_PER_STATE, 1]
    assert not any(state.former for state in states)
    assert said(states) == gaps


def test_a_checkpoint_carries_several_gaps_of_a_queue() -> None:
    """Goal: a queue's gaps come in one state, the newest where software of before looks for it, and a state has no more
    of them than one of many queues. Queues of one to as many as there may be."""
    gaps = {
        queue_id: tuple((at << 33, (at << 33) + 7) for at in range(1 + queue_id % GAPS_MAX))
        for queue_id in range(1, 400)
    }
    states = gap_states(gaps)
    assert said(states) == gaps
    for state in states:
        assert state.gaps == {queue_id: gaps[queue_id][-1] for queue_id in state.gaps}
        assert state.former.keys() <= state.gaps.keys()
        assert sum(1 for _ in state.each()) <= GAPS_PER_STATE


def test_a_checkpoint_without_gaps_says_nothing_of_them() -> None:
    """A log that never lost anything has no batch more than before."""
    assert gap_states({}) == []
