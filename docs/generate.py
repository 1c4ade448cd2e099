"""What the reference has of the code itself: errors, and the commands of mqtool. A test compares."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REFERENCE = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/generate.py; what it says stands in the code. -->"
WIDTH = 100


def pages() -> dict[str, str]:
    """The pages by their names, as they should be."""
    return {"errors.md": "\n".join(errors()) + "\n", "commands.md": "\n".join(commands()) + "\n"}


def errors() -> Iterator[str]:
    from mirrorlog import errors as module

    yield from (MADE, "", "# Errors", "")
    yield from (
        "Each is below one of four: `except` of these is enough. [The client](../use/client.md) says what they carry,",
        "and which of them a client tries again by itself; what a command ends with is its exit code.",
        "",
    )
    named = [each for each in vars(module).values() if isinstance(each, type)]
    kinds = [each for each in named if issubclass(each, module.MirrorlogError)]
    for root in (module.Refused, module.OutcomeUnknown, module.BadInput, module.Closed):
        yield from (f"## {root.__name__}", "", told(root), "")
        yield from ("| error | code | gRPC | exit | |", "|---|---|---|---|---|")
        for each in sorted((each for each in kinds if issubclass(each, root)), key=lambda each: each.__name__):
            grpc, code = each.grpc_status.lower(), each.exit_code
            yield f"| `{each.__name__}` | {each.code} | {grpc} | {code} | {told(each)} |"
        yield ""


def told(kind: type) -> str:
    """What its docstring says, in one line."""
    return re.sub(r"\s+", " ", kind.__doc__ or "").strip().replace("|", "\\|")


def commands() -> Iterator[str]:
    os.environ["COLUMNS"] = str(WIDTH)
    import typer
    from typer.main import get_command

    from mirrorlog.tools.main import NOUNS, app

    yield from (MADE, "", "# Commands of mqtool", "")
    yield from (
        "Options in front of a noun may stand behind its verb, too. Names of one word (`queues`, `group-reset`) and",
        "RabbitMQ's (`list_queues`) are the same commands.",
        "",
    )
    root = typer.Context(get_command(app), info_name="mqtool", terminal_width=WIDTH, max_content_width=WIDTH)
    yield from fenced(root.command.get_help(root))
    for noun, (about, verbs) in NOUNS.items():
        yield from (f"## mqtool {noun}", "", about, "")
        group = root.command.get_command(root, noun)
        inside = typer.Context(group, info_name=noun, parent=root, terminal_width=WIDTH, max_content_width=WIDTH)
        for verb in verbs:
            yield from helped(inside, group, verb, f"mqtool {noun} {verb}")
    yield from ("## In short", "")
    for name in ("doctor", "dev", "completion"):
        yield from helped(root, root.command, name, f"mqtool {name}")


def helped(parent: object, group: object, name: str, title: str) -> Iterator[str]:
    import typer

    command = group.get_command(parent, name)  # type: ignore[attr-defined]
    context = typer.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)  # type: ignore[arg-type]
    yield from (f"### {title}", "")
    if command.ignore_unknown_options:
        yield from (f"Spark's command has its own help: `{title} --help`. " + told_of(command.help), "")
        return
    yield from fenced(command.get_help(context))


def told_of(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def fenced(text: str) -> Iterator[str]:
    yield from ("```text", *(line.rstrip() for line in text.strip().splitlines()), "```", "")


def main() -> int:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
