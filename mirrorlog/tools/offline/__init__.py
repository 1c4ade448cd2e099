"""Log directories of nodes that are stopped: read, checked, recovered, saved."""
