"""The Delta jars that Spark loads, and the Java that runs them: found, or fetched once.

Delta's jars are not in its Python package. Five are needed and nothing transitive: the full tree is 34 jars,
and the other 29 must not be on Spark's class path. They are retrieved by the Ivy inside pyspark, run as a
program with Maven Central as its only resolver and a cache that lives as long as the run.

Rejected: `configure_spark_with_delta_pip`, which also asks the user's Maven folder and fails where that holds
a POM without its jar; and a lasting cache, which can hold half a download and would need a lock.

    python -m mirrorlog.spark.jars [--dir DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from mirrorlog.errors import MissingDependency
from mirrorlog.spark import command_line

DELTA_VERSION = "4.4.0"
DELTA_SHA256 = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
"""Of each artifact of `DELTA_VERSION`: code that Spark runs is what it was when this was written, or is not run."""
DELTA_ARTIFACTS = tuple(DELTA_SHA256)
DIRECTORY_VARIABLE = "MIRRORLOG_JARS"
DEFAULT_DIRECTORY = Path(".build/jars")
JAVA_MAJOR_MIN = 17

_GROUP = "io.delta"
_FETCH_TIMEOUT_S = 300
_JAVA_TIMEOUT_S = 30
_INSTALL_JAVA = "install a JDK 17 (for Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
_JAVA_ADVICE = f"Java 17 is needed: {_INSTALL_JAVA}"
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>"""


class MissingJars(MissingDependency):
    """Delta jars are absent and could not be had; the message says how to get them."""

    code = "MISSING_JARS"


def default_directory() -> Path:
    """`$MIRRORLOG_JARS`, or `.build/jars` of the working directory."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def delta_jars(directory: Path) -> list[Path]:
    """The five jars in `directory`, absolute, in the order of `DELTA_ARTIFACTS`.

    Raises:
        MissingJars: at least one is absent, or is not the one that it should be.
    """
    jars = [_jar_path(directory, artifact) for artifact in DELTA_ARTIFACTS]
    missing = [jar.name for jar in jars if not jar.is_file()]
    if missing:
        raise MissingJars(
            f"{len(missing)} of {len(jars)} Delta jars are missing in {directory} ({', '.join(missing)}): "
            f"run `make jars` or `python -m mirrorlog.spark.jars --dir {directory}`"
        )
    for artifact, jar in zip(DELTA_ARTIFACTS, jars, strict=True):
        _check(artifact, jar)
    return jars


def java_home_or_raise() -> Path:
    """The home of a Java that Spark can run on: the one in `$JAVA_HOME`, else `java` on the path.

    Raises:
        MissingDependency: there is none, it does not start, or it is older than 17.
    """
    home, major = _java_facts(_java_program())
    if major < JAVA_MAJOR_MIN:
        raise MissingDependency(f"{_JAVA_ADVICE} (found Java {major} in {home})")
    return home


def fetch_delta_jars(directory: Path) -> Iterator[tuple[Path, bool]]:
    """Make the five jars present, one by one: yields each with whether it had to be fetched.

    A jar gets its name only when it is complete, so an interrupted run leaves nothing to mistake for one.

    Raises:
        MissingDependency: no Java, or no pyspark.
        MissingJars: a jar could not be had.
    """
    java = java_home_or_raise() / "bin" / "java"
    for artifact in DELTA_ARTIFACTS:
        jar = _jar_path(directory, artifact)
        absent = not jar.is_file()
        if absent:
            _fetch(java, artifact, jar)
        _check(artifact, jar)
        yield jar, absent


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is that of the error, 0 when all jars are there."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command("mirrorlog.spark.jars", "Fetch the Delta jars.", example="--dir jars")
    where = f"where they go (default: ${DIRECTORY_VARIABLE} or {DEFAULT_DIRECTORY})"
    parser.add_argument("--dir", type=Path, default=default_directory(), metavar="DIR", help=where)
    return parser


def _work(options: argparse.Namespace) -> int:
    for number, (jar, fetched) in enumerate(fetch_delta_jars(options.dir), start=1):
        state = "fetched" if fetched else "present"
        print(f"[{number}/{len(DELTA_ARTIFACTS)}] {jar.name} {state}", flush=True)
    return 0


def _jar_path(directory: Path, artifact: str) -> Path:
    return directory.absolute() / f"{artifact}-{DELTA_VERSION}.jar"


def _java_program() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if java is None:
        raise MissingDependency(f"{_JAVA_ADVICE} (no bin/java in JAVA_HOME {home})" if home else _JAVA_ADVICE)
    return str(java)


def _java_facts(java: str) -> tuple[Path, int]:
    # Java is asked for its home: the program on the path may be a link or a version manager's script.
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingDependency(f"{_JAVA_ADVICE} ({java} does not run)") from error
    home = re.search(r"java\.home = (.+)", run.stderr)
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", run.stderr)  # Java 8 says 1.8
    if home is None or version is None:
        raise MissingDependency(f"{_JAVA_ADVICE} ({java} does not tell its version)")
    return Path(home[1].strip()), int(version[1])


def _ivy_jar() -> Path:
    # find_spec, not import: importing pyspark costs a second, and only its folder is wanted.
    spec = find_spec("pyspark")
    for folder in (spec and spec.submodule_search_locations) or ():
        for jar in (Path(folder) / "jars").glob("ivy-*.jar"):
            return jar
    raise MissingDependency("pyspark is needed: pip install 'mirrorlog[spark]'")


def _fetch(java: Path, artifact: str, jar: Path) -> None:
    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent, prefix=".fetch-") as folder:
            output = _run_ivy(java, artifact, folder)
            fetched = Path(folder) / jar.name
            if not fetched.is_file():
                raise MissingJars(
                    f"cannot fetch {jar.name} from Maven Central ({_reason(output)}): "
                    "check the network and Java's proxy settings, then run it again"
                )
            _check(artifact, fetched)
            fetched.replace(jar)
    except OSError as error:
        raise MissingJars(f"cannot write {jar} ({error.strerror}): use another --dir") from error


def _check(artifact: str, jar: Path) -> None:
    try:
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MissingJars(f"cannot read {jar} ({error.strerror})") from error
    if found != DELTA_SHA256[artifact]:
        raise MissingJars(
            f"{jar.name} is not the one that this was made with (SHA-256 {found[:16]}…, not "
            f"{DELTA_SHA256[artifact][:16]}…): remove {jar}, and fetch it anew with `make jars`"
        )


def _run_ivy(java: Path, artifact: str, folder: str) -> str:
    """What Ivy printed. Success is the jar in `folder`: Ivy's exit code says too little."""
    Path(folder, "settings.xml").write_text(_IVY_SETTINGS)
    command = [str(java), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-settings", "settings.xml"]
    command += ["-dependency", _GROUP, artifact, DELTA_VERSION, "-notransitive", "-types", "jar"]
    # Relative to the working directory, so a bracket in a folder's name is not read as a pattern.
    command += ["-cache", str(Path(folder, "cache")), "-retrieve", "[artifact]-[revision].[ext]"]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer in {_FETCH_TIMEOUT_S} s"
    return run.stdout + run.stderr


def _reason(output: str) -> str:
    """The line of Ivy's output that says most about what went wrong."""
    lines = [line.strip(" \t:") for line in output.splitlines() if line.strip(" \t:")]
    telling = ("Server access error", "Host ", "no answer", "not found", "FAILED")
    hits = (line for words in telling for line in lines if words in line)
    return next(hits, lines[-1] if lines else "no output")


if __name__ == "__main__":
    sys.exit(main())
