"""Disk, memory and descriptors of the node: measured, and what follows at their limits."""
