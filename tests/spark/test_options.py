"""Options in the Kafka source's words; every wrong one is an error that names it. No JVM."""

from __future__ import annotations

import json

import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.options import (
    COLUMNS,
    EARLIEST,
    KAFKA_COLUMNS,
    LATEST,
    AtTime,
    SourceOptions,
    TriggerLimits,
    offsets_json,
    parse_options,
)
from mirrorlog.spark.positions import QueuePosition

LEAST = {"servers": "127.0.0.1:7401", "subscribe": "q"}


def test_servers_and_queue_are_enough() -> None:
    """Goal: the defaults are the documented ones. Parse the two options that are required."""
    assert parse_options(LEAST) == SourceOptions(
        servers=("127.0.0.1:7401",),
        queues=("q",),
        starting="earliest",
        ending="latest",
        min_partitions=1,
        include_headers=False,
        fail_on_data_loss=True,
        read_from="master",
        access=NO_ACCESS,
    )


def test_all_options_together_and_names_in_any_case() -> None:
    """Goal: a Kafka job's options fit. All of them, spelt as Spark hands them on: in small letters."""
    given = {
        "kafka.bootstrap.servers": "a:1, b:2",
        "subscribe": "q, r",
        "startingoffsets": '{"q": {"0": 5}, "r": {"0": -2}}',
        "ENDINGOFFSETS": '{"q": {"0": 7}, "r": {"0": -1}}',
        "minPartitions": "4",
        "maxRecordsPerPartition": "1000",
        "maxOffsetsPerTrigger": "500",
        "minOffsetsPerTrigger": "50",
        "maxTriggerDelay": "90s",
        "includeheaders": "TRUE",
        "includePosition": "true",
        "columns": "value, offset",
        "failOnDataLoss": "false",
        "pushdown": "true",
        "read_from": "mirror",
        "TLS_CA": "ca.pem",
        "tls_cert": "c.pem",
        "tls_key": "c.key",
    }
    assert parse_options(given) == SourceOptions(
        servers=("a:1", "b:2"),
        queues=("q", "r"),
        starting={"q": 5, "r": EARLIEST},
        ending={"q": 7, "r": LATEST},
        min_partitions=4,
        partition_records_max=1000,
        limits=TriggerLimits(500, 50, 90_000),
        include_headers=True,
        include_position=True,
        columns=("value", "offset"),
        fail_on_data_loss=False,
        pushdown=True,
        read_from="mirror",
        access=Access("ca.pem", "c.pem", "c.key"),
    )


def test_files_and_a_pattern_instead_of_nodes_and_names() -> None:
    """Goal: the other two ways to say what is read. Method: both, and which names match: whole ones."""
    parsed = parse_options({"path": "/archive", "subscribePattern": "flights-[0-9]+"})
    assert (parsed.path, parsed.servers, parsed.queues) == ("/archive", (), ())
    assert [name for name in ("flights-1", "flights-", "my-flights-1", "flights-12") if parsed.subscribes(name)] == [
        "flights-1",
        "flights-12",
    ]
    assert parse_options(LEAST).subscribes("q")
    assert not parse_options(LEAST).subscribes("qq")


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({}, KAFKA_COLUMNS),
        ({"includeHeaders": "true"}, (*KAFKA_COLUMNS, "headers")),
        ({"includePosition": "true"}, (*KAFKA_COLUMNS, "logId", "epoch", "appendTime")),
        ({"includeHeaders": "true", "includePosition": "true"}, COLUMNS),
        ({"columns": "offset,headers,appendTime"}, ("offset", "headers", "appendTime")),
    ],
)
def test_the_columns_that_rows_have(given: dict[str, str], columns: tuple[str, ...]) -> None:
    """Goal: the Kafka source's, and more or fewer when asked for. Method: each option, and both together."""
    assert parse_options({**LEAST, **given}).column_names == columns


def test_positions_are_offsets_too() -> None:
    """Goal: what a stream stored can start a batch. Method: an object in place of a number, beside a plain one."""
    position = QueuePosition(17, 4, "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8", "first")
    text = json.dumps({**json.loads(offsets_json("q", position)), "r": {"0": 3}})
    parsed = parse_options({**LEAST, "subscribe": "q,r", "startingOffsets": text})
    assert parsed.starting == {"q": position, "r": 3}


