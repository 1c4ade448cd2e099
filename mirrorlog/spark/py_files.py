"""This package as one zip, for `--py-files`: so a cluster's workers run the same mirrorlog as the driver.

    python -m mirrorlog.spark.py_files --out mirrorlog.zip
    spark-submit --master spark://… --jars jars/…jar --py-files mirrorlog.zip land.py …

The zip holds Python alone. What mirrorlog needs (pyarrow and the rest of the extra `spark`) has parts in C and must be
installed where the workers run, or be shipped with `--archives` as a packed environment.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mirrorlog.errors import ConfigError
from mirrorlog.spark import command_line

_PACKAGE: Final = Path(__file__).parents[1]
_SUFFIXES: Final = (".py", ".properties", ".typed")
# The oldest that a zip can say: the same sources give the same bytes whenever they are packed.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_py_files(out: Path) -> int:
    """Write the zip; how many files it holds. It gets its name when it is complete. Raises ConfigError."""
    unfinished = out.with_name(f"{out.name}.unfinished")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            names = [_add(archive, file) for file in _sources()]
        unfinished.replace(out)
    except OSError as error:
        raise ConfigError(f"cannot write {out} ({error.strerror}): use another --out") from None
    return len(names)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is that of the error, 0 when the zip is there."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.py_files",
        "Pack mirrorlog's Python for spark-submit --py-files.",
        example="--out mirrorlog.zip",
    )
    parser.add_argument("--out", type=Path, default=Path("mirrorlog.zip"), metavar="FILE", help="default mirrorlog.zip")
    return parser


def _work(options: argparse.Namespace) -> int:
    print(f"{options.out}: {write_py_files(options.out)} files")
    return 0


def _sources() -> Iterator[Path]:
    return (file for file in sorted(_PACKAGE.rglob("*")) if file.suffix in _SUFFIXES and file.is_file())


def _add(archive: zipfile.ZipFile, file: Path) -> str:
    name = str(Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, file.read_bytes())
    return name


if __name__ == "__main__":
    sys.exit(main())
