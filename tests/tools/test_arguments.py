"""What a user types becomes one value or one clear error."""

import pytest

from mirrorlog.diagnosis.cells import ago_text, bytes_text, offset_text, parse_time, time_text
from mirrorlog.errors import BadInput
from mirrorlog.tools.common.options import parse_arguments, parse_pair, parse_servers


def test_arguments_are_json_or_text() -> None:
    """Goal: numbers stay numbers, names need no quotes. Method: one of each kind."""
    pairs = ["a=1", "b=true", 'c="1"', "d=7D", "e=", "f=x=y", "g=null"]
    assert parse_arguments(pairs) == {"a": 1, "b": True, "c": "1", "d": "7D", "e": "", "f": "x=y", "g": None}


@pytest.mark.parametrize("pairs", [["a"], ["=1"], ["a=1", "a=2"]])
def test_a_pair_that_is_none_is_refused(pairs: list[str]) -> None:
    """Goal: nothing is dropped silently. Method: no `=`, no name, a name twice."""
    with pytest.raises(BadInput, match="--arg"):
        parse_arguments(pairs)


def test_an_error_names_the_option() -> None:
    """Goal: the user finds the place. Method: a header without a value."""
    with pytest.raises(BadInput, match="--header 'x': write name=value"):
        parse_pair("x", "--header")


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.000001Z", 1_000_001),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59", -1_000_000),
        ("9999-12-31T23:59:59.999999", 253_402_300_799_999_999),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, time_us: int) -> None:
    """Goal: exact microseconds, no local zone. Method: zones, borders, times before 1970."""
    assert parse_time(text) == time_us


@pytest.mark.parametrize("text", ["", "now", "20261121", "2026-13-01", "10:15", "0001-01-01T00:00:00+10:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Goal: a number is never taken for a date. Method: words, digits, impossible dates."""
    with pytest.raises(BadInput, match="is no time"):
        parse_time(text)


def test_servers_are_addresses_with_commas_between() -> None:
    """Goal: spaces do no harm. Method: two addresses."""
    assert parse_servers("a:1, [::1]:2,") == ("a:1", "[::1]:2")


@pytest.mark.parametrize("text", ["", " , ", "localhost", "a:1,b", "a:99999"])
def test_servers_that_are_none_are_refused(text: str) -> None:
    """Goal: the error comes before any connection. Method: empty, no port, a port too high."""
    with pytest.raises(BadInput, match="--servers"):
        parse_servers(text)


def test_cells_are_short_and_say_their_unit() -> None:
    """Goal: readable numbers. Method: the borders between units, missing values, skewed clocks."""
    assert [bytes_text(size) for size in (0, 1023, 1024, 1536, 1024**2, 1024**6 * 5)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
        "5120.0 PiB",
    ]
    assert (offset_text(-1), offset_text(0)) == ("-", "0")
    assert (ago_text(None, 5), ago_text(1_000_000, 2_500_000), ago_text(9, 5)) == ("-", "1.5 s ago", "0.0 s ago")


def test_a_time_beyond_the_calendar_is_still_shown() -> None:
    """Goal: a strange timestamp breaks no listing. Method: the ends of 64 bits."""
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(2**63 - 1) == f"{2**63 - 1} µs"
    assert time_text(-(2**63)) == f"{-(2**63)} µs"
