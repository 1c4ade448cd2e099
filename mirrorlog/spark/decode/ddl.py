"""Spark's DDL text as an Arrow schema: `id BIGINT NOT NULL, where STRUCT<lat: DOUBLE> COMMENT 'at noon'`.

Written out because Spark parses DDL in its JVM, and neither a task nor the check of a definition has one. It takes
Spark's names for the types of `types.py`, names in backticks, NOT NULL, COMMENT, and SQL comments. What a table could
not hold, or would hold as something else, is refused by name: CHAR, VARCHAR, INTERVAL, VARIANT, DEFAULT.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from mirrorlog.spark.decode.types import BY_DELTA_NAME, TIMESTAMP, decimal_of, field_of, list_of, map_of
from mirrorlog.spark.errors import BadSchema

NESTING_MAX: Final = 32
"""Types within types."""
TEXT_MAX: Final = 1024 * 1024
"""Characters of a schema's text."""

_TOKEN: Final = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<word>\w+)
      | (?P<mark>[<>(),:])
    """,
    re.VERBOSE | re.DOTALL,
)
_SCALARS: Final = {
    **{name.upper(): kind for name, kind in BY_DELTA_NAME.items()},
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "REAL": pa.float32(),
    "TIMESTAMP_LTZ": TIMESTAMP,
}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_REFUSED: Final = {
    "CHAR": "use STRING",
    "CHARACTER": "use STRING",
    "VARCHAR": "use STRING",
    "INTERVAL": "a table cannot hold it; use BIGINT",
    "VARIANT": "give the fields as STRUCT, or the text as STRING",
    "VOID": "give a type",
}


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind`: quoted, text, word, mark, or end. `at`: its character in the text."""

    kind: str
    text: str
    at: int


def parse_ddl(text: str) -> pa.Schema:
    """Columns from DDL text. Raises BadSchema saying what was expected where."""
    if len(text) > TEXT_MAX:
        raise BadSchema(f"the schema has {len(text)} characters; at most {TEXT_MAX} are taken")
    parser = _Parser(_tokens(text))
    if parser.at_end():
        raise BadSchema("the schema is empty; give columns like: id BIGINT, name STRING")
    columns = parser.fields(depth=0)
    if not parser.at_end():
        raise parser.expected("a comma")
    return pa.schema(columns)


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadSchema(f"the schema's character {at + 1}, {text[at]!r}, has no meaning there")
        if match.lastgroup is not None:
            found.append(_Token(match.lastgroup, match.group(), at))
        at = match.end()
    return [*found, _Token("end", "the end", len(text))]


class _Parser:
    """One pass over the tokens, a method for each rule of the grammar."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def at_end(self) -> bool:
        return self._now.kind == "end"

    def fields(self, *, depth: int) -> list[pa.Field]:
        """name [:] type [NOT NULL] [COMMENT 'text'], with commas between."""
        found = [self._field(depth)]
        while self._take_mark(","):
            found.append(self._field(depth))
        return found

    def expected(self, what: str) -> BadSchema:
        token = self._now
        return BadSchema(f"the schema's character {token.at + 1}: {what} is expected, not {token.text[:40]!r}")

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _field(self, depth: int) -> pa.Field:
        name = self._name()
        self._take_mark(":")
        kind = self._type(depth)
        nullable = not self._take_word("NOT")
        if not nullable and not self._take_word("NULL"):
            raise self.expected("NULL")
        comment = self._comment() if self._take_word("COMMENT") else None
        return field_of(name, kind, nullable=nullable, comment=comment)

    def _name(self) -> str:
        token = self._now
        if token.kind not in ("word", "quoted"):
            raise self.expected("a column's name")
        self._next += 1
        return token.text if token.kind == "word" else token.text[1:-1].replace("``", "`")

    def _type(self, depth: int) -> pa.DataType:
        if depth > NESTING_MAX:
            raise BadSchema(f"the schema has types nested deeper than {NESTING_MAX}")
        token = self._now
        if token.kind != "word":
            raise self.expected("a type")
        self._next += 1
        word = token.text.upper()
        if word in _SCALARS:
            return _SCALARS[word]
        if word in _DECIMALS:
            return self._decimal()
        if word in ("ARRAY", "MAP", "STRUCT"):
            return self._nested(word, depth)
        reason = _REFUSED.get(word, f"there are {', '.join(_SCALARS)}, DECIMAL, ARRAY, MAP, STRUCT")
        raise BadSchema(f"the schema's character {token.at + 1}: type {token.text[:40]} is not taken; {reason}")

    def _decimal(self) -> pa.DataType:
        if not self._take_mark("("):
            return decimal_of(10, 0)
        digits, scale = self._number(), 0
        if self._take_mark(","):
            scale = self._number()
        self._need(")")
        return decimal_of(digits, scale)

    def _number(self) -> int:
        token = self._now
        if not re.fullmatch(r"[0-9]{1,3}", token.text):
            raise self.expected("a number")
        self._next += 1
        return int(token.text)

    def _nested(self, word: str, depth: int) -> pa.DataType:
        self._need("<")
        if word == "STRUCT":
            kind = pa.struct(self.fields(depth=depth + 1))
        elif word == "ARRAY":
            kind = list_of(self._type(depth + 1))
        else:
            key = self._type(depth + 1)
            self._need(",")
            kind = map_of(key, self._type(depth + 1))
        self._need(">")
        return kind

    def _comment(self) -> str:
        if self._now.kind != "text":
            raise self.expected("a comment in quotes")
        text = self._now.text[1:-1]
        self._next += 1
        return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)

    def _take_mark(self, mark: str) -> bool:
        return self._take("mark", mark)

    def _take_word(self, word: str) -> bool:
        return self._take("word", word)

    def _take(self, kind: str, text: str) -> bool:
        if self._now.kind != kind or self._now.text.upper() != text:
            return False
        self._next += 1
        return True

    def _need(self, mark: str) -> None:
        if not self._take_mark(mark):
            raise self.expected(repr(mark))
