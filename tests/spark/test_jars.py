"""What a user is told when Java or the Delta jars are not there. No test here touches the network."""

import hashlib
import re
from pathlib import Path

import pytest

from mirrorlog.errors import MissingDependency
from mirrorlog.spark import jars

ADVICE = "Java 17 is needed: install a JDK 17 (for Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


@pytest.fixture(autouse=True)
def sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars of these tests say `jar`."""
    monkeypatch.setattr(jars, "DELTA_SHA256", dict.fromkeys(jars.DELTA_ARTIFACTS, hashlib.sha256(b"jar").hexdigest()))


def fill(directory: Path) -> list[Path]:
    paths = [directory / f"{artifact}-{jars.DELTA_VERSION}.jar" for artifact in jars.DELTA_ARTIFACTS]
    for path in paths:
        path.write_bytes(b"jar")
    return paths


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, *, specification: str, ivy: str = "exit 1") -> None:
    """A `java` in `home`: tells its version as Java does, and runs `ivy` for anything else."""
    settings = f"    java.home = {home}\n    java.specification.version = {specification}"
    script(home / "bin" / "java", f"if [ \"$2\" = -version ]; then echo '{settings}' >&2; exit 0; fi\n{ivy}")


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path / "jdk"


@pytest.mark.usefixtures("no_java")
def test_without_java_the_message_says_what_to_install() -> None:
    with pytest.raises(MissingDependency) as raised:
        jars.java_home_or_raise()
    assert str(raised.value) == ADVICE


def test_a_java_home_without_java_is_named(home: Path) -> None:
    with pytest.raises(MissingDependency, match=re.escape(str(home))) as raised:
        jars.java_home_or_raise()
    assert str(raised.value).startswith(ADVICE)


@pytest.mark.parametrize(("specification", "major"), [("1.8", 8), ("11", 11)])
def test_a_java_that_is_too_old_is_refused_with_its_version(home: Path, specification: str, major: int) -> None:
    fake_java(home, specification=specification)
    with pytest.raises(MissingDependency) as raised:
        jars.java_home_or_raise()
    assert str(raised.value) == f"{ADVICE} (found Java {major} in {home})"


def test_a_java_that_does_not_start_is_refused(home: Path) -> None:
    script(home / "bin" / "java", "exit 1")
    with pytest.raises(MissingDependency, match="does not run"):
        jars.java_home_or_raise()


@pytest.mark.parametrize("specification", ["17", "21"])
def test_a_java_that_is_new_enough_is_taken_from_java_home(home: Path, specification: str) -> None:
    fake_java(home, specification=specification)
    assert jars.java_home_or_raise() == home


def test_a_script_on_the_path_is_asked_for_the_home_of_its_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "jdk", specification="17")
    script(tmp_path / "shims" / "java", f'exec {tmp_path}/jdk/bin/java "$@"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    assert jars.java_home_or_raise() == tmp_path / "jdk"


def test_present_jars_are_returned_in_order(tmp_path: Path) -> None:
    paths = fill(tmp_path)
    assert jars.delta_jars(tmp_path) == paths


def test_a_missing_jar_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    fill(tmp_path)[1].unlink()
    with pytest.raises(jars.MissingJars) as raised:
        jars.delta_jars(tmp_path)
    assert str(raised.value) == (
        f"1 of 5 Delta jars are missing in {tmp_path} (delta-storage-4.4.0.jar): "
        f"run `make jars` or `python -m mirrorlog.spark.jars --dir {tmp_path}`"
    )


@pytest.mark.usefixtures("no_java")
def test_the_command_checks_java_before_anything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "jars"
    assert jars.main(["--dir", str(directory)]) == MissingDependency.exit_code
    assert capsys.readouterr().err == f"error: {ADVICE}\n"
    assert not directory.exists()


def test_the_command_fetches_nothing_that_is_present(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fake Java fails whenever it is asked for more than its version."""
    fake_java(home, specification="17")
    names = [path.name for path in fill(tmp_path)]
    assert jars.main(["--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"[{number}/5] {name} present" for number, name in enumerate(names, start=1)]


def test_a_registry_that_does_not_answer_is_one_line(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ivy = "echo ':: 1: not found'; echo '  Server access error (Connection refused)'; exit 1"
    fake_java(home, specification="17", ivy=ivy)
    directory = tmp_path / "jars"
    assert jars.main(["--dir", str(directory)]) == jars.MissingJars.exit_code
    assert capsys.readouterr().err == (
        "error: cannot fetch delta-spark_4.2_2.13-4.4.0.jar from Maven Central "
        "(Server access error (Connection refused)): "
        "check the network and Java's proxy settings, then run it again\n"
    )
    assert list(directory.iterdir()) == []


def test_a_fetched_jar_appears_complete_and_alone(tmp_path: Path, home: Path) -> None:
    """The fake Ivy writes the jar where it was told, the working directory, under the wanted name."""
    fake_java(home, specification="17", ivy='printf jar > "$8-$9.jar"')
    directory = tmp_path / "jars"
    fetched = list(jars.fetch_delta_jars(directory))
    assert fetched == [(path, True) for path in jars.delta_jars(directory)]
    assert sorted(directory.iterdir()) == sorted(path for path, _ in fetched)


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_java(home, specification="17")
    (tmp_path / "file").touch()
    assert jars.main(["--dir", str(tmp_path / "file" / "jars")]) == jars.MissingJars.exit_code
    assert "(Not a directory): use another --dir" in capsys.readouterr().err


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORLOG_JARS", "elsewhere/jars")
    assert jars.default_directory() == Path("elsewhere/jars")
    monkeypatch.delenv("MIRRORLOG_JARS")
    assert jars.default_directory() == Path(".build/jars")


def test_a_jar_that_is_another_one_is_not_loaded(tmp_path: Path, home: Path) -> None:
    """Present, or fetched: it is named, and what was fetched does not stay."""
    fake_java(home, specification="17", ivy='printf another > "$8-$9.jar"')
    paths = fill(tmp_path)
    paths[2].write_bytes(b"another")
    for look in (jars.delta_jars, lambda directory: list(jars.fetch_delta_jars(directory))):
        with pytest.raises(jars.MissingJars, match=r"delta-kernel-api-4\.4\.0\.jar is not the one .* remove "):
            look(tmp_path)
    empty = tmp_path / "empty"
    with pytest.raises(jars.MissingJars, match="is not the one"):
        list(jars.fetch_delta_jars(empty))
    assert list(empty.iterdir()) == []


def test_the_jars_that_tests_run_with_are_the_pinned_ones() -> None:
    """All five sums are of SHA-256, and each artifact has one."""
    source = Path(jars.__file__).read_text()
    assert len(set(re.findall(r'": "([0-9a-f]{64})"', source))) == len(jars.DELTA_ARTIFACTS) == 5
