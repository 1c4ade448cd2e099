"""Progress is shown to who looks, and to nobody else."""

import io

from mirrorlog.tools.offline.verify import WalkProgress

MIB = 1024 * 1024


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def walk(out: io.StringIO, seconds: float) -> str:
    """1 GiB in steps of 1 MiB, each `seconds` long."""
    now = [0.0]
    with WalkProgress("verify", MIB, 1025 * MIB, out=out, now=lambda: now[0]) as progress:
        for at in range(2 * MIB, 1025 * MIB, MIB):
            now[0] += seconds
            progress.reached(at)
    return out.getvalue()


def test_a_terminal_is_shown_how_far_it_is() -> None:
    """Goal: a long walk is seen to go on. Method: 10 ms a MiB; a line twice a second at most, wiped at the end."""
    text = walk(Terminal(), 0.01)
    lines = text.split("\r\033[K")
    assert lines[0] == lines[-1] == ""
    assert 10 <= len(lines) <= 23
    assert lines[1].startswith("verify: ")
    assert lines[1].endswith("of 1.0 GiB, 100.0 MiB/s")


def test_a_short_walk_and_a_pipe_are_shown_nothing() -> None:
    """Goal: output that is kept has no such lines. Method: a fast walk, and one that is not on a terminal."""
    assert walk(Terminal(), 0.00001) == "\r\033[K"
    assert walk(io.StringIO(), 0.01) == ""
