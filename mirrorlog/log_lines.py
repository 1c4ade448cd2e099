"""What a process writes about itself on stderr: one event a line, as text for eyes or as JSON for what collects it.

Who logs writes `event key=value …`; of JSON, event and keys are fields of their own, so nobody has to parse the text
once more. What Python itself would print there, warnings and what nobody has caught, is such a line too.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

_EVENT: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*(?= |$)")
# A quoted value is what `%r` makes of a text.
_FIELD: Final = re.compile(r"""([A-Za-z_][A-Za-z0-9_]*)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s]*)""")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class _Text(logging.Formatter):
    """`time level node=… event key=value …`, and tracebacks below."""

    def __init__(self, who: Mapping[str, str]) -> None:
        super().__init__()
        self._who = " ".join(f"{key}={value}" for key, value in who.items())

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_stamp(record)} {record.levelname.lower()} {self._who} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonEvents(logging.Formatter):
    """An object a line: ts, level, logger, the process's own fields, message, event, fields, traceback."""

    def __init__(self, who: Mapping[str, str]) -> None:
        super().__init__()
        self._who = dict(who)

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line: dict[str, Any] = {
            "ts": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._who,
            "message": message,
        }
        event = _EVENT.match(message)
        if event is not None and (fields := fields_of(message)):
            line |= {"event": event.group(), "fields": fields}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def fields_of(message: str) -> dict[str, str | int]:
    """The `key=value` of a log message."""
    return {key: _value(text) for key, text in _FIELD.findall(message)}


def _value(text: str) -> str | int:
    if _NUMBER.fullmatch(text):
        return int(text)
    if text[:1] in ("'", '"') and len(text) > 1:
        try:
            return str(ast.literal_eval(text))
        except (SyntaxError, ValueError):
            return text
    return text


def _stamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def configure_logs(*, as_json: bool, debug: bool, **who: str) -> None:
    """Send everything at info (debug: debug) and above to stderr. `who`: fields of each line, as `node="n1"`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonEvents(who) if as_json else _Text(who))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def json_line(message: str, *, logger: str, **who: str) -> str:
    """What a line at level info with this message is."""
    return JsonEvents(who).format(logging.LogRecord(logger, logging.INFO, "", 0, message, (), None))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("mirrorlog").critical("uncaught error=%s", kind.__name__, exc_info=(kind, error, trace))
