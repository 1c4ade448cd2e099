"""The commit log against a plain list of batches, through any order of use, restarts and kills.

Hypothesis prints the steps that fail; run with `--hypothesis-seed=N` to repeat a run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.format.envelope import EnvelopePart
from mirrorlog.commitlog.format.header import HEADER_SIZE, is_inner, stamp
from mirrorlog.commitlog.log import CommitLog
from tests.commitlog.logs import abandon, flush, mapped, open_log, patch, segment_files, sized_batch, stored, warm

sizes = st.integers(14, 120).map(lambda words: words * 8)


class LogMachine(RuleBasedStateMachine):
    """`batches` are the stored bytes in order; the offsets beside it are what the log must say."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="mirrorlog-"))
        self.batches: list[bytes] = []
        self.flushed = 0
        self.confirmed = 0
        self.checkpointed_confirmed = 0
        self.epochs = [Epoch(1, 0)]
        self.fill = 0
        self.log: CommitLog

    @initialize(segment_bytes=st.sampled_from([1000, 1504, 4096]))
    def start(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.lossy = False
        self.log = self.open()
        self.log.open_epoch(1)

    def open(self) -> CommitLog:
        seen: list[bytes] = []
        log = open_log(
            self.directory,
            segment_bytes=self.segment_bytes,
            populate_bytes=8192,
            on_batch=lambda header, batch: None if is_inner(header) else seen.append(bytes(batch)),
        )
        assert seen == self.batches
        return log

    @property
    def end(self) -> int:
        return sum(map(len, self.batches))

    @property
    def borders(self) -> list[int]:
        borders = [0]
        for batch in self.batches:
            borders.append(borders[-1] + len(batch))
        return borders

    @property
    def history(self) -> EpochList:
        return EpochList.of(self.epochs)

    # --- Use ------------------------------------------------------------------------------------------------------

    # After a tear the list may go on beyond the end: a master opens an epoch first, a mirror appends what is due.
    @precondition(lambda self: self.history.at(self.end) == self.history.current)
    @rule(size=sizes)
    def append(self, size: int) -> None:
        self.fill += 1
        header = self.log.append(
            sized_batch(size, self.fill % 255 + 1), base_queue_offset=self.fill, append_time_us=self.fill
        )
        assert header.log_offset == self.end
        batch = self.log.read_batch_at(header.log_offset)[1]
        assert batch[36:] == bytes(sized_batch(size, self.fill % 255 + 1))[36:]
        self.batches.append(batch)

    @precondition(lambda self: self.history.at(self.end) == self.history.current)
    @rule(inner_sizes=st.lists(sizes.map(lambda size: size // 5 // 8 * 8 + 112), min_size=1, max_size=3))
    def transact(self, inner_sizes: list[int]) -> None:
        self.fill += 1
        parts = [EnvelopePart(sized_batch(size, self.fill % 255 + 1), self.fill) for size in inner_sizes]
        (outer, *inner), envelope = self.log.append_transaction(parts, append_time_us=self.fill)
        assert outer.log_offset == self.end
        for header, part in zip(inner, parts, strict=True):
            batch = self.log.read_batch_at(header.log_offset)[1][: header.length]
            assert batch[36:] == bytes(part.batch)[36:]
            assert not self.log.is_border(header.log_offset)
        self.batches.append(bytes(envelope))

    @rule(run_sizes=st.lists(sizes, min_size=1, max_size=6))
    def append_run(self, run_sizes: list[int]) -> None:
        run = bytearray()
        for size in run_sizes:
            self.fill += 1
            batch = bytearray(sized_batch(size, self.fill % 255 + 1))
            stamp(
                batch, log_offset=self.end + len(run), base_queue_offset=0, append_time_us=self.fill,
                epoch=self.history.at(self.end + len(run)), flags=0, seed=self.log.seed,
            )  # fmt: skip
            run += batch
        headers = self.log.append_run(memoryview(run), log_offset=self.end)
        assert [header.length for header in headers] == run_sizes
        at = 0
        for size in run_sizes:
            self.batches.append(bytes(run[at : at + size]))
            at += size

    @rule()
    def flush(self) -> None:
        assert flush(self.log) == self.end
        self.flushed = self.end
        self.checkpointed_confirmed = self.confirmed

    @rule()
    def warm(self) -> None:
        warm(self.log)

    @rule(part=st.floats(0, 1))
    def confirm(self, part: float) -> None:
        borders = self.borders
        log_offset = borders[int(part * (len(borders) - 1))]
        self.log.set_confirmed(log_offset)
        self.confirmed = max(self.confirmed, log_offset)

    @precondition(lambda self: self.batches)
    @rule(part=st.floats(0, 1), max_bytes=st.integers(0, 3000), cold=st.booleans())
    def read(self, part: float, max_bytes: int, cold: bool) -> None:
        borders = self.borders
        first = borders[int(part * (len(borders) - 2))]
        run = None if cold else self.log.read(first, max_bytes, until=self.end)
        content = bytes(run if run is not None else self.log.read_cold(first, max_bytes, until=self.end).run())
        assert first + len(content) in borders
        assert content == b"".join(self.batches)[first : first + len(content)]
        at_least_one = borders[borders.index(first) + 1] - first
        assert at_least_one <= len(content) <= max(max_bytes, at_least_one)

    @rule()
    def open_epoch(self) -> None:
        epoch = self.epochs[-1].epoch + 1
        self.log.open_epoch(epoch)
        self.epochs = [*(entry for entry in self.epochs if entry.start <= self.end), Epoch(epoch, self.end)]

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        allowed = [border for border in self.borders if border >= self.confirmed]
        point = allowed[int(part * (len(allowed) - 1))]
        kept = [entry for entry in self.epochs if entry.start < point]
        self.epochs = [*kept, Epoch(self.epochs[-1].epoch + 1, point)]
        self.log.truncate(point, self.epochs)
        while self.end > point:
            self.batches.pop()
        self.flushed = min(self.flushed, point)
        self.checkpointed_confirmed = self.confirmed

    # --- Ends -----------------------------------------------------------------------------------------------------

    def reopen_after_kill(self, *, torn: bool) -> None:
        # A loss is said at every start until it is settled, and nobody settles it here.
        self.lossy = self.lossy or self.checkpointed_confirmed > self.end
        self.confirmed = self.checkpointed_confirmed = min(self.checkpointed_confirmed, self.end)
        self.log = self.open()
        assert (self.log.recovery.torn is not None) == torn
        assert self.log.recovery.lossy == self.lossy
        assert not self.log.recovery.warnings

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.flushed, self.checkpointed_confirmed = self.end, self.confirmed
        self.log = self.open()
        assert self.log.recovery.clean != self.lossy

    @rule()
    def kill(self) -> None:
        abandon(self.log)
        self.reopen_after_kill(torn=False)

    @rule(garbage=st.binary(min_size=1, max_size=200), distance=st.integers(0, 100))
    def kill_with_garbage_behind_the_end(self, garbage: bytes, distance: int) -> None:
        abandon(self.log)
        last = segment_files(self.directory)[-1]
        at = self.end - int(last.name) + distance
        room = last.stat().st_size - at
        patch(last, at, garbage[: max(0, room)])
        # Zeros in the place of a header end the log, whatever follows them.
        self.reopen_after_kill(torn=any(garbage[: max(0, min(room, HEADER_SIZE - distance))]))

    @precondition(lambda self: self.end > self.flushed)
    @rule(left=st.integers(0, 1000))
    def kill_in_the_middle_of_the_last_append(self, left: int) -> None:
        abandon(self.log)
        batch = self.batches.pop()
        left = min(left, len(batch) - 1)
        # The last bytes of every batch here are not zero, so what is left is never the whole.
        path = next(path for path in reversed(segment_files(self.directory)) if int(path.name) <= self.end)
        patch(path, self.end - int(path.name) + left, bytes(len(batch) - left))
        self.reopen_after_kill(torn=any(batch[: min(left, HEADER_SIZE)]))

    # --- What holds always ----------------------------------------------------------------------------------------

    @invariant()
    def the_log_is_the_list(self) -> None:
        if not hasattr(self, "log"):
            return
        content = b"".join(self.batches)
        assert (self.log.end, self.log.flushed, self.log.confirmed) == (self.end, self.flushed, self.confirmed)
        assert list(self.log.epochs.entries) == self.epochs
        assert mapped(self.log) == stored(self.log) == content

    @invariant()
    def zeros_end_every_file(self) -> None:
        if not hasattr(self, "log"):
            return
        files = segment_files(self.directory)
        ends = [*(int(path.name) for path in files[1:]), self.end]
        for path, end in zip(files, ends, strict=True):
            assert not any(path.read_bytes()[end - int(path.name) :][:HEADER_SIZE])

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
        shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogMachine = LogMachine.TestCase
