"""The append-only log of one node: format, segments, append, flush, recovery, truncation, index."""
