"""docs/reference says what the settings are."""

from __future__ import annotations

from pathlib import Path

from mirrorlog.config import LogAssignment, Member, Settings

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


def told_by_page() -> set[tuple[str, str, int]]:
    """(RocketMQ's name, our key, our default) of the first table."""
    section = (REFERENCE / "settings-more.md").read_text().split("## Those that we have")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {(row[0], row[2], int(row[3])) for row in cells[2:]}


def test_every_shared_name_is_on_the_page_with_its_default() -> None:
    """Compare the table with the aliases and defaults of the code, both ways."""
    in_code = {
        (field.alias, f"{section}.{name}", field.default)
        for section in ("ha", "log", "limits")
        for name, field in type(getattr(Settings(), section)).model_fields.items()
        if field.alias is not None
    }
    assert told_by_page() == in_code


def test_a_default_that_differs_from_rocketmqs_is_explained() -> None:
    """Look at the rows whose two defaults differ: the code says why, for `--print-config` and for the reader."""
    section = (REFERENCE / "settings-more.md").read_text().split("## Those that we have")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1].isdigit() and cells[1] != cells[3]:
            part, _, name = cells[2].partition(".")
            assert type(getattr(Settings(), part)).model_fields[name].description, cells[0]
            assert len(cells[4]) > 20


def test_every_setting_says_what_it_means() -> None:
    """To `--print-config`, and to the reference, whose table is made of it."""
    models = [LogAssignment, Member, *(type(getattr(Settings(), name)) for name in Settings.model_fields)]
    fields = [(model.__name__, name, field) for model in models for name, field in model.model_fields.items()]
    assert [(model, name) for model, name, field in fields if not field.description] == []
