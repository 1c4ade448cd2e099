"""What all control messages are: msgpack maps, one tagged struct each, in which unknown fields are ignored.

They travel where a frame's cost does not matter; batches never do. Rejected: protobuf here (eight times slower to
encode; the gRPC door has its own), pickle (never).
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True, repr_omit_defaults=True):
    """Base of all control messages."""
