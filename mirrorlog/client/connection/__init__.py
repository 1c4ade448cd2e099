"""Connections to the nodes of a cluster, what each node says, and who masters what."""
