"""What a log may let go, and what keeps it."""
