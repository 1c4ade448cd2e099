"""How nodes find, found, join, leave and rejoin a cluster."""
