"""Golden output: what a command prints, kept as files beside the tests.

`MIRRORLOG_WRITE_GOLDEN=1 pytest tests/tools` writes them anew; review the difference.
"""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> str:
    """The text of the golden file `name`, written first when asked to."""
    path = GOLDEN / name
    if os.environ.get("MIRRORLOG_WRITE_GOLDEN"):
        path.write_text(text)
    return path.read_text()
