"""Opening a log after any end, and what is kept of what has to go."""
