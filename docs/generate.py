"""What the reference has of the code itself: errors, the commands of mqtool, and the tables of settings and metrics. A
test compares."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REFERENCE = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/generate.py; what it says stands in the code. -->"
WIDTH = 100
UNITS = {
    "bytes": "bytes",
    "holds": "holds",
    "seconds": "seconds",
    "records": "records",
    "offset": "queue offset",
    "copies": "copies",
    "queues": "queues",
    "groups": "groups",
    "ranges": "ranges",
    "failures": "times",
    "producers": "producers",
    "consumers": "consumers",
    "timeouts": "times",
    "elections": "times",
    "epoch": "number",
    "version": "number",
    "incarnation": "number",
    "term": "number",
    "mirror": "logs",
    "connections": "connections",
    "strangers": "connections",
    "accepted": "connections",
    "opened": "links",
    "closed": "links",
    "failed": "questions",
    "batches": "batches",
    "refused": "publishes",
    "unknown": "publishes",
    "promotions": "times",
    "fetches": "answers",
    "flushes": "times",
    "info": "1",
    "logins_failed": "logins",
    "rights_refused": "requests",
}
"""Of metrics, by the last word of a name."""


def pages() -> dict[str, str]:
    """The pages by their names, as they should be. Of settings.md and metrics.md the table alone is made."""
    return {
        "errors.md": "\n".join(errors()) + "\n",
        "commands.md": "\n".join(commands()) + "\n",
        "settings.md": with_table("settings.md", settings()),
        "metrics.md": with_table("metrics.md", metrics()),
    }


def with_table(name: str, rows: Iterable[str]) -> str:
    """The page as it is, with that in place of what stands behind its mark, up to the next empty line."""
    before, mark, rest = (REFERENCE / name).read_text().partition(MADE + "\n\n")
    assert mark, f"{name} has no mark where its table belongs"
    _, gap, behind = rest.partition("\n\n")
    return before + mark + "\n".join(rows) + "\n" + (gap[1:] + behind)


def settings() -> Iterator[str]:
    from mirrorlog.config import LogAssignment, Member, Settings

    yield from ("| setting | default | |", "| --- | --- | --- |")
    parts = {name: type(getattr(Settings(), name)) for name in Settings.model_fields}
    for part, model in {**parts, "cluster.members": Member, "cluster.logs": LogAssignment}.items():
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else default_of(name, field.default)
            yield f"| {part}.{name} | {default} | {in_a_cell(field.description)} |"


def default_of(name: str, value: object) -> str:
    """Sizes in the largest unit that they are whole in."""
    if value is None or value == ():
        return "absent" if value is None else "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value > 0 and "bytes" in name:
        for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return str(value)


def metrics() -> Iterator[str]:
    from mirrorlog.doors.http.metrics import FAMILIES

    yield from ("| metric | labels | unit | meaning |", "|---|---|---|---|")
    for group in FAMILIES:
        for named, _, meaning in group.families:
            name, _, own = named.rstrip("}").partition("{")
            bounds = ("le",) if name.endswith("_duration_seconds") and group.labels else ()
            labels = ", ".join(sorted({*group.labels, *bounds, *([own] if own else [])}))
            yield f"| `{name}` | {labels} | {unit_of(name)} | {in_a_cell(meaning)} |"


def unit_of(metric: str) -> str:
    """As its name says it: units and things that are counted stand last; any other is a 0 or 1."""
    words = metric.removesuffix("_total").split("_")
    return UNITS.get("_".join(words[-2:])) or UNITS.get(words[-1], "0 or 1")


def in_a_cell(text: str | None) -> str:
    """In one line."""
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|")


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
        yield from (f"## {root.__name__}", "", in_a_cell(root.__doc__), "")
        yield from ("| error | code | gRPC | exit | |", "|---|---|---|---|---|")
        for each in sorted((each for each in kinds if issubclass(each, root)), key=lambda each: each.__name__):
            grpc, code = each.grpc_status.lower(), each.exit_code
            yield f"| `{each.__name__}` | {each.code} | {grpc} | {code} | {in_a_cell(each.__doc__)} |"
        yield ""


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
        yield from (f"Spark's command has its own help: `{title} --help`. " + in_a_cell(command.help), "")
        return
    yield from fenced(command.get_help(context))


def fenced(text: str) -> Iterator[str]:
    yield from ("```text", *(line.rstrip() for line in text.strip().splitlines()), "```", "")


def main() -> int:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
