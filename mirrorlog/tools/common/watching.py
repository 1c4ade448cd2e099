"""`--watch` of lists: what a command prints, printed again and again; on a terminal in place, and scrolled by keys.

One wrapper around the command's function, which knows nothing of it. Rejected: a loop in each command (there are
fifteen), and rich's Live (what is longer than the terminal is cut, and nobody sees the rest).
"""

from __future__ import annotations

import contextlib
import inspect
import io
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import msgspec
import typer

from mirrorlog.errors import MirrorlogError

EVERY_S: Final = 2.0
_KEYS: Final = {"k": -1, "j": 1, "\x1b[A": -1, "\x1b[B": 1, "b": -20, " ": 20, "\x1b[5~": -20, "\x1b[6~": 20}
"""By how many lines each scrolls."""
_IN_PLACE: Final = "\x1b[?1049h\x1b[?25l"
_BACK: Final = "\x1b[?25h\x1b[?1049l"

_Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Look again and again until Ctrl-C; arrows, space and b scroll.")
]
_Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks of --watch.")]


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options --watch and --every."""

    @wraps(command)
    def run(*arguments: Any, watch: bool = False, every: float = EVERY_S, **options: Any) -> None:
        def look() -> None:
            command(*arguments, **options)

        if not watch:
            look()
            return
        with contextlib.suppress(KeyboardInterrupt):
            _watch(look, every, as_json=bool(options.get("as_json")))

    signature = inspect.signature(command)
    kinds = get_type_hints(command, include_extras=True)
    own = [each.replace(annotation=kinds[name]) for name, each in signature.parameters.items()]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in (("watch", False, _Watch), ("every", EVERY_S, _Every))
    ]
    run.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**kinds, "watch": _Watch, "every": _Every}
    return run


def _watch(look: Callable[[], None], every_s: float, *, as_json: bool) -> None:
    in_place = sys.stdout.isatty() and sys.stdin.isatty() and not as_json
    with _terminal() if in_place else contextlib.nullcontext():
        shown, known = _Shown(), False
        while True:
            text = _printed(look, trying=known)
            known = True
            if in_place:
                shown.show(text, every_s)
            else:
                # JSON of a look is a line; of texts each look ends with an empty one.
                sys.stdout.write(f"{_compact(text)}\n" if as_json else f"{text}\n")
                sys.stdout.flush()
                time.sleep(every_s)


def _printed(look: Callable[[], None], *, trying: bool) -> str:
    """What it prints. What fails may come back: that is what one watches for. But a name that is not there at the first
    look is mistyped. Raises MirrorlogError then."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            look()
    except typer.Exit:  # a verdict, which is in what is printed
        pass
    except MirrorlogError as error:
        if not trying and not error.retriable:
            raise
        return f"{error}; trying again\n"
    return printed.getvalue()


def _compact(text: str) -> str:
    try:
        return msgspec.json.format(text.encode(), indent=-1).decode()
    except msgspec.DecodeError:  # no look, but why there is none
        return msgspec.json.encode({"error": text.strip()}).decode()


class _Shown:
    """A part of a text on the terminal, as far as it is scrolled."""

    def __init__(self) -> None:
        self._first = 0

    def show(self, text: str, every_s: float) -> None:
        """For so long; keys move it meanwhile. Raises KeyboardInterrupt for q."""
        lines, until = text.splitlines(), time.monotonic() + every_s
        while True:
            self._draw(lines, every_s)
            left = until - time.monotonic()
            if left <= 0 or not select.select([sys.stdin], [], [], left)[0]:
                return
            key = sys.stdin.read(1)
            if key == "\x1b" and select.select([sys.stdin], [], [], 0.01)[0]:
                key += sys.stdin.read(2)
                key += sys.stdin.read(1) if key[-1] in "56" else ""
            if key == "q":
                raise KeyboardInterrupt
            self._first += _KEYS.get(key, 0)

    def _draw(self, lines: list[str], every_s: float) -> None:
        columns, rows = shutil.get_terminal_size()
        room = max(1, rows - 1)
        self._first = max(0, min(self._first, len(lines) - room))
        part = [line[:columns] for line in lines[self._first : self._first + room]]
        where = f"lines {self._first + 1} to {self._first + len(part)} of {len(lines)}" if len(lines) > room else ""
        foot = f"every {every_s:g} s, {time.strftime('%H:%M:%S')}  {where}  q ends"[: columns - 1]
        sys.stdout.write("\x1b[H\x1b[2J" + "\r\n".join([*part, *[""] * (room - len(part)), foot]))
        sys.stdout.flush()


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """The other screen of the terminal, keys one by one; as it was at the end."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(_IN_PLACE)
        yield
    finally:
        sys.stdout.write(_BACK)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
