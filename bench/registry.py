"""Which workloads there are: this project's own, the limits, the traps, and, when asked for, the peers.

Sizes are chosen so that one measurement takes a few seconds on two cores; `quick` is to see that all of it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from bench import (
    grpc_consume,
    grpc_one_outstanding,
    grpc_publish,
    limits,
    open_loop,
    scale,
    traps,
    w1_publish,
    w2_one_outstanding,
    w3_consume,
    w5_catch_up,
    w6_work_queue,
    w7_delivery,
    w8_moving_queue,
    w9_placement,
)
from bench.publishing import WAYS
from bench.workload import KIB, MIB, Measured, Workload

RECORD_SIZES: Final = (100, KIB, 64 * KIB)
COMPARED_BYTES: Final = KIB
"""The record size at which peers are measured."""

_W9_BYTES: Final[dict[w9_placement.What, int]] = {
    "spread": 512 * MIB, "1 GiB moved": 1024 * MIB, "a fourth node": 256 * MIB,
}  # fmt: skip
_QUICK_SHARE: Final = 16
_QUICK_SECONDS: Final = 0.5


def own(*, quick: bool) -> list[Measured]:
    """mirrorlog's."""
    return [
        *_w1(quick),
        *_w2(quick),
        *_w3(quick),
        *_w5(quick),
        *_w6(quick),
        *_w7(quick),
        *_w8(quick),
        *_w9(quick),
        *_scale(quick),
        *_open_loop(quick),
    ]


def select(*, quick: bool, peers: bool, everything: bool) -> list[Workload]:
    """What a run measures: own, limits and traps; with peers only what they are compared with, or `everything`."""
    measured = [
        *own(quick=quick),
        *limits.workloads(_QUICK_SECONDS if quick else 2.0),
        *traps.workloads(quick=quick),
    ]
    if not peers:
        return list(measured)
    # Late: their clients are an extra of their own, and without --peers nobody needs it.
    from bench.peers import workloads

    chosen: list[Workload] = [each for each in measured if everything or each.compared]
    beside: Sequence[Workload] = workloads(quick)
    return [*chosen, *beside]


def _bytes(full: int, quick: bool) -> int:
    """So many bytes or records; fewer for a quick look."""
    return full // _QUICK_SHARE if quick else full


def _w1(quick: bool) -> Iterator[Measured]:
    for case in sorted(_w1_cases(quick), key=_place):
        yield Measured(
            "W1",
            str(case),
            partial(w1_publish.run, case),
            compared=_is_compared(case),
        )
    for record_bytes in RECORD_SIZES:
        for copies in (1, 2, 3) if record_bytes == COMPARED_BYTES else (3,):
            through_door = grpc_publish.Case(copies, record_bytes, _bytes(_w1_bytes(record_bytes), quick))
            yield Measured(
                "W1",
                str(through_door),
                partial(grpc_publish.run, through_door),
                compared=record_bytes == COMPARED_BYTES and copies == 3,
            )


