"""The pages of docs/: their sizes, their links, their code, and what the site's search finds."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.main import get_command

from mirrorlog.tools.main import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OUTSIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
MAX_BYTES = 15 * 1024
LONG = {f"reference/{name}.md" for name in ("commands", "format", "metrics", "settings", "wire")}
"""Formats, and what is made of the code: looked up, and not read."""
RECORDS = "contributing/decisions/"
"""Decisions are not rewritten, whatever their length."""
QUESTIONS = {
    "depth of all queues": "depth of all queues",
    "delete what is acked": "delete what is acknowledged",
    "exceptions on send": "exceptions send",
    "client TLS": "client TLS",
    "backup": "back up",
    "sizes": "memory disk",
    "three nodes on a laptop": "three nodes laptop",
    "delayed retry": "delayed retry",
    "group and commit in Python": "group commit Python",
    "forget a node": "forget node",
}
"""What newcomers ask, and words of the heading that answers it."""
_FENCED = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_SHELL = {"", "sh", "bash", "console", "shell"}
_ENDS = {"|", ">", ">>", "<", "&&", "||", ";", "&"}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(page: Path) -> str:
    return str(page.relative_to(DOCS))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)


def anchor(heading: str) -> str:
    """As Markdown's readers make them."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    yield from ((found["kind"], found["text"]) for found in _FENCED.finditer(page.read_text()))


def test_what_is_made_of_the_code_is_as_the_code_is() -> None:
    """`make docs` writes it anew."""
    for name, text in generator().pages().items():
        assert (DOCS / "reference" / name).read_text() == text, f"{name} is old: python docs/generate.py"


def test_no_page_is_longer_than_somebody_reads_at_once() -> None:
    sizes = {named(page): page.stat().st_size for page in PAGES if not named(page).startswith(RECORDS)}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES and name not in LONG} == {}
    assert sizes.keys() >= LONG


def test_every_page_is_in_the_sites_table() -> None:
    """By its toctrees, which may have globs."""
    told = set()
    for page in PAGES:
        for kind, text in re.findall(r"```\{(toctree)\}\n(.*?)```", page.read_text(), re.DOTALL):
            assert kind
            for line in text.splitlines():
                if line and not line.startswith(":"):
                    entry = line.partition("<")[2].rstrip(">") or line
                    told |= {named(found) for found in page.parent.glob(f"{entry}.md")}
    assert {named(page) for page in PAGES} - told == {"index.md"}


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for found in _LINK.finditer(_FENCED.sub("", page.read_text())):
        path, _, fragment = found["target"].partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), found["target"]
        if fragment and target.suffix == ".md":
            assert fragment in map(anchor, headings(target)), found["target"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_code_can_be_read(page: Path) -> None:
    """Python compiles, `await` outside of functions allowed; JSON is JSON; commands of mqtool parse."""
    for kind, text in blocks(page):
        if kind in ("python", "py"):
            compile(text, named(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif kind == "json":
            json.loads(text)
        elif kind in _SHELL:
            for line in text.replace("\\\n", " ").splitlines():
                check_command(line.strip().removeprefix("$ "))


def check_command(line: str) -> None:
    """Nothing is asked and nothing is done: only options and arguments are read. What begins otherwise is none of
    ours."""
    if not line.startswith("mqtool ") or "…" in line:
        return
    words = []
    for word in shlex.split(line, comments=True)[1:]:
        if word in _ENDS or word.startswith((">", "<")):
            break
        words.append(word)
    command, context = get_command(app), None
    while words:
        try:
            context = command.make_context("mqtool", list(words), parent=context)
        except typer.BadParameter as error:
            if "does not exist" in error.message:  # a reader's file
                return
            raise
        if not hasattr(command, "resolve_command"):
            return
        _, command, words = command.resolve_command(context, [*getattr(context, "_protected_args", ()), *context.args])
        assert command is not None, line


def unanswered(found: Iterable[str]) -> list[str]:
    """Questions that no heading has all the words of."""
    lowered = [heading.lower() for heading in found]
    return [
        question
        for question, words in QUESTIONS.items()
        if not any(all(word in heading for word in words.lower().split()) for heading in lowered)
    ]


def test_the_questions_of_newcomers_are_headings() -> None:
    """The short form of the search's test."""
    assert unanswered(heading for page in PAGES for heading in headings(page)) == []


@pytest.mark.long
def test_the_site_is_made_without_a_warning_and_its_search_answers_newcomers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    index = (tmp_path / "searchindex.js").read_text()
    titles = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["alltitles"]
    assert unanswered(titles) == []
