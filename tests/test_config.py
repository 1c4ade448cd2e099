"""Settings: the order of their sources, the names that files use, and one-line errors for everything wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest

from mirrorlog.broker.main import as_json, as_toml
from mirrorlog.config import PATTERN_WORDS, Settings, load, load_settings, split_address
from mirrorlog.errors import ConfigError

THREE_NODES = """
[cluster]
name = "production"
members = [{ id = "n1", client = "10.0.0.1:7401" }, { id = "n2" }, { id = "n3" }]
logs = [{ name = "main", master = "n1", mirrors = ["n2", "n3"] }]
[node]
id = "n2"
[ha]
haSendHeartbeatInterval = 700
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return file


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    """Defaults < file < environment < flags: one setting given in each, taken away from the top."""
    file = write(tmp_path, "[log]\nflush_interval_ms = 1\npopulate_bytes = 1\nsegment_bytes = 16777216\n")
    environment = {"MIRRORLOG__LOG__POPULATE_BYTES": "2", "MIRRORLOG__LOG__SEGMENT_BYTES": "33554432"}
    settings = load_settings(file, ["log.segment_bytes=67108864"], environment)
    assert settings.log.segment_bytes == 67108864
    assert settings.log.populate_bytes == 2
    assert settings.log.flush_interval_ms == 1
    assert settings.ha.housekeeping_interval_ms == 20_000


def test_rocketmqs_names_and_ours_mean_the_same(tmp_path: Path) -> None:
    """The same setting by either spelling, in a file and as a flag."""
    assert load_settings(write(tmp_path, THREE_NODES), environment={}).ha.send_heartbeat_interval_ms == 700
    by_flag = load_settings(None, ["ha.send_heartbeat_interval_ms=800"], {})
    assert by_flag.ha.send_heartbeat_interval_ms == 800
    by_variable = load_settings(None, [], {"MIRRORLOG__HA__HASENDHEARTBEATINTERVAL": "900"})
    assert by_variable.ha.send_heartbeat_interval_ms == 900
    both = load_settings(write(tmp_path, THREE_NODES), ["ha.send_heartbeat_interval_ms=800"], {})
    assert both.ha.send_heartbeat_interval_ms == 800


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment given, the process's own counts."""
    monkeypatch.setenv("MIRRORLOG__NODE__ID", "n9")
    assert load_settings().node.id == "n9"


def test_a_node_alone_is_a_cluster_of_one() -> None:
    """Without members the node is its own master, on the default ports."""
    settings = load_settings(None, ["node.id=solo"], {})
    (log,) = settings.cluster.logs
    assert (log.master, log.mirrors, log.copies_wanted) == ("solo", (), 1)
    assert settings.client_bind == "127.0.0.1:7401"


def test_min_in_sync_defaults_to_the_majority_of_three(tmp_path: Path) -> None:
    """Three copies: two; two copies: one."""
    settings = load_settings(write(tmp_path, THREE_NODES), environment={})
    assert settings.cluster.logs[0].copies_wanted == 2
    two = load_settings(write(tmp_path, THREE_NODES.replace(', "n3"]', "]")), environment={})
    assert two.cluster.logs[0].copies_wanted == 1


def test_a_log_has_the_number_of_its_place_unless_one_is_written(tmp_path: Path) -> None:
    """Goal: queue ids keep their log when the list grows or, with numbers written, is put in another order."""
    text = THREE_NODES.replace("]\n[node]", ', { name = "disk", master = "n2", flush = "disk" }]\n[node]')
    logs = load_settings(write(tmp_path, text), environment={}).cluster.logs
    assert [(log.name, log.number) for log in logs] == [("main", 0), ("disk", 1)]
    text = THREE_NODES.replace("logs = [{", 'logs = [{ name = "disk", master = "n2", number = 7 }, { number = 0,')
    logs = load_settings(write(tmp_path, text), environment={}).cluster.logs
    assert [(log.name, log.number) for log in logs] == [("disk", 7), ("main", 0)]
    assert load_settings(None, [], {}).cluster.logs[0].number == 0