def test_times_are_ms_and_stand_above_offsets() -> None:
    """Goal: the Kafka source's options for times, with its unit and precedence. Method: one for all, and per queue."""
    both = {"startingOffsets": '{"q":{"0":1}}', "startingTimestamp": "1700000000123"}
    parsed = parse_options({**LEAST, **both, "endingTimestamp": "1700000000456"})
    assert parsed.starting == AtTime(1_700_000_000_123_000)
    assert parsed.ending == AtTime(1_700_000_000_456_000, else_latest=True)
    each = {"startingOffsetsByTimestamp": '{"q":{"0":5}}', "startingOffsetsByTimestampStrategy": "latest"}
    parsed = parse_options({**LEAST, **each, "endingOffsetsByTimestamp": '{"q":{"0":7}}'})
    assert parsed.starting == AtTime(by_queue_us={"q": 5_000}, else_latest=True)
    assert parsed.ending == AtTime(by_queue_us={"q": 7_000}, else_latest=True)
    assert AtTime(by_queue_us={"q": 5_000}).of("q") == 5_000
    with pytest.raises(BadOption, match=r"queue 'r' .*no timestamp"):
        AtTime(by_queue_us={"q": 5_000}).of("r")


def test_a_stream_starts_at_latest_and_has_no_end() -> None:
    """Goal: the Kafka source's defaults. Method: nothing given, each word, and an end."""
    assert parse_options(LEAST, "stream").starting == "latest"
    assert parse_options({**LEAST, "startingOffsets": "earliest"}, "stream").starting == "earliest"
    assert parse_options({**LEAST, "startingOffsets": '{"q":{"0":-1}}'}, "stream").starting == {"q": LATEST}
    for option in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(BadOption, match=f"'{option}' is for batch reads"):
            parse_options({**LEAST, option: "latest"}, "stream")


def test_what_a_batch_and_a_stream_have_in_common_passes_for_both() -> None:
    """Goal: a schema can be told before it is known what for. Method: what only one of them takes."""
    parse_options({**LEAST, "startingOffsets": "latest"}, "either")
    parse_options({**LEAST, "endingOffsets": "latest"}, "either")
    with pytest.raises(BadOption, match="not known"):
        parse_options({**LEAST, "startingOfsets": "latest"}, "either")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("2min", 120_000), ("1 h", 3_600_000)],
)
def test_a_delay_is_written_as_spark_writes_it(text: str, milliseconds: int) -> None:
    """Goal: no surprise by a factor of 1000. Each unit."""
    assert parse_options({**LEAST, "maxTriggerDelay": text}).limits.delay_ms == milliseconds


