"""Commands by nouns (`mqtool queue list`), each loaded when it is asked for, with the global options before and behind.

A command is a function somewhere below `mirrorlog.tools`; the table of `mirrorlog.tools.main` says where, under its old
name of one word. That name, and RabbitMQ's, work as they always did; help shows the nouns alone. Rejected: to register
functions (every call would load what sixty commands need, which took a second of processor time), and to move options
about on the command line before it is read (what looks like one may be another one's value).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

SETTINGS: Final[dict[str, Any]] = {
    "rich_markup_mode": None,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
_JSON: Final = "--json"

Table = Mapping[str, str]
"""Where commands are, `module:function`, by their names of one word."""
Nouns = Mapping[str, tuple[str, Mapping[str, str]]]
"""By noun: what it is about, and its verbs: the name of one word that each stands for."""
Globals = Callable[[], Iterable[Any]]
"""Makes the options that every command has, too."""


class _AsItStands:
    """How a value is read that stands as it is. Typer asks pydantic about each option, given or not,
    and to load that takes longer than all that a list of queues does besides. `typers`: for every other value."""

    def __init__(self, kind: Any, typers: Callable[[], Any]) -> None:
        self._kind = kind
        self._typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs != 1
        if value is None:
            return () if many else None
        if not many and type(value) is self._kind:
            return value
        if many and self._kind == list[str] and not isinstance(value, str):
            return list(value)
        return self._typers().coerce(value, param, ctx)


class _ReadPlainly:
    """Of a command or a group: what is absent, or of its kind already, is read without pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command: Any = super()
        for each in command.get_params(ctx):
            typers, told = getattr(each, "get_runtime_param", None), getattr(each, "type_descriptor", None)
            if typers is not None and told is not None and told.parameter_info.parser is None:
                each.get_runtime_param = partial(_AsItStands, told.annotation, typers)
        return list(command.parse_args(ctx, args))


class Verb(_ReadPlainly, TyperCommand):
    """A command."""


class Noun(_ReadPlainly, TyperGroup):
    """The commands of one noun. `load`: a command by its name of one word."""

    def __init__(self, name: str, about: str, verbs: Mapping[str, str], load: Callable[[str], Any]) -> None:
        super().__init__(
            name=name,
            help=f"{about}\n\nExample: mqtool {name} {next(iter(verbs))}",
            rich_markup_mode=None,
            subcommand_metavar="VERB [ARGS]...",
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.verbs = verbs
        self._load = load

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = cmd_name.replace("_", "-")
        if (old := self.verbs.get(name)) is None:
            return None
        command = self._load(old)
        command.name = name
        told = re.sub(rf"\bmqtool {re.escape(old)}\b(?!-)", f"mqtool {self.name} {name}", command.help or "")
        command.help = told
        return command


class Commands(_ReadPlainly, TyperGroup):
    """All of them. `table`, `nouns`, `aliases`: set before it is used; `shown`: what help has beside the nouns;
    `more`: makes the options that every command has."""

    table: ClassVar[Table] = {}
    nouns: ClassVar[Nouns] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    shown: ClassVar[tuple[str, ...]] = ()
    more: ClassVar[Sequence[Globals]] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.nouns, *self.shown]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = cmd_name.replace("_", "-")
        name = self.aliases.get(name, name)
        if name in self.nouns:
            about, verbs = self.nouns[name]
            return Noun(name, about, verbs, lambda old: self.load(ctx, old))
        return self.load(ctx, name) if name in self.table else None

    def load(self, ctx: Any, name: str) -> Any:
        """The command of that name of one word, with the global options."""
        module, _, function = self.table[name].partition(":")
        command = made(name, getattr(importlib.import_module(module), function))
        if command.ignore_unknown_options:
            return command  # whoever does the work reads all options
        own = {option for each in command.params for option in each.opts}
        if ctx is not None and ctx.params.get("as_json"):
            for each in command.params:
                if _JSON in each.opts:
                    each.default = True
        command.params += [each for make in self.more for each in make() if not own & set(each.opts)]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Without loading any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(noun, ", ".join(verbs)) for noun, (_, verbs) in self.nouns.items()])
        with formatter.section("In short"):
            formatter.write_text(", ".join(self.shown))


def made(name: str, function: Callable[..., Any]) -> Any:
    """A function as a command; or what it is of already."""
    if not hasattr(function, "__code__"):
        return function
    app = typer.Typer(**SETTINGS)
    app.command(name, cls=Verb)(function)
    command = get_command(app)
    command.name = name
    return command
