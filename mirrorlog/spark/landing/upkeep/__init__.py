"""Compaction, checkpoints and VACUUM of landed tables, when it is time."""
