"""A landing's definition: what is meant is taken, what is mistyped is refused by the name of its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.spark.access import Access
from mirrorlog.spark.errors import BadLanding
from mirrorlog.spark.landing.definition import KEEP_S_MIN, Upkeep, landing, parse_landings, read_landings
from mirrorlog.spark.landing.write.layout import DateOf, HashOf, Layout

LEAST = {"queue": "flights", "table": "/lake/flights", "servers": "n1:7401"}


def test_the_least_that_is_given_has_defaults_for_the_rest() -> None:
    made = landing(LEAST)
    assert (made.name, made.queues, made.table, made.servers) == (
        "flights",
        ("flights",),
        "/lake/flights",
        ("n1:7401",),
    )
    assert (made.mode, made.write, made.read_from, made.on_data_loss, made.hold) == (
        *("raw", "append", "nearest", "fail"),
        True,
    )
    assert made.upkeep == Upkeep()
    assert not made.partition_by


def test_every_key_arrives_where_it_belongs() -> None:
    """Goal: no key is dropped. Give each of them another value than its default and look."""
    made = landing(
        {
            "name": "all",
            "servers": ["n1:7401", "n2:7401"],
            "queue_pattern": "orders-.*",
            "table": "delta:///lake/orders",
            "mode": "json",
            "decoder": {"schema": "a INT", "strict": True},
            "evolution": "add",
            "dead_letters": "s3://lake/dead",
            "partition_by": ["date(appendTime)", "hash(key, 8)"],
            "zorder_by": ["_offset"],
            "compression": "zstd",
            "target_file_bytes": 1 << 20,
            "max_records": 5,
            "max_bytes": 6,
            "max_latency_s": 0.5,
            "read_from": "n2",
            "change_data_feed": True,
            "on_data_loss": "skip",
            "hold": True,
            "lease_s": 60,
            "compact_every_s": 1,
            "checkpoint_every_s": 2,
            "vacuum_every_s": 3,
            "vacuum_keep_s": 100_000,
            "tls_ca": "ca.pem",
        }
    )
    assert made.servers == ("n1:7401", "n2:7401")
    assert (made.queues, made.queue_pattern) == ((), "orders-.*")
    assert (made.table, made.dead_letters) == ("/lake/orders", "s3a://lake/dead")
    assert (made.mode, dict(made.decoder), made.evolution) == ("json", {"schema": "a INT", "strict": "true"}, "add")
    assert made.partition_by == Layout((DateOf("appendTime"), HashOf("key", 8)))
    assert (made.zorder_by, made.compression, made.target_file_bytes) == (("_offset",), "zstd", 1 << 20)
    assert (made.max_records, made.max_bytes, made.max_latency_s) == (5, 6, 0.5)
    assert (made.read_from, made.change_data_feed, made.on_data_loss) == ("n2", True, "skip")
    assert (made.hold, made.lease_s, made.tiered) == (True, 60.0, False)
    assert landing({**LEAST, "tiered": True}).tiered
    assert made.upkeep == Upkeep(1.0, 2.0, 3.0, 100_000.0)
    assert made.access == Access("ca.pem")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_recrods": 5}, "'max_recrods'.*did you mean 'max_records'"),
        ({"zzz": 5}, "'zzz' is not known; there are name"),
        ({"table": ""}, "'table'"),
        ({"table": "ftp://x/y"}, "'table'.*ftp"),
        ({"dead_letters": "ftp://x/y"}, "'dead_letters'.*ftp"),
        ({"servers": "nowhere"}, "'servers'"),
        ({"servers": 7}, "'servers'"),
        ({"queue": ["a", "a"]}, "'queue'.*twice"),
        ({"queue": []}, "'queue'"),
        ({"mode": "xml"}, "'mode'.*json"),
        ({"mode": "json"}, "'decoder'"),
        ({"decoder": {"schema": "a INT"}}, "'decoder'.*'mode'"),
        ({"compression": "gzip"}, "'compression'.*zstd"),
        ({"max_records": 0}, "'max_records'"),
        ({"max_records": True}, "'max_records'"),
        ({"max_records": "many"}, "'max_records'"),
        ({"max_latency_s": -1}, "'max_latency_s'"),
        ({"max_latency_s": float("nan")}, "'max_latency_s'"),
        ({"hold": "yes"}, "'hold'"),
        ({"lease_s": 1}, "'lease_s'"),
        ({"partition_by": ["month(timestamp)"]}, "'partition_by'.*month"),
        ({"partition_by": ["hash(key, 0)"]}, "'partition_by'"),
        ({"partition_by": ["date(timestamp)", "date(appendTime)"]}, "'partition_by'"),
        ({"partition_by": 3}, "'partition_by'"),
        ({"queue_pattern": "a.*"}, "'queue'.*'queue_pattern'"),
        ({"path": "/logs"}, "'servers'.*'path'"),
        ({"dead_letters": "/lake/flights"}, "'dead_letters'"),
        ({"tiered": True, "hold": False}, "'tiered'.*'hold'"),
        ({"tiered": True, "mode": "json", "decoder": {"schema": "a INT"}}, "'tiered'.*'mode'.*'json'"),
        ({"tiered": True, "write": "upsert"}, "'tiered'.*'write'"),
        ({"name": "a\nb"}, "'name'.*255"),
        ({"name": "x" * 256}, "'name'.*255"),
        ({"name": " "}, "'name'"),
        ({"tls_cert": "a.pem"}, "'tls_cert'.*'tls_key'"),
        ({"cluster_by": ["offset"], "partition_by": ["hash(key,4)"]}, "'cluster_by'"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_key(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadLanding, match=message) as refused:
        landing({**LEAST, **given})
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("missing", sorted(LEAST))
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(BadLanding, match=f"'{missing}'"):
        landing({key: value for key, value in LEAST.items() if key != missing})


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(BadLanding, match="'queue_pattern'"):
        landing({"queue_pattern": "(", "table": "/t", "servers": "n1:7401"})


def test_a_landing_of_several_queues_is_called_as_its_table() -> None:
    """Goal: a name that a hold can have, however many queues there are. Two, a hundred, a pattern; another place."""
    tables = {"table": "s3://lake/orders/", "servers": "n1:7401"}
    assert landing({**tables, "queue": ["one"]}).name == "one"
    assert landing({**tables, "queue": ["a", "b"]}).name == "orders"
    assert landing({**tables, "queue": [f"a-long-name-{number}" for number in range(100)]}).name == "orders"
    assert landing({**tables, "queue_pattern": "orders-.*"}).name == "orders"
    assert landing({**tables, "queue_pattern": "orders-.*", "name": "x" * 255}).name == "x" * 255
    for table in ("/", "/lake/" + "x" * 256):
        with pytest.raises(BadLanding, match="'name'"):
            landing({**tables, "table": table, "queue_pattern": "orders-.*"})


def test_log_directories_need_no_servers_and_hold_nothing() -> None:
    made = landing({"queue": "q", "table": "/t", "path": "/logs"})
    assert (made.path, made.servers, made.hold) == ("/logs", (), False)
    with pytest.raises(BadLanding, match="'hold'"):
        landing({"queue": "q", "table": "/t", "path": "/logs", "hold": True})
    with pytest.raises(BadLanding, match=r"'tiered'.*'path'"):
        landing({"queue": "q", "table": "/t", "path": "/logs", "tiered": True})


def test_a_relative_table_is_where_the_command_was_given() -> None:
    assert landing({**LEAST, "table": "lake/x"}).table == str(Path("lake/x").absolute())
    assert landing({**LEAST, "table": "file:///lake/a%20b"}).table == "/lake/a b"


TOML = """
[defaults]
servers = "n1:7401"
max_latency_s = 30

