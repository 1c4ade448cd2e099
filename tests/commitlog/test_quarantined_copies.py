"""Former copies of a log: which they are, and the name of the next."""

from __future__ import annotations

from pathlib import Path

from mirrorlog.commitlog.quarantine import all_quarantined, next_quarantine, quarantined_copies


def test_copies_are_found_by_log_and_age_and_a_number_is_not_used_again(tmp_path: Path) -> None:
    """Goal: the order tells the age, whatever was removed. Eleven copies of one log and one of another, beside what is
    none; remove some: the next has a number above all, from 1 again only when none is left."""
    log = tmp_path / "log-a"
    other = tmp_path / "log-b"
    for name in ("log-a", "log-b", "log-b.aside-1", "log-a.aside-", "log-a.aside-x", "log-a.aside-1.old", ".aside-3"):
        (tmp_path / name).mkdir()
    assert quarantined_copies(log) == []
    for number in range(1, 12):
        path = next_quarantine(log)
        assert path.name == f"log-a.aside-{number}"
        path.mkdir()
    assert [path.name for path in quarantined_copies(log)] == [f"log-a.aside-{number}" for number in range(1, 12)]
    assert all_quarantined(tmp_path) == [*quarantined_copies(log), other.with_name("log-b.aside-1")]
    for number in (1, 5):
        (tmp_path / f"log-a.aside-{number}").rmdir()
    assert next_quarantine(log).name == "log-a.aside-12"
    for path in quarantined_copies(log):
        path.rmdir()
    assert next_quarantine(log).name == "log-a.aside-1"
