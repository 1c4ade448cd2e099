"""Control messages: msgpack maps, one tagged struct each. Unknown fields are ignored, so that fields can be added.

They travel where a frame's cost does not matter; batches never do. msgspec checks types while it decodes, so a
message that arrives is a message that fits. Rejected: protobuf here (eight times slower to encode; the gRPC door
has its own), pickle (never).
"""