def test_the_reserve_is_an_eighth_of_a_small_segment() -> None:
    """Goal: a small segment is for data, too. Two sizes of a segment, and a reserve that is given."""
    assert load_settings(None, [], {}).log.reserve == 8 * 1024 * 1024
    small = load_settings(None, ["log.segment_bytes=16777216"], {})
    assert small.log.reserve == 2 * 1024 * 1024
    assert load_settings(None, ["log.reserve_bytes=4096"], {}).log.reserve == 4096


def test_bound_and_advertised_addresses_are_apart(tmp_path: Path) -> None:
    """What others use is in the members, where the node listens may be somewhere else."""
    text = THREE_NODES.replace('id = "n2"\n[ha]', 'id = "n1"\n[client]\nbind = "0.0.0.0:9000"\n[ha]')
    settings = load_settings(write(tmp_path, text), environment={})
    assert settings.client_bind == "0.0.0.0:9000"
    assert settings.member.client == "10.0.0.1:7401"


def test_a_node_that_joins_tells_where_it_is_reached() -> None:
    """By what it advertises, else by what it binds; a door that is off may be bound anywhere."""
    flags = ["cluster.join=['10.0.0.1:7402']", "node.id=n4", "replication.bind=0.0.0.0:7402"]
    flags += ["replication.advertise=10.0.0.4:7402", "client.bind=10.0.0.4:9000", "grpc.bind=0.0.0.0:1"]
    settings = load_settings(None, [*flags, "grpc.enabled=false"], {})
    assert settings.member.replication == "10.0.0.4:7402"
    assert settings.replication_bind == "0.0.0.0:7402"
    assert settings.member.client == settings.client_bind == "10.0.0.4:9000"
    assert settings.cluster.looks


JOINING = ["cluster.join=['a.example:7402','b.example:7402']"]


@pytest.mark.parametrize(
    ("flags", "bound", "advertised"),
    [
        (["replication.bind=10.0.0.4:9"], "10.0.0.4", "10.0.0.4"),
        (["replication.bind=[2001:db8::4]:9"], "[2001:db8::4]", "[2001:db8::4]"),
        (["replication.advertise=n4.example:9"], "n4.example", "n4.example"),
        (["replication.bind=0.0.0.0:9", "replication.advertise=n4.example:9"], "0.0.0.0", "n4.example"),
        (["http.bind=10.0.0.9:1", "replication.bind=10.0.0.4:9"], "10.0.0.4", "10.0.0.4"),
        ([*JOINING, "client.bind=10.0.0.4:7401"], "10.0.0.4", "10.0.0.4"),
        ([*JOINING, "grpc.bind=0.0.0.0:7403", "grpc.advertise=n4.example:7403"], "0.0.0.0", "n4.example"),
        (["client.bind=10.0.0.4:7401"], "127.0.0.1", "127.0.0.1"),
        (["http.bind=10.0.0.4:7404"], "127.0.0.1", "127.0.0.1"),
    ],
)
def test_ports_that_are_not_set_are_on_the_host_by_which_nodes_reach_each_other(
    flags: list[str], bound: str, advertised: str
) -> None:
    """Goal: no door stays on loopback where others are told of it, and none opens because of metrics that are shown.
    Method: one port or two set in each way; every other one has its default number, and that host."""
    settings = load_settings(None, flags, {})
    set_ones = {flag.partition(".")[0] for flag in flags}
    numbers = {"client": 7401, "replication": 7402, "grpc": 7403, "http": 7404}
    for name, number in numbers.items():
        if name not in set_ones:
            found = getattr(settings, f"{name}_bind"), getattr(settings.member, name)
            assert found == (f"{bound}:{number}", f"{advertised}:{number}"), name


