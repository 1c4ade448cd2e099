"""Values that are JSON."""
