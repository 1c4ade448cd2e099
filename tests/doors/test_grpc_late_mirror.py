"""A door passes over no record because the mirror that it reads from began late."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.testing import Cluster
from tests.client.late_mirrors import OLD_QUEUE, OLD_RECORDS, QUEUE, RECORDS, late_begin, late_mirrors
from tests.doors.door import Consuming, Door, channel_to, failure_of, info_of, values_of

LATEST = pb.Until(edge=pb.EDGE_LATEST)
EARLIEST = pb.Start(edge=pb.EDGE_EARLIEST)
ANY_MIRROR = pb.ReadFrom(copy=pb.ReadFrom.COPY_MIRROR)
LATE = pb.ReadFrom(node_id="n2")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """n2 began late, n3 has all."""
    with late_mirrors(3) as started:
        yield started


def numbers(responses: list[pb.ConsumeResponse]) -> list[int]:
    return [int(value) for response in responses for value in values_of(response)]


@pytest.mark.long
def test_a_reader_of_mirrors_sees_every_record_once(cluster: Cluster) -> None:
    """Goal: what one mirror lacks is read from another one. Method: the late mirror is asked first; every start that
    means the begin, through the doors of the late mirror and of the master, and once more without the master."""
    master = cluster.master
    starts = (EARLIEST, pb.Start(queue_offset=0), pb.Start(append_time_us=0), pb.Start(group="never-committed"))
    with (
        Door(cluster.nodes["n2"].client) as late_door,
        Door(master.client) as door,
        channel_to(late_door.address) as late_channel,
        channel_to(door.address) as channel,
    ):
        for each in (channel, late_channel):
            for queue, count in ((QUEUE, RECORDS), (OLD_QUEUE, OLD_RECORDS)):
                for start in starts:
                    with Consuming(each, queue, start=start, until=LATEST, read_from=ANY_MIRROR) as reader:
                        assert reader.opened().next.queue_offset == 0
                        responses = reader.rest()
                    assert numbers(responses) == list(range(count)), start
                    assert {response.node_id for response in responses} == {"n3"}
        master.kill()
        for start in starts:
            with Consuming(late_channel, QUEUE, start=start, until=LATEST, read_from=ANY_MIRROR) as reader:
                assert numbers(reader.rest()) == list(range(RECORDS)), start


def test_a_late_mirror_that_is_insisted_on_is_named_and_nothing_is_passed_over(cluster: Cluster) -> None:
    """Goal: an error that says who lacks what. Method: name the late mirror; let it be the only mirror: then the master
    serves who wants any mirror. `earliest` from a node that was named is what that one has."""
    begin = late_begin(cluster)
    with Door(cluster.nodes["n2"].client) as door, channel_to(door.address) as channel:

        def refusal(start: pb.Start, read_from: pb.ReadFrom) -> tuple[str, dict[str, str]]:
            asked = {"start": start, "read_from": read_from, "until": LATEST, "outage_timeout_ms": 200}
            with Consuming(channel, QUEUE, **asked) as reader:
                error = failure_of(reader.rest)
            assert error.code() is grpc.StatusCode.OUT_OF_RANGE
            return error.details(), dict(info_of(error).metadata)

        with Consuming(channel, QUEUE, start=EARLIEST, until=LATEST, read_from=LATE) as reader:
            assert numbers(reader.rest()) == list(range(begin, RECORDS))
        told, details = refusal(pb.Start(queue_offset=5), LATE)
        assert told == f"queue {QUEUE!r} begins at 0, but its copy on n2 at {begin}; read from another node"
        assert (details["node"], details["begin"], details["next"]) == ("n2", "0", str(RECORDS))
        cluster.nodes["n3"].kill()
        for start in (EARLIEST, pb.Start(queue_offset=0), pb.Start(append_time_us=0)):
            with Consuming(channel, QUEUE, start=start, until=LATEST, read_from=ANY_MIRROR) as reader:
                assert numbers(reader.rest()) == list(range(RECORDS)), start
