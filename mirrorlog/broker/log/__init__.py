"""One log on one node: its replica, publishes, fetches, and what is done in the background."""
