"""A disk that is really full: a file system of a few MiB, mounted for the test where that is permitted."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.commitlog.log import CommitLog
from mirrorlog.errors import DiskFull
from tests.commitlog.logs import KIB, append, flush, mapped, open_log, sized_batch, stored, warm

MIB = 1024 * KIB


def run(*command: str) -> str:
    """ "" when it worked, else why not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else f"{' '.join(command)}: {done.stderr.strip()}"


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 8 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    if request.param == "tmpfs":
        why_not = run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount))
    else:
        image = tmp_path / "image"
        image.write_bytes(bytes(8 * MIB))
        why_not = run("mkfs.ext4", "-q", "-F", str(image)) or run("mount", "-o", "loop", str(image), str(mount))
    if why_not:
        pytest.skip(f"no small file system here: {why_not}")
    try:
        yield mount
    finally:
        # The log's maps may still be held by the failing test's frames.
        assert run("umount", str(mount)) == "" or run("umount", "-l", str(mount)) == ""


def append_until_refused(log: CommitLog) -> None:
    for number in range(200):
        while warm(log):
            pass
        append(log, sized_batch(60 * KIB, fill=number % 255 + 1), number)


def test_a_full_file_system_refuses_appends_and_takes_them_again(small_disk: Path) -> None:
    """Goal: no SIGBUS, no damage, no hang. Append until DiskFull, read all, delete a file, append, reopen."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * MIB))
    log = open_log(small_disk / "log", segment_bytes=MIB, epoch=1)
    with pytest.raises(DiskFull, match="free space on its disk"):
        append_until_refused(log)
    content = stored(log)
    batches = len(content) // (60 * KIB)
    assert batches > 30
    assert mapped(log) == content
    assert flush(log) == len(content)
    with pytest.raises(DiskFull):
        append(log, sized_batch(60 * KIB))
    ballast.unlink()
    append(log, sized_batch(60 * KIB), batches)
    log.close()
    log = open_log(small_disk / "log", segment_bytes=MIB)
    assert log.recovery.clean
    assert log.recovery.batches == batches + 1
    assert stored(log).startswith(content)
    log.close()
