"""Brings the peers to this machine, into .build/peers, once: jars from Maven Central, NATS from the Go module proxy,
RabbitMQ, Erlang and Redis from Debian's packages.

Debian's packages are unpacked and not installed: no root, no service that starts, nothing outside .build, and
`make clean` is the way back. That also holds for a machine that has a Redis of its own.

    python -m bench.peers.install [kafka nats rabbitmq rocketmq rocketmq-4 redis spark-kafka]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from bench.peers import versions
from bench.peers.peer import Skipped

SOURCES: Final = Path(__file__).parent
DIRECTORY: Final = SOURCES.parents[1] / ".build" / "peers"

_STEP_SECONDS: Final = 900
_STAMP: Final = "installed"
_REDIS_PACKAGES: Final = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
_ERLANG_PACKAGES: Final = tuple(
    f"erlang-{part}"
    for part in (
        *("base", "asn1", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key", "runtime-tools"),
        *("ssl", "syntax-tools", "tools", "xmerl"),
    )
)
_ROCKETMQ_PARTS: Final = ("broker", "namesrv", "client")
_KAFKA_JARS: Final = (
    f"org.apache.kafka:kafka_2.13:{versions.KAFKA}",
    f"org.apache.kafka:kafka-tools:{versions.KAFKA}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_KAFKA_WITHOUT: Final = ("org.apache.kafka:kafka-tools-api",)
"""Not on Maven Central, and not needed to run."""
_SPARK_KAFKA_JARS: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{versions.SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{versions.SPARK}",
    f"org.apache.kafka:kafka-clients:{versions.SPARK_KAFKA_CLIENTS}",
    f"org.apache.commons:commons-pool2:{versions.SPARK_COMMONS_POOL}",
)
_NOTHING_ELSE: Final = ("*:*",)
"""Spark brings the rest, and a second one of anything must not be on its class path."""
_RABBITMQ_JARS: Final = (f"com.rabbitmq:perf-test:{versions.RABBITMQ_PERF_TEST}",)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one peer is made: `make(directory)` fills an empty directory; `what` changes when it must be made anew.

    `clients`: Python packages that must be there; they are this project's extra `bench`.
    """

    what: str
    make: Callable[[Path], None]
    clients: tuple[str, ...] = ()


def installed(name: str) -> Path:
    """The directory of an installed peer. Raises Skipped with the reason why there is none."""
    recipe, directory = RECIPES[name], DIRECTORY / name
    for client in recipe.clients:
        client_version(client)
    if _is_current(recipe, directory):
        return directory
    reason = _reason_file(name)
    why = (
        reason.read_text().strip() if reason.is_file() else f"not installed: run `python -m bench.peers.install {name}`"
    )
    raise Skipped(f"{name}: {why}")


def client_version(package: str) -> str:
    """Of a Python package. Raises Skipped when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise Skipped(f"{package} is needed: pip install -e '.[bench]'") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 0 when all that were asked for are there, else 1; one that fails stops no other."""
    parser = argparse.ArgumentParser("python -m bench.peers.install", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"default: {' '.join(RECIPES)}")
    names: list[str] = parser.parse_args(arguments).peers or list(RECIPES)
    if unknown := [name for name in names if name not in RECIPES]:
        parser.error(f"unknown: {' '.join(unknown)}; there are {' '.join(RECIPES)}")
    missing = 0
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}] {name} ({RECIPES[name].what.split(' #')[0]}) ", end="", flush=True)
        started = time.monotonic()
        try:
            made = install(name)
            print(f"installed in {time.monotonic() - started:.0f} s" if made else "present", flush=True)
        except Skipped as reason:
            missing += 1
            print("not installed", flush=True)
            print(f"error: {reason}", file=sys.stderr)
    return 1 if missing else 0


def install(name: str) -> bool:
    """Make a peer present; whether there was anything to do.

    It gets its name only when it is complete. Raises Skipped; the reason is kept for those who ask `installed`.
    """
    recipe, directory, reason = RECIPES[name], DIRECTORY / name, _reason_file(name)
    for client in recipe.clients:
        client_version(client)
    if _is_current(recipe, directory):
        return False
    unfinished = DIRECTORY / f"{name}.unfinished"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        recipe.make(unfinished)
        (unfinished / _STAMP).write_text(recipe.what)
        shutil.rmtree(directory, ignore_errors=True)
        unfinished.rename(directory)
        reason.unlink(missing_ok=True)
    except Skipped as error:
        reason.write_text(f"{error}\n")
        raise Skipped(f"{name}: {error}") from None
    except OSError as error:
        raise Skipped(f"{name}: cannot write {unfinished} ({error.strerror})") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return True


