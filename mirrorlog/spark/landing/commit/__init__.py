"""A Delta table's log: read, and added to by one compare-and-set."""
