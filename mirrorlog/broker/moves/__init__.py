"""Queues that move between logs, and what is asked about where they are."""
