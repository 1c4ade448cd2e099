"""Which records leave a queue as dead letters, where to, and as what."""
