"""The node process: composition root, native door, maintenance."""