def test_a_derived_address_says_so() -> None:
    """Goal: --print-config tells why a door is where it is. Method: one port set, one door off, then read again."""
    loaded = load(None, ["replication.bind=10.0.0.4:9", "grpc.enabled=false"], {})
    printed = json.loads(as_json(loaded))
    assert printed["http"]["bind"] == {"value": "10.0.0.4:7404", "origin": "derived from replication"}
    assert printed["client"]["bind"] == {"value": "10.0.0.4:7401", "origin": "derived from replication"}
    assert printed["replication"]["bind"]["origin"] == "command line"
    assert printed["grpc"]["bind"] == {"value": None, "origin": "default"}
    assert loaded.settings.member.grpc is None
    alone = json.loads(as_json(load(None, [], {})))
    assert alone["client"]["bind"] == {"value": None, "origin": "default"}


def test_the_members_table_says_where_ports_are(tmp_path: Path) -> None:
    """Goal: what is the same on every node is not second-guessed. Method: a table without doors, one port bound."""
    settings = load_settings(write(tmp_path, THREE_NODES), ["replication.bind=10.0.0.2:7402"], {})
    assert (settings.client_bind, settings.grpc_bind, settings.http_bind) == ("127.0.0.1:7401", None, None)


@pytest.mark.parametrize("name", ["client", "replication", "grpc", "http"])
def test_a_node_that_joins_others_advertises_no_loopback(name: str) -> None:
    """Goal: nobody is told an address that leads to himself. Method: one port on loopback, seeds elsewhere and here; a
    door that is off is told to nobody."""
    hosts = dict.fromkeys(("client", "replication", "grpc", "http"), "10.0.0.4") | {name: "127.0.0.1"}
    flags = [f"{each}.bind={host}:{number}" for number, (each, host) in enumerate(hosts.items(), 1)]
    with pytest.raises(ConfigError, match=rf"set {name}\.advertise, or {name}\.bind"):
        load_settings(None, [*JOINING, *flags], {})
    assert load_settings(None, ["cluster.join=['localhost:7402']", *flags], {}).cluster.looks
    if name in ("grpc", "http"):
        assert getattr(load_settings(None, [*JOINING, *flags, f"{name}.enabled=false"], {}).member, name) is None


def patterns(schema: object) -> set[str]:
    """All that stand in a JSON schema."""
    if isinstance(schema, list):
        return {found for each in schema for found in patterns(each)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
    return own | {found for each in schema.values() for found in patterns(each)}


def test_every_pattern_has_words() -> None:
    """Goal: nobody has to read a pattern. Method: all of the settings' schema have theirs, and there are no others."""
    assert patterns(Settings.model_json_schema()) == set(PATTERN_WORDS)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("cluster.join=['nohost']", "cluster.join.0: 'nohost' is not host:port, e.g. a.example:7402"),
        ("client.bind='h:65536'", "client.bind: 'h:65536' is not host:port"),
        ("node.id=''", "node.id: '' is no name: 1 to 128 letters"),
        (f"node.id='{'x' * 1000}'", f"node.id: '{'x' * 80}' is no name"),
    ],
)
def test_what_matches_no_pattern_is_told_in_words(flag: str, said: str) -> None:
    """Goal: the operator sees what to write. Method: what was written, at most 80 characters of it, and the words."""
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [flag], {})
    assert str(caught.value).startswith(said)
    assert "pattern" not in str(caught.value)


def test_what_a_section_advertises_leaves_the_members_table_alone(tmp_path: Path) -> None:
    """The table founds the cluster and is the same on every node; by an address that only this node knows of."""
    plain = load_settings(write(tmp_path, THREE_NODES), environment={})
    told = load_settings(write(tmp_path, THREE_NODES), ["client.advertise=10.9.9.9:1"], {})
    assert told.cluster.members == plain.cluster.members
    assert (told.member.client, told.client_bind) == ("10.9.9.9:1", "10.9.9.9:1")


def test_a_witness_alone_begins_without_a_log() -> None:
    """It could not hold it."""
    assert load_settings(None, ["node.witness=true"], {}).cluster.logs == ()


