"""Options in the Kafka source's words; every wrong one is an error that names it. No JVM."""

from __future__ import annotations

import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.options import EARLIEST, LATEST, SourceOptions, offsets_json, parse_options
from mirrorlog.spark.tls import NO_TLS, TlsFiles

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
        tls=NO_TLS,
    )


def test_all_options_together_and_names_in_any_case() -> None:
    """Goal: a Kafka job's options fit. All of them, spelt as Spark hands them on: in small letters."""
    given = {
        "kafka.bootstrap.servers": "a:1, b:2",
        "subscribe": "q, r",
        "startingoffsets": '{"q": {"0": 5}, "r": {"0": -2}}',
        "ENDINGOFFSETS": '{"q": {"0": 7}, "r": {"0": -1}}',
        "minPartitions": "4",
        "includeheaders": "TRUE",
        "failOnDataLoss": "false",
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
        include_headers=True,
        fail_on_data_loss=False,
        read_from="mirror",
        tls=TlsFiles("ca.pem", "c.pem", "c.key"),
    )


def test_offsets_json_is_what_the_offset_options_take() -> None:
    """Goal: a job can name its range. Write one with a quote in the queue's name and parse it."""
    parsed = parse_options({**LEAST, "subscribe": 'q"', "startingOffsets": offsets_json('q"', 23)})
    assert parsed.starting == {'q"': 23}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"startingOfsets": "earliest"}, "'startingofsets' is not known", id="misspelt"),
        pytest.param({"tls_cert": "c.pem"}, "'tls_cert' and 'tls_key' are needed together", id="half of a pair"),
        pytest.param({"path": "/tmp"}, "'path' is not known", id="load with a path"),
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
    ],
)
def test_a_wrong_option_is_refused_by_its_name(given: dict[str, str], message: str) -> None:
    """Goal: nothing is guessed or ignored. Each wrong thing by itself."""
    with pytest.raises(BadOption, match=message) as refused:
        parse_options({**LEAST, **given})
    assert "\n" not in refused.value.message


def test_files_of_tls_become_options_again_and_a_context_when_there_are_any() -> None:
    """Goal: what a landing is given reaches its tasks. Method: there and back; without files there is no context, and
    one that is missing is named."""
    files = TlsFiles(ca="/nowhere/ca.pem")
    assert parse_options({**LEAST, **files.options()}).tls == files
    assert NO_TLS.context() is None
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem: No such file"):
        files.context()
