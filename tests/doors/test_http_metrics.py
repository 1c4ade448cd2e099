"""A node's status as metrics: every number where it belongs, and never more series than a scraper can bear."""

from __future__ import annotations

import re

import pytest

from mirrorlog.doors.http.metric_families import SERIES_MAX
from mirrorlog.wire.messages.status import LossStatus, QueueStatus
from tests.doors.http_door import samples, value
from tests.doors.http_statuses import (
    CLUSTER,
    COUNTS,
    DISK,
    EVERYTHING,
    MEMORY,
    acking,
    counts,
    group,
    hold,
    in_cluster,
    log,
    log_counts,
    member,
    mirror,
    placed,
    queue,
    scraped,
)

MIRROR = {
    "connected": 1,
    "in_sync": 1,
    "acked_bytes": 4000,
    "flushed_bytes": 1000,
    "lag_bytes": 96,
    "lag_records": 3,
    "lag_seconds": 0.25,
    "last_received_timestamp_seconds": 1.5,
    "last_sent_timestamp_seconds": 2.5,
}


def test_every_number_of_the_status_is_told_under_its_name() -> None:
    """Goal: no number stands under another's name. Method: a status whose numbers all differ, read back."""
    found = scraped(EVERYTHING, disk=DISK, memory=MEMORY, failures=9)
    told = {
        name: value(found, f"mirrorlog_log_{name}", log="main")
        for name in ("begin_bytes", "end_bytes", "flushed_bytes", "confirmed_bytes", "epoch", "min_in_sync_copies")
    }
    assert told == {
        "begin_bytes": 64,
        "end_bytes": 4096,
        "flushed_bytes": 1024,
        "confirmed_bytes": 2048,
        "epoch": 7,
        "min_in_sync_copies": 2,
    }
    told = {name: value(found, f"mirrorlog_mirror_{name}", log="main", mirror="n2") for name in MIRROR}
    assert told == MIRROR
    told = {
        name: value(found, f"mirrorlog_queue_{name}_offset", log="main", queue="q1")
        for name in ("begin", "next", "confirmed")
    }
    assert told == {"begin": 1, "next": 5, "confirmed": 3}
    told = {
        name: value(found, f"mirrorlog_queue_{name}_total", log="main", queue="q1")
        for name in ("published_records", "delivered_records", "redelivered_records", "acked_records")
    }
    assert list(told.values()) == [21, 22, 23, 24]
    assert value(found, "mirrorlog_queue_expired_records_total", log="main", queue="q1") == 25
    assert value(found, "mirrorlog_queue_consumer_timeouts_total", log="main", queue="q1") == 26
    own = ("ready_records", "unacknowledged_records", "consumers")
    assert [value(found, f"mirrorlog_queue_{name}", log="main", queue="q1") for name in own] == [271, 272, 273]
    pinned = [value(found, f"mirrorlog_log_{name}_bytes", log="main", queue="q1") for name in ("pinning", "pinned")]
    assert pinned == [281, 282]
    assert value(found, "mirrorlog_group_lag_records", log="main", queue="q1", group="g") == 2
    assert value(found, "mirrorlog_group_position_offset", log="main", queue="q1", group="g") == 11
    assert (value(found, "mirrorlog_disk_free_bytes"), value(found, "mirrorlog_disk_size_bytes")) == (10, 100)
    assert (value(found, "mirrorlog_memory_used_bytes"), value(found, "mirrorlog_memory_high_bytes")) == (80, 70)
    assert value(found, "mirrorlog_certificate_expiry_timestamp_seconds") == 1_900_000_000
    assert (value(found, "mirrorlog_log_queues", log="main"), value(found, "mirrorlog_log_groups", log="main")) == (
        1,
        1,
    )
    assert value(found, "mirrorlog_node_time_seconds") == 3
    assert value(found, "mirrorlog_scrape_duration_seconds") == 0.5
    assert value(found, "mirrorlog_scrape_failures_total") == 9


def test_who_the_node_is_stands_in_labels() -> None:
    """Goal: version and start id can be joined to every other number. Method: the info families of a scrape."""
    found = scraped(EVERYTHING)
    node = {"cluster": "c", "cluster_id": "id of c", "node": "n1", "start_id": "s1", "version": "1.2.3"}
    assert samples(found, "mirrorlog_node_info") == [(node, 1)]
    assert samples(found, "mirrorlog_log_info") == [({"log": "main", "log_id": "id of main", "flush": "memory"}, 1)]