[[landing]]
queue = "a"
table = "/lake/a"

[[landing]]
name = "b and c"
queue = ["b", "c"]
table = "/lake/bc"
max_latency_s = 5
"""


def test_a_file_describes_many_with_defaults(tmp_path: Path) -> None:
    file = tmp_path / "landings.toml"
    file.write_text(TOML)
    first, second = read_landings(file)
    assert (first.name, first.max_latency_s, first.servers) == ("a", 30.0, ("n1:7401",))
    assert (second.name, second.queues, second.max_latency_s) == ("b and c", ("b", "c"), 5.0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "'landing'"),
        ({"landing": []}, "'landing'"),
        ({"landings": [LEAST]}, "did you mean 'landing'"),
        ({"defaults": [], "landing": [LEAST]}, "'defaults'"),
        ({"landing": [LEAST, LEAST]}, "two landings are called 'flights'"),
        ({"landing": [LEAST, {**LEAST, "name": "x", "mode": "xml"}]}, "landing x: key 'mode'"),
    ],
)
def test_a_file_that_is_wrong_names_the_landing_and_the_key(document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadLanding, match=message):
        parse_landings(document)


def test_a_landing_of_a_file_has_what_the_command_has_where_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the same defaults, wherever a landing is written. Method: one that names nothing, one that names servers,
    one of directories, one that is tiered; of a command that ends, and nobody's variables but for the first."""
    monkeypatch.setenv("MIRRORLOG_PASSWORD", "secret")
    given = {"servers": "other:7401", "tls_ca": "/ca.pem", "user": "lander", "hold": False}
    least = {"queue": "q"}
    tables = [
        {**least, "name": "a", "table": "/lake/a"},
        {**least, "name": "b", "table": "/lake/b", "servers": "mine:7401"},
        {**least, "name": "c", "table": "/lake/c", "path": "/logs"},
        {**least, "name": "d", "table": "/lake/d", "tiered": True},
        {**least, "name": "e", "table": "/lake/e", "hold": True},
    ]
    plain, named, offline, tiered, held = parse_landings({"landing": tables}, given)
    assert (plain.servers, plain.access.user, str(plain.access.ca)) == (("other:7401",), "lander", "/ca.pem")
    assert (named.servers, named.access.user, named.access.ca) == (("mine:7401",), None, None)
    assert (offline.path, offline.servers, offline.access.user) == ("/logs", (), None)
    assert [each.hold for each in (plain, named, offline, tiered, held)] == [False, False, False, True, True]


def test_a_file_that_is_no_toml_or_not_there_is_said(tmp_path: Path) -> None:
    file = tmp_path / "landings.toml"
    with pytest.raises(ConfigError, match=r"landings\.toml"):
        read_landings(file)
    file.write_text("[[landing]\n")
    with pytest.raises(ConfigError, match=r"landings\.toml"):
        read_landings(file)


def test_a_retention_that_is_too_short_for_a_step_is_refused_at_once() -> None:
    """Goal: not by the first VACUUM, a day later."""
    with pytest.raises(BadLanding, match="vacuum_keep_s"):
        landing({**LEAST, "vacuum_every_s": 3600, "vacuum_keep_s": KEEP_S_MIN - 1})
    assert landing({**LEAST, "vacuum_keep_s": KEEP_S_MIN}).upkeep.vacuum_keep_s == KEEP_S_MIN
