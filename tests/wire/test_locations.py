"""Which locations of tables are within a place that somebody has listed."""

from __future__ import annotations

import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.wire.locations import below, check_place, is_within


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/lake/a", "/lake"), ("/lake", "/lake/"), ("/lake//a/", "/lake"), ("file:///lake/a", "/lake"),
        ("file:/lake/a", "/lake"), ("delta:///lake/a", "file:///lake"), ("/lake/a", "delta:///lake"), ("/any", "/"),
        ("s3://bucket/lake/a", "s3://bucket/lake/"), ("S3://bucket/lake/a", "s3://bucket"), ("/la ke/a%20b", "/la ke"),
        ("abfss://c@host/x/y", "abfss://c@host/x"), ("/lake/..a/b", "/lake"),
    ],
)  # fmt: skip
def test_what_is_below_a_place_is_within_it(location: str, place: str) -> None:
    assert is_within(location, [place])


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/lake2/a", "/lake"), ("/lake/../etc", "/lake"), ("/lake/./../etc", "/lake"), ("/lake/%2e%2E/etc", "/lake"),
        ("s3://bucket/lake/.%2e/other", "s3://bucket/lake"), ("/lake/%252e%252e/etc", "/lake"), ("/lake/.. ", "/lake"),
        ("file:///lake/\t../etc", "/lake"), ("s3://bucket/lake\\..\\etc", "s3://bucket/lake"), ("lake/a", "/lake"),
        ("/lake/.\n./etc", "/lake"), ("s3://bucket2/lake", "s3://bucket"), ("s3://other@bucket/lake", "s3://bucket"),
        ("s3:///lake/a", "/lake"), ("http://lake/a", "/lake"), ("/lake/a%2f..%2f..", "/lake"), ("", "/"),
        ("../a", "/"), ("s3://bucket/lake?x=/a", "s3://bucket/lake"), ("/lake/" + "a" * 5000, "/lake"),
        ("file://host/lake/a", "/lake"),
    ],
)  # fmt: skip
def test_what_is_elsewhere_or_can_be_read_in_two_ways_is_not(location: str, place: str) -> None:
    assert not is_within(location, [place])
    assert not is_within(location, [])


def test_what_is_left_behind_a_place() -> None:
    assert below("s3://bucket/lake//a/b/", "s3://bucket/lake/") == "/a/b"
    assert below("/lake", "/lake") == ""
    assert below("/lakes", "/lake") is None


@pytest.mark.parametrize("place", ["", "lake", "/lake/..", "s3:///x", "https:"])
def test_what_nothing_can_be_within_is_no_place(place: str) -> None:
    with pytest.raises(BadRequest, match="no place of tables"):
        check_place(place)
