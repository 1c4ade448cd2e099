"""The leap of queue offsets as the log says it: its bytes, and what a checkpoint carries on of it."""

from __future__ import annotations

import pytest

from mirrorlog.errors import BadBatch
from mirrorlog.queues.changes import (
    GapsState,
    OffsetsLeapt,
    decode_changes,
    decode_checkpoint,
    encode_change,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.checkpoint import GAPS_PER_STATE, CheckpointWriter
from tests.queues.statelog import Master


def gap_states(gaps: dict[int, tuple[int, int]]) -> list[GapsState]:
    """Those in a checkpoint of a log that has these gaps."""
    derived = Master().derived
    writer = CheckpointWriter(derived.registry, derived.producers, derived.next_queue_offset, gaps=gaps.items)
    found: list[GapsState] = []
    at = 0
    while (batch := writer.next_batch(at)) is not None:
        at += len(batch)
        found += [state for state in decode_checkpoint(batch) if isinstance(state, GapsState)]
    return found


def test_the_bytes_of_a_leap() -> None:
    """Goal: the bytes are part of the format. Encode one of each by hand, and read it back."""
    leap = OffsetsLeapt(epoch=5, lost_from=4096, go_on_at=1 << 32)
    batch = encode_change(leap)
    said = b"\x84\xa4type\xacOffsetsLeapt\xa5epoch\x05\xa9lost_from\xcd\x10\x00\xa8go_on_at\xcf\0\0\0\x01\0\0\0\0"
    assert said in batch
    assert decode_changes(batch) == [leap]
    assert encode_state(GapsState(gaps={1: (2, 300)})) == b"\x92\xa1G\x81\x01\x92\x02\xcd\x01\x2c"


@pytest.mark.parametrize("value", [b"\x91\xa1G", b"\x92\xa1G\x01", b"\x92\xa1G\x81\x01\x91\x02"])
def test_gaps_that_do_not_fit_are_a_bad_batch(value: bytes) -> None:
    """Decode gaps that are missing, are no map, or have no end."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_checkpoint(encode_checkpoint([value]))


def test_a_checkpoint_carries_all_gaps_on() -> None:
    """Goal: nothing is left out where they are many. One more than fit in a state come in two."""
    gaps = {1 + number: (number, 1 << 40) for number in range(GAPS_PER_STATE + 1)}
    states = gap_states(gaps)
    assert [len(state.gaps) for state in states] == [GAPS_PER_STATE, 1]
    assert {queue_id: gap for state in states for queue_id, gap in state.gaps.items()} == gaps


def test_a_checkpoint_without_gaps_says_nothing_of_them() -> None:
    """A log that never lost anything has no batch more than before."""
    assert gap_states({}) == []
