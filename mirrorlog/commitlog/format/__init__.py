"""Batches as bytes: header, body, attributes, compression, envelopes, checksums."""
