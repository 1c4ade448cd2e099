"""The logs of a node: opened and closed, as master or mirror of each, and what the node tells of them."""
