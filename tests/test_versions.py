"""Which software works in which cluster, and how a run says what it is."""

from __future__ import annotations

import pytest

from mirrorlog import versions
from mirrorlog.errors import UnsupportedVersion


def test_a_run_says_its_version() -> None:
    """In its id; by ids of several versions."""
    unique = "3f2b8a10-1648-44c7-aaf6-61d3217ffd9a"
    assert versions.run_id(unique, version=1) == unique
    for version in (1, 2, 3, 10, 999_999):
        assert versions.version_of(versions.run_id(unique, version)) == version
    assert versions.version_of(versions.run_id(unique)) == versions.OWN


@pytest.mark.parametrize(
    "start_id", ["", "a1", "n1 1", ".v", "a.v0", "a.v02", "a.v1000000", "a.v2 ", "a.v-2", "a.V2", "v2", "a.v2.v"]
)
def test_whatever_has_no_mark_is_of_the_first_version(start_id: str) -> None:
    """As all ids were before there were marks; by what looks like one and is none."""
    assert versions.version_of(start_id) == 1


def test_software_works_at_its_version_and_the_one_before() -> None:
    """By version 3 in clusters of all versions near it; what does not fit is told what to do."""
    assert [versions.fits(3, active) for active in (1, 2, 3, 4)] == [False, True, True, False]
    assert versions.misfit(3, 3) == versions.misfit(3, 2) == ""
    assert "start the node with software of version 4 or 5" in versions.misfit(3, 4)
    assert "start the node with software of version 1 or 2" in versions.misfit(3, 1)


def test_this_software_works_from_the_oldest_to_its_own() -> None:
    """And in no newer cluster; by asking for each. What is older can be read: a disk may begin with it."""
    assert sorted(versions.BROUGHT) == list(range(versions.FIRST, versions.OWN + 1))
    assert versions.OWN - versions.MIN == 1
    for active in (versions.FIRST, versions.MIN, versions.OWN):
        versions.check_supported(active)
    with pytest.raises(UnsupportedVersion, match=f"the cluster runs at version {versions.OWN + 1}, and"):
        versions.check_supported(versions.OWN + 1)
