"""Whether Delta refused a commit because of another one. Pure.

Told by the classes of Delta's error conditions, which are its documented names; the texts around them are not.
"""

from __future__ import annotations

import re
from typing import Final

_CONFLICT: Final = re.compile(
    r"DELTA_CONCURRENT_|DELTA_(METADATA|PROTOCOL)_CHANGED|Concurrent\w+Exception|"
    r"(Metadata|Protocol)ChangedException|DELTA_VERSIONS_NOT_CONTIGUOUS"
)


def is_conflict(error: BaseException) -> bool:
    """True when a commit lost against another one; nothing of it was added, and trying again is right."""
    return _CONFLICT.search(str(error)) is not None