def test_names_and_units_follow_the_conventions() -> None:
    """Goal: what a dashboard can rely on. Method: look at every family of a full status."""
    found = scraped(EVERYTHING, disk=DISK, memory=MEMORY, cluster=CLUSTER, counted=COUNTS)
    for name, family in found.items():
        assert re.fullmatch(r"mirrorlog_[a-z]+(_[a-z]+)*", name), name
        assert (family.type == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(ms|us|kib|mib|percent|ratio)(_|$)", name), name
        assert len(family.documentation) > 15, name
        assert family.samples, f"{name} is not shown by a full status"


@pytest.mark.parametrize(
    ("family", "state", "facts"),
    [
        ("role", "mirror", {"role": "mirror", "state": "following"}),
        ("state", "recovering", {"state": "recovering"}),
        ("state", "dreaming", {"state": "dreaming"}),
        ("role", "observer", {"role": "observer"}),
    ],
)
def test_exactly_one_state_is_1_also_one_that_is_not_known_yet(family: str, state: str, facts: dict[str, str]) -> None:
    """Goal: an alert on a state never misses. Method: known states, and one that a newer node may have."""
    found = samples(scraped(log(**facts)), f"mirrorlog_log_{family}")
    assert [labels[family] for labels, number in found if number == 1] == [state]
    assert all(number == 0 for labels, number in found if labels[family] != state)
    assert len(found) >= 3


@pytest.mark.parametrize("state", ["corrupt", "opening"])
def test_a_copy_that_cannot_be_read_tells_its_state_and_no_offsets(state: str) -> None:
    """Goal: the zeros in such a status are not taken for offsets. Method: a corrupt log beside a sound one."""
    zeros = {"epoch": 0, "begin": 0, "end": 0, "flushed": 0, "confirmed": 0}
    found = scraped(log("bad", state=state, **zeros), log("good", mirrors=[mirror("n2")]))
    assert value(found, "mirrorlog_log_state", log="bad", state=state) == 1
    assert value(found, "mirrorlog_log_min_in_sync_copies", log="bad") == 2
    for name in ("epoch", "begin_bytes", "end_bytes", "flushed_bytes", "confirmed_bytes", "copies", "in_sync_copies"):
        assert [labels for labels, _ in samples(found, f"mirrorlog_log_{name}")] == [{"log": "good"}], name
    # It has no mirror in sync either, but that is not known.
    assert value(found, "mirrorlog_logs_without_in_sync_mirror") == 0


def test_copies_are_counted_by_the_master_alone() -> None:
    """Goal: a sum over nodes counts each copy once. Method: three logs here, one of them as a mirror."""
    gone = mirror("n3", connected=False, in_sync=False, last_read_us=None, last_write_us=None, acked=-1, flushed=-1)
    found = scraped(
        log("two", mirrors=[mirror("n2"), gone]),
        log("alone", mirrors=[gone]),
        log("bare"),
        log("other", role="mirror", state="following"),
    )
    assert samples(found, "mirrorlog_log_copies") == [({"log": "two"}, 3), ({"log": "alone"}, 2), ({"log": "bare"}, 1)]
    in_sync = [({"log": "two"}, 2), ({"log": "alone"}, 1), ({"log": "bare"}, 1)]
    assert samples(found, "mirrorlog_log_in_sync_copies") == in_sync
    assert value(found, "mirrorlog_logs_without_in_sync_mirror") == 2
    assert value(found, "mirrorlog_mirror_connected", log="two", mirror="n3") == 0
    # What is not known yet is left out, and not -1 or 1970.
    for name in ("acked_bytes", "flushed_bytes", "last_received_timestamp_seconds", "last_sent_timestamp_seconds"):
        assert samples(found, f"mirrorlog_mirror_{name}") == [({"log": "two", "mirror": "n2"}, MIRROR[name])], name


def test_a_disk_or_memory_that_could_not_be_measured_has_no_numbers() -> None:
    """Goal: an unknown size is not 0. Method: a status without a disk and memory, and one with."""
    found = scraped(log())
    for name in ("state", "free_bytes", "size_bytes"):
        assert samples(found, f"mirrorlog_disk_{name}") == []
    states = samples(scraped(log(), disk=DISK), "mirrorlog_disk_state")
    assert states == [({"state": "ok"}, 0), ({"state": "low"}, 1), ({"state": "full"}, 0)]
    for name in ("state", "used_bytes", "high_bytes"):
        assert samples(found, f"mirrorlog_memory_{name}") == []
    states = samples(scraped(log(), memory=MEMORY), "mirrorlog_memory_state")
    assert states == [({"state": "ok"}, 0), ({"state": "high"}, 1)]


def test_the_view_is_told_under_its_names() -> None:
    """Goal: no number of the cluster stands under another's name. Method: numbers that all differ, read back."""
    found = scraped(log(), cluster=CLUSTER)
    names: tuple[str, ...] = ("version", "incarnation", "term", "registered", "elections_total", "active_version")
    assert [value(found, f"mirrorlog_cluster_{name}") for name in names] == [12, 2, 34, 1, 3, 5]
    names = ("has_master", "copies", "wanted_copies", "in_sync_copies", "marked_copies")
    assert [value(found, f"mirrorlog_cluster_log_{name}", log="main") for name in names] == [1, 3, 4, 2, 1]


def test_members_are_told_with_who_coordinates_and_how_they_are_seen() -> None:
    """Goal: a death shows. Method: three members of different lives, one with a start, one a witness that drains."""
    nodes = [
        member(1, start_id="s1", kind="died", software_version=5),
        member(2, "down", stopped=True),
        member(3, "unknown", witness=True, draining=True, software_version=0),
    ]
    found = scraped(log(), cluster=in_cluster(nodes, [], coordinator="n2"))
    assert samples(found, "mirrorlog_cluster_coordinator") == [({"node": f"n{n}"}, n == 2) for n in (1, 2, 3)]
    lives = [labels for labels, number in samples(found, "mirrorlog_cluster_node_life") if number]
    assert lives == [{"node": "n1", "life": "up"}, {"node": "n2", "life": "down"}, {"node": "n3", "life": "unknown"}]
    assert [number for _, number in samples(found, "mirrorlog_cluster_node_draining")] == [0, 0, 1]
    assert [number for _, number in samples(found, "mirrorlog_cluster_node_stopped")] == [0, 1, 0]
    names = ("node", "start_id", "kind", "witness")
    infos = [tuple(labels[name] for name in names) for labels, _ in samples(found, "mirrorlog_cluster_node_info")]
    assert infos == [("n1", "s1", "died", "false"), ("n2", "", "", "false"), ("n3", "", "", "true")]
    assert samples(found, "mirrorlog_cluster_software_version") == [({"node": "n1"}, 5), ({"node": "n2"}, 6)]
    nobody = scraped(log(), cluster=in_cluster(nodes, [], coordinator=""))
    assert not any(number for _, number in samples(nobody, "mirrorlog_cluster_coordinator"))


def test_lost_ranges_are_counted_and_measured_as_far_as_their_end_is_known() -> None:
    """Goal: a loss shows at once, its size when it is known. Method: no loss, two known ones and one open."""
    losses = [
        LossStatus(epoch=2, start=100, end=164),
        LossStatus(epoch=3, start=200, end=208),
        LossStatus(epoch=4, start=300),
    ]
    found = scraped(log(), cluster=in_cluster([], [placed("lost", losses=losses, master=""), placed("whole")]))
    told = {
        name: [value(found, f"mirrorlog_cluster_log_{name}", log=each) for each in ("lost", "whole")]
        for name in ("lost_ranges", "open_lost_ranges", "lost_bytes", "has_master")
    }
    assert told == {"lost_ranges": [3, 0], "open_lost_ranges": [1, 0], "lost_bytes": [72, 0], "has_master": [0, 1]}


def test_every_count_is_told_under_its_name() -> None:
    """Goal: no count stands under another's name. Method: counts that all differ, read back."""
    found = scraped(log(), counted=COUNTS)
    names: tuple[str, ...] = (
        "published_batches",
        "published_records",
        "published_bytes",
        "received_bytes",
        "fetches",
        "fetched_bytes",
    )
    told = [value(found, f"mirrorlog_log_{name}_total", log="main") for name in names]
    assert told == [81, 82, 83, 86, 87, 88]
    names = ("flushes", "synced_bytes", "promotions")
    assert [value(found, f"mirrorlog_log_{name}_total", log="main") for name in names] == [89, 90, 91]
    assert value(found, "mirrorlog_log_publishes_unknown_total", log="main", code="MASTER_CHANGED") == 84
    assert value(found, "mirrorlog_mirror_sent_bytes_total", log="main", mirror="n2") == 85
    assert value(found, "mirrorlog_publishes_refused_total", code="NO_SUCH_QUEUE") == 75
    ports = ("client", "replication")
    assert [value(found, "mirrorlog_connections_accepted_total", port=port) for port in ports] == [71, 72]
    assert [value(found, "mirrorlog_connections", port=port) for port in ports] == [73, 74]
    assert [value(found, "mirrorlog_connections_strangers", port=port) for port in ports] == [77, 78]
    assert value(found, "mirrorlog_logins_failed_total", reason="password") == 79
    assert value(found, "mirrorlog_rights_refused_total", right="read") == 92
    assert value(found, "mirrorlog_users_held_seconds_total", limit="publish_byte_rate") == 9.5
    names = ("links_opened", "links_closed", "questions_failed")
    assert [value(found, f"mirrorlog_member_{name}_total") for name in names] == [9, 7, 76]


def test_how_long_confirms_take_is_a_histogram_that_prometheus_can_sum() -> None:
    """Goal: quantiles over logs and nodes. Method: two logs; each bucket has what is in those below, the last one all,
    and so says the count."""
    found = scraped(log(), counted=counts(log_counts(), log_counts("other", durations=(0, 0, 3), sum_s=9.0)))
    family = found["mirrorlog_log_confirm_duration_seconds"]
    assert family.type == "histogram"
    told = {
        name: [(each.name.rpartition("_")[2], each.labels.get("le"), each.value) for each in family.samples
               if each.labels["log"] == name]
        for name in ("main", "other")
    }  # fmt: skip
    assert told["main"] == [
        ("bucket", "0.5", 1), ("bucket", "1.0", 3), ("bucket", "+Inf", 7), ("count", None, 7), ("sum", None, 1.5),
    ]  # fmt: skip
    assert told["other"][2:] == [("bucket", "+Inf", 3), ("count", None, 3), ("sum", None, 9)]


def test_a_node_that_is_older_than_counts_tells_none() -> None:
    """Goal: not known is not 0. Method: a status without counts."""
    found = scraped(log())
    for name in ("mirrorlog_connections", "mirrorlog_log_fetches_total", "mirrorlog_log_confirm_duration_seconds"):
        assert samples(found, name) == [], name


def test_a_node_in_no_cluster_tells_nothing_of_one() -> None:
    """Goal: no view is no zeros. Method: a status without a cluster."""
    found = scraped(log())
    told = [name for name, family in found.items() if name.startswith("mirrorlog_cluster_") and family.samples]
    assert told == []


def test_queues_beyond_the_limit_are_one_sum() -> None:
    """Goal: a bound on series, and sums that stay right. Method: three queues too many, with different numbers."""
    count = SERIES_MAX + 3
    queues = [queue(number, begin=number, following=3 * number, confirmed=2 * number) for number in range(1, count + 1)]
    found = scraped(log(queues=queues))
    assert value(found, "mirrorlog_log_queues", log="main") == count
    for name, factor in (("begin", 1), ("next", 3), ("confirmed", 2)):
        told = samples(found, f"mirrorlog_queue_{name}_offset")
        assert len(told) == SERIES_MAX + 1
        assert sum(number for _, number in told) == factor * count * (count + 1) / 2
        rest = factor * sum(range(SERIES_MAX + 1, count + 1))
        assert value(found, f"mirrorlog_queue_{name}_offset", log="main", queue="") == rest


def test_at_the_limit_every_queue_has_a_series_of_its_own() -> None:
    """Goal: no sum of nothing. Method: exactly as many queues as may have one."""
    found = scraped(log(queues=[queue(number) for number in range(1, SERIES_MAX + 1)]))
    told = samples(found, "mirrorlog_queue_next_offset")
    assert len(told) == SERIES_MAX
    assert all(labels["queue"] for labels, _ in told)


def test_a_new_queue_takes_the_series_of_no_older_one() -> None:
    """Goal: series do not come and go. Method: declare one more, with a name that sorts first, and compare."""
    queues = [queue(number) for number in range(1, SERIES_MAX + 2)]
    newest = queue(SERIES_MAX + 2, "a-first-name")

    def named(*all_queues: QueueStatus) -> set[str]:
        found = samples(scraped(log(queues=[*all_queues])), "mirrorlog_queue_next_offset")
        return {labels["queue"] for labels, _ in found}

    assert named(newest, *queues) == named(*queues)


def test_a_log_with_very_many_queues_leaves_room_for_those_of_another() -> None:
    """Goal: no log is blind because of another. Method: one with too many queues, told first, and one with three."""
    many = [queue(number) for number in range(1, SERIES_MAX + 2)]
    few = [queue((1 << 24) + number, f"f{number}") for number in range(1, 4)]
    found = samples(scraped(log("many", queues=many), log("few", queues=few)), "mirrorlog_queue_next_offset")
    assert {labels["queue"] for labels, _ in found if labels["log"] == "few"} == {"f1", "f2", "f3"}
    assert ({"log": "many", "queue": ""}, 4 * 5) in found


def test_groups_beyond_the_limit_are_one_sum() -> None:
    """Goal: many groups of one queue are bounded too. Method: two too many on one queue."""
    groups = [group("q1", f"g{number:05}", lag=number) for number in range(SERIES_MAX + 2)]
    found = scraped(log(queues=[queue(1)], groups=groups))
    assert value(found, "mirrorlog_log_groups", log="main") == SERIES_MAX + 2
    told = samples(found, "mirrorlog_group_lag_records")
    assert len(told) == SERIES_MAX + 1
    rest = SERIES_MAX + SERIES_MAX + 1
    assert value(found, "mirrorlog_group_lag_records", log="main", queue="", group="") == rest
    assert sum(number for _, number in told) == sum(range(SERIES_MAX + 2))


def test_groups_that_ack_are_told_with_what_waits_in_them() -> None:
    """Goal: one alert for each kind of waiting. Method: the queue's own group, which is told as the queue's, and one
    with a name."""
    found = scraped(log(queues=[queue(1)], acking=[acking("q1", ""), acking("q1", "billing")]))
    assert value(found, "mirrorlog_queue_delayed_records", log="main", queue="q1") == 274
    assert value(found, "mirrorlog_queue_oldest_seconds", log="main", queue="q1") == 275
    families = {
        "ready_records": 281, "unacknowledged_records": 282, "delayed_records": 283, "consumers": 285,
        "delivered_records_total": 286, "acked_records_total": 287, "dead_lettered_records_total": 288,
        "oldest_seconds": 289,
    }  # fmt: skip
    told = {name: samples(found, f"mirrorlog_group_{name}") for name in families}
    one = {"log": "main", "queue": "q1", "group": "billing"}
    assert told == {name: [(one, number)] for name, number in families.items()}


def test_the_bound_on_series_is_a_setting() -> None:
    """Goal: who has more queues, or less memory for them, says so. Method: five queues and five groups, two of each."""
    names = [f"g{number}" for number in range(5)]
    logged = log(queues=[queue(number) for number in range(1, 6)], acking=[acking("q1", name) for name in names])
    found = scraped(logged, series_max=2)
    assert len(samples(found, "mirrorlog_queue_ready_records")) == len(samples(found, "mirrorlog_group_consumers")) == 3
    assert value(found, "mirrorlog_queue_ready_records", log="main", queue="") == 3 * 271
    assert len(samples(found, "mirrorlog_queue_oldest_seconds")) == 2, "ages are not added up"
    assert samples(scraped(logged, series_max=0), "mirrorlog_queue_oldest_seconds") == []


def test_landings_are_told_with_what_they_keep() -> None:
    """Goal: an alert on a landing that falls behind. Method: one that runs, one that ended, and one as a mirror tells
    of it; beyond the limit they are one sum."""
    ended = hold("q1", "old", ended="expired", left_ms=0, kept_bytes=-1)
    found = scraped(log(holds=[hold("q1"), ended, hold("q2", left_ms=-1, kept_bytes=-1)]))
    assert value(found, "mirrorlog_log_holds", log="main") == 3
    labels = {"log": "main", "queue": "q1", "landing": "lake"}
    told = {
        name: value(found, f"mirrorlog_hold_{name}", **labels) for name in ("position_offset", "lag_records", "live")
    }
    assert told == {"position_offset": 12, "lag_records": 8, "live": 1}
    assert value(found, "mirrorlog_hold_live", log="main", queue="q1", landing="old") == 0
    assert samples(found, "mirrorlog_hold_kept_bytes") == [(labels, 640)]
    assert samples(found, "mirrorlog_hold_lease_left_seconds")[0] == (labels, 30.5)
    many = scraped(log(holds=[hold("q1", f"l{number:04}", lag=number) for number in range(SERIES_MAX + 2)]))
    assert value(many, "mirrorlog_hold_lag_records", log="main", queue="", landing="") == 2 * SERIES_MAX + 1


@pytest.mark.parametrize(
    "name", ['"', "\\", "\n", 'a"} 1\nmirrorlog_evil{x="', "größe 🐇", "{}", "\\n", "a,b=c", "\r\t\x00"]
)
def test_any_name_comes_through_as_it_is(name: str) -> None:
    """Goal: a queue's name can neither break a scrape nor forge a metric. Method: hostile names, read back."""
    found = scraped(log(queues=[queue(1, name)], groups=[group(name, name)]))
    assert samples(found, "mirrorlog_queue_next_offset") == [({"log": "main", "queue": name}, 5)]
    assert samples(found, "mirrorlog_group_lag_records") == [({"log": "main", "queue": name, "group": name}, 2)]
    assert found.keys() == scraped(EVERYTHING).keys()
