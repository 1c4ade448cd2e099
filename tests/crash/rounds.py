"""Rounds: some lives of one log on one disk, each ended by a crash, all drawn from one seed."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.segments import preallocation as prepare
from mirrorlog.errors import MirrorlogError
from sim.disk import SimulatedFiles
from tests.crash.crashes import Crashes, opener
from tests.crash.finder import lose_power
from tests.crash.life import Life, Story, draw_story
from tests.crash.witness import Violation, Witness

ROOT: Final = Path("/disk")
DIRECTORY: Final = ROOT / "log"
SEED: Final = int(os.environ.get("MIRRORLOG_SEED", "20260901"))

Spoil = Callable[[SimulatedFiles], None]
"""Makes a disk break a promise, for tests of the oracle."""


def rounds(default: int) -> int:
    return int(os.environ.get("MIRRORLOG_ROUNDS", str(default)))


Bend = Callable[[Story], Story]
"""Leads a story to where a mistake shows."""


def run_round(seed: int, *, spoil: Spoil = lambda disk: None, bend: Bend = lambda story: story) -> Counter[str]:
    """The crashes that were checked, by kind. Raises what went wrong, with a line that says how to repeat it."""
    counts: Counter[str] = Counter()
    prepare._numbers = itertools.count(1)  # spares are named as in a new process, else no seed is a replay
    try:
        with tempfile.TemporaryDirectory() as past:
            _run_lives(Random(seed), counts, spoil, bend, Path(past))
    except BaseException as error:
        error.add_note(f"repeat: MIRRORLOG_SEED={seed} MIRRORLOG_ROUNDS=1 pytest tests/crash/test_crash_points.py")
        raise
    return counts


def _run_lives(random: Random, counts: Counter[str], spoil: Spoil, bend: Bend, past: Path) -> None:
    story = bend(draw_story(random))
    epochs = EpochList.of([Epoch(1, 0), Epoch(3, story.begin // 2)] if story.begin else [])
    open_log = opener(
        DIRECTORY, segment_bytes=story.segment_bytes, prepare_bytes=story.prepare_bytes,
        kept_mapped_bytes=story.kept_mapped_bytes, write_through=story.write_through, begin=story.begin, epochs=epochs,
    )  # fmt: skip
    begin = story.begin
    witness = Witness(
        DIRECTORY, base=begin, begin=begin, end=begin, flushed=begin, confirmed=begin, epochs=[epochs],
        top_epoch=epochs.current,
    )  # fmt: skip
    crashes = Crashes(witness, open_log, random, past if story.keeps_past else None, counts=counts)
    disk = SimulatedFiles(ROOT, seed=random.getrandbits(64), model=story.disk)
    whole = True
    for _ in range(random.randrange(1, 5)):
        spoil(disk)
        life = Life(disk, witness, story, open_log=open_log, random=random, crashes=crashes, cache_whole=whole)
        life.run()
        counts["lives"] += 1
        whole = random.random() < 0.5 and life.cache_whole
        if whole or random.random() < 0.3:
            disk = disk.after_kill()
        else:
            disk = disk.after_power_loss()
            lose_power(past / "now", past / "before", random)
        crashes.check(disk.after_kill(), killed=whole, copying=life.write_failed)


def failing_seed(
    first: int, count: int, *, spoil: Spoil = lambda disk: None, bend: Bend = lambda story: story
) -> int | None:
    """The first seed of `count` whose round finds a broken promise."""
    for seed in range(first, first + count):
        try:
            run_round(seed, spoil=spoil, bend=bend)
        except (Violation, MirrorlogError):
            return seed
    return None