def test_offsets_json_is_what_the_offset_options_take() -> None:
    """Goal: a job can name its range. Write one with a quote in the queue's name and parse it."""
    parsed = parse_options({**LEAST, "subscribe": 'q"', "startingOffsets": offsets_json('q"', 23)})
    assert parsed.starting == {'q"': 23}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"startingOfsets": "earliest"}, "did you mean startingOffsets", id="misspelt"),
        pytest.param({"zzz": "1"}, "'zzz' is not known; there are servers, ", id="like no other"),
        pytest.param({"tls_cert": "c.pem"}, "'tls_cert' and 'tls_key' are needed together", id="half of a pair"),
        pytest.param({"path": "/tmp"}, "'servers' is for reading from nodes", id="nodes and files"),
        pytest.param({"servers": ""}, "'servers' is missing", id="no servers"),
        pytest.param({"servers": "localhost"}, "'servers'.*localhost", id="no port"),
        pytest.param({"kafka.bootstrap.servers": "a:1"}, "mean the same", id="servers twice"),
        pytest.param({"subscribe": " ,"}, "'subscribe' is missing", id="no queue"),
        pytest.param({"subscribe": "q,q"}, "'subscribe' names a queue twice", id="a queue twice"),
        pytest.param({"startingOffsets": "latest"}, "'startingOffsets' is earliest or JSON", id="start at latest"),
        pytest.param({"endingOffsets": "earliest"}, "'endingOffsets' is latest or JSON", id="end at earliest"),
        pytest.param({"startingOffsets": "{"}, "'startingOffsets' is earliest or JSON", id="no JSON"),
        pytest.param({"startingOffsets": "[1]"}, "'startingOffsets' is earliest or JSON", id="a list"),
        pytest.param({"startingOffsets": "{}"}, "'startingOffsets' must name exactly", id="a queue missing"),
        pytest.param(
            {"startingOffsets": '{"q":{"0":1},"r":{"0":1}}'}, "'startingOffsets' must name exactly", id="a queue more"
        ),
        pytest.param({"startingOffsets": '{"q":{"1":1}}'}, "'startingOffsets'.*one partition", id="partition 1"),
        pytest.param({"startingOffsets": '{"q":7}'}, "'startingOffsets'.*one partition", id="no partition"),
        pytest.param({"startingOffsets": '{"q":{"0":-1}}'}, "'startingOffsets'.*-1 is no queue offset", id="start -1"),
        pytest.param({"endingOffsets": '{"q":{"0":-2}}'}, "'endingOffsets'.*-2 is no queue offset", id="end -2"),
        pytest.param({"endingOffsets": '{"q":{"0":-3}}'}, "'endingOffsets'.*-3 is no queue offset", id="end -3"),
        pytest.param({"endingOffsets": '{"q":{"0":true}}'}, "'endingOffsets'.*True is no queue offset", id="boolean"),
        pytest.param({"endingOffsets": '{"q":{"0":1.5}}'}, "'endingOffsets'.*1.5 is no queue offset", id="a fraction"),
        pytest.param({"minPartitions": "0"}, "'minPartitions' is a number from 1", id="no partitions"),
        pytest.param({"minPartitions": "many"}, "'minPartitions' is a number from 1", id="no number"),
        pytest.param({"minPartitions": "9" * 5000}, "'minPartitions' is a number from 1", id="too many partitions"),
        pytest.param({"includeHeaders": "yes"}, "'includeHeaders' is true or false", id="headers neither nor"),
        pytest.param({"failOnDataLoss": ""}, "'failOnDataLoss' is true or false", id="loss neither nor"),
        pytest.param({"pushdown": "1"}, "'pushdown' is true or false", id="pushdown neither nor"),
        pytest.param({"subscribePattern": "q"}, "one of the options 'subscribe' and", id="names and a pattern"),
        pytest.param({"columns": "value,valeu"}, "no column 'valeu'", id="no such column"),
        pytest.param({"columns": "value,value"}, "'columns' names a column twice", id="a column twice"),
        pytest.param({"columns": ","}, "'columns' is missing or empty", id="no columns"),
        pytest.param({"startingOffsets": '{"q":{"0":{"offset":1,"epok":2}}}'}, "no position", id="half a position"),
        pytest.param({"startingOffsets": "[" * 100_000}, "'startingOffsets' is earliest or JSON", id="deep JSON"),
        pytest.param({"startingTimestamp": "soon"}, "'startingTimestamp'.*no time in ms", id="no time"),
        pytest.param({"startingTimestamp": "1e3"}, "'startingTimestamp'.*no time in ms", id="a float"),
        pytest.param({"endingTimestamp": "9" * 30}, "'endingTimestamp'.*no time in ms", id="too late a time"),
        pytest.param({"startingOffsetsByTimestamp": '{"q":5}'}, "'startingOffsetsByTimestamp'", id="no partition time"),
        pytest.param({"startingOffsetsByTimestamp": '{"r":{"0":5}}'}, "must name exactly", id="time of another queue"),
        pytest.param({"startingOffsetsByTimestampStrategy": "earliest"}, "is error or latest", id="no strategy"),
        pytest.param({"maxRecordsPerPartition": "0"}, "'maxRecordsPerPartition' is a number from 1", id="empty tasks"),
        pytest.param({"maxOffsetsPerTrigger": "-5"}, "'maxOffsetsPerTrigger' is a number from 1", id="a debt"),
        pytest.param({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' is a duration", id="no duration"),
        pytest.param({"maxTriggerDelay": "5y"}, "'maxTriggerDelay' is a duration", id="no unit"),
        pytest.param(
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "5 is above maxOffsetsPerTrigger 4",
            id="min, max",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(given: dict[str, str], message: str) -> None:
    """Goal: nothing is guessed or ignored. Each wrong thing by itself."""
    with pytest.raises(BadOption, match=message) as refused:
        parse_options({**LEAST, **given})
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"path": ""}, "'path' is empty", id="no path"),
        pytest.param({"path": "/a", "read_from": "mirror"}, "'read_from' is for reading from nodes", id="read_from"),
        pytest.param({"path": "/a", "tls_ca": "f"}, "'tls_ca' is for reading from nodes", id="TLS"),
        pytest.param({"path": "/a", "subscribe": ""}, "'subscribe' is missing", id="no queue"),
        pytest.param({"path": "/a", "subscribePattern": "("}, "no regular expression", id="no pattern"),
        pytest.param({"path": "/a", "subscribePattern": ""}, "0 letters", id="an empty pattern"),
        pytest.param({"path": "/a", "subscribePattern": "a" * 1001}, "1001 letters", id="a long pattern"),
    ],
)
def test_a_wrong_option_of_files_or_patterns_is_refused(given: dict[str, str], message: str) -> None:
    """Goal: as with nodes. Each wrong thing by itself."""
    wanted = given if "subscribe" in given or "subscribePattern" in given else {**given, "subscribe": "q"}
    with pytest.raises(BadOption, match=message) as refused:
        parse_options(wanted)
    assert "\n" not in refused.value.message


def test_files_of_tls_become_options_again_and_a_context_when_there_are_any() -> None:
    """Goal: what a landing is given reaches its tasks. Method: there and back; without files there is no context, and
    one that is missing is named."""
    files = Access(ca="/nowhere/ca.pem")
    assert parse_options({**LEAST, **files.options()}).access == files
    assert NO_ACCESS.context() is None
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem: No such file"):
        files.context()
