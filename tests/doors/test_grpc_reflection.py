"""A door describes itself: a client without the .proto files finds its services, methods and messages."""

from __future__ import annotations

from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from mirrorlog.pb.v1 import admin_pb2, consumer_pb2, producer_pb2
from tests.doors.door import Door, channel_to, health
from tests.process.clusters import fast_cluster

OWN = {"mirrorlog.v1.Admin", "mirrorlog.v1.Producer", "mirrorlog.v1.Consumer"}
COMMON = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_every_service_is_listed_described_and_healthy() -> None:
    """Goal: tools such as grpcurl work. Method: list, then find each method, into a pool of the test's own."""
    with fast_cluster(1) as one, Door(one.master.client) as door, channel_to(door.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == OWN | COMMON
        pool = DescriptorPool(database)
        for module in (admin_pb2, consumer_pb2, producer_pb2):
            for name, service in module.DESCRIPTOR.services_by_name.items():
                found = pool.FindServiceByName(f"mirrorlog.v1.{name}")
                assert [method.name for method in found.methods] == [method.name for method in service.methods]
                assert health(channel, service.full_name) == "SERVING"