def _w1_cases(quick: bool) -> Iterator[w1_publish.Case]:
    for record_bytes in RECORD_SIZES:
        total_bytes = _bytes(_w1_bytes(record_bytes), quick)
        for copies in (1, 2, 3):
            for way in WAYS:
                if record_bytes == COMPARED_BYTES or copies == 3 or way != "send_many":
                    yield w1_publish.Case(copies, record_bytes, total_bytes, way)
        yield w1_publish.Case(3, record_bytes, total_bytes, "send", producers=4)
        yield w1_publish.Case(3, record_bytes, total_bytes // 2, "batches", flush="disk")
    total_bytes = _bytes(_w1_bytes(KIB), quick)
    for copies in (1, 2):
        yield w1_publish.Case(copies, KIB, total_bytes, "send", producers=4)
        yield w1_publish.Case(copies, KIB, total_bytes // 2, "batches", flush="disk")
    yield w1_publish.Case(3, KIB, total_bytes, "batches", producers=4)
    for way in ("send", "send_many"):
        yield w1_publish.Case(3, KIB, total_bytes // 2, way, flush="disk")
    for way in WAYS:
        for copies in (1, 3):
            yield w1_publish.Case(copies, KIB, total_bytes, way, batch_bytes=MIB)
        yield w1_publish.Case(3, KIB, total_bytes // 2, way, flush="disk", batch_bytes=MIB)
    for compression in ("lz4", "zstd"):
        yield w1_publish.Case(3, KIB, total_bytes, "send", compression=compression)
        yield w1_publish.Case(3, KIB, total_bytes, "batches", compression=compression)


def _is_compared(case: w1_publish.Case) -> bool:
    """On three copies, and without mirrors in memory: what the marks need."""
    same_work = case.record_bytes == COMPARED_BYTES and case.producers == 1 and case.compression == "none"
    return same_work and (case.copies == 3 or (case.copies == 1 and case.flush == "memory"))


def _place(case: w1_publish.Case) -> tuple[bool, int, int, int, int, int]:
    return (
        case.flush == "disk", case.record_bytes, case.producers, case.copies, WAYS.index(case.way), case.batch_bytes
    )  # fmt: skip


def _w1_bytes(record_bytes: int) -> int:
    # Of small ones a second's worth is many records already.
    return 128 * MIB if record_bytes < KIB else 512 * MIB


def _w2(quick: bool) -> Iterator[Measured]:
    seconds = _QUICK_SECONDS if quick else 2.0
    cases = [
        w2_one_outstanding.Case(copies, KIB, seconds, flush) for flush in ("memory", "disk") for copies in (1, 2, 3)
    ]
    cases += [w2_one_outstanding.Case(3, record_bytes, seconds) for record_bytes in RECORD_SIZES if record_bytes != KIB]
    cases.append(w2_one_outstanding.Case(3, KIB, 3 * seconds, segment_bytes=MIB))
    cases.append(w2_one_outstanding.Case(3, 64 * KIB, 3 * seconds, segment_bytes=64 * MIB))
    for case in cases:
        yield Measured(
            "W2",
            str(case),
            partial(w2_one_outstanding.run, case),
            compared=(case.record_bytes == COMPARED_BYTES or case.rolls)
            and case.copies == 3
            and case.flush == "memory",
        )
    for record_bytes in RECORD_SIZES:
        through_door = grpc_one_outstanding.Case(record_bytes, seconds)
        yield Measured("W2", str(through_door), partial(grpc_one_outstanding.run, through_door))


def _w3(quick: bool) -> Iterator[Measured]:
    seconds = _QUICK_SECONDS if quick else 1.5
    for record_bytes in RECORD_SIZES:
        case = w3_consume.Case(record_bytes, _w3_bytes(record_bytes, quick), seconds)
        yield Measured(
            "W3",
            str(case),
            partial(w3_consume.run, case),
            compared=record_bytes == COMPARED_BYTES,
        )
    for record_bytes in RECORD_SIZES:
        through_door = grpc_consume.Case(record_bytes, _w3_bytes(record_bytes, quick), seconds)
        yield Measured("W3", str(through_door), partial(grpc_consume.run, through_door))


def _w3_bytes(record_bytes: int, quick: bool) -> int:
    return _bytes({100: 128 * MIB, KIB: 1024 * MIB}.get(record_bytes, 512 * MIB), quick)


def _w5(quick: bool) -> Iterator[Measured]:
    for record_bytes in RECORD_SIZES:
        full = 1024 * MIB if record_bytes == COMPARED_BYTES else 256 * MIB
        case = w5_catch_up.Case(record_bytes, _bytes(full, quick))
        yield Measured(
            "W5",
            str(case),
            partial(w5_catch_up.run, case),
            compared=record_bytes == COMPARED_BYTES,
        )


def _w6(quick: bool) -> Iterator[Measured]:
    cases = [
        w6_work_queue.Case(record_bytes, count, way)
        for way, count in (("records", 400_000), ("batches", 1_000_000))
        for record_bytes in (100, KIB)
    ]
    cases += [w6_work_queue.Case(KIB, 100_000, way, flush="disk") for way in ("records", "batches")]
    for full in cases:
        case = replace(full, count=_bytes(full.count, quick))
        compared = case.record_bytes == COMPARED_BYTES
        yield Measured("W6", str(case), partial(w6_work_queue.run, case), compared=compared)


def _w7(quick: bool) -> Iterator[Measured]:
    case = w7_delivery.Case(KIB, _QUICK_SECONDS if quick else 2.0)
    yield Measured("W7", str(case), partial(w7_delivery.run, case), compared=True)


def _w8(quick: bool) -> Iterator[Measured]:
    for group in (False, True):
        case = w8_moving_queue.Case(KIB, 5 if quick else 40, group=group)
        yield Measured("W8", str(case), partial(w8_moving_queue.run, case))


def _w9(quick: bool) -> Iterator[Measured]:
    for what, full in _W9_BYTES.items():
        case = w9_placement.Case(what, KIB, _bytes(full, quick))
        yield Measured("W9", str(case), partial(w9_placement.run, case))


def _scale(quick: bool) -> Iterator[Measured]:
    share = 100 if quick else 1
    for case in (
        scale.Case(queues=10_000 // share),
        scale.Case(connections=1_000 // share),
        scale.Case(unsettled=1_000_000 // share),
        scale.Case(logs=256 if share == 1 else 16),
    ):
        yield Measured("scale", str(case), partial(scale.run, case), compared=True)


def _open_loop(quick: bool) -> Iterator[Measured]:
    for record_bytes in RECORD_SIZES:
        peak_bytes = _bytes(64 * MIB if record_bytes < KIB else 256 * MIB, quick)
        case = open_loop.Case(record_bytes, peak_bytes, 1.0 if quick else 5.0)
        yield Measured(
            "open loop",
            str(case),
            partial(open_loop.run, case),
            compared=record_bytes == COMPARED_BYTES,
        )
