"""Structured logs of a node: one event a line on stderr, `time level node=… event key=value …`."""

from __future__ import annotations

import logging
import sys
import time


class _Line(logging.Formatter):
    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} node={self._node_id} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure_logs(node_id: str, *, debug: bool) -> None:
    """Send everything at info (debug: debug) and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(node_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
