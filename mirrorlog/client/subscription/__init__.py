"""Records that are pushed or leased, until they are settled."""
