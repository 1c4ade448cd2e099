"""A job's result: a small table, and how it is shown, kept and told to programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirrorlog.errors import ConfigError

FORMATS: Final = ("csv", "parquet")
ROWS_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class AnalysisReport:
    """`rows`: as the job's function describes them; `notes`: what a reader must know, one line each."""

    job: str
    title: str
    rows: pa.Table
    notes: tuple[str, ...]

    def view(self) -> RenderableType:
        """For a terminal: the newest rows, then the notes."""
        shown = Table(
            title=Text(self.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )  # fmt: skip
        for field in self.rows.schema:
            text = pa.types.is_string(field.type) or pa.types.is_timestamp(field.type)
            shown.add_column(field.name, justify="left" if text else "right", no_wrap=True)
        overall, timed = self._parted()
        for row in [*overall, *timed[-ROWS_SHOWN:]]:
            shown.add_row(*(Text(_cell(value)) for value in row.values()))
        left_out = len(timed) - ROWS_SHOWN
        more = [f"{left_out:,} earlier rows are not shown; --out keeps all"] if left_out > 0 else []
        return Group(shown, *map(Text, [*more, *self.notes]))

    def fields(self) -> dict[str, Any]:
        """As JSON. Times are ISO 8601, UTC; numbers as the columns say."""
        rows = [{name: _plain(value) for name, value in row.items()} for row in self.rows.to_pylist()]
        return {"job": self.job, "rows": rows, "notes": list(self.notes)}

    def write(self, directory: Path, kind: str) -> Path:
        """All rows as a file in `directory`, which is made when missing. Raises ConfigError."""
        path = directory / f"{self.job}.{kind}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if kind == "csv":
                pyarrow.csv.write_csv(self.rows, path)
            else:
                pyarrow.parquet.write_table(self.rows, path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    def _parted(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]:
        rows = self.rows.to_pylist()
        return [row for row in rows if row["time"] is None], [row for row in rows if row["time"] is not None]


def _cell(value: Any) -> str:
    if value is None:
        return "overall"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
