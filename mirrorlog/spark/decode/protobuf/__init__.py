"""Values that are Protobuf."""
