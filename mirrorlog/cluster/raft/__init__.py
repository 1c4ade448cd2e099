"""Raft for the cluster's metadata: a pure core, and the log on disk that it needs."""