def test_a_cluster_that_is_found_is_the_one_that_was_meant() -> None:
    """By what is said of it: its id, else its name, else nothing."""
    found, other = UUID(int=1), UUID(int=2)
    assert load_settings(None, [], {}).cluster.is_this(found, "any")
    named = load_settings(None, ["cluster.name=x"], {}).cluster
    assert named.is_this(found, "x")
    assert not named.is_this(found, "y")
    known = load_settings(None, [f"cluster.id='{found}'"], {}).cluster
    assert known.is_this(found, "any")
    assert not known.is_this(other, "mirrorlog")
    assert load_settings(None, [], {}).cluster.known_as(other, "z").cluster_id == other


def test_the_cluster_id_follows_from_the_name_and_the_log_id_from_both(tmp_path: Path) -> None:
    """All nodes of a cluster come to the same ids by themselves, other clusters to others."""
    file = write(tmp_path, THREE_NODES)
    first = load_settings(file, ["node.id=n1"], {}).cluster
    second = load_settings(file, ["node.id=n3"], {}).cluster
    assert (first.cluster_id, first.log_id(first.logs[0])) == (second.cluster_id, second.log_id(second.logs[0]))
    other = load_settings(write(tmp_path, THREE_NODES.replace("production", "staging")), environment={}).cluster
    assert other.cluster_id != first.cluster_id


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    """--print-config gives a file of the same settings, under the names that files use."""
    loaded = load(write(tmp_path, THREE_NODES), environment={})
    again = load(write(tmp_path, as_toml(loaded)), environment={})
    assert again.settings == loaded.settings
    printed = json.loads(as_json(loaded))
    assert printed["ha"]["haSendHeartbeatInterval"]["value"] == 700
    assert printed["log"]["mappedFileSizeCommitLog"]["value"] == 1024**3


