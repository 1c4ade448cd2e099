"""The gRPC door of a node, started and watched."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlog.broker.door_process import DoorProcess


class GrpcDoorProcess(DoorProcess):
    """The way in for other languages, of one node."""

    def __init__(
        self, *, node: str, bind: str, debug: bool = False, flags: Sequence[str] = (), token: str = ""
    ) -> None:
        module = "mirrorlog.doors.grpc_door"
        super().__init__("grpc", module=module, node=node, bind=bind, debug=debug, flags=flags, token=token)
