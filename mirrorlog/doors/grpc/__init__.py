"""The gRPC services of a node."""