def test_each_value_says_what_it_means() -> None:
    """Every description of a field stands whole as a comment right above its key, set or not; the rest has none."""
    lines = as_toml(load(environment={})).splitlines()
    for section, model in Settings.model_fields.items():
        for name, field in model.annotation.model_fields.items():
            key = field.alias or name
            at = lines.index(f"[{section}]") + 1
            while not lines[at].removeprefix("# ").startswith(f"{key} ="):
                at += 1
            above: list[str] = []
            while re.match("# (?![A-Za-z_]+ =)", lines[at - 1]):
                at -= 1
                above.insert(0, lines[at].removeprefix("# "))
            assert " ".join(above) == (field.description or ""), f"{section}.{key}"


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
    """The layer that gave it last; by one value from each, and one that two of them give."""
    file = write(tmp_path, "[log]\nsegment_bytes = 33554432\npopulate_bytes = 4096\n[ha]\nsyncFlushTimeout = 1000\n")
    environment = {"MIRRORLOG__LOG__POPULATE_BYTES": "8192", "MIRRORLOG__LOG__FLUSH_BYTES": "1048576"}
    printed = json.loads(as_json(load(file, ["log.flush_bytes=2097152"], environment)))
    origins = {key: each["origin"] for section in printed.values() for key, each in section.items()}
    assert origins["mappedFileSizeCommitLog"] == origins["syncFlushTimeout"] == str(file)
    assert origins["populate_bytes"] == "environment"
    assert origins["flush_bytes"] == "command line"
    assert origins["retention_ms"] == "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[node]\nname = 'x'", "node.name: no such key"),
        ("[log]\nsegmentbytes = 1", "log.segmentbytes: no such key; did you mean log.segment_bytes?"),
        ("[ha]\nhaSendHartbeatInterval = 1", "did you mean ha.haSendHeartbeatInterval?"),
        ("[limits]\nsync_flush_timeout_ms = 1", "did you mean ha.sync_flush_timeout_ms?"),
        ("[nodes]\nid = 'x'", "nodes: no such key"),
        ("[log]\nsegment_bytes = 1", "log.segment_bytes"),
        ("[log]\nsegment_bytes = 1048576", "must hold at least one batch"),
        ("[limits]\nmax_record_bytes = 'many'", "limits.max_record_bytes"),
        ("[node]\nid = 'not a name'", "node.id"),
        ("[client]\nbind = 'nowhere'", "client.bind"),
        ("[cluster]\nmembers = [{ id = 'n1' }, { id = 'n1' }]", "names a node twice"),
        ("[cluster]\nmembers = [{ id = 'n1' }]\nlogs = [{ master = 'n9' }]", "assigned to n9"),
        ("[cluster]\nmembers = [{ id = 'n1' }]\nlogs = [{ master = 'n1', min_in_sync = 2 }]", "above its 1 copies"),
        ("[cluster]\nmembers = [{ id = 'n2' }]", "not in [[cluster.members]]"),
        ("[node", "not TOML"),
        ("[client]\nbind = 'host:65536'", "client.bind"),
        ("[ha]\nhaHousekeepingInterval = 5000", "must be above"),
        ("[limits]\noutgoing_bytes_max = 1048576", "two batches"),
        ("[cluster]\nmembers = [{ id = 'n1' }]\nlogs = [{ master = 'n1' }, { master = 'n1' }]", "names a log twice"),
        (
            "[cluster]\nmembers = [{ id = 'a' }]\nlogs = [{ master = 'a', number = 1 }, { name = 'b', master = 'a' }]",
            "gives a number twice (main 1, b 1)",
        ),
        ("[cluster]\nmembers = [{ id = 'n1' }]\nlogs = [{ master = 'n1', number = 256 }]", "cluster.logs.0.number"),
        ("[log]\ndisk_full_percent = 11", "cannot be above"),
        ("[limits]\nmemory_high_percent = 59", "memory_low_percent cannot be above memory_high_percent"),
        ("[log]\ndisk_full_bytes = 100\ndisk_low_bytes = 99", "cannot be above"),
        ("node = 3", "a table of keys"),
        ("[cluster]\nmembers = [{ id = 'n1' }]\njoin = ['a:1']", "give only one of them"),
        ("[cluster]\nmembers = [{ id = 'n1' }]\ndiscovery = 'multicast'", "give only one of them"),
        ("[cluster]\njoin = ['nowhere']", "cluster.join.0"),
        ("[cluster]\ndiscovery = 'dns'", "cluster.discovery"),
        ("[cluster]\nmulticast_group = '10.0.0.1'", "no IPv4 multicast address"),
        ("[cluster]\nmulticast_interface = 'eth0'", "no IPv4 address"),
        ("[cluster]\nmulticast_interface = '239.1.1.1'", "an IPv4 multicast address"),
        ("[client]\nbind = '0.0.0.0:7401'", "set client.advertise"),
        ("[replication]\nbind = '[::]:7402'", "set replication.advertise"),
        ("[grpc]\nbind = '0.0.0.0:7403'", "set grpc.advertise"),
        ("[http]\nadvertise = '0.0.0.0:7404'", "set http.advertise"),
        ("[replication]\nbind = '0:7402'", "set replication.advertise"),
        ("[client]\nbind = '[::0]:7401'\n[replication]\nbind = '10.0.0.1:7402'", "set client.advertise"),
        ("[cluster]\njoin = ['a:1']\n[client]\nbind = '0.0.0.0:7401'", "set client.advertise"),
        ("[cluster]\njoin = ['10.0.0.1:7402']", "replication.advertise"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    """Each mistake gives ConfigError, one line, with the key or the reason."""
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text), environment={})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_sources_are_named(tmp_path: Path) -> None:
    """A file that is not there, a flag that is none, a variable of no section."""
    with pytest.raises(ConfigError, match="give an existing file"):
        load_settings(tmp_path / "absent.toml", environment={})
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_settings(None, ["node.id"], {})
    with pytest.raises(ConfigError, match="no such section"):
        load_settings(None, [], {"MIRRORLOG__NOED__ID": "x"})


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:x", "host:65536"])
def test_an_address_has_host_and_port(address: str) -> None:
    """Anything else is refused; IPv6 addresses lose their brackets."""
    with pytest.raises(ConfigError):
        split_address(address)
    assert split_address("[::1]:80") == ("::1", 80)