def pom(artifacts: Sequence[str], without: Sequence[str] = ()) -> str:
    """A project that depends on `group:artifact:version`s, minus `group:artifact`s wherever they come from."""

    def tags(coordinates: str) -> str:
        names = ("groupId", "artifactId", "version")
        return "".join(f"<{name}>{part}</{name}>" for name, part in zip(names, coordinates.split(":"), strict=False))

    exclusions = "".join(f"<exclusion>{tags(each)}</exclusion>" for each in without)
    dependencies = "".join(
        f"<dependency>{tags(each)}<exclusions>{exclusions}</exclusions></dependency>" for each in artifacts
    )
    return (
        f"<project><modelVersion>4.0.0</modelVersion>{tags('mirrorlog.bench:peers:1')}"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _is_current(recipe: Recipe, directory: Path) -> bool:
    stamp = directory / _STAMP
    return stamp.is_file() and stamp.read_text() == recipe.what


def _reason_file(name: str) -> Path:
    return DIRECTORY / f"{name}.reason"


# --- Each peer --------------------------------------------------------------------------------------------------------


def _make_kafka(directory: Path) -> None:
    _fetch_jars(directory, _KAFKA_JARS, _KAFKA_WITHOUT)


def _make_spark_kafka(directory: Path) -> None:
    _fetch_jars(directory, _SPARK_KAFKA_JARS, _NOTHING_ELSE)


def _make_nats(directory: Path) -> None:
    go = _program("go", "Go from https://go.dev/dl")
    module = f"github.com/nats-io/nats-server/v2@v{versions.NATS_SERVER}"
    _step([go, "install", module], directory, {"GOBIN": str(directory)})
    _step([go, "build", "-buildvcs=false", "-o", directory / "nats-load", "."], SOURCES / "nats_go")


def _make_rabbitmq(directory: Path) -> None:
    _fetch_jars(directory, _RABBITMQ_JARS)
    _unpack(directory, ("rabbitmq-server", *_ERLANG_PACKAGES, "libsctp1"), versions.RABBITMQ)
    # The one script of Erlang's that knows where it was installed.
    erl = directory / "usr/lib/erlang/bin/erl"
    here = 'ROOTDIR="$(cd "$(dirname "$0")/.." && pwd)"'
    erl.write_text(re.sub(r"^( *)ROOTDIR=/usr/lib/erlang$", rf"\1{here}", erl.read_text(), flags=re.MULTILINE))


def _make_redis(directory: Path) -> None:
    _unpack(directory, _REDIS_PACKAGES, versions.REDIS)


def _make_rocketmq(directory: Path) -> None:
    compiler = _program("javac", "a JDK 17 (for Debian: apt-get install openjdk-17-jdk-headless)")
    _fetch_jars(directory, [f"org.apache.rocketmq:rocketmq-{part}:{versions.ROCKETMQ}" for part in _ROCKETMQ_PARTS])
    _step([compiler, "-cp", "jars/*", "-d", "classes", *(SOURCES / "rocketmq_java").glob("*.java")], directory)


def _make_rocketmq_4(directory: Path) -> None:
    _fetch_jars(directory, [f"org.apache.rocketmq:rocketmq-{part}:{versions.ROCKETMQ_4}" for part in _ROCKETMQ_PARTS])


def _sources(folder: str) -> str:
    """A digest of a driver's sources, so that a changed one is built anew."""
    digest = hashlib.sha256()
    for file in sorted((SOURCES / folder).iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


RECIPES: Final[Mapping[str, Recipe]] = {
    "nats": Recipe(f"{versions.NATS_SERVER} # {_sources('nats_go')}", _make_nats, ("nats-py",)),
    "kafka": Recipe(versions.KAFKA, _make_kafka, ("confluent-kafka",)),
    "rabbitmq": Recipe(f"{versions.RABBITMQ}, perf-test {versions.RABBITMQ_PERF_TEST}", _make_rabbitmq),
    "redis": Recipe(versions.REDIS, _make_redis, ("redis",)),
    "spark-kafka": Recipe(versions.SPARK, _make_spark_kafka, ("confluent-kafka", "pyspark")),
    "rocketmq": Recipe(f"{versions.ROCKETMQ} # {_sources('rocketmq_java')}", _make_rocketmq),
    "rocketmq-4": Recipe(versions.ROCKETMQ_4, _make_rocketmq_4),
}


# --- Steps ------------------------------------------------------------------------------------------------------------


def _fetch_jars(directory: Path, artifacts: Sequence[str], without: Sequence[str] = ()) -> None:
    """The artifacts and all that they need at run time, into `jars`."""
    _program("java", f"Java {versions.JAVA_MAJOR_MIN} (for Debian: apt-get install openjdk-17-jdk-headless)")
    maven = _program("mvn", "Maven (for Debian: apt-get install maven)")
    (directory / "pom.xml").write_text(pom(artifacts, without))
    # A repository of our own: a half-filled entry in the user's would look like a missing artifact.
    local = f"-Dmaven.repo.local={DIRECTORY / 'maven'}"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
    _step([maven, "--batch-mode", "--quiet", local, *goal], directory)


def _unpack(directory: Path, packages: Sequence[str], wanted: str) -> None:
    """Debian packages, unpacked; the first one must be of upstream version `wanted`."""
    apt = _program("apt-get", "Debian 12, whose packages are measured")
    debs = directory / "debs"
    debs.mkdir()
    _step([apt, "download", *packages], debs)
    for package in packages:
        (deb,) = debs.glob(f"{package}_*.deb")
        if package == packages[0]:
            found = _step(["dpkg-deb", "--field", deb, "Version"], directory).strip()
            if not found.partition(":")[2].startswith(wanted) and not found.startswith(wanted):
                raise Skipped(f"{package} {wanted} of Debian 12 is measured, this machine's sources offer {found}")
        _step(["dpkg-deb", "--extract", deb, directory], directory)
    shutil.rmtree(debs)


def _program(name: str, advice: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Skipped(f"{name} is needed: install {advice}")
    return found


def _step(command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program in `directory`; what it printed. Raises Skipped with the line that says why it failed."""
    words = [str(word) for word in command]
    what = " ".join([Path(words[0]).name, *words[1:3]])
    try:
        run = subprocess.run(
            words,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_STEP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"`{what}` did not end within {_STEP_SECONDS} s: check the network") from None
    if run.returncode != 0:
        raise Skipped(f"`{what}` failed: {telling_line(run.stdout + run.stderr)}")
    return run.stdout


def telling_line(output: str) -> str:
    """The line of a failed program's output that says most: its first error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = (line for line in lines if line.startswith(("[ERROR]", "E:", "error:", "go: ")) or " error: " in line)
    return next(errors, lines[-1] if lines else "it printed nothing")[:300]


if __name__ == "__main__":
    sys.exit(main())
