"""Whose turn it is on a node's loop, who has a place at its ports, and how much of either a user may have."""
