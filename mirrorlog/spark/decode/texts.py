"""Timestamps, dates, decimals and bytes from text, exactly or not at all.

Taken of ISO 8601: `YYYY-MM-DD`, and with `T` or a space between `HH:MM[:SS[.fraction]]` and an offset `Z`, `±HH`,
`±HHMM` or `±HH:MM`. Rejected: `datetime.fromisoformat` by itself, which takes weeks, any character as separator, and
cuts fractions finer than a microsecond without a word.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Final

from mirrorlog.spark.decode.decoded import Wrong

TIMESTAMP_MIN_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, where Spark's timestamps begin."""
TIMESTAMP_MAX_US: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z, where they end."""
DATE_MIN: Final = -719_162
DATE_MAX: Final = 2_932_896
"""Days since 1970 of 0001-01-01 and of 9999-12-31."""
NUMBER_MAX: Final = 1000
"""Characters of a decimal's text."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.([0-9]{1,9}))?)?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,6})?")
EXACT: Final = Context(prec=NUMBER_MAX, Emax=999_999, Emin=-999_999)
"""Arithmetic that does not round: the default context has 28 digits only."""


def timestamp_us(text: str) -> int:
    """Microseconds since 1970 UTC; a time without offset is UTC. Raises Wrong."""
    moment = _moment(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _microseconds(moment, text)


def local_timestamp_us(text: str) -> int:
    """Microseconds since 1970 of a clock on some wall: there must be no offset. Raises Wrong."""
    moment = _moment(text)
    if moment.tzinfo is not None:
        raise Wrong(f"wanted timestamp_ntz, found {text[:60]!r} with an offset")
    return _microseconds(moment.replace(tzinfo=UTC), text)


def date_days(text: str) -> int:
    """Days since 1970. Raises Wrong."""
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        pass
    raise Wrong(f"wanted date like 2013-01-31, found {text[:60]!r}")


def decimal_from(text: str, *, digits: int, scale: int) -> Decimal:
    """The number, which must fit without rounding. Raises Wrong."""
    if len(text) > NUMBER_MAX or not _NUMBER.fullmatch(text):
        raise Wrong(f"wanted decimal({digits},{scale}), found {text[:60]!r}")
    return fitting(Decimal(text), digits=digits, scale=scale)


def fitting(number: Decimal, *, digits: int, scale: int) -> Decimal:
    """The same number at this scale. Raises Wrong when it would have to be rounded or has too many digits."""
    try:
        scaled = number.quantize(Decimal(1).scaleb(-scale), context=EXACT)
    except InvalidOperation:
        raise Wrong(f"{str(number)[:60]} is beyond decimal({digits},{scale})") from None
    if scaled != number:
        raise Wrong(f"{str(number)[:60]} has more than the {scale} places of decimal({digits},{scale})")
    if len(scaled.as_tuple().digits) > digits:
        raise Wrong(f"{str(number)[:60]} is beyond decimal({digits},{scale})")
    return scaled


def base64_bytes(text: str) -> bytes:
    """Raises Wrong for what is not exactly base64 with its padding."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise Wrong(f"wanted binary as base64, found {text[:60]!r}") from None


def _moment(text: str) -> datetime:
    """With the offset that the text has, if any."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise Wrong(f"wanted timestamp like 2013-01-31T05:15:00Z, found {text[:60]!r}")
    fraction = found[1]
    if fraction is not None and fraction[6:].strip("0"):
        raise Wrong(f"{text[:60]!r} is finer than a microsecond")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Wrong(f"there is no time {text[:60]!r}") from None


def _microseconds(moment: datetime, text: str) -> int:
    """A moment near year 1 or 9999 may lie beyond it in UTC."""
    micros = (moment - _EPOCH) // _MICROSECOND
    if not TIMESTAMP_MIN_US <= micros <= TIMESTAMP_MAX_US:
        raise Wrong(f"{text[:60]!r} is beyond the years 1 to 9999")
    return micros
