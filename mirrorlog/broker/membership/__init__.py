"""The node's part in its cluster: how it gets in, what it knows of it, and how it leaves."""
